"""What the service answers. Times are unix seconds, sizes bytes; null: not known, or not yet."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

_NODE_EXAMPLE: JsonDict = {
    "id": "n1", "address": "127.0.0.1:7400", "state": "up", "down_reason": "", "incarnation": 1, "managed": True,
    "process": "running", "wanted": "up", "pid": 4711, "starts": 1, "started_at": 1767225600.0, "exit_code": None,
    "data_shards": 6, "parity_shards": 4, "rows": 51234, "rss_bytes": 187_000_000,
    "loop_lag_ms": 3.0,
}  # fmt: skip

_RECOVERY_EXAMPLE: JsonDict = {
    "group": 3, "shard": 1, "kind": "data", "lost_node": "n2", "new_owner": "n5", "epoch": 14, "state": "running",
    "rows_total": 2113, "rows_decoded": 1024, "rows_on_demand": 96, "bytes_decoded": 131072,
    "rate_rows_per_s": 2210.5, "eta_s": 0.49, "started_at": 1767225600.1, "serving_at": 1767225600.12,
    "first_row_at": 1767225600.13, "last_progress_at": 1767225600.55, "finished_at": None,
}  # fmt: skip


class Health(BaseModel):
    status: Literal["ok"] = "ok"
    reachable: bool = Field(description="whether a node has answered the last look at the cluster")
    problem: str = Field(description="why not; empty when all is well")


class GroupCounts(BaseModel):
    """Groups by the worst that is true of them."""

    groups: int
    ok: int
    degraded: int = Field(description="a shard is being recovered")
    at_risk: int = Field(description="one node holds two shards: its loss would be two losses")
    lost: int
    moving: int = Field(description="counted besides: a shard is on its way to another node")
    losses_tolerated: int | None = Field(description="nodes that may be lost now, whichever they are; null: no group")


class ScrubTotals(BaseModel):
    """What the nodes that are up have scrubbed in their present lives."""

    running: bool
    stripes: int
    bytes_read: int
    corrupt: int = Field(description="stripes whose parity was not that of their data")
    repaired: int
    unrepaired: int
    not_attributable: int
    key_mismatches: int
    finished_at: float | None = Field(description="when a node was last done; null: never")


class Cluster(BaseModel):
    cluster: str
    epoch: int
    codes: list[str]
    nodes_up: int
    nodes_down: int
    health: GroupCounts
    lost_groups: list[int]
    at_risk: bool = Field(description="any group is at risk")
    clean: bool = Field(description="every group is whole, on distinct nodes, and nothing moves")
    coordination: str = Field(description="address of the coordination service")
    scrub: ScrubTotals
    loop_lag_ms: float | None = Field(description="the longest `loop_lag_ms` of a node that is up; null: not known yet")


class Node(BaseModel):
    model_config = ConfigDict(json_schema_extra={"example": _NODE_EXAMPLE})

    id: str
    address: str
    state: Literal["up", "draining", "down", "starting"] = Field(
        description="as the cluster map has it; starting: the process runs and has not joined yet"
    )
    down_reason: str
    incarnation: int = Field(description="lives so far; 0: never joined")
    managed: bool = Field(description="whether this service started it and can kill it")
    process: Literal["running", "exited", "unknown"]
    wanted: Literal["up", "down"] | None
    pid: int | None
    starts: int
    started_at: float | None
    exit_code: int | None
    data_shards: int
    parity_shards: int
    rows: int | None
    rss_bytes: int | None
    loop_lag_ms: float | None = Field(
        description="longest time in the last minute or two for which the node's event loop could do nothing else"
    )


class Nodes(BaseModel):
    nodes: list[Node]


class ShardOfNode(BaseModel):
    group: int
    shard: int
    role: Literal["data", "parity"]
    state: Literal["active", "recovering"]


class NodeDetail(Node):
    shards: list[ShardOfNode]
    statistics: dict[str, Any] = Field(description="what the node said last about itself; empty when it never did")


class NodeAction(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "example": {"id": "n1", "outcome": "killed", "message": "node n1 was killed (SIGKILL)", "at": 1767225600.0}
        }
    )

    id: str
    outcome: Literal["killed", "already_down", "started", "already_up", "paused", "resumed"]
    message: str
    at: float = Field(description="when the request began to be carried out")


class Shard(BaseModel):
    shard: int
    role: Literal["data", "parity"]
    owner: str
    incarnation: int
    state: Literal["active", "recovering"]
    joining: str | None = Field(description="node that is copying the shard and will own it")


class Group(BaseModel):
    group: int
    code: str
    state: Literal["ok", "degraded", "at_risk", "lost"]
    losses_tolerated: int
    shards: list[Shard]


class Load(BaseModel):
    data: int
    parity: int


class Ring(BaseModel):
    epoch: int
    seed: int
    virtual_nodes: int = Field(description="points of a node on the hash ring")
    load: dict[str, Load] = Field(description="shards of every node that is up")
    groups: list[Group]


class Table(BaseModel):
    name: str
    dim: int
    dtype: str
    code: str
    optimizer: dict[str, Any]
    initializer: dict[str, Any]
    seed: int
    row_bytes: int
    rows: int | None = Field(description="stored rows; null while they cannot be counted")


class Tables(BaseModel):
    tables: list[Table]


class Recovery(BaseModel):
    model_config = ConfigDict(json_schema_extra={"example": _RECOVERY_EXAMPLE})

    group: int
    shard: int
    kind: Literal["data", "parity", "move"]
    lost_node: str = Field(description="owner before; of a move the node that the shard leaves")
    new_owner: str = Field(description="empty when the group is lost and nobody took over")
    epoch: int
    state: Literal["waiting", "running", "throttled", "stuck", "done", "lost", "cancelled"] = Field(
        description="throttled: held by the rate limit, or letting requests go first; stuck: no progress for 10 s "
        "although nothing holds it; cancelled: the new owner was lost, too, and another recovery follows"
    )
    rows_total: int
    rows_decoded: int
    rows_on_demand: int = Field(description="of those, decoded because they were asked for")
    rows_failed: int = Field(default=0, description="not back when the group was lost")
    bytes_total: int = 0
    bytes_decoded: int
    retries: int = Field(default=0, description="attempts that failed and were made again")
    rate_rows_per_s: float = Field(description="over the last 5 s, or since rows came last")
    rate_bytes_per_s: float = 0.0
    eta_s: float | None = Field(description="from that rate; null: nothing comes at the moment, or it has ended")
    started_at: float
    serving_at: float | None = Field(description="when the new owner began to serve the shard")
    first_row_at: float | None
    last_progress_at: float | None
    finished_at: float | None


class Decoding(BaseModel):
    recoveries: list[Recovery]


class Event(BaseModel):
    id: int
    at: float
    source: Literal["admin", "node"]
    node: str | None
    epoch: int | None
    kind: str
    message: str
    details: dict[str, Any]


class Events(BaseModel):
    events: list[Event]


class Problem(BaseModel):
    """An error as RFC 9457 wants it, with media type application/problem+json."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "type": "about:blank",
                "title": "Not Found",
                "status": 404,
                "detail": "there is no node 'n9'; there are n1, n2, n3",
                "instance": "/nodes/n9",
            }
        }
    )

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    instance: str
