"""The codec's peers, each given every favour: what can be made beforehand is, and only the coding itself is timed.

ISA-L is Intel's library in C and assembly, by way of ctypes: from the wheel of pyeclib, which carries it, else the
system's. It gets the very matrices of the store's code, and must make the very same bytes. zfec (C) has a code of its
own. galois computes with NumPy and numba; it gets the store's matrices, too.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ecstore.codec import Code, decode_matrix
from ecstore.codec.field import POLYNOMIAL

Bytes = NDArray[np.uint8]
Work = Callable[[], object]

_TABLE_BYTES: Final = 32  # ISA-L's, for each coefficient


class IsaL:
    """`ec_encode_data`: outputs = matrix times sources. Raises ImportError where the library is not found."""

    name = "isa-l"

    def __init__(self) -> None:
        self._library, self.version = _isa_l()

    def matrix(self, matrix: Bytes, sources: Sequence[Bytes], outputs: Sequence[Bytes]) -> Work:
        """A call that writes the outputs; the caller keeps all arrays alive. Tables are made now."""
        rows, columns = matrix.shape
        coefficients = np.ascontiguousarray(matrix)
        tables = np.zeros(_TABLE_BYTES * rows * columns, np.uint8)
        self._library.ec_init_tables(columns, rows, _pointer(coefficients), _pointer(tables))
        to, source = _pointers(outputs), _pointers(sources)
        run, at, size = self._library.ec_encode_data, _pointer(tables), sources[0].nbytes
        return lambda tables=tables: run(size, columns, rows, at, source, to)  # type: ignore[misc]


def _isa_l() -> tuple[Any, str]:
    """The library and where it is from."""
    spec = importlib.util.find_spec("pyeclib")
    if spec is not None and spec.origin is not None:
        beside = Path(spec.origin).parent.parent / "pyeclib.libs"
        for path in sorted(beside.glob("libisal*")):
            return ctypes.CDLL(str(path)), f"of pyeclib {importlib.metadata.version('pyeclib')}"
    found = ctypes.util.find_library("isal")
    if found is None:
        raise ImportError("isa-l is not here (pip install 'ecstore[bench]', or the system's package of libisal)")
    return ctypes.CDLL(found), found


def _pointer(array: NDArray[Any]) -> Any:
    return ctypes.c_void_p(array.ctypes.data)


def _pointers(arrays: Sequence[Bytes]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*[array.ctypes.data for array in arrays])


class Zfec:
    """zfec's encoder and decoder, which return new `bytes`. Raises ImportError where it is not installed."""

    name = "zfec"

    def __init__(self) -> None:
        try:
            import zfec
        except ImportError:
            raise ImportError("zfec is not installed (pip install 'ecstore[bench]')") from None
        self._zfec: Any = zfec
        self.version = importlib.metadata.version("zfec")

    def encode(self, code: Code, data: Sequence[Bytes]) -> Work:
        """Its own parity shards of these data shards."""
        encoder, sources = self._zfec.Encoder(code.k, code.width), [rows.reshape(-1).data for rows in data]
        numbers = list(range(code.k, code.width))
        return lambda: encoder.encode(sources, numbers)

    def decode(self, code: Code, lost: Sequence[int], data: Sequence[Bytes]) -> Work:
        """All data shards from those left and its own parity shards. Checks once that they are right."""
        parity = self.encode(code, data)()
        assert isinstance(parity, list | tuple)
        numbers = [index for index in range(code.width) if index not in lost][: code.k]
        blocks = [bytes(data[index]) if index < code.k else parity[index - code.k] for index in numbers]
        decoder = self._zfec.Decoder(code.k, code.width)
        # It wants a shard that is there at its own place, and others in between.
        order = _in_place(numbers, code.k)
        blocks, numbers = [blocks[place] for place in order], [numbers[place] for place in order]
        for index, rows in enumerate(decoder.decode(blocks, numbers)):
            assert bytes(rows) == data[index].tobytes()
        return lambda: decoder.decode(blocks, numbers)


def _in_place(numbers: Sequence[int], k: int) -> list[int]:
    """An order of the survivors in which data shard i stands at place i."""
    there = {number: place for place, number in enumerate(numbers)}
    others = iter([place for place, number in enumerate(numbers) if number >= k])
    return [there[index] if index in there else next(others) for index in range(k)]


class Galois:
    """galois' matrix product. It is slow: give it a part of the rows."""

    name = "galois"

    def __init__(self) -> None:
        import galois  # about two seconds

        self.version = importlib.metadata.version("galois")
        self._field: Any = galois.GF(2**8, irreducible_poly=POLYNOMIAL)

    def matrix(self, matrix: Bytes, sources: Sequence[Bytes]) -> Work:
        """A call that returns matrix times sources, one row for each output."""
        left, right = self._field(matrix), self._field(np.stack([rows.reshape(-1) for rows in sources]))
        return lambda: left @ right


def decode_sources(code: Code, lost: Sequence[int]) -> tuple[Bytes, list[int]]:
    """(matrix, survivors it is for) that make the lost shards, as the store's codec decodes them."""
    left = [index for index in range(code.width) if index not in lost]
    return decode_matrix(code, lost, left), left[: code.k]
