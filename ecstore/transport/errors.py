"""Errors as they cross a connection: rebuilt with care, because the peer may send anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ecstore import errors
from ecstore.errors import EcstoreError, ProtocolError

#: Characters of an error's message that are sent.
MAX_MESSAGE_LENGTH: Final = 16 << 10

#: Characters for a peer that takes no more: with all that stands around them, at 4 bytes each, they fit the smallest
#: `max_frame_bytes` that a hello may name, 1024.
SHORT_MESSAGE_LENGTH: Final = 160

_MAX_DEPTH = 4
_MAX_ITEMS = 4096


def error_from_wire(meta: Mapping[str, Any]) -> EcstoreError:
    """The error a peer sent; one that cannot be rebuilt becomes a `ProtocolError` that says so."""
    try:
        return errors.from_wire(meta)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return ProtocolError(f"the peer sent an error that has no known form ({type(error).__name__})")


def error_to_wire(error: EcstoreError) -> dict[str, Any]:
    """Wire form of an error; details that are no plain data are sent as text."""
    details = {_text(key): _plain(value, _MAX_DEPTH) for key, value in error.details.items()}
    return {"code": error.code, "message": _text(error.message), "details": details}


def _plain(value: object, depth: int) -> object:
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 64:
        return int(value)
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth - 1) for item in list(value)[:_MAX_ITEMS]]
    if depth and isinstance(value, Mapping):
        return {_text(key): _plain(item, depth - 1) for key, item in list(value.items())[:_MAX_ITEMS]}
    return _text(value)


def _text(value: object) -> str:
    """As text that has a UTF-8 form (file names may hold lone surrogates)."""
    return str(value)[:MAX_MESSAGE_LENGTH].encode("utf-8", "replace").decode("utf-8")
