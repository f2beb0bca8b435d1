"""One connection between two peers, as its users see it: requests and replies, messages, a handler.

Calls of the handler and of reply callbacks happen in the event loop, never inside a call of `send`,
`request_nowait`, `reply` or `close`.

Ownership: arrays given to `send`, `request`, `request_nowait` and `reply` are handed over. The transport may
keep views of them until they are written out, so the caller must not change them afterwards. Bins of a
received frame belong to whoever received it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ecstore.errors import CapacityError, EcstoreError, FrameError, FrameTooLargeError, UnavailableError
from ecstore.transport.errors import SHORT_MESSAGE_LENGTH, error_to_wire
from ecstore.transport.hello import Hello
from ecstore.transport.limits import ConnectionLimits
from ecstore.transport.requests import Gate, OnReply, RequestTable, timeout_error
from ecstore.transport.stream import FrameStream
from ecstore.wire import Buffer, Frame, encode

logger = logging.getLogger("ecstore.transport")


class Handler(Protocol):
    """Receives the frames of a connection that are no replies. All methods are called in the event loop."""

    def on_open(self, conn: Connection) -> None:
        """Both hellos are checked; comes before any frame. An `EcstoreError` ends the connection."""

    def on_frame(self, conn: Connection, frame: Frame) -> None:
        """A request (rid != 0) or a one-way message. An `EcstoreError` is sent as the reply to a request."""

    def on_close(self, conn: Connection, reason: str) -> None:
        """A connection that was open has ended. Comes once, after the last frame."""


@dataclass(slots=True)
class Endpoint:
    """What a connection needs to know about its own end."""

    accepted: bool
    hello: Callable[[], Hello]
    handler: Handler
    limits: ConnectionLimits
    #: Called before anything is read; an error refuses the connection.
    admit: Callable[[Connection], EcstoreError | None]
    #: Checks the peer's hello; an `EcstoreError` refuses it.
    check: Callable[[Hello], None]
    on_opened: Callable[[Connection], None]
    #: The connection became unusable; the error says why.
    on_ended: Callable[[Connection, EcstoreError], None]
    #: The socket is gone.
    on_lost: Callable[[Connection], None]
    #: So many bytes were queued for the peer of a connection.
    on_write: Callable[[Connection, int], None] = lambda conn, size: None


class Connection(FrameStream):
    """Made by `connect` and `Server`. `on_close` callbacks are called once, after the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, endpoint: Endpoint, address: str = "") -> None:
        super().__init__(
            loop,
            accepted=endpoint.accepted,
            local_hello=endpoint.hello,
            limits=endpoint.limits,
            address=address,
        )
        self._endpoint = endpoint
        self._gate = Gate(loop, lambda: not self._write_paused and self._has_room())
        self._requests = RequestTable(loop, self.__str__, self._gate.wake)
        self._drain_waiters: list[asyncio.Future[None]] = []
        self.on_close: list[Callable[[Connection], None]] = []
        self.handler_errors = 0  # one-way messages that were refused, callbacks that failed

    # ---- requests

    async def request(
        self, kind: str, meta: Mapping[str, Any], bins: Sequence[Buffer] = (), *, timeout: float
    ) -> Frame:
        """Send a request and wait for its reply; `timeout` in seconds covers the wait for room too.

        Raises the typed error the peer answered, `TimeoutError` at the deadline, `UnavailableError` when the
        connection has ended or ends, `FrameTooLargeError` and `FrameError` when it cannot be sent.
        """
        deadline = self._loop.time() + timeout
        self._raise_if_closed(kind)
        await self._gate.enter(deadline, lambda: timeout_error(kind, str(self), timeout))
        self._raise_if_closed(kind)
        reply: asyncio.Future[Frame] = self._loop.create_future()
        try:
            rid = self._start(kind, meta, bins, _resolver(reply), deadline, timeout)
        finally:
            self._gate.wake()
        try:
            return await reply
        except asyncio.CancelledError:
            self._requests.discard(rid)
            self._gate.wake()
            if reply.done() and not reply.cancelled():
                reply.exception()  # it failed in the same turn; nobody is left to see that
            raise

    def request_nowait(
        self,
        kind: str,
        meta: Mapping[str, Any],
        bins: Sequence[Buffer],
        on_reply: OnReply,
        timeout: float,
    ) -> None:
        """Send a request; `on_reply` is called exactly once, later, with the reply or an `EcstoreError`.

        It gets `UnavailableError` when the connection has ended and `CapacityError` when `max_in_flight`
        requests are on their way. Raises only when the request cannot be encoded; `on_reply` is not called
        then.
        """
        if self.closed:
            self._loop.call_soon(on_reply, self._ended_error(kind))
        elif not self._has_room():
            self._loop.call_soon(on_reply, self._full_error(kind))
        else:
            self._start(kind, meta, bins, on_reply, self._loop.time() + timeout, timeout)

    @property
    def in_flight(self) -> int:
        """Requests sent and not yet answered."""
        return len(self._requests)

    @property
    def late_replies(self) -> int:
        """Replies that came after the deadline of their request, and were dropped."""
        return self._requests.late_replies

    # ---- messages and replies

    def send(self, kind: str, meta: Mapping[str, Any], bins: Sequence[Buffer] = ()) -> None:
        """Send a one-way message. It is lost, silently, when the connection has ended or ends before it is
        out.

        Raises `FrameTooLargeError` and `FrameError` when it cannot be sent.
        """
        self._write(kind, 0, meta, bins)

    def reply(self, rid: int, meta: Mapping[str, Any], bins: Sequence[Buffer] = ()) -> None:
        """Answer request `rid`; lost like a message when the connection ends. Raises like `send`."""
        self._write("ok", rid, meta, bins)

    def reply_error(self, rid: int, error: EcstoreError) -> None:
        """Answer request `rid` with an error; the requester's `request` raises the same class. Never raises: where
        the peer accepts small frames only, it gets the beginning of the message.
        """
        wire = error_to_wire(error)
        try:
            self._write("error", rid, wire)
        except FrameTooLargeError:
            self._write("error", rid, wire | {"message": wire["message"][:SHORT_MESSAGE_LENGTH], "details": {}})

    async def drain(self) -> None:
        """Wait while more than the high-water mark is unsent. Raises `UnavailableError` when it ends."""
        self._writer.flush()
        while self._write_paused and not self.closed:
            waiter = self._loop.create_future()
            self._drain_waiters.append(waiter)
            await waiter
        self._raise_if_closed("drain")

    # ---- inside

    def _has_room(self) -> bool:
        return len(self._requests) < self._limits.max_in_flight

    def _start(
        self,
        kind: str,
        meta: Mapping[str, Any],
        bins: Sequence[Buffer],
        on_reply: OnReply,
        deadline: float,
        timeout: float,
    ) -> int:
        # Encoded first: a request that has no wire form must not be registered.
        chunks = encode(kind, self._requests.next_rid, meta, bins, max_frame_bytes=self._send_limit)
        rid = self._requests.add(kind, on_reply, deadline, timeout)
        self._write_chunks(chunks)
        return rid

    def _raise_if_closed(self, kind: str) -> None:
        if self.closed:
            raise self._ended_error(kind)

    def _ended_error(self, kind: str) -> EcstoreError:
        why = self.end.message if self.end is not None else "it is not open"
        return UnavailableError(
            f"no reply to {kind}, it may or may not have been applied: {why}. Connect again and retry",
            address=self.address,
            reason=self.end_reason,
        )

    def _full_error(self, kind: str) -> EcstoreError:
        return CapacityError(
            f"{kind} was not sent: {self._limits.max_in_flight} requests to {self} are not answered yet; "
            "wait for replies before sending more"
        )

    def _admission(self) -> EcstoreError | None:
        return self._endpoint.admit(self)

    def _check_peer(self, peer: Hello) -> None:
        self._endpoint.check(peer)

    def _after_open(self) -> None:
        self._endpoint.on_opened(self)
        try:
            self._endpoint.handler.on_open(self)
        except EcstoreError as error:
            self.refuse(error)

    def _receive(self, frame: Frame) -> None:
        if frame.kind == "ok" or frame.kind == "error":
            self._requests.settle(frame)
            self._gate.wake()
            return
        try:
            self._endpoint.handler.on_frame(self, frame)
        except EcstoreError as error:
            self._handler_failed(frame, error)
        except RecursionError:
            self._handler_failed(frame, FrameError(f"the meta of {frame.kind} is nested too deeply; send plain values"))
        except Exception as error:
            logger.exception("handling %s from %s failed", frame.kind, self)
            name = type(error).__name__
            self._handler_failed(
                frame, EcstoreError(f"{frame.kind} failed inside the peer ({name}); see the peer's log")
            )

    def _handler_failed(self, frame: Frame, error: EcstoreError) -> None:
        if frame.rid:
            self.reply_error(frame.rid, error)
            return
        self.handler_errors += 1
        logger.warning("message %s from %s was refused: %s", frame.kind, self, error)

    def _writable(self) -> None:
        waiters, self._drain_waiters = self._drain_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._gate.wake()

    def _after_end(self) -> None:
        error = self.end
        assert error is not None
        self._gate.close(lambda: self._ended_error("request"))
        self._requests.fail_all(self._ended_error)
        self._writable()
        self._guard(lambda: self._endpoint.on_ended(self, error))
        if self.opened:
            self._guard(lambda: self._endpoint.handler.on_close(self, error.message))
        callbacks, self.on_close = self.on_close, []
        for callback in callbacks:
            self._guard(lambda call=callback: call(self))  # type: ignore[misc]

    def _wrote(self, size: int) -> None:
        self._endpoint.on_write(self, size)

    def _socket_gone(self) -> None:
        self._endpoint.on_lost(self)

    def _guard(self, call: Callable[[], None]) -> None:
        """Run a callback of others; its faults are reported and keep nobody else from being told."""
        try:
            call()
        except Exception:
            self.handler_errors += 1
            logger.exception("a callback of the connection to %s failed", self)


def _resolver(reply: asyncio.Future[Frame]) -> OnReply:
    def resolve(outcome: Frame | EcstoreError) -> None:
        if reply.done():
            return
        if isinstance(outcome, EcstoreError):
            reply.set_exception(outcome)
        else:
            reply.set_result(outcome)

    return resolve
