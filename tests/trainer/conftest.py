"""Small Criteo-shaped files with made-up values."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest


def made_up_line(source: random.Random) -> str:
    """One line: label, 13 integers (some missing, some negative), 26 categories (some missing)."""
    integers = ["" if source.random() < 0.2 else str(source.choice([-1, 0, 1, 7, 250, 12_345_678])) for _ in range(13)]
    categories = ["" if source.random() < 0.1 else f"{source.randrange(2**32):08x}" for _ in range(26)]
    return "\t".join([str(source.randrange(2)), *integers, *categories])


@pytest.fixture
def good_lines() -> list[str]:
    source = random.Random(20)
    return [made_up_line(source) for _ in range(2100)]  # three blocks of the reader, the last one short


@pytest.fixture
def criteo_sample() -> Path:
    """The real sample, named by ECSTORE_CRITEO; its licence keeps it out of the repository."""
    path = os.environ.get("ECSTORE_CRITEO")
    if not path:
        pytest.skip("ECSTORE_CRITEO does not name a Criteo TSV file; the data is not part of the project")
    if not Path(path).is_file():
        pytest.skip(f"ECSTORE_CRITEO={path} is no file")
    return Path(path)
