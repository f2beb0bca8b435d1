"""Which data shards a code has and who owns them, in the order in which a client sends: owner by owner. Pure.

Keys are routed into runs of that order, so what goes to one node lies in one piece and is sent without a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ecstore.cluster.map import ClusterMap, Group, parse_code


@dataclass(frozen=True, slots=True)
class Directory:
    """Data shards of one code in one epoch. `runs[r]` is (group, index of the data shard); `places` u32[shards]
    gives the run of each shard number of the routing rule, as `ecstore.routing.route` takes it.
    """

    epoch: int
    runs: tuple[tuple[Group, int], ...]
    places: NDArray[np.uint32]

    @classmethod
    def of(cls, cluster_map: ClusterMap, code_name: str) -> Directory:
        k = parse_code(code_name).k
        shards = [(group, index) for group in cluster_map.groups_of(code_name) for index in range(k)]
        numbers = sorted(range(len(shards)), key=lambda n: shards[n][0].shards[shards[n][1]].owner)
        places = np.empty(len(shards), np.uint32)
        places[numbers] = np.arange(len(shards), dtype=np.uint32)
        return cls(cluster_map.epoch, tuple(shards[number] for number in numbers), places)
