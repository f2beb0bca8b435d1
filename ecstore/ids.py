"""Names for the numbers that must not be mixed up (type-checked, no run-time cost)."""

from __future__ import annotations

from typing import NewType

NodeId = NewType("NodeId", str)  #: name of a node, stable over its lives
Incarnation = NewType("Incarnation", int)  #: one life of a node process; assigned by the cluster map, from 1
Epoch = NewType("Epoch", int)  #: version of the cluster map
GroupId = NewType("GroupId", int)  #: group, unique over all codes of the cluster
ShardIndex = NewType("ShardIndex", int)  #: 0..k-1 data, k..k+m-1 parity
TableId = NewType("TableId", int)
Seq = NewType("Seq", int)  #: number of a data shard's delta, from 1; 0 = none yet
RequestNo = NewType("RequestNo", int)  #: a client's request to one data shard, from 1
