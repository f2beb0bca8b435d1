"""Cutting a stream into frames: whatever the sizes of the reads, the frames are the same."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ecstore import wire
from ecstore.errors import FrameTooLargeError
from ecstore.transport.receiver import DIRECT_ABOVE_BYTES, SCRATCH_BYTES, FrameReceiver


def feed(receiver: FrameReceiver, stream: bytes, sizes) -> list[wire.Frame]:
    frames, position = [], 0
    while position < len(stream):
        buffer = receiver.get_buffer()
        assert len(buffer) > 0
        count = min(len(buffer), next(sizes), len(stream) - position)
        buffer[:count] = stream[position : position + count]
        position += count
        receiver.received(count)
        while (frame := receiver.next_frame()) is not None:
            frames.append(frame)
    return frames


def sizes_of(rng: random.Random, largest: int):
    while True:
        yield rng.randint(1, largest)


@pytest.mark.parametrize("largest_read", [1, 7, 9, 1000, 40_000, 1 << 20])
def test_any_cut_of_the_stream_gives_the_same_frames(largest_read):
    rng = random.Random(largest_read)
    edges = [
        DIRECT_ABOVE_BYTES - 30,
        DIRECT_ABOVE_BYTES,
        DIRECT_ABOVE_BYTES + 1,
        SCRATCH_BYTES,
        SCRATCH_BYTES + 1,
    ]
    if largest_read < 10:  # many reads: mostly small frames, one of each kind
        lengths = [0, 5, 100, 1, 300, DIRECT_ABOVE_BYTES - 30, 7, DIRECT_ABOVE_BYTES + 1, 3]
    else:
        lengths = [rng.choice([0, 5, 100, 300, *edges, 200_000]) for _ in range(60)]
    blobs = [rng.randbytes(length) for length in lengths]
    stream = b"".join(b"".join(wire.encode("k", i, {}, [blob])) for i, blob in enumerate(blobs))
    frames = feed(FrameReceiver(1 << 20), stream, sizes_of(rng, largest_read))
    assert [frame.rid for frame in frames] == list(range(len(blobs)))
    assert all(frame.bins[0].tobytes() == blob for frame, blob in zip(frames, blobs, strict=True))
    assert all(frame.bins[0].ctypes.data % 8 == 0 for frame in frames if frame.bins[0].size)


def test_a_large_body_is_received_without_a_copy():
    blob = np.arange(1 << 16, dtype=np.uint32)
    stream = b"".join(wire.encode("k", 1, {}, [blob]))
    receiver = FrameReceiver(1 << 20)
    receiver.get_buffer()[:100] = stream[:100]
    receiver.received(100)
    assert receiver.next_frame() is None
    target = receiver.get_buffer()
    assert len(target) == len(stream) - 100
    target[:] = stream[100:]
    receiver.received(len(target))
    frame = receiver.next_frame()
    assert frame is not None
    assert np.shares_memory(frame.bins[0], np.frombuffer(target, np.uint8))
    assert np.array_equal(frame.bin(0, np.uint32), blob)


def test_the_length_is_checked_before_memory_is_taken():
    receiver = FrameReceiver(1000)
    stream = b"".join(wire.encode("k", 1, {}, [bytes(2000)]))
    receiver.get_buffer()[: wire.PREFIX_BYTES] = stream[: wire.PREFIX_BYTES]
    receiver.received(wire.PREFIX_BYTES)
    with pytest.raises(FrameTooLargeError):
        receiver.next_frame()
