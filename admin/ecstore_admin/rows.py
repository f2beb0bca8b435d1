"""`/tables/{table}/rows/{key}`: one row as it lies on its node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from fastapi import APIRouter, HTTPException, Path
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from ecstore.errors import DataLossError, UnknownTableError
from ecstore_admin import problems

if TYPE_CHECKING:
    from ecstore_admin.app import Service

_PROBLEM = {"schema": {"$ref": "#/components/schemas/Problem"}}

#: A row whose shard is being decoded is decoded first; so long the answer waits for it.
LOOK_TIMEOUT_S = 8.0

TableName = Annotated[str, Path(description="name of a table", examples=["t"], min_length=1, max_length=256)]
Key = Annotated[int, Path(description="id of a row", examples=[17], ge=0, lt=1 << 64)]

_EXAMPLE: JsonDict = {
    "table": "user",
    "key": 17,
    "weights": [0.12, -0.03],
    "state": {"accumulator": [0.5, 0.25]},
    "group": 3,
    "shard": 1,
    "slot": 42,
    "owner": "n2",
    "seq": 1207,
    "decoded": False,
}  # fmt: skip


class Row(BaseModel):
    model_config = ConfigDict(json_schema_extra={"example": _EXAMPLE})

    table: str
    key: int
    weights: list[float | None] = Field(description="null: not a finite number")
    state: dict[str, float | list[float | None] | None] = Field(description="the optimizer's, by name")
    group: int
    shard: int = Field(description="index of the row's data shard in the group")
    slot: int = Field(description="index of the row in the shard; the parity rows at this slot protect it")
    owner: str = Field(description="the node that answered")
    seq: int = Field(description="number of the shard's latest change at that instant")
    decoded: bool = Field(description="the row had been lost, and was decoded in order to show it")


def _plain(value: Any) -> Any:
    """For JSON, which has no NaN and no infinity."""
    if isinstance(value, np.ndarray):
        return [_plain(number) for number in value.tolist()]
    return value if np.isfinite(value) else None


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.get(
        "/tables/{table}/rows/{key}",
        summary="One row: weights, optimizer state, and where it lies. Makes no row",
        responses={410: {"description": "the row's group is lost", "content": {problems.MEDIA_TYPE: _PROBLEM}}},
    )
    async def row(table: TableName, key: Key) -> Row:
        await service.map()
        try:
            found = await (await service.observer.store().table(table)).look(key, timeout=LOOK_TIMEOUT_S)
        except UnknownTableError as error:
            raise HTTPException(404, str(error)) from error
        except DataLossError as error:
            raise HTTPException(410, str(error)) from error
        if found is None:
            raise HTTPException(
                404,
                f"table {table!r} has no row {key}: it was never pushed or loaded, or it was deleted; a pull of it "
                "gives its initial weights",
            )
        return Row(
            table=table, key=found.key, weights=_plain(found.weights),
            state={name: _plain(value) for name, value in found.state.items()},
            group=found.group, shard=found.shard, slot=found.slot, owner=found.owner, seq=found.seq,
            decoded=found.decoded,
        )  # fmt: skip

    return routes
