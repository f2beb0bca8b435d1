"""Click logs: batches of samples, the Criteo TSV reader, and the split into a training and a held-out part.

One sample is a label (1 = click), 13 integers and 26 categories. A category becomes a key of the one
embedding table; an integer becomes a float by `log_transform`. Samples keep the order of the file: a click
log is ordered in time, so the last seventh is held out, never a random part.

Criteo TSV, one sample a line: label TAB 13 integers TAB 26 categories of up to 8 hexadecimal digits; an empty
field is a missing value; plain or gzip (told by content, not by name).
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, ClassVar, Protocol, cast

import numpy as np
import numpy.typing as npt

from ecstore.errors import InputError

FloatArray = npt.NDArray[np.float32]
KeyArray = npt.NDArray[np.uint64]
IntArray = npt.NDArray[np.int64]

DENSE_FEATURES = 13  #: integers of a sample
CATEGORICAL_FEATURES = 26  #: categories of a sample
FIELDS = 1 + DENSE_FEATURES + CATEGORICAL_FEATURES
HELD_OUT = 7  #: the last 1/HELD_OUT of the samples is the test part

BLOCK_SAMPLES = 1024  #: samples that are parsed, or generated, at a time
MAX_LINE_BYTES = 4096  #: longest line read; a whole Criteo line has at most some 500 bytes
BAD_LINES_KEPT = 20  #: bad lines remembered with number and reason; the others are only counted

#: A missing integer in an int64 array. No field can hold it: at most 18 digits are accepted.
MISSING = np.iinfo(np.int64).min
_MISSING_BIT = 1 << 40

_LINE = re.compile(
    r"(?P<label>[01])"
    rf"(?P<integers>(?:\t(?:-?[0-9]{{1,18}})?){{{DENSE_FEATURES}}})"
    rf"(?P<categories>(?:\t[0-9a-fA-F]{{0,8}}){{{CATEGORICAL_FEATURES}}})"
)
_INTEGER = re.compile(r"(?:-?[0-9]{1,18})?")
_CATEGORY = re.compile(r"[0-9a-fA-F]{0,8}")


class DataError(InputError):
    """A data file cannot be read, or (strict reading) has a bad line. The message names file and line."""

    code: ClassVar[str] = "data"


@dataclass(frozen=True, slots=True)
class Batch:
    """Some samples, in order."""

    labels: FloatArray  #: f32[B], 0 or 1
    dense: FloatArray  #: f32[B, 13], transformed integers
    keys: KeyArray  #: u64[B, 26], keys of the embedding table

    def __len__(self) -> int:
        return len(self.labels)

    def slice(self, start: int, stop: int) -> Batch:
        """Samples start..stop-1, as views."""
        return Batch(self.labels[start:stop], self.dense[start:stop], self.keys[start:stop])


@dataclass(frozen=True, slots=True)
class BadLine:
    number: int  #: line number in the file, from 1
    reason: str


@dataclass(slots=True)
class BadLines:
    """Count of the lines that were skipped, and the first `BAD_LINES_KEPT` of them."""

    count: int = 0
    first: list[BadLine] = field(default_factory=list)

    def add(self, number: int, reason: str) -> None:
        self.count += 1
        if len(self.first) < BAD_LINES_KEPT:
            self.first.append(BadLine(number, reason))


class Dataset(Protocol):
    """What the training loop reads. Both parts can be read many times, each time the same samples."""

    @property
    def name(self) -> str: ...
    @property
    def train_samples(self) -> int: ...
    @property
    def test_samples(self) -> int: ...
    @property
    def bad_lines(self) -> BadLines: ...

    def train_batches(self, batch_size: int) -> Iterator[Batch]:
        """The first part, in order; the last batch may be smaller."""
        ...

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        """The held-out part, in order."""
        ...


def held_out(samples: int) -> int:
    """How many of `samples` are held out: the last seventh, rounded down."""
    return samples // HELD_OUT


def log_transform(integers: IntArray) -> FloatArray:
    """sign(x) * log(1 + |x|) / 4 of int64[...], as float32[...]; a missing value (`MISSING`) becomes 0.

    Negative counts exist in real logs (-1, -2: "unknown" in some columns). They are kept apart from 0 by
    their sign instead of being clipped; the transform is odd and monotone, so nothing is undefined for any
    integer. The quarter brings counts up to some thousands near [0, 2], the range that the bottom MLP's
    initial weights are made for.
    """
    present = np.where(integers == MISSING, 0, integers).astype(np.float64)
    return cast("FloatArray", (0.25 * np.sign(present) * np.log1p(np.abs(present))).astype(np.float32))


def category_keys(values: npt.NDArray[np.uint32], missing: npt.NDArray[np.bool_]) -> KeyArray:
    """Keys u64[B, 26] of category values u32[B, 26]: feature << 32 | value; no two categories collide.

    A missing category (mask bool[B, 26]) is a category of its own in each feature: 1 << 40 | feature << 32.
    """
    feature = np.arange(values.shape[1], dtype=np.uint64) << np.uint64(32)
    present = feature | values.astype(np.uint64)
    return cast("KeyArray", np.where(missing, feature | np.uint64(_MISSING_BIT), present))


class ArrayDataset:
    """All samples in memory: some 270 bytes each."""

    def __init__(self, name: str, samples: Batch, bad_lines: BadLines | None = None) -> None:
        if len(samples) == 0:
            raise DataError(f"{name}: no samples; check that it is the file you meant", name=name)
        self.name = name
        self.samples = samples
        self.test_samples = held_out(len(samples))
        self.train_samples = len(samples) - self.test_samples
        self.bad_lines = bad_lines if bad_lines is not None else BadLines()

    def train_batches(self, batch_size: int) -> Iterator[Batch]:
        return self._batches(0, self.train_samples, batch_size)

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        return self._batches(self.train_samples, len(self.samples), batch_size)

    def _batches(self, start: int, stop: int, batch_size: int) -> Iterator[Batch]:
        for first in range(start, stop, batch_size):
            yield self.samples.slice(first, min(first + batch_size, stop))


class CriteoFile:
    """A Criteo file of any size, streamed: read once to count and check its lines, and once for every pass.

    strict: the first bad line raises `DataError`; otherwise bad lines are skipped and counted in `bad_lines`.
    """

    def __init__(self, path: str | Path, *, strict: bool = False) -> None:
        self.path = Path(path)
        self.name = self.path.name
        self.bad_lines = BadLines()
        samples = sum(1 for _ in _good_lines(self.path, self.bad_lines, strict=strict))
        if samples == 0:
            raise DataError(_no_samples(self.path, self.bad_lines), file=str(self.path))
        self.test_samples = held_out(samples)
        self.train_samples = samples - self.test_samples

    def train_batches(self, batch_size: int) -> Iterator[Batch]:
        return rebatch(self._blocks(0, self.train_samples), batch_size)

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        return rebatch(self._blocks(self.train_samples, self.train_samples + self.test_samples), batch_size)

    def _blocks(self, start: int, stop: int) -> Iterator[Batch]:
        matches = _good_lines(self.path, BadLines(), strict=False)
        block: list[re.Match[str]] = []
        for number, match in enumerate(matches):
            if number >= stop:
                break
            if number >= start:
                block.append(match)
            if len(block) == BLOCK_SAMPLES:
                yield _parse(block)
                block = []
        if block:
            yield _parse(block)


def load_criteo(path: str | Path, *, strict: bool = False) -> ArrayDataset:
    """Read a whole Criteo file into memory.

    strict: the first bad line raises `DataError`; otherwise bad lines are skipped and counted.
    Raises `DataError` when the file cannot be read or holds no good line.
    """
    path = Path(path)
    bad_lines = BadLines()
    blocks = list(read_blocks(path, bad_lines, strict=strict))
    if not blocks:
        raise DataError(_no_samples(path, bad_lines), file=str(path))
    return ArrayDataset(path.name, concatenate(blocks), bad_lines)


def read_blocks(path: Path, bad_lines: BadLines, *, strict: bool = False) -> Iterator[Batch]:
    """The good lines of a Criteo file in blocks of `BLOCK_SAMPLES`; bad ones go to `bad_lines`."""
    block: list[re.Match[str]] = []
    for match in _good_lines(path, bad_lines, strict=strict):
        block.append(match)
        if len(block) == BLOCK_SAMPLES:
            yield _parse(block)
            block = []
    if block:
        yield _parse(block)


def concatenate(batches: list[Batch]) -> Batch:
    """One batch of all samples of `batches`, in order."""
    return Batch(
        np.concatenate([batch.labels for batch in batches]),
        np.concatenate([batch.dense for batch in batches]),
        np.concatenate([batch.keys for batch in batches]),
    )


def rebatch(blocks: Iterator[Batch], batch_size: int) -> Iterator[Batch]:
    """The same samples in batches of `batch_size`; only the last one may be smaller."""
    held: list[Batch] = []
    samples = 0
    for block in blocks:
        held.append(block)
        samples += len(block)
        if samples < batch_size:
            continue
        joined = concatenate(held)
        whole = samples - samples % batch_size
        for start in range(0, whole, batch_size):
            yield joined.slice(start, start + batch_size)
        held, samples = [joined.slice(whole, samples)], samples - whole
    if samples:
        yield concatenate(held)


def _good_lines(path: Path, bad_lines: BadLines, *, strict: bool) -> Iterator[re.Match[str]]:
    """Matches of the good lines of a file, whose fields then need no further check."""
    for number, line in enumerate(_lines(path), start=1):
        match = _LINE.fullmatch(line)
        if match is not None:
            yield match
            continue
        reason = _reason(line)
        if strict:
            raise DataError(
                f"{path}:{number}: {reason}; mend the line, or read without strict to skip bad lines",
                file=str(path),
                line=number,
            )
        bad_lines.add(number, reason)


def _lines(path: Path) -> Iterator[str]:
    """Lines without their end. Bytes stand for themselves (Latin-1): what is not ASCII fails the check."""
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            file = cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if zipped else raw
            while line := file.readline(MAX_LINE_BYTES):
                rest = line
                while not rest.endswith(b"\n") and (rest := file.readline(MAX_LINE_BYTES)):
                    pass  # over-long line: its rest is skipped, its head fails the check
                yield line.decode("latin-1").rstrip("\r\n")
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"cannot read {path}: {reason}; check the path and the file", file=str(path)) from error


def _reason(line: str) -> str:
    """What is wrong with a line that does not match, in a few words; it looks at fields in order."""
    fields = line.split("\t")
    if len(line) >= MAX_LINE_BYTES - 1:
        return f"the line is longer than {MAX_LINE_BYTES} bytes"
    if len(fields) != FIELDS:
        return f"{len(fields)} fields instead of {FIELDS} separated by TAB"
    if fields[0] not in ("0", "1"):
        return f"label {_shown(fields[0])} is neither 0 nor 1"
    for index, text in enumerate(fields[1 : 1 + DENSE_FEATURES], start=1):
        if not _INTEGER.fullmatch(text):
            return f"integer {index} {_shown(text)} is not a whole number of at most 18 digits"
    for index, text in enumerate(fields[1 + DENSE_FEATURES :], start=1):
        if not _CATEGORY.fullmatch(text):
            return f"category {index} {_shown(text)} is not a hexadecimal number of at most 8 digits"
    raise AssertionError(f"every field of this line is good, but not the line: {line!r}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 24 else text[:24] + "...")


def _no_samples(path: Path, bad_lines: BadLines) -> str:
    if not bad_lines.count:
        return f"{path}: the file is empty; check that it is the file you meant"
    first = bad_lines.first[0]
    return (
        f"{path}: not one of {bad_lines.count} lines is a Criteo sample "
        f"(line {first.number}: {first.reason}); check that it is the file you meant"
    )


def _parse(matches: list[re.Match[str]]) -> Batch:
    """Checked lines -> arrays."""
    labels = np.array([match["label"] == "1" for match in matches], dtype=np.float32)
    integers = np.array(
        [int(text) if text else MISSING for match in matches for text in match["integers"].split("\t")[1:]],
        dtype=np.int64,
    ).reshape(-1, DENSE_FEATURES)
    texts = [text for match in matches for text in match["categories"].split("\t")[1:]]
    digits = bytes.fromhex("".join([text.rjust(8, "0") for text in texts]))
    values = np.frombuffer(digits, dtype=">u4").astype(np.uint32).reshape(-1, CATEGORICAL_FEATURES)
    missing = np.array([not text for text in texts], dtype=np.bool_).reshape(-1, CATEGORICAL_FEATURES)
    return Batch(labels, log_transform(integers), category_keys(values, missing))
