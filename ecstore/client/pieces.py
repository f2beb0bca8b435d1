"""How a batch is cut into messages. Pure.

Cutting is what lets client, network and node work at the same time on one batch: while one message is being applied
the next is on its way and the one after it is being made. It also keeps the memory that each of them touches within
the processor's cache, and a node's loop free for others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

#: Bytes of one message, request and reply together: a few hundred microseconds of work at each end, of which some
#: fifty are spent on the message itself.
MESSAGE_BYTES: Final = 3 << 19

#: The first message of several is this part of the others: until it has arrived the node has nothing to do.
FIRST_PART: Final = 0.35

#: A batch for one node is cut into about this many messages at most: more would only cost, ...
MAX_MESSAGES: Final = 32

#: ... but none is larger than this, so that no node works for longer than some 10 ms on one.
MAX_MESSAGE_BYTES: Final = 4 << 20

#: Bytes of one table's rows for one data shard that are sent in one section, about: its delta goes to each parity shard
#: in one piece.
SECTION_BYTES: Final = 1 << 19


def section_rows(rows: int, row_bytes: int) -> int:
    """Rows of a section: `rows` of one data shard, `row_bytes` each in a message, are cut into parts of equal size."""
    count = max(1, round(rows * row_bytes / SECTION_BYTES))
    return max(1, -(-rows // count))


def pieces(items: list[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Cut `items`, in order, into messages of about equal size, the first a shorter one; an item is never cut."""
    sizes = [size_of(item) for item in items]
    total = sum(sizes)
    count = max(1, min(MAX_MESSAGES, round(total / MESSAGE_BYTES)), -(-total // MAX_MESSAGE_BYTES))
    target = total / count
    wanted = FIRST_PART * target if count > 1 else target
    piece: list[T] = []
    held = 0
    for item, size in zip(items, sizes, strict=True):
        # A cut before the item is nearer to the target than one behind it.
        if piece and (held + size / 2 > wanted or held + size > MAX_MESSAGE_BYTES):
            yield piece
            piece, held, wanted = [], 0, target
        piece.append(item)
        held += size
    if piece:
        yield piece
