"""Every bound of a running cluster, with its reason (guarantee G7: nothing grows without a limit).

Bounds that belong to one module only (frame and head sizes in `wire`, slots of a slab) stand there.
"""

from __future__ import annotations

MIB = 1 << 20

#: Rows that one data shard may hold, all tables together. A slab reserves address space, not memory, for them; their
#: key lists (9 bytes a row) travel in one frame when a shard is taken over: 144 MiB at most.
MAX_ROWS_PER_SHARD = 1 << 24

#: Address space that one slab reserves at most: wide rows get fewer slots, and 100,000 slabs still fit 47 bits.
MAX_SLAB_BYTES = 1 << 33


def slab_rows(max_rows: int, row_bytes: int) -> int:
    """Slots of a slab for rows of `row_bytes`: equal on a data shard's owner and on every sink of it."""
    return max(1, min(max_rows, MAX_SLAB_BYTES // row_bytes))


#: Bytes of delta frames of one data shard that some sink has not acknowledged yet. At the bound pushes to that
#: shard wait: 32 MiB is some 100 full batches of a shard, a second of traffic at full rate.
MAX_UNACKED_BYTES = 32 * MIB

#: Bytes of acknowledged frames that a sink keeps per source for cuts and roll-backs. A cut is a few
#: milliseconds old when it is read; 8 MiB of frames is longer than that even on a saturated loopback.
MAX_RECENT_BYTES = 8 * MIB

#: Seconds that such frames are kept at most: twice the longest wait of a cut. A node has some 30 sources, so that by
#: size alone it would fill with hundreds of MiB of frames that nobody asks for any more.
MAX_RECENT_S = 4.0

#: Frames in one log whatever their size (a frame of a one-row push is small but not free).
MAX_LOG_FRAMES = 8192

#: Clients whose last request number a shard remembers. The longest silent one is forgotten first; if it comes
#: back, its next push gets RequestGapError and the client opens a new session.
MAX_CLIENTS_PER_SHARD = 4096

#: Deltas of a shard that must follow a client's last push before the client may be forgotten. At a thousand pushes
#: a second to one shard, a minute: longer than a push is retried.
FORGET_AFTER_SEQS = 1 << 16

#: Delta bytes of one push to one shard: with its head it fits a frame.
MAX_DELTA_BYTES = 64 * MIB

#: Slots that travel in one block when a sink is built or a shard is decoded: about 256 KiB of 256-byte rows,
#: under a millisecond of work, so that neither the loop nor the deltas behind a block wait long.
BLOCK_SLOTS = 1024

#: Slots of a key list that a new owner takes in at once, before it turns to what else waits: some 2 ms of work.
ADOPT_SLOTS = 1 << 14

#: Rows that a sweep decodes at a time, in bytes, and at least BLOCK_SLOTS of them: some two milliseconds of work at
#: each node, against some 0.3 ms that the messages of a decode take whatever their size.
DECODE_BLOCK_BYTES = 2 * MIB

#: Rows that a sweep may be told to decode at a time. Whatever the number, `MAX_DECODE_BYTES` bounds the bytes.
MAX_DECODE_BLOCK = 1 << 16

#: Rows of one decode: what each other shard of the group reads, and sends in one frame.
MAX_DECODE_BYTES = 64 * MIB

#: Rows of one reply; checked before memory is taken for it. Below the largest frame, above a block of the widest rows.
MAX_REPLY_BYTES = 240 * MIB

#: Rows of the blocks of one message: the next delta to the sink waits behind it.
MAX_BLOCK_FRAME_BYTES = 3 * MIB // 2

#: Blocks that one sink has asked of one source and not yet received.
MAX_BLOCKS_IN_FLIGHT = 4

#: Rows of the blocks that are asked for at once, if that is more than one block: their owner queues them in one turn.
MAX_WANT_BYTES = 4 * MIB

#: Requests of one node that wait for something (decoding, acknowledgement windows, a newer map).
MAX_WAITING_REQUESTS = 4096

#: Keys and gradients of the pushes that wait on one node, and as much for all other requests of clients that wait;
#: further ones are refused until there is room, and their clients try again. As much as one shard may have
#: unacknowledged.
MAX_WAITING_BYTES = 32 * MIB

#: Bodies of the requests of nodes that wait: mostly for the next turn of the loop. Frames of a takeover are the
#: largest of them; what is refused, the other node asks again.
MAX_WAITING_BYTES_OF_NODES = 256 * MIB

#: Keys whose whole rows may be looked at in one request: for people, not for a data path.
MAX_KEYS_PER_LOOK = 1024

#: Ids of one push or pull request to one node.
MAX_IDS_PER_REQUEST = 1 << 22

#: Frames and bytes coalesced into one message of a delta stream. 60 deltas leave room in the 64 bins of a frame; a sink
#: works some milliseconds on 1 MiB, and a node may get one from each other node in the same turn of its loop.
MAX_FRAMES_PER_MESSAGE = 60
MAX_MESSAGE_BYTES = MIB

#: Bytes that may wait in a connection's write buffer before a delta stream stops adding to it.
STREAM_HIGH_WATER_BYTES = 8 * MIB

assert MAX_MESSAGE_BYTES <= STREAM_HIGH_WATER_BYTES <= MAX_UNACKED_BYTES
assert BLOCK_SLOTS % 8 == 0


def blocks_of(row_bytes: int) -> int:
    """How many blocks of rows of so many bytes may be asked for at once; at least one."""
    return max(1, min(MAX_BLOCKS_IN_FLIGHT, MAX_WANT_BYTES // (BLOCK_SLOTS * max(1, row_bytes))))


def blocks_in_frame(row_bytes: int) -> int:
    """How many of these blocks travel in one message; at least one."""
    return max(1, MAX_BLOCK_FRAME_BYTES // (BLOCK_SLOTS * max(1, row_bytes)))
