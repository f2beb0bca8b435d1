"""The cluster map as bytes, and the file that keeps it over restarts of the coordination service.

A state file is replaced as a whole: written beside, flushed to the disk, renamed over the old one, and the
folder flushed. So a crash at any moment leaves the old map or the new one. The checksum is for everything
else that happens to files.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgpack

from ecstore.cluster.map import MAX_GROUPS, ClusterMap
from ecstore.errors import ConfigError, FrameError, FrameTooLargeError

#: Largest map in bytes: MAX_GROUPS groups of the widest common codes stay below it.
MAX_MAP_BYTES: Final = 64 << 20

_MAGIC: Final = b"ecstore map 1\n"
_DIGEST_BYTES: Final = 16


def pack_map(current: ClusterMap) -> bytes:
    """Wire bytes of a map. `FrameTooLargeError` above `MAX_MAP_BYTES`."""
    packed: bytes = msgpack.packb(current.to_wire())
    if len(packed) > MAX_MAP_BYTES:
        raise FrameTooLargeError(
            f"the cluster map takes {len(packed)} bytes, at most {MAX_MAP_BYTES} are allowed; use fewer codes"
        )
    return packed


def unpack_map(packed: bytes) -> ClusterMap:
    """A map from its wire bytes. `FrameError`, `FrameTooLargeError` for anything else."""
    size = len(packed)
    items = min(size, MAX_GROUPS)  # memory is taken for the length that an array claims, at each level of nesting
    if size > MAX_MAP_BYTES:
        raise FrameTooLargeError(f"a cluster map of {size} bytes; at most {MAX_MAP_BYTES} are allowed")
    try:
        data = msgpack.unpackb(
            packed, strict_map_key=True, max_ext_len=0, max_str_len=size, max_array_len=items, max_map_len=items
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise FrameError(f"the cluster map is no msgpack ({str(error) or type(error).__name__})") from error
    return ClusterMap.from_wire(data)


def write_map_file(path: Path, packed: bytes) -> None:
    """Replace the state file durably; returns when the bytes are on the disk. `OSError` when that failed."""
    beside = path.with_name(path.name + ".new")
    digest = blake2b(packed, digest_size=_DIGEST_BYTES).digest()
    with beside.open("wb") as file:
        file.write(_MAGIC + digest + packed)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_map_file(path: Path) -> ClusterMap | None:
    """The map a state file holds; None when there is no file. `ConfigError` when it cannot be trusted."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_MAP_BYTES + len(_MAGIC) + _DIGEST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read the state file {path}: {error}; check its path and permissions") from error
    start = len(_MAGIC) + _DIGEST_BYTES
    packed = content[start:]
    whole = content.startswith(_MAGIC) and len(content) > start
    if not whole or blake2b(packed, digest_size=_DIGEST_BYTES).digest() != content[len(_MAGIC) : start]:
        raise ConfigError(
            f"the state file {path} is torn or not a state file. Put a good copy back; or stop all nodes, "
            "move the file away and start again with an empty cluster"
        )
    try:
        return unpack_map(packed)
    except FrameError as error:
        raise ConfigError(f"the state file {path} is of another version: {error}") from error
