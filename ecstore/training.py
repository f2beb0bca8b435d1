"""What a trainer may say about itself: the fields of a report, and their bounds. Pure.

Used on both sides: a client learns what is wrong before anything is sent, a node believes nobody.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from ecstore.errors import InputError

#: Characters of a trainer's name.
MAX_NAME: Final = 64

_MAX_COUNT: Final = 1 << 53
_COUNTS: Final = ("batch", "batches_total", "samples")
_MEASURES: Final = ("samples_per_s", "loss", "auc")
_OPTIONAL: Final = ("batches_total", "loss", "auc")

#: Every field, as it is when a report does not give it.
FIELDS: Final[Mapping[str, Any]] = {
    "state": "running", "batch": 0, "batches_total": None, "samples": 0, "samples_per_s": 0.0, "loss": None,
    "auc": None,
}  # fmt: skip


def checked_name(name: object) -> str:
    """The name of a trainer; InputError for what is none."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise InputError(f"a trainer's name is 1 to {MAX_NAME} printable characters, not {str(name)[:MAX_NAME]!r}")
    return name


def checked_figures(figures: Mapping[str, Any]) -> dict[str, Any]:
    """All fields of a report; InputError for what is unknown or out of range."""
    unknown = [str(field)[:MAX_NAME] for field in figures if field not in FIELDS]
    if unknown:
        raise InputError(f"a report has no field {unknown[0]!r}; there are {', '.join(FIELDS)}")
    given = dict(FIELDS) | dict(figures)
    if given["state"] not in ("running", "finished"):
        raise InputError("the state of a trainer is running or finished")
    for field in _COUNTS:
        value = given[field]
        if value is None and field in _OPTIONAL:
            continue
        if type(value) is not int or not 0 <= value <= _MAX_COUNT:
            raise InputError(f"{field} of a report is an integer from 0 to 2^53")
    for field in _MEASURES:
        value = given[field]
        if value is None and field in _OPTIONAL:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InputError(f"{field} of a report is a finite number; leave it out when there is none")
        if (field == "samples_per_s" and value < 0) or (field == "auc" and not 0 <= value <= 1):
            raise InputError(f"{field} of a report is out of range")
        given[field] = float(value)
    return given
