"""The life of one connection: hello, frames both ways, flow control, an orderly end.

`FrameStream` is the protocol object of asyncio; `Connection` adds requests and the handler through the hooks
at the end of the class. Frames arrive in the order in which they were sent.

An accepted connection is not read from while what was written to it piles up. The end that opened the
connection always reads (unless its handler holds it), so the two ends cannot wait for each other. Whoever
writes without waiting, to a peer that does not read, loses the connection at `max_write_bytes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from ecstore.errors import BY_CODE, EcstoreError, FrameDamagedError, FrameError, ProtocolError, UnavailableError
from ecstore.transport.budgets import ReceptionBudget
from ecstore.transport.errors import MAX_MESSAGE_LENGTH, error_from_wire, error_to_wire
from ecstore.transport.hello import Hello
from ecstore.transport.limits import MAX_HELLO_BYTES, ConnectionLimits
from ecstore.transport.receiver import SCRATCH_BYTES, FrameReceiver
from ecstore.transport.sockets import format_address, tune_socket
from ecstore.transport.writer import FrameWriter
from ecstore.wire import Buffer, Chunk, Frame, encode

#: The code of a bye that means no harm; others are codes of errors.
CLOSED = "closed"

#: Bytes that came and were written after which further frames wait for the next turn of the loop. What waits in the
#: kernel may be many batches: handed out in one turn they would keep everybody else waiting, and a loop may send what
#: was written only between turns.
TURN_BYTES = 1 << 20

_DISCARDED = memoryview(bytearray(SCRATCH_BYTES))  # bytes that come after the end; written, never read


class FrameStream(asyncio.BufferedProtocol):
    """Frames over one socket. Public attributes are for reading.

    `peer` is valid once `opened`. `bytes_in`, `bytes_out`, `frames_in`, `frames_out` count since the start;
    `last_received_at` is the loop time of the last bytes that came, `last_frame_at` that of the last whole frame.
    Once `closed`, `end` is the error that says why, and `end_reason` a word for it: "closed" and "aborted" (by this
    end), "bye" (by the peer, with a reason), "eof" and "lost" (without one), "not_reading", "hello_late", or the code
    of the error for which it was refused.
    """

    peer: Hello

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        accepted: bool,
        local_hello: Callable[[], Hello],
        limits: ConnectionLimits,
        address: str = "",
    ) -> None:
        self._loop = loop
        self._accepted = accepted
        self._local_hello = local_hello
        self._limits = limits
        self._transport: asyncio.Transport | None = None
        self._receiver = FrameReceiver(MAX_HELLO_BYTES)
        self._writer = FrameWriter(loop)
        self._send_limit = MAX_HELLO_BYTES
        self._write_paused = False
        self._holds = 0
        self._turn_began = 0  # bytes in and out by then
        self._budget: ReceptionBudget | None = None
        self._holds_room = False  # for the large frame being received
        self._timer: asyncio.TimerHandle | None = None  # for the hello, then for the linger
        self.address = address
        self.opened = False
        self.closed = False
        self.end: EcstoreError | None = None
        self.end_reason = ""
        self.bytes_in = self.frames_in = self.frames_out = 0
        self.last_received_at = self.last_frame_at = loop.time()
        self._gone = asyncio.Event()

    def __str__(self) -> str:
        name = f"{self.peer.role} {self.peer.name}" if self.opened else "the peer"
        return f"{name} at {self.address or 'an unknown address'}"

    @property
    def write_buffered(self) -> int:
        """Bytes not yet handed to the kernel."""
        return self._writer.buffered

    @property
    def bytes_out(self) -> int:
        return self._writer.bytes_out

    # ---- flow control of the handler

    def hold(self) -> None:
        """Stop reading and handing out frames, replies too, until `release` was called as often."""
        self._holds += 1
        if self._holds == 1 and self._transport is not None and not self.closed:
            self._transport.pause_reading()

    def release(self) -> None:
        """Undo one `hold`."""
        assert self._holds > 0, "release without hold"
        self._holds -= 1
        if self._holds == 0 and self._transport is not None and not self.closed:
            self._transport.resume_reading()
            self._loop.call_soon(self._hand_out)

    # ---- end

    def close(self, reason: str = "closed") -> None:
        """Tell the peer why, then end. Unsent bytes get `linger` seconds to reach it."""
        error = UnavailableError(f"this end closed the connection to {self}: {reason}")
        self._finish(error, "closed", {"code": CLOSED, "reason": reason[:MAX_MESSAGE_LENGTH]})

    def refuse(self, error: EcstoreError, reason: str = "") -> None:
        """End because of `error`, which goes with the bye. `end_reason` becomes `reason` or its code."""
        wire = error_to_wire(error)
        bye = {"code": error.code, "reason": wire["message"], "details": wire["details"]}
        self._finish(error, reason or error.code, bye)

    async def wait_gone(self) -> None:
        """Return when the socket is closed: within `linger` of the end. Whoever closes the loop waits for it."""
        if self._transport is not None:
            await self._gone.wait()

    def abort(self) -> None:
        """End at once, without a word to the peer; what was not sent yet is lost."""
        # Nothing is written any more: where opening the connection was cancelled, uvloop has closed the socket under
        # a transport that does not say so, and writing to it is an error.
        self._writer.discard()
        self._finish(UnavailableError(f"this end dropped the connection to {self}"), "aborted")
        if self._transport is not None:
            self._transport.abort()

    def _finish(self, error: EcstoreError, reason: str, bye: dict[str, Any] | None = None) -> None:
        """Become unusable because of `error`; with a bye, say so to the peer."""
        if self.closed:
            return
        if bye is not None:
            chunks = encode("bye", 0, bye)
            self._writer.write(chunks, sum(map(len, chunks)))
        self.closed = True
        self.end = error
        self.end_reason = reason
        self._receiver.forget()
        if self._budget is not None:
            self._budget.give(self)
        self._cancel_timer()
        self._loop.call_soon(self._after_end)
        if self._transport is not None:
            self._wind_down(self._transport, said_bye=bye is not None)

    def _wind_down(self, transport: asyncio.Transport, *, said_bye: bool) -> None:
        """Close the socket once unsent bytes are out, within `linger`.

        After a bye the peer's bytes are read and thrown away until it closes too: a close with unread bytes
        would make the kernel reset the connection and take the bye with it.
        """
        self._writer.flush()
        if transport.is_closing():
            return
        self._timer = self._loop.call_later(self._limits.linger, transport.abort)
        if said_bye and transport.can_write_eof():
            transport.write_eof()
            transport.resume_reading()
        else:
            transport.close()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- writing

    def _write(self, kind: str, rid: int, meta: Mapping[str, Any], bins: Sequence[Buffer] = ()) -> None:
        if not self.closed:
            self._write_chunks(encode(kind, rid, meta, bins, max_frame_bytes=self._send_limit))

    def _write_chunks(self, chunks: list[Chunk]) -> None:
        if self.closed:
            return
        size = sum(map(len, chunks))
        if self._write_paused and self._writer.buffered + size > self._limits.max_write_bytes:
            waiting, limit = self._writer.buffered, self._limits.max_write_bytes
            error = UnavailableError(
                f"{self} does not read: {waiting} bytes for it are unsent, the limit is {limit}. "
                "Wait with drain() between writes, or find out why it hangs"
            )
            self._finish(error, "not_reading")
            return
        self.frames_out += 1
        self._writer.write(chunks, size)
        self._wrote(size)

    def pause_writing(self) -> None:
        """Of asyncio: the high-water mark is passed."""
        self._write_paused = True
        if self._accepted:
            self.hold()

    def resume_writing(self) -> None:
        """Of asyncio: the low-water mark is reached."""
        self._write_paused = False
        if self._accepted:
            self.release()
        self._writable()

    # ---- reading

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio."""
        self._transport = cast("asyncio.Transport", transport)
        self._writer.attach(self._transport)
        self.address = self.address or format_address(transport.get_extra_info("peername"))
        if self.closed:  # the caller gave up while the socket was being opened
            self._transport.abort()
            return
        tune_socket(transport)
        self._transport.set_write_buffer_limits(self._limits.write_high_bytes, self._limits.write_low_bytes)
        self._timer = self._loop.call_later(self._limits.hello_timeout, self._hello_is_late)
        refusal = self._admission()
        if refusal is not None:
            self.refuse(refusal)
        elif not self._accepted:
            self._send_hello()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Of asyncio: where the next bytes go."""
        return _DISCARDED if self.closed else self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Of asyncio: bytes came."""
        self.bytes_in += nbytes
        self.last_received_at = self._loop.time()
        if not self.closed:
            self._receiver.received(nbytes)
            self._hand_out()

    def eof_received(self) -> bool:
        """Of asyncio: the peer sends no more; a half-open connection is of no use."""
        error = UnavailableError(f"{self} ended the connection without a word; it may have died")
        self._finish(error, "eof")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Of asyncio: the socket is gone."""
        self._finish(UnavailableError(f"the connection to {self} was lost ({exc or 'closed'})"), "lost")
        self._cancel_timer()
        self._gone.set()
        self._socket_gone()

    def _hand_out(self) -> None:
        """Hand out complete frames until the handler holds, more bytes are needed, or it is the loop's turn to send."""
        self._writer.batching = True
        try:
            while not self._holds and not self.closed:
                frame = self._receiver.next_frame()
                if frame is None:
                    break
                if self._holds_room and not self._receiver.receiving:
                    self._give_room()
                self.frames_in += 1
                self.last_frame_at = self.last_received_at
                self._dispatch(frame)
                if self.bytes_in + self._writer.bytes_out - self._turn_began >= TURN_BYTES:
                    self._turn_began = self.bytes_in + self._writer.bytes_out
                    self.hold()
                    self._loop.call_soon(self._next_turn)
        except (ProtocolError, FrameDamagedError) as error:
            self.refuse(error)
        finally:
            self._writer.batching = False
            self._writer.flush()

    def _next_turn(self) -> None:
        """Others have had theirs, and what was written is on its way: go on."""
        self._holds -= 1
        if self._holds == 0 and self._transport is not None and not self.closed:
            self._transport.resume_reading()
            self._hand_out()

    def _dispatch(self, frame: Frame) -> None:
        if frame.kind == "bye":
            self._finish(self._error_of_bye(frame.meta), "bye")
        elif not self.opened:
            self._meet(frame)
        elif frame.kind == "hello":
            raise FrameError("a second hello came; a hello is sent once, first")
        else:
            self._receive(frame)

    # ---- hello and bye

    def _send_hello(self) -> None:
        meta = self._local_hello().to_wire()
        meta["max_frame_bytes"] = self._limits.max_frame_bytes
        if self._accepted:
            meta["token"] = None  # a secret is shown to who asks for it, not told to everyone
        self._write("hello", 0, meta)

    def _meet(self, frame: Frame) -> None:
        """The peer's first frame."""
        if frame.kind != "hello":
            raise FrameError(f"{frame.kind!r} came before a hello; the first frame must be a hello")
        try:
            peer = Hello.from_wire(frame.meta)
            self._check_peer(peer)
        except EcstoreError as error:
            self.refuse(error)
            return
        if self._accepted:
            self._send_hello()
        self._cancel_timer()
        self.peer = peer
        self._send_limit = min(self._limits.max_frame_bytes, peer.max_frame_bytes)
        self._receiver.max_frame_bytes = self._limits.max_frame_bytes
        self.opened = True
        self._after_open()

    def _hello_is_late(self) -> None:
        self._timer = None
        seconds = self._limits.hello_timeout
        error = ProtocolError(f"no hello came from {self} within {seconds:g} s; the peer must send one")
        self.refuse(error, "hello_late")

    def _error_of_bye(self, meta: Mapping[str, Any]) -> EcstoreError:
        code, reason = meta.get("code"), meta.get("reason")
        said = reason if isinstance(reason, str) else ""
        if isinstance(code, str) and code in BY_CODE:
            return error_from_wire({"code": code, "message": said, "details": meta.get("details")})
        return UnavailableError(f"{self} closed the connection: {said}")

    # ---- room for large frames

    def limit_reception(self, budget: ReceptionBudget) -> None:
        """From now on large frames are received only when there is room for them in `budget`."""
        self._budget = budget
        self._receiver.reserve = self._reserve

    def _reserve(self, size: int) -> bool:
        assert self._budget is not None
        self._holds_room = self._budget.take(self, size)
        if not self._holds_room:
            self.hold()
        return self._holds_room

    def reception_granted(self) -> None:
        """Of the budget: the frame that waited may be received."""
        self._holds_room = True
        self._receiver.granted()
        self.release()

    def _give_room(self) -> None:
        assert self._budget is not None
        self._holds_room = False
        self._budget.give(self)

    @property
    def body_received(self) -> int:
        """Bytes that came of the large frame being received."""
        return self._receiver.body_received

    # ---- hooks

    def _wrote(self, size: int) -> None:
        """`size` bytes were queued for the peer."""

    def _admission(self) -> EcstoreError | None:
        """Called first of all: an error refuses the peer before anything is read from it."""
        raise NotImplementedError

    def _check_peer(self, peer: Hello) -> None:
        """Called with the peer's hello: an `EcstoreError` refuses it."""
        raise NotImplementedError

    def _after_open(self) -> None:
        """Both hellos are checked; frames follow."""
        raise NotImplementedError

    def _receive(self, frame: Frame) -> None:
        """A frame that is no hello and no bye. A `ProtocolError` ends the connection."""
        raise NotImplementedError

    def _writable(self) -> None:
        """Writing may go on."""
        raise NotImplementedError

    def _after_end(self) -> None:
        """The stream has become unusable, `end` says why. Called once, from the loop."""
        raise NotImplementedError

    def _socket_gone(self) -> None:
        """The socket is closed. Called once, the last of all if it was ever open."""
        raise NotImplementedError
