"""Kernels and their doors against the galois reference; every loss pattern of the small codes."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecstore import codec
from ecstore.codec import Code, kernels, operations, reference
from ecstore.errors import CodeError, DtypeError, EcstoreError, KeyRangeError, ShapeError

SMALL = [(k, m) for k in range(1, 9) for m in range(8) if k + m <= 8]
ROW_BYTES = st.sampled_from([8, 16, 24, 40, 64, 72, 128, 256, 264, 1024, 1032])


@pytest.fixture(scope="module", autouse=True)
def _warm():
    codec.warm_up()


def shard(random, rows, row_bytes):
    return random.integers(0, 256, (rows, row_bytes), dtype=np.uint8)


def shards_of(code, random, rows, row_bytes):
    """All k+m shards; parity from the reference, not from the code under test."""
    data = [shard(random, rows, row_bytes) for _ in range(code.k)]
    return data + reference.encode(code, data)


@pytest.mark.parametrize(("k", "m"), SMALL)
def test_every_loss_pattern_of_small_codes(k, m):
    code = Code.parse(f"rs({k},{m})")
    shards = shards_of(code, np.random.default_rng(k * 10 + m), 3, 40)
    for count in range(m + 1):
        for lost in itertools.combinations(range(code.width), count):
            have = {index: shards[index] for index in range(code.width) if index not in lost}
            decoded = codec.decode(code, lost, have)
            assert list(decoded) == list(lost)
            for index in lost:
                assert np.array_equal(decoded[index], shards[index]), (lost, index)
            for some in (lost[:1], lost[1:]):
                for index, rows in codec.decode(code, some, have).items():
                    assert np.array_equal(rows, shards[index]), (lost, some, index)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_random_losses_of_wide_codes(data):
    k = data.draw(st.integers(1, 254))
    m = data.draw(st.integers(1, 255 - k))
    code = Code.parse(f"rs({k},{m})")
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows = [shard(random, 2, 8) for _ in range(k)]
    shards = rows + codec.encode(code, rows)
    order = data.draw(st.permutations(range(code.width)))
    lost = order[: data.draw(st.integers(1, min(m, 5)))]
    have = {index: shards[index] for index in order[m:]}
    for index, decoded in codec.decode(code, lost, have).items():
        assert np.array_equal(decoded, shards[index])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(0, 6), st.integers(0, 9), ROW_BYTES, st.integers(0, 2**32))
def test_encode_equals_reference(k, m, rows, row_bytes, seed):
    code = Code.parse(f"rs({k},{m})")
    random = np.random.default_rng(seed)
    data = [shard(random, rows, row_bytes) for _ in range(k)]
    before = [array.copy() for array in data]
    out = [shard(random, rows, row_bytes) for _ in range(m)]
    for parity in (codec.encode(code, data), codec.encode(code, data, out=out)):
        assert len(parity) == m
        for actual, expected in zip(parity, reference.encode(code, data), strict=True):
            assert np.array_equal(actual, expected)
    assert all(array is given for array, given in zip(parity, out, strict=True))
    assert all(np.array_equal(*pair) for pair in zip(data, before, strict=True)), "data is only read"


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("rows", [1, 3, 31, 32, 33, 65])
def test_block_borders(k, rows):
    """Sizes around multiples of a kernel's block, for an odd and an even number of sources."""
    code = Code.parse(f"rs({k},3)")
    shards = shards_of(code, np.random.default_rng(rows), rows, kernels.BLOCK_BYTES // 32)
    for actual, expected in zip(codec.encode(code, shards[:k]), shards[k:], strict=True):
        assert np.array_equal(actual, expected)
    decoded = codec.decode(code, [0], dict(enumerate(shards[1:], start=1)))
    assert np.array_equal(decoded[0], shards[0])


@pytest.mark.parametrize("coefficient", range(256))
def test_scale_add_every_coefficient_times_every_byte(coefficient):
    src = np.arange(256, dtype=np.uint8)
    dst = np.full(256, 0xA5, np.uint8)
    expected = reference.scale_add(dst, src, coefficient)
    codec.scale_add(dst, src, coefficient)
    assert np.array_equal(dst, expected)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 130), st.integers(0, 255), st.integers(0, 7), st.booleans(), st.integers(0, 2**32))
def test_scale_add_sizes_offsets_and_read_only_sources(words, coefficient, offset, frozen, seed):
    random = np.random.default_rng(seed)
    dst = random.integers(0, 256, words * 8 + 16, dtype=np.uint8)
    src = random.integers(0, 256, words * 8, dtype=np.uint8)
    src.flags.writeable = not frozen
    expected = dst.copy()
    window = slice(offset, offset + src.size)
    expected[window] = reference.scale_add(dst[window], src, coefficient)
    codec.scale_add(dst[window], src, coefficient)
    assert np.array_equal(dst, expected), "bytes around the window stay"


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 40), st.integers(1, 12), ROW_BYTES, st.sampled_from([0, 1, 2, 3, 4, 29, 142, 255]),
    st.sampled_from([np.uint32, np.int64]), st.integers(0, 2**32),
)  # fmt: skip
def test_apply_delta_with_repeated_slots_equals_reference(rows, capacity, row_bytes, coefficient, kind, seed):
    random = np.random.default_rng(seed)
    slots = random.integers(0, capacity, rows).astype(kind)
    parity, delta = shard(random, capacity, row_bytes), shard(random, rows, row_bytes)
    expected = reference.apply_delta(parity, slots.tolist(), delta, coefficient)
    before = parity.copy()
    codec.apply_delta(parity, slots, delta, coefficient)
    assert np.array_equal(parity, expected)
    codec.apply_delta(parity, slots, delta, coefficient)
    assert np.array_equal(parity, before), "a delta is its own inverse"


def test_apply_delta_of_rows_longer_than_what_is_prefetched():
    random = np.random.default_rng(5)
    row_bytes = kernels._AHEAD_BYTES + 1032
    slots = random.integers(0, 20, 30).astype(np.uint32)
    parity, delta = shard(random, 20, row_bytes), shard(random, 30, row_bytes)
    expected = reference.apply_delta(parity, slots.tolist(), delta, 77)
    codec.apply_delta(parity, slots, delta, 77)
    assert np.array_equal(parity, expected)


@pytest.mark.parametrize("name", ["replicate(3)", "rs(2,1)", "rs(3,2)", "rs(4,4)"])
def test_incremental_equals_full_encode_after_every_update(name):
    """Change rows of each shard, then of each pair, follow with deltas, compare with a full encode."""
    code = Code.parse(name)
    random = np.random.default_rng(9)
    data = [shard(random, 12, 72) for _ in range(code.k)]
    parity = codec.encode(code, data)
    for changed in [(j,) for j in range(code.k)] + list(itertools.combinations(range(code.k), 2)):
        for j in changed:
            for count in (1, 7):
                slots = random.choice(12, count, replace=False).astype(np.uint32)
                new = shard(random, count, 72)
                delta = data[j][slots] ^ new
                data[j][slots] = new
                for i in range(code.m):
                    codec.apply_delta(parity[i], slots, delta, code.coefficients[i, j])
        for actual, expected in zip(parity, reference.encode(code, data), strict=True):
            assert np.array_equal(actual, expected)
        assert codec.verify(code, data + parity)


@pytest.mark.parametrize("name", ["replicate(2)", "rs(3,2)", "rs(3,3)"])
def test_mismatched_stripes_names_every_wrong_stripe_whichever_shard_is_wrong(name, monkeypatch):
    monkeypatch.setattr(operations, "VERIFY_BLOCK_BYTES", 7 * 24)
    code = Code.parse(name)
    shards = shards_of(code, np.random.default_rng(1), 40, 24)
    assert codec.mismatched_stripes(code, shards).tolist() == []
    for index in range(code.width):
        shards[index][index + 3, 23] ^= 1
    wrong = list(range(3, 3 + code.width))
    found = codec.mismatched_stripes(code, shards)
    assert found.tolist() == wrong
    assert found.dtype == np.int64
    assert not codec.verify(code, shards)


def test_an_equal_dtype_is_as_good_as_the_same_one():
    """NumPy has one object for most arrays' dtype, by which they are checked first; not all have that one."""
    code = Code.parse("rs(2,2)")
    shards = shards_of(code, np.random.default_rng(7), 4, 16)
    other = np.dtype(np.uint8, metadata={"from": "elsewhere"})
    odd = [rows.astype(other) for rows in shards]
    assert odd[0].dtype is not shards[0].dtype
    for actual, expected in zip(codec.encode(code, odd[:2]), shards[2:], strict=True):
        assert np.array_equal(actual, expected)


def test_a_decoding_asked_for_twice_in_one_call_is_done_once():
    code = Code.parse("rs(3,2)")
    shards = shards_of(code, np.random.default_rng(8), 4, 16)
    decoded = codec.decode(code, [np.int64(1), 4, 1], {index: shards[index] for index in (0, 2, 3)})
    assert list(decoded) == [1, 4]
    assert all(type(index) is int and np.array_equal(rows, shards[index]) for index, rows in decoded.items())


def test_code_none_has_nothing_to_encode_verify_or_decode():
    code = Code.parse("none")
    rows = np.ones((2, 8), np.uint8)
    assert codec.encode(code, [rows]) == []
    assert codec.verify(code, [rows])
    with pytest.raises(CodeError, match="needs 1 shards"):
        codec.decode(code, [0], {})


def test_decode_copies_what_is_there_and_writes_where_told():
    code = Code.parse("rs(2,2)")
    shards = shards_of(code, np.random.default_rng(2), 4, 16)
    out = np.zeros((4, 16), np.uint8)
    decoded = codec.decode(code, [0, 1, 3], {index: shards[index] for index in (1, 2, 3)}, out={0: out})
    assert decoded[0] is out
    assert not np.shares_memory(decoded[1], shards[1])
    assert not np.shares_memory(decoded[3], shards[3])
    assert all(np.array_equal(rows, shards[index]) for index, rows in decoded.items())


def test_read_only_shards_are_accepted_and_no_array_makes_kernels_compile():
    code = Code.parse("rs(2,2)")
    shards = shards_of(code, np.random.default_rng(3), 4, 16)
    for rows in shards:
        rows.flags.writeable = False
    slots = np.arange(4)
    slots.flags.writeable = False
    all_kernels = [value for value in vars(kernels).values() if hasattr(value, "signatures")]
    assert all_kernels
    before = [len(each.signatures) for each in all_kernels]
    codec.decode(code, [0, 1], {2: shards[2], 3: shards[3]})
    codec.apply_delta(np.zeros((4, 16), np.uint8), slots, shards[0], 3)
    codec.scale_add(np.zeros((4, 16), np.uint8), shards[0], 3)
    assert codec.verify(code, shards)
    for wrong in (shards[0].view(np.int8), shards[0][:, ::2], shards[0][0], shards[0].view(np.uint64)):
        with pytest.raises((DtypeError, ShapeError)):
            codec.encode(code, [wrong, wrong])
        with pytest.raises((DtypeError, ShapeError)):
            codec.encode(code, shards[:2], out=[wrong, wrong])
    assert [len(each.signatures) for each in all_kernels] == before


ROWS = np.zeros((4, 16), np.uint8)
SLOTS = np.zeros(4, np.uint32)
FROZEN = np.zeros((4, 16), np.uint8)
FROZEN.flags.writeable = False
ODD = np.zeros(4 * 16 + 1, np.uint8)[1:].reshape(4, 16)


@pytest.mark.parametrize(
    ("parity", "slots", "delta", "coefficient", "error"),
    [
        (ROWS.astype(np.int8), SLOTS, ROWS, 1, DtypeError),
        (ROWS, SLOTS, ROWS.view(np.float32), 1, DtypeError),
        (ROWS, SLOTS.astype(np.int32), ROWS, 1, DtypeError),
        (ROWS, SLOTS.astype(">u4"), ROWS, 1, DtypeError),
        (ROWS, SLOTS[:3], ROWS, 1, ShapeError),
        (ROWS, SLOTS, np.zeros((4, 8), np.uint8), 1, ShapeError),
        (ROWS[0], SLOTS, ROWS, 1, ShapeError),
        (ROWS[:, :12].copy(), SLOTS, ROWS[:, :12].copy(), 1, ShapeError),
        (np.zeros((4, 32), np.uint8)[:, ::2], SLOTS, ROWS, 1, ShapeError),
        (FROZEN, SLOTS, ROWS, 1, ShapeError),
        (ODD, SLOTS, ROWS, 1, ShapeError),
        (ROWS, SLOTS, ODD, 1, ShapeError),
        (ROWS, SLOTS, ROWS, 256, CodeError),
        (ROWS, SLOTS, ROWS, -1, CodeError),
    ],
)
def test_apply_delta_refuses(parity, slots, delta, coefficient, error):
    with pytest.raises(error):
        codec.apply_delta(parity, slots, delta, coefficient)


@pytest.mark.parametrize("slot", [-1, 4, 2**40])
@pytest.mark.parametrize("coefficient", [1, 3])
def test_a_slot_outside_of_the_shard_writes_nothing(slot, coefficient):
    parity = np.zeros((4, 16), np.uint8)
    with pytest.raises(KeyRangeError, match="not all inside"):
        codec.apply_delta(parity, np.array([0, 1, slot]), np.full((3, 16), 7, np.uint8), coefficient)
    assert not parity.any()


def test_encode_decode_and_verify_refuse_what_does_not_fit():
    code = Code.parse("rs(2,1)")
    with pytest.raises(CodeError, match="2 data shards, 1 given"):
        codec.encode(code, [ROWS])
    with pytest.raises(ShapeError, match="same slots"):
        codec.encode(code, [ROWS, ROWS[:2]])
    with pytest.raises(ShapeError, match="contiguous"):
        codec.encode(code, [ROWS, np.zeros((4, 32), np.uint8)[:, ::2]])
    with pytest.raises(CodeError, match="1 parity shards, out has 2"):
        codec.encode(code, [ROWS, ROWS], out=[ROWS.copy(), ROWS.copy()])
    with pytest.raises(ShapeError, match="writable"):
        codec.encode(code, [ROWS, ROWS], out=[FROZEN])
    with pytest.raises(ShapeError, match="out array has shape"):
        codec.decode(code, [0], {1: ROWS, 2: ROWS}, out={0: np.zeros((3, 16), np.uint8)})
    with pytest.raises(CodeError, match="needs 2 shards to decode, 1 given"):
        codec.decode(code, [0], {1: ROWS})
    with pytest.raises(CodeError, match="wanted names shard 3"):
        codec.decode(code, [3], {1: ROWS, 2: ROWS})
    with pytest.raises(DtypeError):
        codec.decode(code, [0], {1: ROWS, 2: ROWS.view(np.int16)})
    with pytest.raises(CodeError, match="give all"):
        codec.verify(code, [ROWS, ROWS])
    with pytest.raises(ShapeError, match="equal"):
        codec.scale_add(ROWS.copy(), ROWS[:1], 1)


def test_self_check_passes_and_sees_a_wrong_kernel(monkeypatch):
    codec.self_check()
    tables = operations._TABLES.copy()
    tables[142, 5] ^= 16
    monkeypatch.setattr(operations, "_TABLES", tables)
    with pytest.raises(EcstoreError, match="scale_add by 142"):
        codec.self_check()


def test_galois_is_not_imported_by_the_hot_path():
    script = (
        "import sys; from ecstore.codec import *; warm_up(); code = Code.parse('rs(3,2)'); "
        "decode_matrix(code, (0,), (1, 2, 3)); sys.exit('galois' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
