"""How much the hostile tests try: a fixed, short run by default, a long random one with ECSTORE_FUZZ=TIMES."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

#: 0: the short run. Else about how many times as much.
FUZZ = int(os.environ.get("ECSTORE_FUZZ", "0"))


def profile(examples: int) -> settings:
    """Settings of one property. The short run is the same every time; the long one differs, and remembers failures."""
    return settings(
        max_examples=examples * max(1, FUZZ),
        derandomize=not FUZZ,
        deadline=None,
        # Shrinking needs the same answer to the same bytes; a cluster that has been shaken gives others.
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        **({} if FUZZ else {"database": None}),
    )
