"""Connections that waste a node's time and memory: thousands at once, slow, silent, deaf, or gone without a word.

Each round of them is answered by the same node process. Honest clients are served all along, another node gets
through, and afterwards descriptors and memory are what they were.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from node_processes import NodeProcesses, newest_map, until
from profiles import FUZZ
from raw_client import RawClient
from witness import Witness

from ecstore.transport import Hello
from ecstore.wire import encode

pytestmark = pytest.mark.cluster
MIB = 1 << 20
TARGET = "n1"
#: The long run repeats each crowd, in its full size.
ROUNDS = 4 if FUZZ else 1
FULL = bool(FUZZ)


@pytest.fixture(scope="module", autouse=True)
def _descriptors() -> Iterator[None]:
    """Room for both ends' sockets of a crowd in this process, within what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(8192, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Crowd(contextlib.ExitStack):
    """Sockets to the node, closed at the end."""

    def __init__(self, nodes: NodeProcesses) -> None:
        super().__init__()
        host, _, port = nodes.addresses[TARGET].rpartition(":")
        self._where = host, int(port)
        self.hello = frame("hello", Hello(role="client", cluster=nodes.cluster, name="crowd").to_wire())

    def connect(self, first: bytes = b"") -> socket.socket:
        """A connection that says `first` and nothing else."""
        made = self.enter_context(socket.create_connection(self._where, 30.0))
        if first:
            made.sendall(first)
        return made


def frame(kind: str, meta: dict[str, object], rid: int = 0, size: int = 0) -> bytes:
    """A frame; with `size`, only the first 40 KiB of one with a bin of that size."""
    if not size:
        return b"".join(bytes(chunk) for chunk in encode(kind, rid, meta))
    start = b"".join(bytes(chunk) for chunk in encode(kind, rid, meta, [bytes(1 << 16)]))
    return struct.pack("<I", size) + start[4 : 40 << 10]


def descriptors(nodes: NodeProcesses) -> int:
    return len(os.listdir(f"/proc/{nodes.pid(TARGET)}/fd"))


# -- kinds of crowds: each leaves its connections open -----------------------------------------------------------------


def mute(crowd: Crowd) -> None:
    """More than the node's bound of connections, and nobody says hello."""
    for _ in range(2500):
        crowd.connect()


def polite_but_silent(crowd: Crowd) -> None:
    """As many as clients may have, then some: hello, and nothing more."""
    for _ in range(1900):
        crowd.connect(crowd.hello)  # 1792 are let in


def slow(crowd: Crowd) -> None:
    """A byte of the hello, then another; and the same in the middle of a frame."""
    pace = [crowd.connect() for _ in range(150)] + [crowd.connect(crowd.hello) for _ in range(150)]
    for byte in range(4):
        for conn in pace:
            with contextlib.suppress(OSError):
                conn.sendall(crowd.hello[byte : byte + 1])


def greedy(crowd: Crowd) -> None:
    """64 MiB each are announced by hundreds, and as good as nothing comes."""
    for _ in range(1000 if FULL else 250):
        crowd.connect(crowd.hello + frame("push", {}, 1, size=64 * MIB))


def deaf(crowd: Crowd) -> None:
    """They ask and ask, and read nothing."""
    questions = b"".join(frame("status", {}, rid) for rid in range(1, 100))
    for _ in range(40 if FULL else 8):
        conn = crowd.connect(crowd.hello)
        conn.settimeout(0.05)
        with contextlib.suppress(OSError):
            conn.sendall(questions)


def gone_without_a_word(crowd: Crowd) -> None:
    """The process at the other end is stopped in the middle of a frame: no FIN, no answer, nothing read."""
    host, port = crowd._where
    begun = (crowd.hello + frame("push", {}, 1, size=MIB)).hex()
    program = (
        "import socket, sys\n"
        f"data = bytes.fromhex({begun!r})\n"
        f"all = [socket.create_connection(({host!r}, {port})) for _ in range(100)]\n"
        "[conn.sendall(data) for conn in all]\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    crowd.callback(child.communicate)
    crowd.callback(child.kill)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    os.kill(child.pid, signal.SIGSTOP)


def churn(crowd: Crowd) -> None:
    """They come and go: some in the middle of the hello, some reset the connection."""
    for number in range(5000 if FULL else 1500):
        with socket.create_connection(crowd._where, 30.0) as conn:
            if number % 3 == 1:
                conn.sendall(crowd.hello[:30])
            elif number % 3 == 2:
                conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize(
    ("gather", "most_mib"),
    [(mute, 400), (slow, 150), (greedy, 700), (deaf, 700), (gone_without_a_word, 300), (churn, 100)]
    + [(polite_but_silent, 400)] * FULL,
)  # fmt: skip
def test_a_crowd(attacked: NodeProcesses, witness: Witness, gather: Callable[[Crowd], None], most_mib: int) -> None:
    """`most_mib`: what the node may grow by while the crowd is there."""
    witness.check()
    incarnation = newest_map(witness.store).nodes["n2"].incarnation
    before = descriptors(attacked)
    sizes = [attacked.rss_bytes(TARGET)]
    for _ in range(max(ROUNDS, 3 if gather in (slow, gone_without_a_word) else 1)):
        with Crowd(attacked) as crowd:
            gather(crowd)
            witness.check()
            grown = attacked.rss_bytes(TARGET) - sizes[0]
            assert grown < most_mib * MIB, f"the node grew by {grown / MIB:.0f} MiB"
            hello = {"role": "node", "name": "n2", "incarnation": incarnation}
            with RawClient(attacked.addresses[TARGET], cluster=attacked.cluster, hello=hello) as node:
                assert node.ask("ping", {"incarnation": incarnation, "epoch": 0}).kind == "ok"
        until(lambda: descriptors(attacked) <= before + 2, f"descriptors to go back to {before}")
        sizes.append(attacked.rss_bytes(TARGET))
    witness.check()
    if len(sizes) > 2:
        assert sizes[-1] - sizes[1] < (64 if FULL else 32) * MIB, (
            f"memory keeps growing: {[size // MIB for size in sizes]} MiB"
        )


def test_a_new_client_while_silent_ones_fill_the_node(attacked: NodeProcesses, witness: Witness) -> None:
    """All that clients may have is taken, by connections that have said nothing but hello for a while: one goes."""
    with Crowd(attacked) as crowd:
        polite_but_silent(crowd)

        def served() -> bool:
            with RawClient(attacked.addresses[TARGET], cluster=attacked.cluster) as client:
                answer = client.reply(client.send("map.get", {}))
                return answer is not None and answer.kind == "ok"

        until(served, "a silent connection to make room")
        witness.check()
