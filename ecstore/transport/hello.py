"""Who is at the other end: the first frame of each direction, and how it is checked."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from ecstore.errors import AuthError, FrameError, VersionMismatchError, WrongClusterError
from ecstore.wire import MAX_FRAME_BYTES, PROTOCOL_VERSION

Role = Literal["node", "client", "coordinator", "admin"]
ROLES: tuple[Role, ...] = ("node", "client", "coordinator", "admin")
_MAX_TEXT = 1024


@dataclass(frozen=True, slots=True)
class Hello:
    """One end of a connection, as it introduces itself.

    `cluster` is the id of the cluster it belongs to, None while it does not know one. `incarnation` is 0 for
    everyone but nodes. `token` is the shared secret a client proves itself with; a server never sends one.
    `max_frame_bytes` is the largest body this end accepts; the connection fills it in.
    """

    role: Role
    cluster: str | None
    name: str
    incarnation: int = 0
    token: str | None = field(default=None, repr=False)
    max_frame_bytes: int = MAX_FRAME_BYTES
    version: int = PROTOCOL_VERSION

    def to_wire(self) -> dict[str, Any]:
        """Meta of a hello frame."""
        return {
            "version": self.version,
            "role": self.role,
            "cluster": self.cluster,
            "name": self.name,
            "incarnation": self.incarnation,
            "token": self.token,
            "max_frame_bytes": self.max_frame_bytes,
        }

    @staticmethod
    def from_wire(meta: Mapping[str, Any]) -> Hello:
        """The hello a peer sent. Raises `VersionMismatchError` (before it looks at anything else, because
        another version may say the rest in another way) and `FrameError` for everything malformed.
        """
        version = _integer(meta, "version", minimum=0)
        if version != PROTOCOL_VERSION:
            raise VersionMismatchError(
                f"this end speaks protocol version {PROTOCOL_VERSION}, the peer version {version}; "
                "install the same ecstore release on both",
                ours=PROTOCOL_VERSION,
                theirs=version,
            )
        role = meta.get("role")
        if role not in ROLES:
            raise FrameError(f"the role of a hello must be one of {', '.join(ROLES)}")
        cluster, token = _text(meta, "cluster"), _text(meta, "token")
        name = _text(meta, "name")
        if name is None:
            raise FrameError("a hello must carry a name")
        return Hello(
            role=cast("Role", role),
            cluster=cluster,
            name=name,
            incarnation=_integer(meta, "incarnation", minimum=0),
            token=token,
            max_frame_bytes=_integer(meta, "max_frame_bytes", minimum=1024),
            version=version,
        )


def check_cluster(ours: str | None, theirs: str | None) -> None:
    """Raise `WrongClusterError` unless both ends name the same cluster or this end names none."""
    if ours is not None and theirs != ours:
        raise WrongClusterError(
            f"this end belongs to cluster {ours!r}, the peer to {theirs!r}; check the address",
            ours=ours,
            theirs=theirs,
        )


def check_token(ours: str | None, theirs: str | None) -> None:
    """Raise `AuthError` unless the peer knows the secret of this end, where it has one."""
    if ours is None:
        return
    if theirs is None or not hmac.compare_digest(ours.encode(), theirs.encode()):
        raise AuthError("the token is missing or wrong; connect with the token of this cluster")


def _text(meta: Mapping[str, Any], key: str) -> str | None:
    value = meta.get(key)
    if value is not None and (type(value) is not str or len(value) > _MAX_TEXT):
        raise FrameError(f"{key} of a hello must be a string of at most {_MAX_TEXT} characters")
    return value


def _integer(meta: Mapping[str, Any], key: str, *, minimum: int) -> int:
    value = meta.get(key)
    if type(value) is not int or value < minimum:
        raise FrameError(f"{key} of a hello must be an integer of at least {minimum}")
    return value
