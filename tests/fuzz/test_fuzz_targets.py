"""The fuzz targets over some thousand mutants of real frames; `make fuzz` runs them for longer, guided where it can."""

from __future__ import annotations

import pytest

from tests.fuzz import fuzz_node_messages, fuzz_wire
from tests.fuzz.targets import Target, bounded, corpus, mutants
from tests.hostile.profiles import FUZZ

RUNS = 3000 * max(1, FUZZ)


@pytest.mark.parametrize("target", [fuzz_wire.target, fuzz_node_messages.target])
def test_mutants_of_real_frames(target: Target) -> None:
    for data in corpus():
        target(data)
    for _, data in zip(range(RUNS), mutants(RUNS), strict=False):
        target(data)


def test_a_target_sees_what_is_wrong() -> None:
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: [][1 // 0], 1000)
    with pytest.raises(AssertionError, match="were taken"):
        bounded(lambda: bytes(100_000) and None, 50_000)
