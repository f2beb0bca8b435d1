"""The asyncio face of ecstore: `store = await ecstore.aio.connect("127.0.0.1:7400")`. Same names as the sync one."""

from ecstore.client.store import Store, Table, connect

__all__ = ["Store", "Table", "connect"]
