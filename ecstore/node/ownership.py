"""From a new map to the shards in memory: what to begin, what to hand on, what to give up.

Called once for every new epoch, synchronously: when it returns, nothing here answers as an owner that the map no
longer names (guarantee G6).
"""

from __future__ import annotations

import asyncio

from ecstore.cluster.map import ClusterMap, Group, Shard
from ecstore.errors import DataLossError, EcstoreError, NotOwnerError, NotReadyError
from ecstore.node import builder, takeover
from ecstore.node.data_shard import DataShard, SinkKey
from ecstore.node.pacing import Pacer
from ecstore.node.recovery import Kind, Recovery
from ecstore.node.runtime import Key, OwnedData, OwnedSink, Runtime
from ecstore.node.sink_shard import SinkShard


class Ownership:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.pacer = Pacer(runtime.config.decode_bytes_per_s)  #: of all background work of the node

    def follow(self, old: ClusterMap) -> None:
        """Bring the shards here in line with `runtime.map`, which has just replaced `old`."""
        new = self._runtime.map
        for name in old.tables.keys() - new.tables.keys():
            self._drop_table(old.tables[name].id)
        for group in new.groups:
            before = old.groups[group.gid] if group.gid < len(old.groups) else None
            if before == group:
                continue
            if group.lost:
                self._give_up(group)
            else:
                self._follow_group(group, before, old)

    def release_all(self, error: EcstoreError) -> None:
        """This life of the node is over: whoever waits gets `error`."""
        for key in list(self._runtime.data):
            self._retire_data(key, error)
        for key in list(self._runtime.sinks):
            self._retire_sink(key)

    def _drop_table(self, table_id: int) -> None:
        for owned in self._runtime.data.values():
            if owned.shard is not None:
                owned.shard.drop_table(table_id)
        for sink in self._runtime.sinks.values():
            sink.shard.drop_table(table_id)

    def _give_up(self, group: Group) -> None:
        error = DataLossError(groups=[group.gid])
        for shard in group.shards:
            self._retire_data((group.gid, shard.index), error)
            self._retire_sink((group.gid, shard.index))
        self._runtime.event("group_lost", error.message, group=group.gid)

    def _follow_group(self, group: Group, before: Group | None, old: ClusterMap) -> None:
        k = self._runtime.map.code(group).k
        for shard in group.shards:
            former = before.shards[shard.index] if before is not None else None
            if shard.index < k:
                self._follow_data(group, shard, former, old)
            else:
                self._follow_parity(group, shard, former)
        self._turn_away_former_owners(group)
        for shard in group.shards[:k]:
            owned = self._runtime.data.get((group.gid, shard.index))
            if owned is not None and owned.shard is not None:
                owned.shard.keep_sinks(self._runtime.sink_keys(group.gid, shard.index))

    # -- data shards ----------------------------------------------------------------------------------

    def _follow_data(self, group: Group, shard: Shard, former: Shard | None, old: ClusterMap) -> None:
        key = (group.gid, shard.index)
        mine = self._runtime.owns(shard.owner, shard.incarnation)
        ours = self._runtime.data.get(key)
        if mine and ours is not None and ours.owner_epoch != shard.owner_epoch:
            # It was another node's in an epoch that this node has not seen: what is here is out of date.
            self._runtime.count("stale_shards_dropped")
            self._retire_data(key, NotReadyError(f"shard {shard.index} of group {group.gid} came back; ask again"))
        if mine and key not in self._runtime.data:
            self._begin_data(group, shard, former, old)
        elif not mine and key in self._runtime.data:
            self._retire_data(
                key,
                NotOwnerError(
                    f"shard {shard.index} of group {group.gid} has moved to node {shard.owner}",
                    epoch=self._runtime.map.epoch,
                ),
            )
        joining = shard.joining is not None and self._runtime.owns(shard.joining, shard.joining_incarnation)
        if joining and key not in self._runtime.sinks:
            self._begin_sink(key, {shard.index: 1}, "move", shard.owner)
        elif not joining and key in self._runtime.sinks:
            self._retire_sink(key)

    def _begin_data(self, group: Group, shard: Shard, former: Shard | None, old: ClusterMap) -> None:
        runtime, key = self._runtime, (group.gid, shard.index)
        copy = runtime.sinks.pop(key, None)
        owned = OwnedData(key, shard.owner_epoch)
        runtime.data[key] = owned
        if former is not None and (former.owner, former.incarnation) != (shard.owner, shard.incarnation):
            owned.former = (former.owner, former.incarnation)
            owned.former_was_whole = former.state == "active"
            owned.former_address = old.nodes[former.owner].address
        if copy is not None and shard.state == "active":
            owned.mirror = copy.shard
            recovery = copy.recovery or self._recovery(key, "move", shard.owner)
            if copy.task is not None:
                copy.task.cancel()
        elif shard.state == "active":  # a new group: nobody has ever pushed to it
            owned.shard = self._fresh_data(group, key)
            return
        else:
            if copy is not None:
                self._close_sink(copy)
            recovery = self._recovery(key, "data", former.owner if former is not None else "")
        owned.recovery = recovery
        owned.task = runtime.spawn(
            takeover.run(runtime, owned, recovery, self.pacer), f"take over group {key[0]} shard {key[1]}"
        )

    def _fresh_data(self, group: Group, key: Key) -> DataShard:
        fresh = DataShard(*key)
        for parity in group.shards[self._runtime.map.code(group).k :]:
            if parity.state == "active":
                fresh.add_sink(SinkKey(parity.index, parity.owner, parity.incarnation), 0)
        return fresh

    def _retire_data(self, key: Key, error: EcstoreError) -> None:
        owned = self._runtime.data.pop(key, None)
        if owned is None:
            return
        if owned.task is not None:
            owned.task.cancel()
        if owned.decoder is not None:
            owned.decoder.close(error)
        if owned.recovery is not None:
            owned.recovery.finish("lost" if isinstance(error, DataLossError) else "cancelled", self._runtime.wall())
        if owned.mirror is not None:
            owned.mirror.close()
        if owned.shard is not None:
            owned.shard.retire(error)

    # -- parity shards and copies ---------------------------------------------------------------------

    def _follow_parity(self, group: Group, shard: Shard, former: Shard | None) -> None:
        key = (group.gid, shard.index)
        mine = self._runtime.owns(shard.owner, shard.incarnation)
        joining = shard.joining is not None and self._runtime.owns(shard.joining, shard.joining_incarnation)
        sink = self._runtime.sinks.get(key)
        if sink is not None and not sink.building and not (mine and sink.owner_epoch == shard.owner_epoch):
            # Whole, but for an ownership that is over: in an epoch not seen here it was another node's.
            if mine or joining:
                self._runtime.count("stale_shards_dropped")
            self._retire_sink(key)
            sink = None
        if not mine and not joining:
            self._retire_sink(key)
        elif sink is not None:
            if mine and shard.state == "active" and sink.building:
                sink.building = False
                sink.owner_epoch = shard.owner_epoch
                if sink.recovery is not None:
                    sink.recovery.finish("done", self._runtime.wall())
        else:
            code = self._runtime.map.code(group)
            row = code.coefficients[shard.index - code.k]
            coefficients = {src: int(row[src]) for src in range(code.k)}
            if mine and shard.state == "active":
                self._fresh_parity(group, key, coefficients)
            else:
                lost_node = former.owner if mine and former is not None else shard.owner
                self._begin_sink(key, coefficients, "parity" if mine else "move", lost_node)

    def _fresh_parity(self, group: Group, key: Key, coefficients: dict[int, int]) -> None:
        shard = SinkShard(*key, coefficients, building=False)
        senders: dict[int, tuple[str, int] | None] = {
            src: (group.shards[src].owner, group.shards[src].incarnation) for src in coefficients
        }
        self._runtime.sinks[key] = OwnedSink(
            key, shard, False, senders, asyncio.Event(), owner_epoch=group.shards[key[1]].owner_epoch
        )

    def _begin_sink(self, key: Key, coefficients: dict[int, int], kind: Kind, lost_node: str) -> None:
        runtime = self._runtime
        shard = SinkShard(*key, coefficients, building=True)
        sink = OwnedSink(key, shard, True, dict.fromkeys(coefficients), asyncio.Event())
        sink.recovery = self._recovery(key, kind, lost_node)
        runtime.sinks[key] = sink
        sink.task = runtime.spawn(
            builder.run(runtime, sink, sink.recovery, self.pacer), f"build group {key[0]} shard {key[1]}"
        )

    def _turn_away_former_owners(self, group: Group) -> None:
        """Sinks here take no frame of a node that has ceased to own its shard; the new owner speaks up first."""
        for shard in group.shards:
            sink = self._runtime.sinks.get((group.gid, shard.index))
            if sink is None:
                continue
            for src, sender in sink.senders.items():
                owner = group.shards[src]
                if sender is not None and sender != (owner.owner, owner.incarnation):
                    sink.senders[src] = None

    def _retire_sink(self, key: Key) -> None:
        sink = self._runtime.sinks.pop(key, None)
        if sink is not None:
            self._close_sink(sink)

    def _close_sink(self, sink: OwnedSink) -> None:
        if sink.task is not None:
            sink.task.cancel()
        if sink.recovery is not None:
            sink.recovery.finish("cancelled", self._runtime.wall())
        sink.shard.close()

    def _recovery(self, key: Key, kind: Kind, lost_node: str) -> Recovery:
        runtime = self._runtime
        if kind != "move":
            self.pacer.lost()
        return runtime.recoveries.open(
            Recovery(key[0], key[1], kind, lost_node, runtime.name, runtime.wall(), runtime.map.epoch)
        )
