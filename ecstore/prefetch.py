"""Hints for kernels whose next memory accesses lie at random: `prefetch_read`, `prefetch_write`.

Both take (array, index), the index counted in elements from the array's start. The cache line of that element is
asked for, and nothing waits for it. Nothing is read or written, and any index is allowed: a hint can be useless, not
wrong.
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
    def emit(typing_context: Any, array: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            place = builder.ptrtoint(builder.gep(data, [arguments[1]]), ir.IntType(64))
            prefetch(builder, place, for_writing)
            return context.get_dummy_value()

        return types.void(array, types.int64), generate

    return emit


prefetch_read: Final[Any] = inlined(_hint(False))
prefetch_write: Final[Any] = inlined(_hint(True))
