"""Hints for kernels whose next memory accesses lie at random: `prefetch_read(address)`, `prefetch_write(address)`.

The cache line of the address is asked for, and nothing waits for it. Any address is allowed; none is ever read or
written by this, so a hint can be useless but not wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba.core import types

from ecstore.jit import inlined

#: Bytes of a cache line on the machines this is tuned for. On one with longer lines some hints say the same twice.
LINE_BYTES: Final = 64

_KEEP, _OF_DATA = 3, 1


def prefetch(builder: Any, address: Any, for_writing: bool) -> None:
    """Emit the hint, for those who make instructions themselves; `address` is an i64 value."""
    pointer, int32 = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [pointer, int32, int32, int32])
    function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
    place = builder.inttoptr(address, pointer)
    builder.call(function, [place, int32(int(for_writing)), int32(_KEEP), int32(_OF_DATA)])


def _hint(for_writing: bool) -> Callable[..., Any]:
    def emit(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            prefetch(builder, arguments[0], for_writing)
            return context.get_dummy_value()

        return types.void(address), generate

    return emit


prefetch_read: Final[Any] = inlined(_hint(False))
prefetch_write: Final[Any] = inlined(_hint(True))
