"""Settings of the admin service, validated once."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from ecstore.errors import ConfigError
from ecstore.launcher import NodeSettings
from ecstore_admin.access import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings:
    """listen: host and port (0 = any). nodes: name -> "host:port" of the nodes that this service runs."""

    host: str = "127.0.0.1"
    port: int = 7480
    run_dir: Path
    coordination: str
    nodes: dict[str, str]
    cluster: str | None = None
    node_settings: NodeSettings = field(default_factory=NodeSettings)
    token: str | None = field(default=None, repr=False)  #: may operate; asked for when set
    view_token: str | None = field(default=None, repr=False)  #: may only view
    exit_with: int | None = None  #: process that the nodes and this service must not outlive
    restart_crashed: bool = True
    remove_run_dir: bool = False  #: at the end, when the nodes are ended, too

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ConfigError("the admin service needs nodes to look after: give --nodes N or --node NAME=HOST:PORT")
        if not self.loopback and not self.token:
            raise ConfigError(
                f"on {self.host}, which other machines can reach, the admin service needs a token: "
                "put one into ECSTORE_ADMIN_TOKEN or give --token-file FILE, or listen on 127.0.0.1"
            )
        self.tokens()

    def tokens(self) -> Tokens:
        """Who may do what. Raises ConfigError for tokens that cannot be."""
        return Tokens(self.token, self.view_token)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"
