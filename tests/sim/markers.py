"""Rare paths that a long range of seeds must have taken: a path that is never taken is not tested.

Names are those of the nodes' own counters, and of the marks that the hooks of `watch` and the faults make.
"""

from __future__ import annotations

from typing import Final

MARKERS: Final[dict[str, str]] = {
    # decoding
    "on-demand decode": "a row was decoded because somebody asked for it",
    "on-demand decode beside the sweep": "and the sweep of its shard was under way",
    "decode_retries": "a decode met a change of owners or a peer that was gone, and began again",
    "cut_waits": "a parity read waited for its cut",
    "logged delta taken out of a read": "a parity shard was ahead of the cut and rolled its copy back",
    "log_too_short": "its log no longer reached back, and it was asked again",
    # takeover
    "takeovers": "a shard was taken over",
    "a takeover of a takeover": "the substitute was lost before it had decoded everything",
    "roll_forwards": "parity shards stood at different seqs and were brought together",
    "takeover_retries": "a takeover began again",
    "releases_unanswered": "a former owner did not say that it had stopped, and its lease was waited for",
    "a move was finished": "a shard that moved serves from its copy",
    # building
    "sinks_reset": "a sink under construction had to start anew",
    "build_retries": "a source was not ready for a sink",
    "build_timeouts": "a promised snapshot or block did not come",
    # streams
    "frames_of_others_refused": "a delta of a node that is not, or no longer, the owner",
    "a gap in a stream": "a sink missed frames and had them sent again",
    "a frame sent twice": "a sink got a frame again after a reconnect",
    "damaged bytes": "bytes were damaged on the way, and noticed",
    # clients
    "duplicate_pushes": "a push that was in already was sent again",
    "a request gap": "a push arrived before its predecessor",
    "a push waited for room": "the log of a shard was full",
    "a push is in doubt": "a client gave up, and can't know",
    # membership
    "requests_fenced": "a node that had lost its lease was asked, and refused",
    "down_proposals_failed": "a node could not be declared down at first",
    "a node was declared down and came back": "it rejoined, empty, in the same process",
    "the coordination service was down": "and membership was frozen",
    "killed while it recovered a shard": "a recovery lost its target",
    "drained a node under load": "",
    "a node joined under load": "",
    # losses
    "a data shard and a parity shard lost together": "of one group",
    "two data shards lost together": "of one group",
    "two data shards and a parity shard lost together": "of one group",
    "a group was lost": "more shards were lost than the code tolerates, and clients were told",
    "a model was trained through it": "with the same bits as without faults",
}
