"""The whole error tree, with the wire code of each error.

    EcstoreError
    ├── InputError            the call is wrong; nothing was applied            (also a ValueError)
    │   ├── ShapeError        ├── DtypeError      ├── KeyRangeError
    │   ├── NonFiniteError    ├── CodeError       └── ConfigError
    ├── TableError
    │   ├── UnknownTableError └── TableExistsError
    ├── AvailabilityError
    │   ├── DataLossError     more losses than the code tolerates: names the groups
    │   ├── TimeoutError      the deadline passed; a push may or may not be in, once (also builtin TimeoutError)
    │   ├── UnavailableError  nobody reachable to answer
    │   └── CapacityError     a bound was reached: memory, clients, in-flight requests
    ├── ProtocolError         the peer does not speak our protocol
    │   ├── FrameError        ├── FrameTooLargeError
    │   ├── VersionMismatchError └── WrongClusterError
    ├── AuthError
    └── RetryError            internal: the routing was stale, ask again; the client never lets it out
        ├── NotOwnerError     ├── NotReadyError   ├── FencedError   └── RequestGapError

Every error crosses the wire as `{"code", "message", "details"}`; `from_wire` gives the same class back.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar


class EcstoreError(Exception):
    """Base of all errors raised by ecstore. `str(error)` says what is wrong and what to do next."""

    code: ClassVar[str] = "error"
    #: True where the same call may succeed later without a change by the caller.
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = details

    def to_wire(self) -> dict[str, Any]:
        """Plain-data form for a reply frame."""
        return {"code": self.code, "message": self.message, "details": self.details}


class InputError(EcstoreError, ValueError):
    code = "input"


class ShapeError(InputError):
    code = "shape"


class DtypeError(InputError):
    code = "dtype"


class KeyRangeError(InputError):
    code = "key_range"


class NonFiniteError(InputError):
    code = "non_finite"


class CodeError(InputError):
    code = "code"


class ConfigError(InputError):
    code = "config"


class TableError(EcstoreError):
    code = "table"


class UnknownTableError(TableError):
    code = "unknown_table"


class TableExistsError(TableError):
    code = "table_exists"


class AvailabilityError(EcstoreError):
    code = "availability"


class DataLossError(AvailabilityError):
    """More shards of a group were lost than its code tolerates.

    `groups` holds the ids of the lost groups. Other groups go on; see OPERATIONS.md, "Data loss".
    """

    code = "data_loss"

    def __init__(self, message: str = "", *, groups: Iterable[int] = (), **details: Any) -> None:
        self.groups: tuple[int, ...] = tuple(sorted(int(group) for group in groups))
        if not message:
            named = ", ".join(str(group) for group in self.groups)
            one = len(self.groups) == 1
            message = (
                f"{'group' if one else 'groups'} {named} lost more shards than {'its' if one else 'their'} code "
                f"tolerates; {'its' if one else 'their'} rows are gone. "
                "Keys of other groups go on. Start a new cluster and load an export to have all keys again"
            )
        super().__init__(message, groups=list(self.groups), **details)


class TimeoutError(AvailabilityError, builtins.TimeoutError):
    code = "timeout"
    retryable = True


class UnavailableError(AvailabilityError, ConnectionError):
    code = "unavailable"
    retryable = True


class FrameDamagedError(UnavailableError):
    """Bytes were damaged on the way; the connection ends, the request may have been applied or not."""

    code = "frame_damaged"


class CapacityError(AvailabilityError):
    code = "capacity"
    retryable = True


class ProtocolError(EcstoreError):
    code = "protocol"


class FrameError(ProtocolError):
    code = "frame"


class FrameTooLargeError(ProtocolError):
    code = "frame_too_large"


class VersionMismatchError(ProtocolError):
    code = "version_mismatch"


class WrongClusterError(ProtocolError):
    code = "wrong_cluster"


class AuthError(EcstoreError):
    code = "auth"


class RetryError(EcstoreError):
    code = "retry"
    retryable = True


class NotOwnerError(RetryError):
    code = "not_owner"


class NotReadyError(RetryError):
    code = "not_ready"


class FencedError(RetryError):
    code = "fenced"


class RequestGapError(RetryError):
    code = "request_gap"


def _all_errors(base: type[EcstoreError]) -> Iterable[type[EcstoreError]]:
    yield base
    for child in base.__subclasses__():
        yield from _all_errors(child)


BY_CODE: dict[str, type[EcstoreError]] = {error.code: error for error in _all_errors(EcstoreError)}


def from_wire(data: Mapping[str, Any]) -> EcstoreError:
    """Rebuild the error a peer sent; an unknown code becomes a plain `EcstoreError`."""
    error_class = BY_CODE.get(str(data.get("code")), EcstoreError)
    details = data.get("details")
    kwargs = {str(key): value for key, value in details.items()} if isinstance(details, Mapping) else {}
    kwargs.pop("message", None)
    return error_class(str(data.get("message", "")), **kwargs)
