"""G6 fenced: a node that was paused, and declared down meanwhile, neither serves an old value nor acknowledges.

Fails when a node trusts its old map or an expired lease after it wakes up, or applies what piled up in its sockets.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from node_processes import NodeProcesses, keys_owned_by, newest_map, places, until, until_settled
from parity_equation import rows_with_wrong_parity
from raw_client import RawClient, codes_of, pull_request, push_request

import ecstore
from ecstore.launcher.nodes import NodeSettings

CODE = "rs(3,2)"
#: SIGSTOP to SIGCONT: five times the detector's limit.
PAUSE_S = 10.0
ROUTING_ERRORS = {"fenced", "not_owner", "not_ready"}
ONES = np.ones((40, 4), np.float32)


@pytest.mark.cluster
def test_a_node_paused_for_ten_seconds_wakes_up_and_is_nobody(tmp_path: Path) -> None:
    with (
        NodeProcesses(tmp_path, 6, NodeSettings(suspect_after_s=2.0)) as nodes,
        ecstore.connect(nodes.address, timeout=60.0) as store,
    ):
        table = store.create_table("t", dim=4, optimizer=ecstore.SGD(lr=1.0), code=CODE, init=ecstore.Zeros())
        until_settled(store, CODE)
        everything = np.arange(3000)
        table.push(everything, np.zeros((3000, 4), np.float32))
        wanted = np.zeros((3000, 4), np.float32)
        pause_and_check(nodes, store, table, "n1", wanted)
        assert np.array_equal(table.pull(everything), wanted)
        until_settled(store, CODE)
        assert np.array_equal(table.pull(everything), wanted)
        assert rows_with_wrong_parity(nodes.address, CODE)[0] == 0


def pause_and_check(
    nodes: NodeProcesses, store: ecstore.Store, table: ecstore.Table, victim: str, wanted: np.ndarray
) -> None:
    old = newest_map(store)
    life, pid = old.nodes[victim].incarnation, nodes.pid(victim)
    mine = keys_owned_by(old, CODE, victim, np.arange(len(wanted)))
    gids, indexes = places(old, CODE, mine)
    place = int(gids[0]), int(indexes[0]), old.tables["t"].id
    keys = mine[(gids == gids[0]) & (indexes == indexes[0])][:40]
    clients = [RawClient(nodes.addresses[victim], cluster=nodes.cluster) for _ in range(4)]
    try:
        for client in clients:
            assert codes_of(client.ask("pull", *pull_request(*place, keys))) == []
        nodes.pause(victim)
        wakes_at = time.monotonic() + PAUSE_S
        sent = [(client, ask(client, n, place, keys)) for client in clients for n in range(3)]
        # Connections that the kernel accepts while the process stands still: their hello waits in the socket, too.
        clients += [RawClient(nodes.addresses[victim], cluster=nodes.cluster) for _ in range(2)]
        number, rounds = 3, 0
        while time.monotonic() < wakes_at or not rounds:
            # Others go on through the substitute, once there is one: what the victim holds is old from then on.
            table.push(keys, 5 * ONES[: keys.size])
            wanted[keys.astype(int)] -= 5
            rounds += 1
            sent += [(client, ask(client, number, place, keys)) for client in clients]
            number += 1
            time.sleep(0.5)
        assert not newest_map(store).is_alive(victim, life)
        sent += [(client, ask(client, number, place, keys)) for client in clients]
        nodes.resume(victim)
        sent += [(client, ask(client, n, place, keys)) for client in clients for n in range(number + 1, number + 20)]
        for client, rids in sent:
            for rid in rids:
                check_refused(client, rid)
        until(lambda: newest_map(store).nodes[victim].incarnation > life, "the node to join again")
        assert nodes.pid(victim) == pid, "the same process, another life"
    finally:
        for client in clients:
            client.socket.close()


def ask(client: RawClient, number: int, place: tuple[int, int, int], keys: np.ndarray) -> list[int]:
    """A pull and a push by the old map, to the old address; [] once the connection is closed."""
    name = b"old-" + str(id(client)).encode()
    try:
        return [
            client.send("pull", *pull_request(*place, keys)),
            client.send("push", *push_request(name, *place, keys, ONES[: keys.size], number + 1, previous=0)),
        ]
    except OSError:
        return []


def check_refused(client: RawClient, rid: int) -> None:
    """No value, no acknowledgement: an error that sends the client to the newest map, or the end of the connection."""
    try:
        answer = client.reply(rid)
    except OSError:
        return
    if answer is not None:
        codes = codes_of(answer)
        assert codes, f"the node answered {answer.kind} as if it still owned the shard"
        assert set(codes) <= ROUTING_ERRORS, codes
