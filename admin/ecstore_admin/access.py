"""Who may do what: tokens and their roles."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final, Literal

from ecstore.errors import ConfigError

#: `view` reads; `operate` also changes something.
Role = Literal["view", "operate"]

#: Where a browser keeps its token after /login.
COOKIE: Final = "ecstore-token"

_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def needed(method: str) -> Role:
    """The role that a request needs."""
    return "view" if method in _READING else "operate"


class Tokens:
    """The tokens of a service. No text of an error, and no `repr`, has one in it."""

    def __init__(self, operate: str | None, view: str | None) -> None:
        """Raises ConfigError for tokens that nobody could send or tell apart."""
        self._digests: list[tuple[Role, bytes]] = []
        for role, token in (("operate", operate), ("view", view)):
            if token is None:
                continue
            if not token or not all("!" <= character <= "~" for character in token):
                raise ConfigError(f"the {role} token must be printable ASCII without blanks; make another one")
            self._digests.append(("operate" if role == "operate" else "view", _digest(token)))
        if view is not None and operate is None:
            raise ConfigError(
                "a token for viewing alone would leave everything else to everybody: give one for operating as well"
            )
        if view is not None and view == operate:
            raise ConfigError("the tokens for viewing and for operating are the same; make two")

    @property
    def required(self) -> bool:
        """Whether a token is asked for at all."""
        return bool(self._digests)

    def role(self, given: str) -> Role | None:
        """The role of a token; None for one that is not known. Takes the same time for all."""
        found: Role | None = None
        digest = _digest(given)
        for role, known in self._digests:
            if hmac.compare_digest(digest, known):
                found = role
        return found


def _digest(token: str) -> bytes:
    """Of one length, whatever is given: a comparison tells nothing, not even how long the token is."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
