"""A client that says exactly what a test wants it to say: one blocking socket, frames built by hand."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Sequence
from typing import Any

import numpy as np

from ecstore.transport import Hello
from ecstore.wire import PREFIX_BYTES, Frame, decode, decode_prefix, encode

TIMEOUT_S = 30.0


class RawClient:
    """Sends what it is told to; reads only when it is asked to. Use it as a context manager."""

    def __init__(
        self,
        address: str,
        *,
        cluster: str | None = None,
        hello: dict[str, Any] | None = None,
        introduce: bool = True,
    ) -> None:
        """Connects and introduces itself as a client; `hello`: fields of the hello to be other than usual."""
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._rids = itertools.count(1)
        if introduce:
            meta = Hello(role="client", cluster=cluster, name="raw").to_wire() | (hello or {})
            self.send_frame("hello", 0, meta)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_error: object) -> None:
        self.socket.close()

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_frame(self, kind: str, rid: int, meta: dict[str, Any], bins: Sequence[Any] = ()) -> None:
        self.socket.sendall(b"".join(bytes(chunk) for chunk in encode(kind, rid, meta, bins)))

    def send(self, kind: str, meta: dict[str, Any], bins: Sequence[Any] = ()) -> int:
        """Send a request; its id."""
        rid = next(self._rids)
        self.send_frame(kind, rid, meta, bins)
        return rid

    def receive(self) -> Frame | None:
        """The next frame; None when the other end has closed the connection."""
        prefix = self._read(PREFIX_BYTES)
        if prefix is None:
            return None
        length, head_length, body_checksum = decode_prefix(prefix)
        body = self._read(length)
        return None if body is None else decode(np.frombuffer(bytearray(body), np.uint8), head_length, body_checksum)

    def reply(self, rid: int) -> Frame | None:
        """The reply to a request; None when the connection ended first. Other frames are skipped."""
        while (frame := self.receive()) is not None:
            if frame.rid == rid and frame.kind in ("ok", "error"):
                return frame
        return None

    def ask(self, kind: str, meta: dict[str, Any], bins: Sequence[Any] = ()) -> Frame:
        """Send a request and wait for its reply, which must come."""
        answer = self.reply(self.send(kind, meta, bins))
        assert answer is not None, f"the connection was closed instead of an answer to {kind}"
        return answer

    def goodbye(self) -> dict[str, Any]:
        """Read on to the end of the connection: the meta of the bye that came last; {} when there was none."""
        said: dict[str, Any] = {}
        try:
            while (frame := self.receive()) is not None:
                said = frame.meta if frame.kind == "bye" else {}
        except ConnectionResetError:
            pass  # we had sent more than the other end cared to read
        return said

    def _read(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                return None
            data += part
        return bytes(data)


def push_request(
    client: bytes,
    gid: int,
    index: int,
    table_id: int,
    keys: Any,
    grads: Any,
    request_no: int,
    *,
    previous: int | None = None,
) -> tuple[dict[str, Any], list[Any]]:
    """Meta and bins of a push of float32 (n, dim) gradients to one data shard."""
    keys = np.asarray(keys, np.uint64)
    before = request_no - 1 if previous is None else previous
    head = [int(gid), int(index), table_id, keys.size, 4 * grads.shape[1], request_no, before]
    meta = {"client": client, "op": "push", "ack": "parity", "sections": [head]}
    return meta, [keys, grads.reshape(-1).view(np.uint8)]


def pull_request(gid: int, index: int, table_id: int, keys: Any) -> tuple[dict[str, Any], list[Any]]:
    """Meta and bins of a pull from one data shard."""
    keys = np.asarray(keys, np.uint64)
    return {"epoch": 0, "sections": [[int(gid), int(index), table_id, keys.size]]}, [keys]


def codes_of(frame: Frame) -> list[str]:
    """Codes of the errors in a reply, by section; one for the whole request when that failed."""
    if frame.kind == "error":
        return [frame.meta["code"]]
    return [error["code"] for _section, error in frame.meta.get("errors", [])]
