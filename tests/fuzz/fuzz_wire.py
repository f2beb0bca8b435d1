"""Frames, hellos and errors out of any bytes: `python -m tests.fuzz.fuzz_wire -runs=100000`."""

from __future__ import annotations

import sys

import numpy as np

from ecstore import wire
from ecstore.transport.errors import error_from_wire, error_to_wire
from ecstore.transport.hello import Hello
from ecstore.transport.receiver import FrameReceiver
from tests.fuzz.targets import allowance, bounded, main


def target(data: bytes) -> None:
    """The bytes as one frame, as a stream that arrives in pieces, and as a frame's meta where a peer's word counts."""

    def one_frame() -> None:
        if len(data) < wire.PREFIX_BYTES:
            return
        _length, head, body_checksum = wire.decode_prefix(data)
        body = np.frombuffer(bytearray(data[wire.PREFIX_BYTES :]), np.uint8)
        frame = wire.decode(body, head, body_checksum)
        assert 0 < len(frame.kind) <= wire.MAX_KIND_LENGTH
        assert 0 <= frame.rid <= wire.MAX_RID
        assert len(frame.bins) <= wire.MAX_BINS
        assert sum(item.size for item in frame.bins) <= body.size <= frame.nbytes
        chunks = wire.encode(frame.kind, frame.rid, frame.meta, frame.bins)
        data_again = bytearray(b"".join(bytes(chunk) for chunk in chunks))
        _length, head, body_checksum = wire.decode_prefix(data_again)
        again = wire.decode(np.frombuffer(data_again[wire.PREFIX_BYTES :], np.uint8), head, body_checksum)
        assert (again.kind, again.rid, repr(again.meta)) == (frame.kind, frame.rid, repr(frame.meta))
        assert [item.tobytes() for item in again.bins] == [item.tobytes() for item in frame.bins]
        error_to_wire(error_from_wire(frame.meta))
        Hello.from_wire(frame.meta)

    def stream() -> None:
        receiver = FrameReceiver(max_frame_bytes=1 << 20)
        for start in range(0, len(data), 7):
            rest = memoryview(data[start : start + 7])
            while rest:
                buffer = receiver.get_buffer()
                count = min(len(buffer), len(rest))
                buffer[:count] = rest[:count]
                receiver.received(count)
                rest = rest[count:]
                while receiver.next_frame() is not None:
                    pass

    bounded(one_frame, allowance(data))
    bounded(stream, allowance(data) + (1 << 20))  # a frame of the largest size may have been announced


if __name__ == "__main__":
    main(target, sys.argv)
