"""The Criteo reader: values, order, bad lines, gzip, streaming, the split."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from ecstore.errors import InputError
from ecstore.trainer import data
from ecstore.trainer.data import (
    MISSING,
    ArrayDataset,
    BadLines,
    Batch,
    CriteoFile,
    DataError,
    category_keys,
    concatenate,
    held_out,
    load_criteo,
    log_transform,
    read_blocks,
    rebatch,
)

LINE = "\t".join(["1", *["3"] * 13, *["0000002a"] * 26])


def write(path: Path, lines: list[str], end: str = "\n") -> Path:
    path.write_bytes("".join(line + end for line in lines).encode("latin-1"))
    return path


def naive(lines: list[str]) -> Batch:
    """A reader field by field, in plain Python."""
    labels, dense, keys = [], [], []
    for line in lines:
        fields = line.split("\t")
        labels.append(float(fields[0]))
        row = []
        for text in fields[1:14]:
            value = int(text) if text else 0
            row.append(np.sign(value) * np.log1p(abs(value)) / 4)
        dense.append(row)
        keys.append(
            [(i << 32) + int(text, 16) if text else (1 << 40) + (i << 32) for i, text in enumerate(fields[14:])]
        )
    return Batch(np.array(labels, np.float32), np.array(dense, np.float32), np.array(keys, np.uint64))


def same(left: Batch, right: Batch) -> bool:
    return (
        np.array_equal(left.labels, right.labels)
        and np.array_equal(left.dense, right.dense)
        and np.array_equal(left.keys, right.keys)
    )


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_value_and_its_place(tmp_path: Path, good_lines: list[str], end: str) -> None:
    dataset = load_criteo(write(tmp_path / "log.tsv", good_lines, end))
    assert same(dataset.samples, naive(good_lines))
    assert dataset.bad_lines == BadLines()
    assert dataset.samples.labels.dtype == np.float32
    assert dataset.samples.dense.dtype == np.float32
    assert dataset.samples.keys.dtype == np.uint64


def test_gzip_is_told_by_content(tmp_path: Path, good_lines: list[str]) -> None:
    zipped = tmp_path / "no_gz_in_the_name"
    zipped.write_bytes(gzip.compress("\n".join(good_lines).encode()))  # the last line has no end
    plain = write(tmp_path / "plain.gz", good_lines)
    assert same(load_criteo(zipped).samples, load_criteo(plain).samples)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("", "1 fields instead of 40"),
        ("1\t2", "2 fields instead of 40"),
        (LINE + "\t", "41 fields instead of 40"),
        (LINE.replace("1\t", "2\t", 1), "label '2' is neither 0 nor 1"),
        (LINE.replace("1\t", "\t", 1), "label '' is neither 0 nor 1"),
        (LINE.replace("\t3", "\t3.5", 1), "integer 1 '3.5' is not a whole number"),
        (LINE.replace("\t3", "\t-", 1), "integer 1 '-' is not"),
        (LINE.replace("\t3", "\t1_0", 1), "integer 1 '1_0' is not"),
        (LINE.replace("\t3", "\t 3", 1), "integer 1 ' 3' is not"),
        (LINE.replace("\t3", "\t\xb2", 1), "integer 1 '²' is not"),
        (LINE.replace("\t3", "\t" + "9" * 19, 1), "integer 1 '9999999999999999999' is not"),
        (LINE[:-1] + "g", "category 26 '0000002g' is not a hexadecimal number"),
        (LINE.replace("0000002a", "0x2a", 1), "category 1 '0x2a' is not"),
        (LINE.replace("0000002a", "10000002a", 1), "category 1 '10000002a' is not"),
        (LINE.replace("0000002a", "2a 2a", 1), "category 1 '2a 2a' is not"),
        ("x" * 10_000, "longer than 4096 bytes"),
    ],
)
def test_bad_line_is_skipped_counted_and_named(tmp_path: Path, bad: str, reason: str) -> None:
    path = write(tmp_path / "log.tsv", [LINE, LINE, bad, LINE])
    dataset = load_criteo(path)
    assert same(dataset.samples, naive([LINE] * 3))
    assert dataset.bad_lines.count == 1
    assert dataset.bad_lines.first[0].number == 3
    assert reason in dataset.bad_lines.first[0].reason
    streamed = CriteoFile(path)
    assert streamed.bad_lines == dataset.bad_lines
    for read in (lambda: load_criteo(path, strict=True), lambda: CriteoFile(path, strict=True)):
        with pytest.raises(DataError, match=r"log\.tsv:3: ") as caught:
            read()
        assert isinstance(caught.value, InputError)
        assert reason in str(caught.value)
        assert caught.value.details == {"file": str(path), "line": 3}


def test_only_the_first_bad_lines_are_kept(tmp_path: Path) -> None:
    dataset = load_criteo(write(tmp_path / "log.tsv", [LINE, *["x"] * 50]))
    assert dataset.bad_lines.count == 50
    assert [line.number for line in dataset.bad_lines.first] == list(range(2, 2 + data.BAD_LINES_KEPT))


def test_unreadable_files_are_typed_errors(tmp_path: Path, good_lines: list[str]) -> None:
    whole = gzip.compress("\n".join(good_lines).encode())
    cut = tmp_path / "cut.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    damaged = tmp_path / "damaged.gz"
    damaged.write_bytes(whole[:500] + b"\xff" * 64 + whole[564:])
    empty = tmp_path / "empty.tsv"
    empty.write_bytes(b"")
    no_sample = write(tmp_path / "other.csv", ["a,b,c"])
    for path in (tmp_path / "absent.tsv", tmp_path, cut, damaged, empty, no_sample):
        for read in (load_criteo, CriteoFile):
            with pytest.raises(DataError, match=path.name):
                read(path)


def test_the_last_seventh_is_held_out_in_order(tmp_path: Path, good_lines: list[str]) -> None:
    dataset = load_criteo(write(tmp_path / "log.tsv", good_lines))
    assert (dataset.train_samples, dataset.test_samples) == (1800, 300)
    assert same(concatenate(list(dataset.train_batches(128))), naive(good_lines[:1800]))
    assert same(concatenate(list(dataset.test_batches(128))), naive(good_lines[1800:]))
    assert [held_out(n) for n in (0, 6, 7, 10_000)] == [0, 0, 1, 1428]


@pytest.mark.parametrize("batch_size", [1, 100, 1024, 1500, 5000])
def test_streaming_gives_the_batches_of_loading(tmp_path: Path, good_lines: list[str], batch_size: int) -> None:
    path = write(tmp_path / "log.tsv", [*good_lines[:5], "bad", *good_lines[5:]])
    loaded, streamed = load_criteo(path), CriteoFile(path)
    assert (streamed.train_samples, streamed.test_samples) == (loaded.train_samples, loaded.test_samples)
    for left, right in (
        (loaded.train_batches(batch_size), streamed.train_batches(batch_size)),
        (loaded.test_batches(batch_size), streamed.test_batches(batch_size)),
    ):
        pairs = list(zip(left, right, strict=True))
        assert all(same(one, other) for one, other in pairs)
        assert all(len(one) == batch_size for one, _ in pairs[:-1])


def test_rebatch_keeps_every_sample_in_order(good_lines: list[str], tmp_path: Path) -> None:
    blocks = list(read_blocks(write(tmp_path / "log.tsv", good_lines), BadLines()))
    assert [len(block) for block in blocks] == [1024, 1024, 52]
    for size in (1, 7, 1024, 3000):
        batches = list(rebatch(iter(blocks), size))
        assert all(len(batch) == size for batch in batches[:-1])
        assert 1 <= len(batches[-1]) <= size
        assert same(concatenate(batches), naive(good_lines))
    assert list(rebatch(iter([]), 8)) == []


def test_log_transform_is_odd_monotone_and_finite() -> None:
    values = np.array([-(10**18) + 1, -2, -1, 0, 1, 2, 10**18 - 1], np.int64)
    out = log_transform(values)
    assert np.all(np.diff(out) > 0)
    assert np.array_equal(out, -out[::-1])
    assert out[4] == np.float32(np.log(2.0) / 4)
    assert log_transform(np.array([MISSING]))[0] == 0.0


def test_category_keys_never_collide() -> None:
    corners = np.array([0, 1, 2**31, 2**32 - 1], np.uint32)
    values = np.repeat(corners[:, None], 26, axis=1)
    present = category_keys(values, np.zeros(values.shape, np.bool_))
    absent = category_keys(values, np.ones(values.shape, np.bool_))
    assert len(np.unique(present)) == 4 * 26
    assert len(np.unique(absent)) == 26
    assert not np.isin(absent, present).any()


def test_no_samples_is_an_error() -> None:
    none = Batch(np.empty(0, np.float32), np.empty((0, 13), np.float32), np.empty((0, 26), np.uint64))
    with pytest.raises(DataError, match="no samples"):
        ArrayDataset("nothing", none)


def test_real_sample(criteo_sample: Path) -> None:
    dataset = load_criteo(criteo_sample, strict=True)
    assert dataset.bad_lines.count == 0
    head = next(CriteoFile(criteo_sample).train_batches(100))
    assert same(head, dataset.samples.slice(0, 100))
