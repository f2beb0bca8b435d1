"""What the service answers. Times are unix seconds, sizes bytes; null: not known, or not yet."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from ecstore.throttle import Profile

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
    "rows_failed": 0, "bytes_total": 270464, "retries": 0, "rate_bytes_per_s": 282944.0,
}  # fmt: skip

_GROUP_COUNTS: JsonDict = {
    "groups": 48, "ok": 40, "degraded": 8, "at_risk": 0, "lost": 0, "moving": 2, "losses_tolerated": 1,
}  # fmt: skip

_SCRUB_TOTALS: JsonDict = {
    "running": False, "stripes": 5120, "bytes_read": 1310720, "corrupt": 1, "repaired": 1, "unrepaired": 0,
    "not_attributable": 0, "key_mismatches": 0, "finished_at": 1767225590.0,
}  # fmt: skip

_SHARD_OF_NODE: JsonDict = {"group": 3, "shard": 1, "role": "data", "state": "active"}

_EVENT: JsonDict = {
    "id": 812, "at": 1767225600.0, "source": "admin", "node": "n2", "epoch": 14, "kind": "node_down",
    "message": "node n2, incarnation 1, is down (refused) in epoch 14", "details": {},
}  # fmt: skip

_TABLE: JsonDict = {
    "name": "user", "dim": 16, "dtype": "float32", "code": "rs(3,2)", "optimizer": {"kind": "adagrad", "lr": 0.05},
    "initializer": {"kind": "uniform", "low": -0.01, "high": 0.01}, "seed": 1, "row_bytes": 128, "rows": 51234,
}  # fmt: skip

_GROUP: JsonDict = {
    "group": 3, "code": "rs(2,1)", "state": "degraded", "losses_tolerated": 0,
    "shards": [
        {"shard": 0, "role": "data", "owner": "n1", "incarnation": 1, "state": "active", "joining": None},
        {"shard": 1, "role": "data", "owner": "n5", "incarnation": 1, "state": "recovering", "joining": None},
        {"shard": 2, "role": "parity", "owner": "n3", "incarnation": 2, "state": "active", "joining": None},
    ],
}  # fmt: skip


RecoveryState = Literal["waiting", "running", "throttled", "stuck", "done", "cancelled", "lost"]


def _example(example: JsonDict) -> ConfigDict:
    return ConfigDict(json_schema_extra={"example": example})


class Health(BaseModel):
    model_config = _example({"status": "ok", "reachable": True, "problem": ""})

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
    model_config = _example(
        {
            "cluster": "prod",
            "epoch": 14,
            "codes": ["rs(3,2)"],
            "nodes_up": 5,
            "nodes_down": 1,
            "health": _GROUP_COUNTS,
            "lost_groups": [],
            "at_risk": False,
            "clean": False,
            "coordination": "127.0.0.1:7399",
            "problem": "",
            "silent_nodes": [],
            "membership_frozen": False,
            "scrub": _SCRUB_TOTALS,
            "loop_lag_ms": 3.0,
        }
    )

    cluster: str
    epoch: int
    codes: list[str]
    nodes_up: int
    nodes_down: int
    problem: str = Field(description="why nothing is known of the present: then all of this was true last; else empty")
    silent_nodes: list[str] = Field(description="up by the map, and without an answer for 3 s and more")
    membership_frozen: bool = Field(
        description="all nodes that answer have lost the coordination service: no failure is noticed or repaired"
    )
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
    process: Literal["running", "paused", "exited", "unknown"]
    wanted: Literal["up", "down", "drained"] | None = Field(
        description="up: started again when it ends by itself; drained: not started again; null: not managed"
    )
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
    model_config = _example({"nodes": [_NODE_EXAMPLE]})

    nodes: list[Node]


class ShardOfNode(BaseModel):
    group: int
    shard: int
    role: Literal["data", "parity"]
    state: Literal["active", "recovering"]


class NodeDetail(Node):
    model_config = _example(_NODE_EXAMPLE | {"shards": [_SHARD_OF_NODE], "statistics": {"rows": 51234}})

    shards: list[ShardOfNode]
    statistics: dict[str, Any] = Field(description="what the node said last about itself; empty when it never did")


class NodeAction(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "example": {"id": "n1", "outcome": "killed", "message": "node n1 was killed (SIGKILL)", "at": 1767225600.0}
        }
    )

    id: str
    outcome: Literal["killed", "already_down", "started", "starting", "already_up", "draining", "paused", "resumed"] = (
        Field(description="starting: its process runs and has not joined yet")
    )
    message: str
    at: float = Field(description="when the request began to be carried out")


class NodeDrain(BaseModel):
    model_config = _example(
        {
            "id": "n2",
            "outcome": "draining",
            "shards_left": 12,
            "at": 1767225600.0,
            "message": "node n2 is being emptied, 12 shards are left; ask again, and when none is left, POST "
            "/nodes/n2/kill ends it and nothing has to be recovered; after that /recover takes it back",
        }
    )

    id: str
    outcome: Literal["draining", "already_draining", "drained", "already_down"]
    shards_left: int
    message: str = Field(description="how far it is, and what to do next")
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
    model_config = _example(
        {
            "epoch": 14,
            "seed": 7,
            "virtual_nodes": 64,
            "load": {"n1": {"data": 6, "parity": 4}},
            "groups": [_GROUP],
        }
    )

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
    model_config = _example({"tables": [_TABLE]})

    tables: list[Table]


class Recovery(BaseModel):
    model_config = ConfigDict(json_schema_extra={"example": _RECOVERY_EXAMPLE})

    group: int
    shard: int
    kind: Literal["data", "parity", "move"]
    lost_node: str = Field(description="owner before; of a move the node that the shard leaves")
    new_owner: str = Field(description="empty when the group is lost and nobody took over")
    epoch: int
    state: RecoveryState = Field(
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


class DecodingTotals(BaseModel):
    """How many recoveries are in each state, and the sums of those that go on."""

    waiting: int
    running: int
    throttled: int
    stuck: int
    done: int
    cancelled: int
    lost: int
    rows_total: int
    rows_decoded: int
    bytes_total: int
    bytes_decoded: int
    rows_failed: int = Field(description="of all recoveries that are remembered")
    rate_rows_per_s: float
    rate_bytes_per_s: float
    eta_s: float | None = Field(description="of the last of them; null: not known, or nothing goes on")


class Decoding(BaseModel):
    model_config = _example(
        {
            "recoveries": [_RECOVERY_EXAMPLE],
            "next": None,
            "profile": "training_first",
            "totals": {
                "waiting": 0,
                "running": 1,
                "throttled": 0,
                "stuck": 0,
                "done": 0,
                "cancelled": 0,
                "lost": 0,
                "rows_total": 2113,
                "rows_decoded": 1024,
                "bytes_total": 270464,
                "bytes_decoded": 131072,
                "rows_failed": 0,
                "rate_rows_per_s": 2210.5,
                "rate_bytes_per_s": 282944.0,
                "eta_s": 0.49,
            },
        }
    )

    recoveries: list[Recovery] = Field(description="the newest that were asked for, oldest first")
    next: str | None = Field(description="as `cursor`: those before these; null: there are none")
    totals: DecodingTotals = Field(description="of all recoveries, whatever was asked for")
    profile: Profile = Field(description="what goes first on the nodes")


class Event(BaseModel):
    model_config = _example(_EVENT)

    id: int = Field(
        description="place in the order in which events became known; every service with this run directory agrees"
    )
    at: float
    source: Literal["admin", "node"]
    node: str | None
    epoch: int | None
    kind: str
    message: str
    details: dict[str, Any]


class Events(BaseModel):
    model_config = _example({"events": [_EVENT], "next": 812, "more": False, "oldest": 1})

    events: list[Event]
    next: int = Field(description="as `after`: what comes then")
    more: bool = Field(description="whether something has come then already")
    oldest: int = Field(description="smallest id that is kept; what was asked for before it is gone")


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
                "request_id": "8f14e45fceea167a",
            }
        }
    )

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    instance: str
    request_id: str = Field(description="the X-Request-ID of the answer; the service's log has it")
