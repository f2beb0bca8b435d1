"""The line between one connection and its socket, on which faults happen: bytes wait, the line goes dead or is cut.

Without a fault for its peer it passes bytes on and copies nothing. What a network would do, it does: a dead line is
silent. Nothing is read from the socket and nothing written to it, and when this end gives the connection up meanwhile,
the socket stays open, mute, until the fault is over, because neither a FIN nor a RST would get through.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from ecstore.faults.rules import CLIENTS, COORDINATION, FINE, RuleTable, Verdict
from ecstore.transport import Connection

#: Read bytes that are held before no more are read: more than a frame of rows.
MAX_HELD_IN: Final = 8 << 20
_SCRATCH_BYTES: Final = 64 << 10

#: In the queue of outgoing bytes: what this end did after them.
_EOF: Final = object()
_CLOSE: Final = object()


class Line(asyncio.BufferedProtocol):
    """What the loop drives for a connection. `peer`: its name where this end knows it before the hello."""

    def __init__(
        self, conn: Connection, peer: str | None, rules: RuleTable, chance: Callable[[], float],
        on_made: Callable[[Line], None], on_gone: Callable[[Line], None],
    ) -> None:  # fmt: skip
        """`on_made`, `on_gone`: called when it has a socket (an attempt to connect may fail), and when nothing that the
        rules say concerns it any more.
        """
        self._conn = conn
        self._peer = peer
        self._rules = rules
        self._chance = chance
        self._on_made, self._on_gone = on_made, on_gone
        self._loop = asyncio.get_running_loop()
        self._socket: asyncio.Transport
        self._out, self._in = FINE, FINE
        self._high, self._low = 64 << 10, 16 << 10
        self._outgoing: deque[tuple[float, Any]] = deque()  # (time from which it may go, bytes or _EOF or _CLOSE)
        self._incoming: deque[tuple[float, memoryview]] = deque()
        self.held_out = self._held_in = 0
        self._scratch = bytearray()
        self._frames = 0  # of the connection that were counted for cuts
        self._timers: list[asyncio.TimerHandle | None] = [None, None]
        self._reading = True  # the socket is read from
        self._conn_reads = True  # the connection wants bytes
        self._socket_full = self._told_full = False
        self.closing = False  # this end has closed or aborted
        self._told_lost = False
        self._ended: tuple[Exception | None] | None = None  # the socket ended behind a dead line

    # ---- rules

    def apply(self) -> None:
        """The rules have changed, or the peer's name has become known."""
        self._out, self._in = self._rules.verdict(self._peer, "out"), self._rules.verdict(self._peer, "in")
        if self._told_lost:
            if not self._out.blocked:
                self._socket.abort()  # given up while the line was dead
                self._on_gone(self)
            return
        if self._ended is not None:
            if not self._in.blocked:
                self._on_gone(self)
                self._lost(*self._ended)
            return
        self._set_reading()
        self._pump_out()
        self._pump_in()

    def _learn_peer(self) -> None:
        if self._peer is None and self._conn.opened:
            hello = self._conn.peer
            names = {"node": hello.name, "coordinator": COORDINATION}
            self._peer = names.get(hello.role, CLIENTS)
            self._out, self._in = self._rules.verdict(self._peer, "out"), self._rules.verdict(self._peer, "in")
            self._set_reading()

    # ---- outgoing: called by the connection through its transport

    def write(self, pieces: list[Any]) -> None:
        self._learn_peer()
        if self.closing:
            return
        frames, self._frames = self._conn.frames_out - self._frames, self._conn.frames_out
        if self._out.cuts(frames, self._chance()):
            self._cut(pieces)
        elif self._out == FINE and not self._outgoing:
            for piece in pieces:
                self._socket.write(piece)
        else:
            for piece in pieces:
                self._enqueue(piece)
            self._pump_out()

    def _cut(self, pieces: list[Any]) -> None:
        """The connection ends within these bytes: the peer gets a part of them."""
        data = b"".join(pieces)
        if not self._out.blocked and not self._outgoing:
            self._socket.write(data[: int(self._chance() * len(data))])
        self._end_cut()

    def _end_cut(self) -> None:
        self.closing = True
        self._socket.close()  # not `abort`: that would take back what the peer should get
        self._loop.call_soon(self._lost, ConnectionResetError("cut by a fault that was ordered"))

    def _enqueue(self, item: Any) -> None:
        at = self._loop.time() + self._out.hold_s(self._chance())
        if self._outgoing:
            at = max(at, self._outgoing[-1][0])
        self._outgoing.append((at, item))
        if item is not _EOF and item is not _CLOSE:
            self.held_out += len(item)

    def _pump_out(self) -> None:
        """Write what has waited long enough."""
        while self._outgoing and not self._out.blocked and self._outgoing[0][0] <= self._loop.time():
            _at, item = self._outgoing.popleft()
            if item is _EOF:
                self._socket.write_eof()
            elif item is _CLOSE:
                self._socket.close()
            else:
                self.held_out -= len(item)
                self._socket.write(item)
        self._timer(0, self._outgoing, self._out, self._pump_out)
        self._tell_full()

    def _tell_full(self) -> None:
        if self._told_lost:
            return
        full = self._socket_full or self.held_out > (self._low if self._told_full else self._high)
        if full != self._told_full:
            self._told_full = full
            (self._conn.pause_writing if full else self._conn.resume_writing)()

    def set_limits(self, high: int, low: int) -> None:
        self._high, self._low = high, low
        self._socket.set_write_buffer_limits(high, low)

    def end_writing(self, *, close: bool) -> None:
        """`write_eof` or `close` of the connection, after what it wrote before."""
        self.closing = self.closing or close
        self._enqueue(_CLOSE if close else _EOF)
        self._pump_out()

    def abort(self) -> None:
        """`abort` of the connection: it is told of the end, the peer only if the line is not dead."""
        self.closing = True
        self._loop.call_soon(self._lost, None)
        if not (self._out.blocked and self._conn.opened):
            self._socket.abort()
            self._on_gone(self)  # where an attempt to connect was cancelled, nobody tells of the socket's end

    # ---- incoming: called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast("asyncio.Transport", transport)
        self._on_made(self)
        self.apply()
        self._conn.connection_made(LineTransport(self, self._socket))

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._passing():
            return self._conn.get_buffer(sizehint)
        self._scratch = self._scratch or bytearray(_SCRATCH_BYTES)
        return memoryview(self._scratch)

    def _passing(self) -> bool:
        """Whether bytes go straight to the connection."""
        return self._in == FINE and not self._incoming and self._conn_reads and not self._told_lost

    def buffer_updated(self, nbytes: int) -> None:
        if self._told_lost or (self.closing and self._socket.is_closing()):
            return
        if self._passing():
            self._conn.buffer_updated(nbytes)
            self._learn_peer()
            return
        at = self._loop.time() + self._in.hold_s(self._chance())
        if self._incoming:
            at = max(at, self._incoming[-1][0])
        self._incoming.append((at, memoryview(bytes(self._scratch[:nbytes]))))
        self._held_in += nbytes
        if self._in.cuts(1, self._chance()):
            self._end_cut()
            return
        self._set_reading()
        self._pump_in()

    def _pump_in(self) -> None:
        """Hand on what has waited long enough."""
        while (
            self._incoming and self._conn_reads and not self._in.blocked and not self._told_lost
            and self._incoming[0][0] <= self._loop.time()
        ):  # fmt: skip
            at, data = self._incoming.popleft()
            into = self._conn.get_buffer(len(data))
            count = min(len(into), len(data))
            if not count:  # it has frames to hand out first
                self._incoming.appendleft((at, data))
                self._loop.call_soon(self._pump_in)
                return
            into[:count] = data[:count]
            if count < len(data):
                self._incoming.appendleft((at, data[count:]))
            self._held_in -= count
            self._conn.buffer_updated(count)
            self._learn_peer()
        self._timer(1, self._incoming, self._in, self._pump_in)
        self._set_reading()

    def eof_received(self) -> bool:
        if self._told_lost:
            return self._out.blocked  # no FIN goes back through a dead line
        return self._conn.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._in.blocked and not self._told_lost and not self.closing:
            self._ended = (exc,)  # a FIN or a RST would not have come through
        else:
            self._on_gone(self)
            self._lost(exc)

    def pause_writing(self) -> None:
        self._socket_full = True
        self._tell_full()

    def resume_writing(self) -> None:
        self._socket_full = False
        self._tell_full()

    # ---- both

    def want(self, *, reads: bool) -> None:
        """The connection wants bytes, or none for now."""
        self._conn_reads = reads
        self._set_reading()
        if reads and self._incoming:
            self._loop.call_soon(self._pump_in)

    def _set_reading(self) -> None:
        reading = self._conn_reads and not self._in.blocked and self._held_in < MAX_HELD_IN
        if reading != self._reading and not self._socket.is_closing():
            self._reading = reading
            (self._socket.resume_reading if reading else self._socket.pause_reading)()

    def _timer(self, number: int, queue: deque[tuple[float, Any]], verdict: Verdict, pump: Callable[[], None]) -> None:
        timer = self._timers[number]
        if timer is not None:
            timer.cancel()
        later = bool(queue) and not verdict.blocked and not self._told_lost
        self._timers[number] = self._loop.call_at(queue[0][0], pump) if later else None

    def _lost(self, exc: Exception | None) -> None:
        if self._told_lost:
            return
        self._told_lost = self.closing = True
        self._outgoing.clear()
        self._incoming.clear()
        self.held_out = self._held_in = 0
        for timer in self._timers:
            if timer is not None:
                timer.cancel()
        self._conn.connection_lost(exc)


class LineTransport(asyncio.Transport):
    """What the connection believes to be its socket."""

    def __init__(self, line: Line, socket: asyncio.Transport) -> None:
        super().__init__()
        self._line = line
        self._socket = socket

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._line.closing or self._socket.is_closing()

    def write(self, data: Any) -> None:
        self._line.write([data])

    def writelines(self, list_of_data: Any) -> None:
        self._line.write(list(list_of_data))

    def can_write_eof(self) -> bool:
        return self._socket.can_write_eof()

    def write_eof(self) -> None:
        self._line.end_writing(close=False)

    def close(self) -> None:
        self._line.end_writing(close=True)

    def abort(self) -> None:
        self._line.abort()

    def pause_reading(self) -> None:
        self._line.want(reads=False)

    def resume_reading(self) -> None:
        self._line.want(reads=True)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None and low is not None, "connections set both"  # noqa: PT018
        self._line.set_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._socket.get_write_buffer_size() + self._line.held_out
