"""Numbers and times as people read them. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def count(number: int, one: str, many: str = "") -> str:
    """ "1 group", "2 groups"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(names: Sequence[object], at_most: int = 8) -> str:
    """ "1, 2 and 3"; of many the first ones and how many more there are."""
    words = [str(name) for name in names[:at_most]]
    if len(names) > at_most:
        return f"{', '.join(words)} and {len(names) - at_most} more"
    return words[0] if len(words) == 1 else " and ".join([", ".join(words[:-1]), words[-1]]) if words else "none"


def duration(seconds: float) -> str:
    if seconds < 1:
        return "under 1 s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def size(number: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:,.0f} {unit}"
        number /= 1024
    return f"{number:,.1f} GiB"


def short(number: float) -> str:
    """A number for the edge of a chart: 950, 6.1k, 2.3M."""
    for bound, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= bound:
            scaled = number / (1e3 if unit == "k" else bound)
            return f"{scaled:.1f}{unit}"
    return f"{number:,.0f}" if abs(number) >= 100 or number == int(number) else f"{number:.3g}"


def clock(at: float, utc_offset_s: float) -> str:
    """Time of the day, "14:03:59"."""
    second = int(at + utc_offset_s) % 86_400
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
