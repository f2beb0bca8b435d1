"""Vector code in each of its forms: by the shuffles a processor has, and by bits where it has none."""

import os
import subprocess
import sys

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import binding, ir

from ecstore.codec import field, kernels, lanes, reference

INTEL = "llvm.x86.ssse3.pshuf.b.128"
X86 = binding.get_process_triple().startswith("x86_64")
SSSE3 = X86 and bool(binding.get_host_cpu_features().get("ssse3"))

#: Forms this machine can run: by bits, by shuffles of 16 bytes, by what it would choose itself.
FORMS = ["bits", *(["halves"] if SSSE3 else []), "own"]
CHOSEN = {"bits": None, "halves": (None, INTEL)}


@pytest.mark.parametrize(
    ("triple", "features", "expected"),
    [
        ("x86_64-unknown-linux-gnu", "+64bit,+avx2,+ssse3", ("llvm.x86.avx2.pshuf.b", INTEL)),
        ("x86_64-unknown-linux-gnu", "-avx2,+ssse3", (None, INTEL)),
        ("x86_64-unknown-linux-gnu", "-avx2,-ssse3", None),
        ("x86_64-unknown-linux-gnu", "", None),
        ("aarch64-unknown-linux-gnu", "+neon", (None, "llvm.aarch64.neon.tbl1.v16i8")),
        ("arm64-apple-darwin22", "", (None, "llvm.aarch64.neon.tbl1.v16i8")),
        ("powerpc64le-unknown-linux-gnu", "+vsx", None),
    ],
)
def test_the_shuffle_is_chosen_by_processor(triple, features, expected):
    assert lanes.shuffles(triple, features) == expected


def compiled(form, monkeypatch):
    """(combination of XOR and two products, product of 32 bytes, product of 8), in one form."""
    if form != "own":
        monkeypatch.setattr(lanes, "shuffles", lambda _triple, _features: CHOSEN[form])
    combine = lanes.combination(["xor", "powers", "any"], 2)
    wide, word = lanes.addition("any", 1), lanes.addition("any", 1, width=8)

    @numba.njit
    def run(addresses, tables, dst, src, size):
        to, source = np.int64(addresses.ctypes.data), np.int64(addresses.ctypes.data) + 24
        table = np.int64(tables.ctypes.data)
        combine(to, source, table, np.int64(96), np.int64(tables.shape[0]), 0, size)
        wide(np.int64(dst.ctypes.data), np.int64(src.ctypes.data), table + 64)
        word(np.int64(dst.ctypes.data) + 32, np.int64(src.ctypes.data) + 32, table + 64)

    return run


@pytest.mark.parametrize("form", FORMS)
def test_every_form_computes_what_the_reference_does(form, monkeypatch):
    """At sizes that are no multiple of a step, and at every alignment: what lies around stays as it was."""
    run = compiled(form, monkeypatch)
    random = np.random.default_rng(3)
    for size, k, shift in ((64, 1, 0), (65, 3, 1), (127, 2, 7), (200, 5, 31), (256, 4, 16)):
        data = [random.integers(0, 256, size + 64, dtype=np.uint8)[shift : shift + size] for _ in range(k)]
        spaces = [np.full(size + 96, 0xA5, np.uint8) for _ in range(3)]
        outputs = [space[shift + 8 : shift + 8 + size] for space in spaces]
        matrix = np.stack([np.ones(k, np.uint8), field.power_of_two(np.arange(k)), random.integers(0, 256, k)])
        matrix = matrix.astype(np.uint8)
        addresses = np.array([rows.ctypes.data for rows in (*outputs, *data)], np.uint64)
        dst, src = random.integers(0, 256, (2, 40), dtype=np.uint8)
        expected = reference.scale_add(dst, src, int(matrix[2, 0]))
        run(addresses, np.ascontiguousarray(field.nibble_products(matrix.T)), dst, src, size)
        assert np.array_equal(dst, expected)
        for row, output, space in zip(matrix, outputs, spaces, strict=True):
            total = np.zeros(size, np.uint8)
            for coefficient, rows in zip(row, data, strict=True):
                total = reference.scale_add(total, rows, int(coefficient))
            assert np.array_equal(output, total)
            assert (np.delete(space, slice(shift + 8, shift + 8 + size)) == 0xA5).all()


@pytest.mark.parametrize("form", FORMS)
def test_every_form_multiplies_every_byte_by_every_constant(form, monkeypatch):
    run = compiled(form, monkeypatch)
    data = np.arange(256, dtype=np.uint8)
    outputs = [np.empty(256, np.uint8) for _ in range(3)]
    addresses = np.array([rows.ctypes.data for rows in (*outputs, data)], np.uint64)
    unused = np.zeros(40, np.uint8)
    for constant in range(256):
        tables = field.nibble_products(np.array([[1, 1, constant]]))
        run(addresses, tables, unused, unused, 256)
        assert np.array_equal(outputs[2], field.MUL[constant])


@settings(max_examples=120, deadline=None)
@given(
    st.integers(1, 9), st.integers(1, 9), st.integers(0, 3), st.integers(0, 31), st.sampled_from([0, 1, 2]),
    st.integers(0, 2 * kernels.BLOCK_BYTES // 8), st.integers(0, 2**32),
)  # fmt: skip
def test_combine_at_odd_sizes_and_alignments(k, m, step, shift, first, words, seed):
    """Every pass for any number of outputs, and what is around them stays. Steps of the shifts differ by output."""
    random = np.random.default_rng(seed)
    size, first = 8 * words, min(first, m)
    matrix = random.integers(0, 256, (m, k), dtype=np.uint8)
    matrix[:1] = 1 if first else matrix[:1]
    if first == kernels.XOR_AND_POWERS:
        matrix[1] = field.power_of_two(np.arange(k))
    data = [random.integers(0, 256, size + 256, dtype=np.uint8)[i * step :][:size] for i in range(k)]
    spaces = [np.full(size + 256, 0xA5, np.uint8) for _ in range(m)]
    places = [slice(shift + i * step, shift + i * step + size) for i in range(m)]
    outputs = [space[place] for space, place in zip(spaces, places, strict=True)]
    addresses = np.array([rows.ctypes.data for rows in (*outputs, *data)], np.uint64)
    kernels.combine(addresses, field.nibble_products(np.ascontiguousarray(matrix.T)), first, size)
    for row, output, space, place in zip(matrix, outputs, spaces, places, strict=True):
        assert np.array_equal(output, np.bitwise_xor.reduce(field.MUL[row[:, None], np.stack(data)], axis=0))
        assert (np.delete(space, place) == 0xA5).all()


def test_arm_gets_its_table_look_up():
    """No such processor is needed to see that the instructions are made."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    triple = "aarch64-unknown-linux-gnu"
    try:
        target = binding.Target.from_triple(triple)
    except RuntimeError:
        pytest.skip("this LLVM knows no AArch64")
    module = ir.Module("arm")
    word = ir.IntType(64)
    for width in (8, 16, 32):
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [word, word, word]), f"times{width}")
        builder = ir.IRBuilder(function.append_basic_block())
        emit = lanes.Lanes(builder, width, lanes.shuffles(triple, "+neon"))
        emit.store(emit.multiplier(function.args[2])(emit.load(function.args[1])), function.args[0])
        builder.ret_void()
    parsed = binding.parse_assembly(str(module))
    assembly = target.create_target_machine(opt=3).emit_assembly(parsed)
    assert assembly.count("tbl\t") == 2 + 2 + 4


SCRIPT = """
import sys
import numpy as np
from ecstore.codec import field, kernels
src, dst = np.arange(256, dtype=np.uint8), np.zeros(256, np.uint8)
kernels.scale_add(dst, src, field.nibble_products(29))
assert np.array_equal(dst, field.MUL[29])
print(sum(kernels.scale_add.stats.cache_hits.values()), sum(kernels.scale_add.stats.cache_misses.values()))
"""


def test_processors_share_a_cache_folder_but_no_code(tmp_path):
    """A home directory that machines share: code for one's features would be an illegal instruction on another."""
    path = os.pathsep.join(filter(None, sys.path))

    def run(**processor):
        environment = os.environ | {"PYTHONPATH": path, "NUMBA_CACHE_DIR": str(tmp_path)} | processor
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True, timeout=100
        )
        return done.stdout.split()

    assert run() == ["0", "1"]
    assert run(NUMBA_CPU_NAME="generic") == ["0", "1"], "it took the other one's code"
    assert run() == ["1", "0"]
