"""A simulated TCP network: byte streams that are delayed, torn, held up by partitions, cut and damaged.

As with TCP, bytes of one connection arrive in order or not at all. What goes wrong instead: a connection ends at any
byte, the two ends learn of it at different times, bytes of an old connection arrive after those of its successor (so
messages are repeated and overtaken *between* connections), a partition holds bytes back in silence, one direction
alone may work, and a damaged byte may reach the application.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any

from tests.sim.loop import VirtualLoop
from tests.sim.process import Process

#: Bytes that the kernels of both ends take before a writer must wait.
WINDOW_BYTES = 1 << 18


class _Listener:
    """What `create_server` returns."""

    def __init__(self, network: Network, process: Process, factory: Callable[[], Any], host: str, port: int) -> None:
        self._network = network
        self.process = process
        self.factory = factory
        self._name = (host, port)
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def close(self) -> None:
        self._network.stop_listening(self._name, self)

    async def wait_closed(self) -> None:
        return


class SimTransport(asyncio.Transport):
    """One end of a connection. `other` is the far end."""

    def __init__(self, network: Network, process: Process, protocol: Any, peer: tuple[str, int]) -> None:
        super().__init__({"peername": peer})
        self.network = network
        self.process = process
        self.protocol = protocol
        self.other: SimTransport
        self.context: Context = process.context.copy()
        self.closing = False  # nothing more is written
        self.gone = False  # connection_lost was called
        self.cut = False  # nothing that is on its way arrives any more
        self.reading = True
        self._unsent = 0  # written and not yet delivered
        self._last_arrival = 0.0
        self._incoming: deque[Any] = deque()  # delivered by the network while reading was paused
        self._high, self._low = 1 << 16, 1 << 14
        self._paused_writing = False

    # -- what asyncio's users call

    def write(self, data: Any) -> None:
        if self.closing or self.gone or self.process.state == "dead":
            return
        self._unsent += len(data)
        self.network.send(self, bytes(data))
        self._check_high()

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(bytes(part) for part in parts))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self.closing and not self.gone:
            self.network.send(self, None)

    def is_closing(self) -> bool:
        return self.closing or self.gone

    def close(self) -> None:
        """Everything written still goes out, then the far end sees the end of the stream."""
        if self.closing or self.gone:
            return
        self.closing = True
        self.network.send(self, None)
        self._call_soon(self._lose, None)

    def abort(self) -> None:
        if self.gone:
            return
        self.closing = self.cut = True
        self.network.reset(self)
        self._call_soon(self._lose, None)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 1 << 16 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return max(0, self._unsent - self.network.window_bytes)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        if not self.reading:
            self.reading = True
            self._call_soon(self._read)

    # -- what the network calls, in the context of nobody

    def delivered(self, size: int) -> None:
        """So many bytes have reached the far end."""
        self._unsent -= size
        if self._paused_writing and self.get_write_buffer_size() <= self._low:
            self._paused_writing = False
            self._call_soon(self._resume_writing)

    def arrive(self, data: bytes | None) -> None:
        """Bytes, or the end of the stream, are here."""
        if self.gone or self.process.state == "dead":
            return
        self._incoming.append(data)
        self._call_soon(self._read)

    def lose(self, error: Exception | None) -> None:
        """The connection has ended from outside."""
        if not self.gone:
            self._call_soon(self._lose, error)

    def make(self) -> None:
        self._call_soon(self._made)

    # -- in the context of the process

    def _call_soon(self, call: Callable[..., None], *args: Any) -> None:
        self.network.loop.call_soon(call, *args, context=self.context)

    def _made(self) -> None:
        self.protocol.connection_made(self)

    def _resume_writing(self) -> None:
        if not self.gone:
            self.protocol.resume_writing()

    def _check_high(self) -> None:
        if not self._paused_writing and self.get_write_buffer_size() > self._high:
            self._paused_writing = True
            self.protocol.pause_writing()

    def _read(self) -> None:
        while self.reading and self._incoming and not self.gone:
            data = self._incoming.popleft()
            if data is None:
                keep_open = self.protocol.eof_received()
                if not keep_open:
                    self.close()
                return
            at = 0
            while at < len(data) and not self.gone:
                buffer = self.protocol.get_buffer(len(data) - at)
                count = min(len(buffer), len(data) - at)
                buffer[:count] = data[at : at + count]
                at += count
                self.protocol.buffer_updated(count)
                if not self.reading and at < len(data):
                    self._incoming.appendleft(data[at:])
                    return

    def _lose(self, error: Exception | None) -> None:
        if self.gone:
            return
        self.gone = self.closing = True
        self.network.forget(self)
        self.protocol.connection_lost(error)


class Network:
    """All hosts, listeners and connections. Faults are set from outside, per ordered pair of hosts."""

    def __init__(self, loop: VirtualLoop, rng: random.Random) -> None:
        self.loop = loop
        self._rng = rng
        self.window_bytes = WINDOW_BYTES
        self.delay_s = (0.0001, 0.002)
        #: (from host, to host) -> extra seconds for each message.
        self.slow: dict[tuple[str, str], float] = {}
        #: Directions in which nothing gets through.
        self.blocked: set[tuple[str, str]] = set()
        #: Directions in which a byte of a message is damaged with this probability.
        self.damaging: dict[tuple[str, str], float] = {}
        #: Directions in which a message vanishes with this probability, and the connection goes on.
        self.losing: dict[tuple[str, str], float] = {}
        self._listeners: dict[tuple[str, int], _Listener] = {}
        self._open: dict[SimTransport, None] = {}
        self._held: dict[tuple[str, str], deque[Callable[[], None]]] = {}
        self._ports = 40000
        #: Hosts that are switched off: they answer nothing.
        self.vanished: set[str] = set()
        self.digest = 0  # of everything that was delivered, and when
        self.messages = self.damaged = 0

    # -- listening and connecting

    def listen(self, process: Process, factory: Callable[[], Any], host: str, port: int) -> _Listener:
        if not port:
            self._ports += 1
            port = self._ports
        taken = self._listeners.get((host, port))
        if taken is not None and taken.process.state != "dead":
            raise OSError(98, f"{host}:{port} is taken")
        listener = self._listeners[host, port] = _Listener(self, process, factory, host, port)
        return listener

    def stop_listening(self, name: tuple[str, int], listener: _Listener) -> None:
        if self._listeners.get(name) is listener:
            del self._listeners[name]

    async def connect(self, process: Process, factory: Callable[[], Any], host: str, port: int) -> Any:
        answered = self.loop.create_future()

        def knock() -> None:
            listener = self._listeners.get((host, port))
            if listener is None or listener.process.state == "dead":
                if host not in self.vanished:
                    self._pass(host, process.host, lambda: _settle(answered, ConnectionRefusedError(111, "refused")))
                return  # a machine that is gone answers nothing
            protocol = listener.factory()
            accepted = SimTransport(self, listener.process, protocol, (process.host, 1))
            self._pass(host, process.host, lambda: meet(accepted))

        def meet(accepted: SimTransport) -> None:
            if process.state == "dead" or answered.done():
                return
            protocol = factory()
            transport = SimTransport(self, process, protocol, (host, port))
            transport.other, accepted.other = accepted, transport
            self._open[transport] = self._open[accepted] = None
            accepted.make()
            transport.make()
            self.loop.call_soon(_settle, answered, (transport, protocol), context=transport.context)

        self._pass(process.host, host, knock)
        return await answered

    # -- bytes

    def send(self, sender: SimTransport, data: bytes | None) -> None:
        """Hand bytes (None: the end of the stream) to the far end, later, in order."""
        size = 0 if data is None else len(data)

        def deliver() -> None:
            sender.delivered(size)
            if sender.cut:
                return
            receiver = sender.other
            if receiver.process.state == "dead":
                if receiver.process.host not in self.vanished:
                    sender.lose(ConnectionResetError(104, "the peer's process is gone"))
                return
            if data and self._rng.random() < self.losing.get((sender.process.host, receiver.process.host), 0.0):
                return
            content = self._damaged(sender, data)
            self._note(sender, content)
            receiver.arrive(content)

        self._pass(sender.process.host, sender.other.process.host, deliver, sender)

    def _pass(self, source: str, target: str, action: Callable[[], None], stream: SimTransport | None = None) -> None:
        """Do `action` when what was sent from `source` has reached `target`; in order for one stream."""
        now = self.loop.time()
        arrival = now + self._rng.uniform(*self.delay_s) + self.slow.get((source, target), 0.0) * self._rng.random()
        if stream is not None:
            arrival = stream._last_arrival = max(arrival, stream._last_arrival)

        def arrive() -> None:
            held = self._held.get((source, target))
            if (source, target) in self.blocked or held:
                self._held.setdefault((source, target), deque()).append(action)
            else:
                action()

        self.loop.call_at(arrival, arrive, context=Context())

    def _damaged(self, sender: SimTransport, data: bytes | None) -> bytes | None:
        chance = self.damaging.get((sender.process.host, sender.other.process.host), 0.0)
        if not data or not chance or self._rng.random() >= chance:
            return data
        self.damaged += 1
        at = self._rng.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 << self._rng.randrange(8))]) + data[at + 1 :]

    def _note(self, sender: SimTransport, data: bytes | None) -> None:
        self.messages += 1
        head = f"{self.loop.time():.9f} {sender.process.name} {sender.other.process.name}".encode()
        self.digest = zlib.crc32(data or b"end", zlib.crc32(head, self.digest))

    def reset(self, sender: SimTransport) -> None:
        """The far end learns at once, in terms of the network, that the connection is broken."""
        self._pass(
            sender.process.host, sender.other.process.host,
            lambda: sender.other.lose(ConnectionResetError(104, "reset by the peer")), sender,
        )  # fmt: skip

    def forget(self, transport: SimTransport) -> None:
        self._open.pop(transport, None)

    # -- faults

    def connections(self) -> list[SimTransport]:
        return list(self._open)

    def cut(self, transport: SimTransport, *, late_s: float) -> None:
        """The connection breaks: one end learns it now, the other up to `late_s` later, and what was on its way to
        that other end may still arrive before it does."""
        transport.lose(ConnectionResetError(104, "cut"))
        other = transport.other
        self.loop.call_later(late_s, other.lose, ConnectionResetError(104, "cut"), context=Context())

    def block(self, source: str, target: str) -> None:
        self.blocked.add((source, target))

    def unblock(self, source: str, target: str) -> None:
        """What was held up arrives now, in order: TCP has kept on trying."""
        self.blocked.discard((source, target))
        held = self._held.pop((source, target), deque())
        for action in held:
            action()

    def died(self, process: Process, *, vanish: bool) -> None:
        """The process is dead. Its kernel resets its connections, unless the whole machine has gone (`vanish`)."""
        if vanish:
            self.vanished.add(process.host)
        for transport in self.connections():
            if transport.process is process:
                self.forget(transport)
                if vanish:
                    transport.cut = True  # what its kernel had not sent yet is gone with it
                else:
                    self.reset(transport)

    def back(self, host: str) -> None:
        """The machine is up again: what is sent to connections of its former life is answered with a reset."""
        self.vanished.discard(host)


def _settle(future: asyncio.Future[Any], outcome: Any) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
