"""The frame format: msgpack that any msgpack library reads, with arrays that are never copied to be read.

On the wire a frame is a 16-byte prefix and a body::

    u32 LE  body length        bytes after the prefix
    u32 LE  head length        bytes of the body before the first pad (= body length when there are no bins)
    u32 LE  body checksum      `ecstore.checksum`: bins of 16 KiB and more by its fold, all other bytes by CRC-32
    u32 LE  prefix checksum    CRC-32 of the twelve bytes before
    body                       ONE msgpack array: [kind, rid, meta, pad0, bin0, pad1, bin1, ...]

`kind` (str) names what the frame is for, `rid` (int) is the request id and `meta` (map with str keys) holds
small plain values. Large arrays travel as bins, raw bytes in the sender's memory order (little-endian on
every platform supported). `pad_i` is a bin of 0..7 zero bytes that makes the payload of `bin_i` start at a
multiple of 8 from the start of the body. A body is received into an 8-aligned buffer, so typed views of bins
are aligned.

Kinds "ok" and "error" are replies and carry the rid of their request; rid 0 is a one-way message. The module
is pure: bytes in, frames out. Every malformed input raises `FrameError`, `FrameTooLargeError` or, where a
checksum is wrong, `FrameDamagedError`, nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import numpy as np
import numpy.typing as npt

from ecstore import checksum
from ecstore.errors import FrameDamagedError, FrameError, FrameTooLargeError

#: Version of this format and of the meaning of the kinds. Peers with another one refuse each other at
#: connect.
PROTOCOL_VERSION: Final = 2

#: Bytes of one body. A batch of 20,000 rows of 256 bytes is 5 MiB; 256 MiB leaves room for the largest
#: request (4 Mi ids with narrow rows) while one frame cannot take a machine's memory. A setting of
#: connection and server.
MAX_FRAME_BYTES: Final = 256 << 20

#: Bytes of kind, rid and meta. They are parsed into Python objects (some 10x their size), so bulk belongs
#: into bins; 4 MiB is far beyond any cluster map or table list.
MAX_HEAD_BYTES: Final = 4 << 20

#: Bytes of Python objects that one byte of a head may become: an empty list is one byte of msgpack, and 80 in memory.
OBJECT_FACTOR: Final = 80

#: Bins of one frame: 60 coalesced deltas and a few arrays beside them. Bounds the Python work of a small
#: frame.
MAX_BINS: Final = 64

#: Items of one list or map in meta. msgpack reserves memory for a list's claimed length before it has read
#: the items, at every level of nesting: without this bound a head of a few KiB could claim gigabytes.
MAX_META_ITEMS: Final = 1 << 16

#: Characters of a kind.
MAX_KIND_LENGTH: Final = 64

#: Largest request id: fits into an int64 of any language.
MAX_RID: Final = (1 << 63) - 1

PREFIX_BYTES: Final = 16
ALIGNMENT: Final = 8

#: Bins below this are copied into the chunk before them: copying 16 KiB is cheaper than one more buffer in a
#: system call. Larger ones are handed on as views of the caller's memory.
COPY_BELOW_BYTES: Final = checksum.FOLD_FROM_BYTES

_PREFIX: Final = struct.Struct("<IIII")
_PREFIX_HEAD: Final = struct.Struct("<III")
_BIN8, _BIN16, _BIN32 = 0xC4, 0xC5, 0xC6
_ARRAY16 = 0xDC
_FIXED_ITEMS = 3  # kind, rid, meta
_MAX_FIXARRAY = 15

#: What `encode` accepts as a bin. Arrays of any dtype but object and any shape; non-contiguous ones are
#: copied.
Buffer = npt.NDArray[Any] | bytes | bytearray | memoryview
Chunk = bytes | memoryview


@dataclass(slots=True)
class Frame:
    """One received frame. `bins` are 1-D uint8 views of the received body and keep it alive."""

    kind: str
    rid: int
    meta: dict[str, Any]
    bins: list[npt.NDArray[np.uint8]]
    #: Memory that a received frame keeps: its body, and what its head may have become as Python objects.
    nbytes: int = 0

    def bin(self, index: int, dtype: npt.DTypeLike, shape: int | tuple[int, ...] = -1) -> npt.NDArray[Any]:
        """Typed, aligned, zero-copy view of bin `index`; one dimension of `shape` may be -1.

        Raises `FrameError` when the frame has no such bin or its size does not fit.
        """
        if not 0 <= index < len(self.bins):
            raise FrameError(
                f"frame {self.kind!r} has {len(self.bins)} bins, number {index} was expected; "
                "the peer must send every array of this kind"
            )
        try:
            return self.bins[index].view(dtype).reshape(shape)
        except (ValueError, TypeError, OverflowError) as error:
            raise FrameError(
                f"bin {index} of frame {self.kind!r} has {self.bins[index].size} bytes, which is no "
                f"{np.dtype(dtype)} array of shape {shape}; the peer must send it with the documented layout"
            ) from error


def encode(
    kind: str,
    rid: int,
    meta: Mapping[str, Any],
    bins: Sequence[Buffer] = (),
    *,
    max_frame_bytes: int = MAX_FRAME_BYTES,
) -> list[Chunk]:
    """Prefix and body as buffers to be written one after the other.

    Large bins are not copied: the chunks are views of the caller's arrays, which must not change until the
    chunks are written out. `meta` holds plain values (None, bool, int, float, str, bytes, list, tuple, dict;
    NumPy scalars are converted) and its maps have str keys. Raises `FrameTooLargeError` past a limit,
    `FrameError` for values that have no wire form.
    """
    head = _encode_head(kind, rid, meta, len(bins))
    if not bins:
        _check_body_length(len(head), max_frame_bytes)
        return [pack_prefix(len(head), len(head), checksum.add(head)) + head]
    pieces: list[bytearray | memoryview] = []
    small = bytearray(PREFIX_BYTES)
    small += head
    position = len(head)
    for item in bins:
        payload = _as_bytes_view(item)
        size = payload.nbytes
        header = _bin_header(size)
        pad = -(position + 2 + len(header)) % ALIGNMENT
        small += bytes((_BIN8, pad)) + bytes(pad) + header
        position += 2 + pad + len(header) + size
        if size < COPY_BELOW_BYTES:
            small += payload
        else:
            pieces += (small, payload)
            small = bytearray()
    _check_body_length(position, max_frame_bytes)
    if small:
        pieces.append(small)
    views = [memoryview(piece) for piece in pieces]
    # The first piece begins with room for the prefix.
    views[0][:PREFIX_BYTES] = pack_prefix(position, len(head), _checksum(views))
    return list(views)


def _checksum(pieces: Sequence[memoryview]) -> int:
    """Of a body in pieces, the first after room for the prefix; large bins are pieces of their own."""
    result = checksum.add(pieces[0][PREFIX_BYTES:])
    for number, piece in enumerate(pieces[1:]):
        large = number % 2 == 0  # small pieces and large bins take turns
        result = checksum.add_array(piece, result) if large else checksum.add(piece, result)
    return result


def pack_prefix(body_length: int, head_length: int, body_checksum: int) -> bytes:
    """The 16 bytes before a body."""
    head = _PREFIX_HEAD.pack(body_length, head_length, body_checksum)
    return head + checksum.add(head).to_bytes(4, "little")


def decode_prefix(
    prefix: bytes | bytearray | memoryview,
    offset: int = 0,
    *,
    max_frame_bytes: int = MAX_FRAME_BYTES,
    max_head_bytes: int = MAX_HEAD_BYTES,
) -> tuple[int, int, int]:
    """(body length, head length, body checksum) of the prefix at `offset`, checked. Needs 16 bytes.

    Raises `FrameDamagedError` when its own checksum is wrong, `FrameTooLargeError` past a limit and `FrameError`
    for lengths that contradict each other.
    """
    body_length, head_length, body_checksum, own = _PREFIX.unpack_from(prefix, offset)
    if checksum.add(memoryview(prefix)[offset : offset + _PREFIX_HEAD.size]) != own:
        raise FrameDamagedError(
            "what came is no frame: its bytes were damaged on the way, or the peer speaks something else. Connect "
            "again; if it stays so, check what is connected to this port"
        )
    if not _FIXED_ITEMS < head_length <= body_length:
        raise FrameError(
            f"a frame announces {body_length} bytes with a head of {head_length}; the peer does not speak "
            "this protocol, check what is connected to this port"
        )
    _check_body_length(body_length, max_frame_bytes)
    if head_length > max_head_bytes:
        raise FrameTooLargeError(
            f"a frame announces a head of {head_length} bytes, at most {max_head_bytes} are allowed; "
            "send bulk data as bins",
            size=head_length,
            limit=max_head_bytes,
        )
    return body_length, head_length, body_checksum


def decode(body: npt.NDArray[np.uint8], head_length: int, body_checksum: int) -> Frame:
    """The frame in `body` (uint8, 1-D, C-contiguous); its bins are views of `body`, nothing is copied.

    Raises `FrameDamagedError` when the checksum is not that of the body, `FrameError` for everything malformed.
    """
    if not _FIXED_ITEMS < head_length <= body.size:
        raise FrameError(f"head length {head_length} does not fit a body of {body.size} bytes")
    view = body.data
    try:
        header_length, bins, position, found = _walk(body, head_length)
    except FrameError as error:
        if checksum.add(view) == body_checksum:
            raise
        raise _damaged() from error
    if found != body_checksum:
        raise _damaged()
    kind, rid, meta = _decode_head(view[header_length:head_length])
    if position != body.size:
        raise FrameError(f"{body.size - position} bytes follow the last item of frame {kind!r}")
    return Frame(kind, rid, meta, bins, body.size + OBJECT_FACTOR * head_length)


def _damaged() -> FrameDamagedError:
    return FrameDamagedError("the bytes of a frame were damaged on the way; connect again and retry")


def _walk(body: npt.NDArray[np.uint8], head_length: int) -> tuple[int, list[npt.NDArray[np.uint8]], int, int]:
    """(bytes of the array's header, bins, end of the last one, checksum of the whole body)."""
    view = body.data
    items, header_length = _array_header(view)
    bin_count, odd = divmod(items - _FIXED_ITEMS, 2)
    if odd or not 0 <= bin_count <= MAX_BINS:
        raise FrameError(f"a frame has {items} items; kind, rid, meta and at most {MAX_BINS} pairs are expected")
    bins: list[npt.NDArray[np.uint8]] = []
    position, summed, found = head_length, 0, 0  # `found` is the checksum of the first `summed` bytes
    for _ in range(bin_count):
        start, end = _next_bin(view, position)
        bins.append(body[start:end])
        position = end
        if end - start >= COPY_BELOW_BYTES:
            found = checksum.add_array(view[start:end], checksum.add(view[summed:start], found))
            summed = end
    return header_length, bins, position, checksum.add(view[summed:], found)


def _check_body_length(length: int, limit: int) -> None:
    if length > limit:
        raise FrameTooLargeError(
            f"a frame of {length} bytes is larger than the limit of {limit}; split it into smaller batches",
            size=length,
            limit=limit,
        )


def _encode_head(kind: str, rid: int, meta: Mapping[str, Any], bin_count: int) -> bytes:
    if bin_count > MAX_BINS:
        raise FrameTooLargeError(
            f"frame {kind!r} has {bin_count} bins, at most {MAX_BINS} are allowed; send several frames",
            size=bin_count,
            limit=MAX_BINS,
        )
    try:
        packed: bytes = msgpack.packb([kind, rid, meta], default=_plain_scalar)
    except (TypeError, ValueError, OverflowError) as error:
        raise FrameError(
            f"the meta of frame {kind!r} has no wire form ({error}); use plain values and send arrays as bins"
        ) from error
    items = _FIXED_ITEMS + 2 * bin_count
    header = bytes((0x90 | items,)) if items <= _MAX_FIXARRAY else struct.pack(">BH", _ARRAY16, items)
    head = header + packed[1:]
    if len(head) > MAX_HEAD_BYTES:
        raise FrameTooLargeError(
            f"the meta of frame {kind!r} takes {len(head)} bytes, at most {MAX_HEAD_BYTES} are allowed; "
            "send bulk data as bins",
            size=len(head),
            limit=MAX_HEAD_BYTES,
        )
    return head


def _plain_scalar(value: object) -> object:
    """NumPy scalars as Python values; msgpack calls this for types it does not know."""
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    raise TypeError(f"cannot send a {type(value).__name__}")


def _as_bytes_view(item: Buffer) -> memoryview:
    """1-D byte view of a bin, without a copy when it is C-contiguous."""
    try:
        if isinstance(item, np.ndarray):
            return np.ascontiguousarray(item).reshape(-1).view(np.uint8).data
        view = memoryview(item)
        return view.cast("B") if view.nbytes else memoryview(b"")
    except (TypeError, ValueError) as error:
        raise FrameError(f"a bin has no byte form ({error}); use C-contiguous arrays of numbers") from error


def _bin_header(size: int) -> bytes:
    if size < 1 << 8:
        return bytes((_BIN8, size))
    if size < 1 << 16:
        return struct.pack(">BH", _BIN16, size)
    if size < 1 << 32:
        return struct.pack(">BI", _BIN32, size)
    raise FrameTooLargeError(f"a bin of {size} bytes has no wire form; split it", size=size, limit=(1 << 32) - 1)


def _array_header(view: memoryview) -> tuple[int, int]:
    """(items, header bytes) of the outer array. `view` has at least 4 bytes."""
    first = view[0]
    if first & 0xF0 == 0x90:
        return first & 0x0F, 1
    if first == _ARRAY16:
        return int.from_bytes(view[1:3], "big"), 3
    raise FrameError(
        f"a frame starts with byte 0x{first:02x} and is no msgpack array; the peer speaks another protocol"
    )


def _decode_head(packed: memoryview) -> tuple[str, int, dict[str, Any]]:
    """Kind, rid and meta. The three are unpacked as an array of their own, under strict limits."""
    size = len(packed)
    items = min(size, MAX_META_ITEMS)
    try:
        kind, rid, meta = msgpack.unpackb(
            b"\x93" + packed,
            raw=False,
            use_list=True,
            strict_map_key=True,
            ext_hook=_refuse_extension,
            max_str_len=size,
            max_bin_len=size,
            max_array_len=items,
            max_map_len=items,
            max_ext_len=0,
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise FrameError(f"the head of a frame is no plain msgpack ({error!r})") from error
    if type(kind) is not str or not 0 < len(kind) <= MAX_KIND_LENGTH:
        raise FrameError(f"the kind of a frame must be a string of 1..{MAX_KIND_LENGTH} characters")
    if type(rid) is not int or not 0 <= rid <= MAX_RID:
        raise FrameError(f"the request id of frame {kind!r} must be an integer in [0, 2**63)")
    if type(meta) is not dict:
        raise FrameError(f"the meta of frame {kind!r} must be a map")
    return kind, rid, meta


def _refuse_extension(code: int, data: bytes) -> object:
    raise ValueError(f"extension type {code} is not part of the protocol")


def _next_bin(view: memoryview, position: int) -> tuple[int, int]:
    """(start, end) of the payload of the bin whose pad begins at `position`."""
    header = position + 2
    if len(view) < header or view[position] != _BIN8 or view[position + 1] >= ALIGNMENT:
        raise FrameError(f"a pad of 0..7 bytes is expected at byte {position} of a frame")
    header += view[position + 1]
    if len(view) < header + 2:
        raise FrameError(f"a frame ends at byte {len(view)}, before its next bin")
    width = {_BIN8: 1, _BIN16: 2, _BIN32: 4}.get(view[header], 0)
    start = header + 1 + width
    if not width or len(view) < start:
        raise FrameError(f"a bin is expected at byte {header} of a frame")
    if start % ALIGNMENT:
        raise FrameError(f"the bin at byte {start} of a frame is not aligned to {ALIGNMENT}")
    end = start + int.from_bytes(view[header + 1 : start], "big")
    if end > len(view):
        raise FrameError(f"a bin ends at byte {end} of a frame of {len(view)} bytes")
    return start, end
