"""Vector code of the codec, as LLVM instructions: many bytes of GF(2^8) at once, by what the processor has.

**One constant.** Multiplication by c is linear over GF(2), and x = low nibble + high nibble, so
c*x = LOW[x & 15] ^ HIGH[x >> 4] with two tables of 16 bytes. A byte shuffle looks up 16 or 32 of them in one
instruction: PSHUFB (SSSE3, AVX2), TBL (AArch64). Where there is none, c*x is the XOR of c*2^j over the set bits j
of x: the bits are taken from the top; as a signed byte, x < 0 says that bit 7 is set, and x + x brings the next one
up. Compare, mask, XOR and add exist for vectors of bytes everywhere. Both forms read the same 32 bytes,
`field.nibble_products(c)`. Which one is used is decided when a kernel is compiled, by the processor's features as
numba knows them: they are in the key of its cache, too.

**Many outputs.** `combination` reads every source once for up to four outputs, whose sums stay in registers until all
sources are in.

Addresses are integers. Loads and stores need no alignment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias

from llvmlite import ir
from numba.core import cgutils, types

from ecstore.jit import inlined
from ecstore.prefetch import LINE_BYTES, prefetch

#: What an output is of the sources: their XOR; the sum of 2^j * source_j; the sum of any c_j * source_j.
Kind: TypeAlias = Literal["xor", "powers", "any"]

#: Bytes of a table: 16 products of low nibbles, 16 of high ones.
TABLE_BYTES: Final = 32
_HALF: Final = TABLE_BYTES // 2

#: Bytes of the widest vectors used. Where registers are shorter the compiler takes two.
WIDE: Final = 32

#: How far ahead sources are asked for. A processor sees for itself where a few streams go on, not so a dozen of them.
_AHEAD_BYTES: Final = 512

_I8, _I64 = ir.IntType(8), ir.IntType(64)
_REDUCTION: Final = 0x1D  # the polynomial 0x11d without its x^8
_build: Any = cgutils  # numba's own helpers carry no types
_void: Any = types.void

#: (shuffle for vectors of 32 bytes or None, the one for 16 bytes); None: there is none.
Shuffles: TypeAlias = tuple[str | None, str] | None


def shuffles(triple: str, features: str) -> Shuffles:
    """Names of the byte shuffles of a processor, from LLVM's names of its kind and its features ("+avx2,-gfni")."""
    has = set(features.split(","))
    if "+avx2" in has:
        return "llvm.x86.avx2.pshuf.b", "llvm.x86.ssse3.pshuf.b.128"
    if "+ssse3" in has:
        return None, "llvm.x86.ssse3.pshuf.b.128"
    if triple.startswith(("aarch64", "arm64")):
        return None, "llvm.aarch64.neon.tbl1.v16i8"
    return None


class Lanes:
    """Emits instructions on vectors of `width` bytes, 8, 16 or 32, at the end of what `builder` has."""

    def __init__(self, builder: Any, width: int, available: Shuffles) -> None:
        self._builder, self._width, self._available = builder, width, available
        self.type: Any = ir.VectorType(_I8, width)
        self.zero: Any = ir.Constant(self.type, None)

    def load(self, address: Any, *, constant: bool = False, vector: Any = None) -> Any:
        """The vector at an address. `constant`: nothing writes there while the kernel runs."""
        kind = vector or self.type
        value = self._builder.load(self._builder.inttoptr(address, kind.as_pointer()))
        value.align = 1
        if constant:
            value.set_metadata("invariant.load", self._builder.module.add_metadata([]))
        return value

    def store(self, vector: Any, address: Any) -> None:
        """Write a vector to an address."""
        self._builder.store(vector, self._builder.inttoptr(address, self.type.as_pointer())).align = 1

    def splat(self, byte: int) -> Any:
        """A constant vector of equal bytes."""
        return ir.Constant(self.type, [byte] * self._width)

    def doubled(self, x: Any) -> Any:
        """2 * x."""
        build = self._builder
        mask = build.sext(build.icmp_signed("<", x, self.zero), self.type)
        return build.xor(build.add(x, x), build.and_(mask, self.splat(_REDUCTION)))

    def multiplier(self, table: Any) -> Callable[[Any], Any]:
        """x -> c * x, for the constant c whose table is at this address."""
        return self._by_shuffles(table) if self._available else self._by_bits(table)

    def _by_shuffles(self, table: Any) -> Callable[[Any], Any]:
        build, half = self._builder, ir.VectorType(_I8, _HALF)
        low, high = (self.load(build.add(table, _I64(offset)), constant=True, vector=half) for offset in (0, _HALF))
        if self._width == WIDE:
            low, high = self._picked(low, [*range(_HALF)] * 2), self._picked(high, [*range(_HALF)] * 2)

        def times(x: Any) -> Any:
            from_low = self._shuffled(low, build.and_(x, self.splat(15)))
            return build.xor(from_low, self._shuffled(high, build.lshr(x, self.splat(4))))

        return times

    def _by_bits(self, table: Any) -> Callable[[Any], Any]:
        build = self._builder
        products = []
        for offset in (_HALF + 8, _HALF + 4, _HALF + 2, _HALF + 1, 8, 4, 2, 1):
            byte = self.load(build.add(table, _I64(offset)), constant=True, vector=_I8)
            one = build.insert_element(self.zero, byte, ir.IntType(32)(0))
            products.append(self._picked(one, [0] * self._width))

        def times(x: Any) -> Any:
            y = self.zero
            for product in products:
                mask = build.sext(build.icmp_signed("<", x, self.zero), self.type)
                y = build.xor(y, build.and_(mask, product))
                x = build.add(x, x)
            return y

        return times

    def _shuffled(self, table: Any, index: Any) -> Any:
        """table[index], byte by byte; all indexes are below 16."""
        assert self._available is not None
        wide, narrow = self._available
        if self._width == WIDE and wide is not None:
            return self._call(wide, self.type, table, index)
        half = ir.VectorType(_I8, _HALF)
        if self._width == _HALF:
            return self._call(narrow, half, table, index)
        if self._width < _HALF:
            found = self._call(narrow, half, table, self._picked(index, [*range(self._width)] * (_HALF // self._width)))
            return self._picked(found, range(self._width))
        halves = [[*range(_HALF)], [*range(_HALF, WIDE)]]
        low, high = (self._call(narrow, half, self._picked(table, at), self._picked(index, at)) for at in halves)
        return self._builder.shuffle_vector(low, high, _indexes(range(WIDE)))

    def _call(self, name: str, vector: Any, *arguments: Any) -> Any:
        function = _build.get_or_insert_function(self._builder.module, ir.FunctionType(vector, [vector, vector]), name)
        return self._builder.call(function, arguments)

    def _picked(self, vector: Any, places: Sequence[int]) -> Any:
        return self._builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), _indexes(places))


def _indexes(places: Sequence[int]) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(places)), list(places))


def _lanes(context: Any, builder: Any, width: int) -> Lanes:
    triple, _name, features = context.codegen().magic_tuple()
    return Lanes(builder, width, shuffles(triple, features))


def combination(kinds: Sequence[Kind], vectors: int, width: int = WIDE) -> Any:
    """For kernels: f(outputs, sources, tables, stride, count, start, stop) -> None, one pass over all sources.

    Bytes start .. stop of each output i become what kinds[i] says of the same bytes of the sources. `outputs`,
    `sources`: addresses of arrays of addresses (u64), len(kinds) and `count` >= 1. `tables`: address of the table of
    output 0 and source 0; that of output i and source j is at 32*i + stride*j, and is read for kind "any" alone.
    All are int64. It works on `vectors` * `width` bytes at a time, so stop >= that many; in the last step it goes
    back and does some bytes a second time instead of fewer. Outputs must not overlap sources.
    """
    step = vectors * width

    def emit(
        typing_context: Any, outputs: Any, sources: Any, tables: Any, stride: Any, count: Any, start: Any, stop: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            start_, stop_ = arguments[5:]
            lanes = _lanes(context, builder, width)
            last = builder.sub(stop_, _I64(step))
            with _build.for_range_slice(builder, start_, stop_, _I64(step), _I64, inc=True) as (offset, _):
                at = builder.select(builder.icmp_signed("<", offset, last), offset, last)
                sums = _all_sources(builder, lanes, kinds, vectors, width, arguments, at)
                for i, row in enumerate(sums):
                    output = builder.add(_address(builder, arguments[0], _I64(i)), at)
                    for v, vector in enumerate(row):
                        lanes.store(vector, builder.add(output, _I64(v * width)))
            return context.get_dummy_value()

        return _void(*[types.int64] * 7), generate

    return inlined(emit)


def _all_sources(
    builder: Any, lanes: Lanes, kinds: Sequence[Kind], vectors: int, width: int, arguments: Any, at: Any
) -> list[list[Any]]:
    """The loop over the sources for one place; a row of vectors for each output."""
    _outputs, sources, tables, stride, count, *_ = arguments
    before, loop, after = builder.block, builder.append_basic_block("source"), builder.append_basic_block("sums")
    builder.branch(loop)
    builder.position_at_end(loop)
    remaining = builder.phi(_I64)
    sums = [[builder.phi(lanes.type) for _ in range(vectors)] for _ in kinds]
    index = builder.sub(remaining, _I64(1))  # the last source first, as Horner's rule wants it for "powers"
    source = builder.add(_address(builder, sources, index), at)
    table = builder.add(tables, builder.mul(stride, index))
    values = [lanes.load(builder.add(source, _I64(v * width))) for v in range(vectors)]
    if "any" in kinds:  # the others have no arithmetic to hide hints behind
        for line in range(0, vectors * width, LINE_BYTES):
            prefetch(builder, builder.add(source, _I64(_AHEAD_BYTES + line)), for_writing=False)
    new: list[list[Any]] = []
    for i, kind in enumerate(kinds):
        if kind == "any":
            times = lanes.multiplier(builder.add(table, _I64(TABLE_BYTES * i)))
            new.append([builder.xor(total, times(x)) for total, x in zip(sums[i], values, strict=True)])
        elif kind == "powers":
            new.append([builder.xor(lanes.doubled(total), x) for total, x in zip(sums[i], values, strict=True)])
        else:
            new.append([builder.xor(total, x) for total, x in zip(sums[i], values, strict=True)])
    builder.cbranch(builder.icmp_signed(">", index, _I64(0)), loop, after)
    remaining.add_incoming(count, before)
    remaining.add_incoming(index, loop)
    for row, new_row in zip(sums, new, strict=True):
        for total, new_total in zip(row, new_row, strict=True):
            total.add_incoming(lanes.zero, before)
            total.add_incoming(new_total, loop)
    builder.position_at_end(after)
    return new


def _address(builder: Any, array: Any, index: Any) -> Any:
    """Entry `index` of the array of addresses at `array`."""
    place = builder.add(array, builder.shl(index, _I64(3)))
    return builder.load(builder.inttoptr(place, _I64.as_pointer()))


def addition(kind: Kind, vectors: int, width: int = WIDE) -> Any:
    """For kernels: f(dst, src, table) -> None: `vectors` * `width` bytes at dst ^= those at src, or c times those.

    All int64 addresses; the table is read for kind "any" alone. Exactly these bytes are read and written.
    """

    def emit(typing_context: Any, dst: Any, src: Any, table: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            lanes = _lanes(context, builder, width)
            to, source, table_ = arguments
            times = lanes.multiplier(table_) if kind == "any" else lambda x: x
            places = [(builder.add(to, _I64(v * width)), builder.add(source, _I64(v * width))) for v in range(vectors)]
            for there, here in places:
                lanes.store(builder.xor(lanes.load(there), times(lanes.load(here))), there)
            return context.get_dummy_value()

        return _void(types.int64, types.int64, types.int64), generate

    return inlined(emit)
