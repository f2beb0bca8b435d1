"""The frame format: round trips, readability by any msgpack library, alignment, hostile bytes."""

from __future__ import annotations

import contextlib
import struct
import zlib

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecstore import wire
from ecstore.errors import FrameDamagedError, FrameError, FrameTooLargeError

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.binary(max_size=20)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=5), inner, max_size=4),
    max_leaves=10,
)
metas = st.dictionaries(st.text("abcdef", max_size=6), values, max_size=5)
kinds = st.text("abcdefghijklmnopqrstuvwxyz._", min_size=1, max_size=wire.MAX_KIND_LENGTH)
bin_sizes = st.lists(st.integers(0, 600) | st.sampled_from([16383, 16384, 16385, 65535, 65536]), max_size=9)


def join(chunks: list[wire.Chunk]) -> tuple[np.ndarray, int, int]:
    """(body in an array of its own, head length, checksum) of encoded chunks, with the prefix checked."""
    raw = b"".join(chunks)
    length, head_length, body_checksum, _own = struct.unpack_from("<IIII", raw)
    assert length == len(raw) - wire.PREFIX_BYTES
    assert wire.decode_prefix(raw) == (length, head_length, body_checksum)
    body = np.empty(length, np.uint8)
    body[:] = np.frombuffer(raw, np.uint8, offset=wire.PREFIX_BYTES)
    return body, head_length, body_checksum


def payloads(sizes: list[int]) -> list[bytes]:
    return [bytes((7 * i + j) % 256 for j in range(size)) for i, size in enumerate(sizes)]


@given(kinds, st.integers(0, wire.MAX_RID), metas, bin_sizes)
@settings(max_examples=80, deadline=None)
def test_round_trip_is_aligned_and_plain_msgpack(kind, rid, meta, sizes):
    bins = payloads(sizes)
    body, head_length, body_checksum = join(wire.encode(kind, rid, meta, bins))
    frame = wire.decode(body, head_length, body_checksum)
    assert (frame.kind, frame.rid, frame.meta) == (kind, rid, meta)
    assert [item.tobytes() for item in frame.bins] == bins
    for item in frame.bins:
        assert item.base is body or item.base is body.base or item.size == 0  # a view, not a copy
        if item.size:
            assert item.ctypes.data % wire.ALIGNMENT == 0
            assert np.shares_memory(item, body)
    plain = msgpack.unpackb(body.tobytes(), raw=False)  # any library reads it: no options, no knowledge
    assert plain[:3] == [kind, rid, meta]
    assert plain[4::2] == bins
    assert all(len(pad) < 8 and not any(pad) for pad in plain[3::2])


def test_large_bins_go_out_as_views_and_small_ones_are_joined():
    large = np.arange(100_000, dtype=np.float32)
    chunks = wire.encode("x", 1, {}, [b"small", large, b"tail", large[:10]])
    assert len(chunks) == 3
    assert np.shares_memory(np.frombuffer(chunks[1], np.uint8), large)


@pytest.mark.parametrize("count", [0, 1, 6, 7, wire.MAX_BINS])
def test_bin_counts_around_the_short_array_header(count):
    frame = wire.decode(*join(wire.encode("x", 1, {}, [b"ab"] * count)))
    assert len(frame.bins) == count


def test_array_kinds_of_bins():
    grid = np.arange(12, dtype=np.float64).reshape(3, 4)
    bins = [
        grid,
        grid.T,
        grid[:, ::2],
        np.zeros((0, 5), np.int32),
        np.float32(2.5).reshape(()),
        memoryview(grid),
    ]
    frame = wire.decode(*join(wire.encode("x", 0, {"n": np.int64(3), "f": np.float32(0.5)}, bins)))
    assert frame.meta == {"n": 3, "f": 0.5}
    assert np.array_equal(frame.bin(0, np.float64, (3, 4)), grid)
    assert np.array_equal(frame.bin(1, np.float64, (4, -1)), grid.T)
    assert np.array_equal(frame.bin(2, np.float64, (3, 2)), grid[:, ::2])
    assert frame.bin(3, np.int32, (-1, 5)).shape == (0, 5)
    assert frame.bin(4, np.float32)[0] == 2.5
    assert np.array_equal(frame.bin(5, np.float64, (3, 4)), grid)


@pytest.mark.parametrize(
    ("index", "dtype", "shape"),
    [
        (1, "u1", -1),
        (-1, "u1", -1),
        (0, "u8", -1),
        (0, "u4", (2,)),
        (0, "u4", (-1, 0)),
        (0, "O", -1),
        (0, "u4", "x"),
    ],
)
def test_a_bin_that_does_not_fit_is_a_frame_error(index, dtype, shape):
    frame = wire.decode(*join(wire.encode("x", 0, {}, [bytes(12)])))
    with pytest.raises(FrameError):
        frame.bin(index, dtype, shape)


def test_limits_of_the_sender():
    with pytest.raises(FrameTooLargeError):
        wire.encode("x", 1, {}, [b"1"] * (wire.MAX_BINS + 1))
    with pytest.raises(FrameTooLargeError):
        wire.encode("x", 1, {}, [bytes(2000)], max_frame_bytes=2000)
    with pytest.raises(FrameTooLargeError):
        wire.encode("x", 1, {"a": "y" * 2000}, max_frame_bytes=2000)
    with pytest.raises(FrameTooLargeError):
        wire.encode("x", 1, {"a": bytes(wire.MAX_HEAD_BYTES)})
    for meta in ({"a": object()}, {"a": np.zeros(3)}, {"a": 1 << 64}, {"a": "\ud800"}):
        with pytest.raises(FrameError):
            wire.encode("x", 1, meta)
    for item in (np.array([object()]), memoryview(b"abcd")[::2], 5):
        with pytest.raises(FrameError):
            wire.encode("x", 1, {}, [item])


def test_limits_of_the_receiver():
    with pytest.raises(FrameTooLargeError):
        wire.decode_prefix(wire.pack_prefix(1001, 10, 0), max_frame_bytes=1000)
    with pytest.raises(FrameTooLargeError):
        wire.decode_prefix(wire.pack_prefix(1000, 500, 0), max_head_bytes=400)
    for length, head in ((0, 0), (10, 11), (10, 3), (2, 2)):
        with pytest.raises(FrameError):
            wire.decode_prefix(wire.pack_prefix(length, head, 0))


def body_of(raw: bytes) -> np.ndarray:
    return np.frombuffer(bytearray(raw), np.uint8)


def read(raw: bytes, head_length: int) -> wire.Frame:
    """The frame of a body that was not damaged, whatever else is wrong with it."""
    return wire.decode(body_of(raw), head_length, zlib.crc32(raw))


HEAD = b"\xa1x\x01\x80"  # kind "x", rid 1, empty meta


@pytest.mark.parametrize(
    "raw",
    [
        b"\x94" + HEAD + b"\x01",  # an even number of items
        b"\x92\xa1x\x01\x80",  # too few
        b"\xdc\x00\x83" + HEAD + b"\x00" * 9,  # too few bins follow
        b"\xdc\xff\xff" + HEAD,  # too many bins
        b"\x83" + HEAD,  # a map
        b"\x93\xa1x\x01\x90",  # meta is a list
        b"\x93\xa1x\xff\x80",  # rid is negative
        b"\x93\xa1x\xcf" + b"\xff" * 8 + b"\x80",  # rid is too large
        b"\x93\x01\x01\x80",  # kind is a number
        b"\x93\xa0\x01\x80",  # kind is empty
        b"\x93\xd9\x41" + b"k" * 65 + b"\x01\x80",  # kind is too long
        b"\x93\xa1\xff\x01\x80",  # kind is no UTF-8
        b"\x93" + HEAD + b"\x00",  # bytes after the head
        b"\x93\xa1x\x01\x81\x01\x02",  # a key that is no string
        b"\x93\xa1x\x01\x81\x90\x02",  # a key that cannot be hashed
        b"\x93\xa1x\x01\x81\xa1a\xd4\x05\x00",  # an extension type
        b"\x93\xa1x\x01\x81\xa1a\xc7\x00\x05",  # an empty extension
        b"\x93\xa1x\x01\x81\xa1a\xd6\xff\x00\x00\x00\x00",  # a timestamp
        b"\x93\xa1x\x01\x81\xa1a" + b"\x91" * 5000 + b"\x01",  # nested beyond reason
        b"\x93\xa1x\x01\x81\xa1a" + b"\xdd\x00\x0f\xff\xff" * 900,  # claims of millions of items
        b"\x93\xa1x\x01\x81\xa1a\xdb\x7f\xff\xff\xff",  # a string of 2 GiB
    ],
)
def test_malformed_heads(raw):
    with pytest.raises(FrameError):
        read(raw, len(raw))


@pytest.mark.parametrize(
    "tail",
    [
        b"",  # ends before the pad
        b"\xc4",
        b"\xc4\x08" + bytes(8) + b"\xc4\x00",  # a pad of 8
        b"\xc4\x07\x00",  # ends in the pad
        b"\xc4\x00\xc4",  # ends in the header
        b"\xc4\x00\xc6\x00",
        b"\xc4\x00\xc4\x00",  # not aligned
        b"\xc4\x00\xa1x",  # no bin
        b"\xc4\x07" + bytes(7) + b"\xc4\x02x",  # ends in the payload
        b"\xc4\x07" + bytes(7) + b"\xc4\x01xyz",  # bytes after the payload
    ],
)
def test_malformed_bins(tail):
    head = b"\x95" + HEAD
    assert len(head) == 5
    good = head + b"\xc4\x07" + bytes(7) + b"\xc4\x01x"  # 5 + 2 + 7 + 2 = 16
    assert read(good, 5).bins[0].tobytes() == b"x"
    with pytest.raises(FrameError):
        read(head + tail, 5)


@given(st.binary(min_size=0, max_size=200), st.integers(-5, 210))
@settings(max_examples=300, deadline=None)
def test_garbage_raises_frame_errors_only(raw, head_length):
    with contextlib.suppress(FrameError, FrameTooLargeError):
        read(raw, head_length)
    if len(raw) >= 8:
        with contextlib.suppress(FrameError, FrameTooLargeError):
            wire.decode_prefix(wire.pack_prefix(*struct.unpack_from("<II", raw), 0))


@given(metas, bin_sizes, st.data())
@settings(max_examples=150, deadline=None)
def test_mutated_frames_raise_frame_errors_only(meta, sizes, data):
    body, head_length, _sum = join(wire.encode("kind", 77, meta, payloads([min(size, 300) for size in sizes])))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, body.size - 1))
        body[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, body.size))
    for candidate in (body, body[:cut].copy()):
        try:
            frame = read(candidate.tobytes(), head_length)
        except (FrameError, FrameTooLargeError):
            continue
        assert sum(item.size for item in frame.bins) <= candidate.size


def decode_whole(raw: bytes) -> wire.Frame:
    _length, head_length, body_checksum = wire.decode_prefix(raw)
    return wire.decode(body_of(raw[wire.PREFIX_BYTES :]), head_length, body_checksum)


@given(bin_sizes, st.data())
@settings(max_examples=150, deadline=None)
def test_every_damaged_byte_is_noticed(sizes, data):
    raw = bytearray(b"".join(wire.encode("kind", 77, {"a": 1}, payloads(sizes))))
    position = data.draw(st.integers(0, len(raw) - 1))
    raw[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FrameDamagedError):
        decode_whole(raw)


def test_exchanged_words_of_a_large_bin_are_noticed():
    words = np.arange(1, 1 + 4096, dtype=np.uint64)
    exchanged = words.copy()
    exchanged[[8, 12]] = exchanged[[12, 8]]  # the same lane of the fold
    body, head_length, body_checksum = join(wire.encode("x", 1, {}, [words]))
    other, _head, _sum = join(wire.encode("x", 1, {}, [exchanged]))
    assert wire.decode(body, head_length, body_checksum).bins[0].size == 32768
    with pytest.raises(FrameDamagedError):
        wire.decode(other, head_length, body_checksum)


def test_a_bin_at_an_odd_address_has_the_same_checksum():
    raw = np.frombuffer(bytes(range(256)) * 200, np.uint8)
    odd = np.empty(raw.size + 1, np.uint8)[1:]
    odd[:] = raw
    assert b"".join(wire.encode("x", 1, {}, [odd])) == b"".join(wire.encode("x", 1, {}, [raw.tobytes()]))
