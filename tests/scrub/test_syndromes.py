"""Which shard is wrong: compared with a brute force over galois that knows nothing but the generator."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ecstore import codec
from ecstore.codec import UNKNOWN, Code, reference
from ecstore.errors import CodeError

#: Codes small enough to try every shard and every error at every syndrome.
CODES = ["rs(1,1)", "rs(4,1)", "rs(1,2)", "replicate(3)", "replicate(4)", "rs(2,2)", "rs(4,2)", "rs(3,3)", "rs(2,4)"]


def contributions(code: Code) -> np.ndarray:
    """uint8[width, 256, m]: the syndromes of every error in every shard, by galois."""
    generator = reference.GF(reference.generator(code))
    errors = reference.GF(np.arange(256))
    made = np.zeros((code.width, 256, code.m), np.uint8)
    for index in range(code.k):
        for parity in range(code.m):
            made[index, :, parity] = np.asarray(generator[parity, index] * errors)
    for parity in range(code.m):
        made[code.k + parity, :, parity] = np.arange(256)
    return made


def explanations(made: np.ndarray, syndrome: np.ndarray) -> list[tuple[int, int]]:
    """Every (shard, error) that makes these syndromes of one byte: tried one by one."""
    hits = (made == syndrome).all(axis=2)
    return [(int(index), int(error)) for index, error in zip(*np.nonzero(hits), strict=True) if error]


def one_byte(values: np.ndarray) -> np.ndarray:
    """uint8[n, 8] rows that are zero but for one byte."""
    rows = np.zeros((values.size, 8), np.uint8)
    rows[:, 3] = values
    return rows


@pytest.mark.parametrize("name", CODES)
def test_every_syndrome_of_a_byte_is_explained_as_by_brute_force(name: str) -> None:
    code = Code.parse(name)
    made = contributions(code)
    if code.m <= 2:
        every = np.array(list(itertools.product(range(0, 256, 1 if code.m == 1 else 3), repeat=code.m)), np.uint8)
    else:
        every = np.random.default_rng(1).integers(0, 256, (4000, code.m), dtype=np.uint8)
    every = np.concatenate([every, made.reshape(-1, code.m)])
    found = codec.locate(code, [one_byte(every[:, parity]) for parity in range(code.m)])
    assert np.array_equal(found.positions, np.flatnonzero(every.any(axis=1)))
    for position, shard, error in zip(found.positions, found.shards, found.errors, strict=True):
        wanted = explanations(made, every[position])
        if code.m < 2 or not wanted:
            assert (shard, error.any()) == (UNKNOWN, False)
        else:
            assert wanted == [(int(shard), int(error[3]))], "one shard, and the brute force finds no other"
            assert not np.delete(error, 3).any()


@pytest.mark.parametrize("name", [name for name in CODES if Code.parse(name).m >= 2])
def test_a_wrong_row_is_named_and_its_error_brings_the_right_bytes_back(name: str) -> None:
    code, rng = Code.parse(name), np.random.default_rng(2)
    data = [rng.integers(0, 256, (64, 40), dtype=np.uint8) for _ in range(code.k)]
    right = data + reference.encode(code, data)
    assert not len(codec.locate(code, codec.syndromes(code, right)))
    wrong = [rows.copy() for rows in right]
    victims = rng.integers(0, code.width, 64)
    for slot, shard in enumerate(victims[:50]):  # the last 14 stripes stay right
        bytes_hit = rng.choice(40, rng.integers(1, 41), replace=False)
        wrong[shard][slot, bytes_hit] ^= rng.integers(1, 256, bytes_hit.size, dtype=np.uint8)
    found = codec.locate(code, codec.syndromes(code, wrong))
    assert np.array_equal(found.positions, np.arange(50))
    assert np.array_equal(found.shards, victims[:50])
    for slot, shard, error in zip(found.positions, found.shards, found.errors, strict=True):
        assert np.array_equal(wrong[shard][slot] ^ error, right[shard][slot])


@pytest.mark.parametrize("name", ["rs(4,2)", "rs(3,3)", "replicate(3)"])
def test_two_wrong_shards_of_a_stripe_are_never_taken_for_one_when_their_bytes_differ(name: str) -> None:
    code, rng = Code.parse(name), np.random.default_rng(3)
    pairs = list(itertools.combinations(range(code.width), 2))
    data = [rng.integers(0, 256, (len(pairs), 24), dtype=np.uint8) for _ in range(code.k)]
    shards = data + codec.encode(code, data)
    for slot, (one, other) in enumerate(pairs):
        shards[one][slot, 5] ^= 1 << (slot % 8)
        shards[other][slot, 17] ^= 1 << (slot % 8)
    found = codec.locate(code, codec.syndromes(code, shards))
    assert len(found) == len(pairs)
    assert (found.shards == UNKNOWN).all(), "each byte alone names a shard, but not the same one"
    assert not found.errors.any()


def test_two_wrong_shards_at_the_same_byte_are_never_taken_for_a_third_with_three_parity_shards() -> None:
    code = Code.parse("rs(3,3)")
    made = contributions(code)
    rng = np.random.default_rng(4)
    pairs = [(one, other) for one, other in itertools.combinations(range(code.width), 2) for _ in range(300)]
    errors = rng.integers(1, 256, (len(pairs), 2))
    syndrome = np.array(
        [made[a, x] ^ made[b, y] for (a, b), (x, y) in zip(pairs, errors.tolist(), strict=True)], np.uint8
    )
    found = codec.locate(code, [one_byte(syndrome[:, parity]) for parity in range(code.m)])
    assert len(found) == len(pairs)
    assert (found.shards == UNKNOWN).all()


def test_a_wrong_number_of_shards_is_refused() -> None:
    code, rows = Code.parse("rs(2,2)"), np.zeros((1, 8), np.uint8)
    with pytest.raises(CodeError, match="has 4 shards"):
        codec.syndromes(code, [rows] * 3)
    with pytest.raises(CodeError, match="has 2 syndromes"):
        codec.locate(code, [rows])
    assert not len(codec.locate(Code.parse("none"), []))
