"""How much of a cluster recoveries may take: three profiles, switchable while a recovery runs. Pure.

Every node keeps the setting in force and its revision. A newer one replaces it wherever it is told, an older one
changes nothing: whoever knows several nodes can bring all of them to the newest, in any order, as often as it likes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from ecstore.errors import InputError

Profile = Literal["training_first", "balanced", "recovery_first"]
PROFILES: Final[tuple[Profile, ...]] = get_args(Profile)

#: Of the rate that a node was started with (`--decode-rate`).
RATE_FACTORS: Final[Mapping[Profile, float]] = {"training_first": 1.0, "balanced": 4.0, "recovery_first": 16.0}

#: Rates that are taken, bytes a second: below, one block would take hours; above, it is none.
MIN_RATE: Final = 1024.0
MAX_RATE: Final = 1e12

MAX_REVISION: Final = 1 << 53


@dataclass(frozen=True, slots=True)
class Throttle:
    """`rate_bytes_per_s` None: that of the profile."""

    profile: Profile = "training_first"
    rate_bytes_per_s: float | None = None
    revision: int = 0  #: 0: as the node was started

    @property
    def lets_requests_go_first(self) -> bool:
        return self.profile != "recovery_first"

    def rate(self, own: float) -> float:
        """Bytes a second of a node that was started with the rate `own`."""
        return own * RATE_FACTORS[self.profile] if self.rate_bytes_per_s is None else self.rate_bytes_per_s

    def replaces(self, other: Throttle) -> bool:
        """Of two settings with one revision, made at once in two places, one wins everywhere."""
        return self._order() > other._order()

    def _order(self) -> tuple[int, int, float]:
        return self.revision, PROFILES.index(self.profile), self.rate_bytes_per_s or 0.0

    def to_wire(self) -> dict[str, Any]:
        return {"profile": self.profile, "rate_bytes_per_s": self.rate_bytes_per_s, "revision": self.revision}

    @classmethod
    def from_wire(cls, told: Mapping[str, Any]) -> Throttle:
        """Raises InputError for what is none."""
        profile, rate, revision = told.get("profile"), told.get("rate_bytes_per_s"), told.get("revision")
        if profile not in PROFILES:
            raise InputError(f"the profile of a throttle is one of {', '.join(PROFILES)}, not {profile!r}")
        if rate is not None and (
            isinstance(rate, bool) or not isinstance(rate, int | float) or not MIN_RATE <= rate <= MAX_RATE
        ):
            raise InputError(f"rate_bytes_per_s is {MIN_RATE:g} to {MAX_RATE:g} bytes a second, or none: {rate!r}")
        if type(revision) is not int or not 0 <= revision <= MAX_REVISION:
            raise InputError(f"the revision of a throttle is an integer from 0 to 2^53, not {revision!r}")
        return cls(profile, None if rate is None else float(rate), revision)


assert all(math.isfinite(factor) and factor >= 1.0 for factor in RATE_FACTORS.values())
