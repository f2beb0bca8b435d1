"""One scrub of a node's groups: how far it is, which stripes are under suspicion, what was found. Pure.

A group is walked block by block. A block whose stripes all agree is done. Otherwise its wrong stripes become
*suspects*: they are repaired where one shard explains them, and looked at again, at a newer cut, until they agree or
nothing more can be done. Only what agreed when it was read again counts as repaired.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from ecstore import limits
from ecstore.codec import UNKNOWN, WrongStripes

I64 = NDArray[np.int64]

State = Literal["waiting", "running", "done", "moved", "lost", "failed", "stopped"]
Outcome = Literal["repaired", "found", "unrepaired", "not_attributable", "keys_differ"]

#: Row bytes a second that one node reads for its scrub, from all shards together, unless it is asked for another rate.
DEFAULT_RATE_MIB_S: Final = 32.0

#: Rates that are taken: below, a block would take hours; above, it is none.
MIN_RATE_MIB_S: Final = 1e-3
MAX_RATE_MIB_S: Final = 1e6

#: Bytes of one shard in one block, for rows so wide that `limits.BLOCK_SLOTS` of them would stall the event loop.
MAX_BLOCK_BYTES: Final = limits.MIB

#: Looks at one suspect. A row that is pushed to between every look and its repair is given up after so many.
MAX_LOOKS: Final = 20

#: Findings of one scrub that a node remembers; the others are only counted.
MAX_FINDINGS: Final = 512


@dataclass(slots=True)
class ScrubCounts:
    """What a scrub has done. Every corrupt stripe ends as one of repaired, unrepaired and not_attributable."""

    stripes: int = 0
    bytes_read: int = 0
    corrupt: int = 0
    repaired: int = 0
    unrepaired: int = 0
    not_attributable: int = 0
    key_blocks: int = 0
    key_mismatches: int = 0

    def add(self, **more: int) -> None:
        for name, count in more.items():
            setattr(self, name, getattr(self, name) + count)

    def to_wire(self) -> dict[str, int]:
        return {part.name: getattr(self, part.name) for part in fields(self)}


@dataclass(frozen=True, slots=True)
class Finding:
    """One stripe, or one block of a key list, that was not as it should be. `shard`, `node`: where, if it is known."""

    group: int
    table: str
    slot: int
    shard: int | None
    node: str
    outcome: Outcome
    bits: int  #: that were flipped in the row; 0 where no shard could be named
    at: float  #: unix seconds
    message: str

    def to_wire(self) -> dict[str, Any]:
        return {part.name: getattr(self, part.name) for part in fields(self)}


@dataclass(slots=True)
class Suspect:
    """A stripe that did not agree when it was looked at last. `bits`: of the error in the row of `shard`."""

    shard: int
    bits: int = 0
    #: The owner of `shard` knows that it can't be the wrong one: more than one shard is wrong.
    refuted: bool = False

    @property
    def attributable(self) -> bool:
        return self.shard != UNKNOWN and not self.refuted


class GroupScrub:
    """Progress in one group."""

    def __init__(self, gid: int) -> None:
        self.gid = gid
        self.state: State = "waiting"
        self.message = ""
        self.counts = ScrubCounts()
        self.stripes_total = 0
        self.failing_since: float | None = None  #: loop time of the first failure since the last block
        self.begun = False
        self.suspects: dict[int, Suspect] = {}
        self.looks = 0  #: at the present block
        self.rows_done = False  #: of the present block; its key lists are next
        self._tables: deque[tuple[int, int]] = deque()  # (table, slots in use when the group was begun)
        self._start = 0
        self._block_bytes = MAX_BLOCK_BYTES

    def begin(self, used: Mapping[int, int], block_bytes: int = MAX_BLOCK_BYTES) -> None:
        """`used`: slots of each table to be walked. What is added later was written later: the next scrub's.
        `block_bytes`: of one shard, in one block; a row at least.
        """
        self._block_bytes = min(block_bytes, MAX_BLOCK_BYTES)
        self._tables = deque((table, slots) for table, slots in sorted(used.items()) if slots)
        self.stripes_total = sum(used.values())
        self.begun, self.state = True, "running"

    @property
    def table(self) -> int | None:
        """Table being walked; None at the end."""
        return self._tables[0][0] if self._tables else None

    def skip_table(self) -> None:
        """The table was dropped."""
        self._tables.popleft()
        self._next_block(0)

    def block(self, row_bytes: int) -> I64:
        """Slots of the present block."""
        step = max(1, min(limits.BLOCK_SLOTS, self._block_bytes // row_bytes))
        return np.arange(self._start, min(self._start + step, self._tables[0][1]), dtype=np.int64)

    def to_look_at(self, row_bytes: int) -> I64:
        """Slots to read now: the whole block, and after that only its suspects."""
        return np.array(sorted(self.suspects), np.int64) if self.suspects else self.block(row_bytes)

    def judge(self, slots: I64, wrong: WrongStripes) -> dict[int, Suspect]:
        """Take in a look at `slots`; the former suspects that agree now, by slot."""
        self.looks += 1
        found = {
            int(slots[position]): Suspect(int(shard), int(np.unpackbits(error).sum()))
            for position, shard, error in zip(wrong.positions, wrong.shards, wrong.errors, strict=True)
        }
        agree = {slot: suspect for slot, suspect in self.suspects.items() if slot not in found}
        for slot, suspect in found.items():
            former = self.suspects.get(slot)
            suspect.refuted = former is not None and former.refuted and former.shard == suspect.shard
        self.suspects = found
        return agree

    def settled(self, *, repair: bool) -> bool:
        """Nothing more can be done about the suspects. What no shard explains is looked at twice before it is said."""
        if not self.suspects or self.looks >= MAX_LOOKS:
            return True
        if any(suspect.attributable for suspect in self.suspects.values()):
            return not repair
        return self.looks >= 2

    def outcome(self, suspect: Suspect, *, repair: bool) -> Outcome:
        """What to say of a suspect that is left when the block is settled."""
        if not suspect.attributable:
            return "not_attributable"
        return "unrepaired" if repair else "found"

    def advance(self, block: I64) -> None:
        """The present block is done."""
        end = int(block[-1]) + 1
        if end >= self._tables[0][1]:
            self._tables.popleft()
            end = 0
        self._next_block(end)

    def _next_block(self, start: int) -> None:
        self._start, self.looks, self.rows_done = start, 0, False
        self.suspects.clear()

    def to_wire(self) -> dict[str, Any]:
        return {
            "group": self.gid, "state": self.state, "message": self.message, "stripes_total": self.stripes_total,
        } | self.counts.to_wire()  # fmt: skip


@dataclass(slots=True, eq=False)
class ScrubJob:
    """What one caller asked of this node, under a name (`run`) that the caller chose."""

    run: str
    table_id: int | None
    rate_mib_s: float
    repair: bool
    started_at: float
    groups: dict[int, GroupScrub] = field(default_factory=dict)
    queue: deque[GroupScrub] = field(default_factory=deque)
    findings: list[Finding] = field(default_factory=list)
    findings_omitted: int = 0
    finished_at: float | None = None

    def want(self, gid: int) -> None:
        """Scrub a group, or again one that could not be scrubbed to the end here."""
        known = self.groups.get(gid)
        if known is None or known.state in ("moved", "failed", "stopped"):
            self.groups[gid] = GroupScrub(gid)
            self.queue.append(self.groups[gid])

    def end(self, part: GroupScrub, state: State, message: str = "") -> None:
        """`part`, the first of the queue, is over."""
        assert self.queue[0] is part
        self.queue.popleft()
        part.state, part.message = state, message

    def note(self, finding: Finding) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)
        else:
            self.findings_omitted += 1

    def to_wire(self, after: int = 0) -> dict[str, Any]:
        """For `scrub.status`; findings from number `after` on."""
        return {
            "run": self.run, "running": self.finished_at is None, "repair": self.repair,
            "started_at": self.started_at, "finished_at": self.finished_at,
            "groups": [part.to_wire() for part in self.groups.values()],
            "findings": [finding.to_wire() for finding in self.findings[after:]],
            "findings_omitted": self.findings_omitted,
        }  # fmt: skip


def outvoted(votes: Mapping[int, bytes]) -> list[int] | None:
    """Shards whose digest is not that of the majority; [] when all agree, None when there is no majority."""
    most, count = Counter(votes.values()).most_common(1)[0]
    if count == len(votes):
        return []
    return sorted(shard for shard, vote in votes.items() if vote != most) if 2 * count > len(votes) else None
