"""A few instructions that NumPy's language has no words for, to be called in kernels (`ecstore.jit`) of any module.

They are no kernels: each becomes a part of the kernel that calls it. Offsets and counts are elements, from the start of
a C-contiguous array; nothing is checked.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils, types

from ecstore.jit import inlined

_LANES = 8

_build: Any = cgutils  # numba's own helpers carry no types


def _data_pointer(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [offset])


def _copy_code(typing_context: Any, to: Any, to_offset: Any, source: Any, source_offset: Any, count: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target = _data_pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        origin = _data_pointer(context, builder, signature.args[2], arguments[2], arguments[3])
        _build.raw_memcpy(builder, target, origin, arguments[4], signature.args[0].dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(to, types.int64, source, types.int64, types.int64), generate


def _sum_of_squares_code(typing_context: Any, array: Any, offset: Any, count: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, index = ir.FloatType(), ir.IntType(64)
        lanes = ir.VectorType(number, _LANES)
        array_type = signature.args[0]
        offset, count = arguments[1], arguments[2]
        sums = _build.alloca_once_value(builder, ir.Constant(lanes, [0.0] * _LANES))
        whole = builder.lshr(count, index(3))
        with _build.for_range(builder, whole, intp=index) as loop:
            at = builder.add(offset, builder.shl(loop.index, index(3)))
            pointer = _data_pointer(context, builder, array_type, arguments[0], at)
            eight = builder.load(builder.bitcast(pointer, lanes.as_pointer()), typ=lanes, align=4)
            builder.store(builder.fadd(builder.load(sums, typ=lanes), builder.fmul(eight, eight)), sums)
        first = builder.add(offset, builder.shl(whole, index(3)))
        with _build.for_range(builder, builder.and_(count, index(7)), intp=index) as loop:
            pointer = _data_pointer(context, builder, array_type, arguments[0], builder.add(first, loop.index))
            one = builder.load(pointer, typ=number)
            held = builder.load(sums, typ=lanes)
            lane = builder.extract_element(held, loop.index)
            added = builder.fadd(lane, builder.fmul(one, one))
            builder.store(builder.insert_element(held, added, loop.index), sums)
        held = builder.load(sums, typ=lanes)
        s = [builder.extract_element(held, ir.Constant(ir.IntType(32), lane)) for lane in range(_LANES)]
        left = builder.fadd(builder.fadd(s[0], s[4]), builder.fadd(s[2], s[6]))
        right = builder.fadd(builder.fadd(s[1], s[5]), builder.fadd(s[3], s[7]))
        return builder.fadd(left, right)

    return types.float32(array, types.int64, types.int64), generate


#: sum_of_squares(array of float32, offset, count): eight lanes, then a fixed tree, in the order that
#: `ecstore.optim.RowWiseAdagrad` states. The compiler may not reorder additions, so the lanes must be said.
sum_of_squares: Final[Any] = inlined(_sum_of_squares_code)
#: copy(to, to_offset, source, source_offset, count): memcpy of elements; a loop would do a row's odd tail singly.
copy: Final[Any] = inlined(_copy_code)
