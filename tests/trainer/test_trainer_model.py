"""The DLRM: gradients against finite differences and PyTorch, chunking, bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ecstore.errors import ConfigError
from ecstore.trainer.model import Dlrm, ModelConfig, aligned_copy, bce_loss, sigmoid

SMALL = ModelConfig(dense_features=3, categorical_features=4, dim=5, bottom_hidden=(6,), top_hidden=(7, 4), chunk=16)


@dataclass
class Sample:
    rows: Any
    dense: Any
    embeddings: Any
    labels: Any


def draw(model: Dlrm, batch: int, seed: int, dtype: type = np.float64) -> Sample:
    random = np.random.default_rng(seed)
    config = model.config
    layers = model.to_layers(model.initial_rows(seed).astype(dtype))
    for layer in layers:
        layer.bias[...] = random.normal(size=layer.bias.shape) * 0.1
    return Sample(
        model.to_rows(layers),
        random.normal(size=(batch, config.dense_features)).astype(dtype),
        random.normal(size=(batch, config.categorical_features, config.dim)).astype(dtype),
        random.integers(0, 2, batch).astype(dtype),
    )


def numeric_gradient(loss: Any, array: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central differences, one number at a time, in place."""
    gradient = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        kept = array[index]
        array[index] = kept + step
        above = loss()
        array[index] = kept - step
        below = loss()
        array[index] = kept
        gradient[index] = (above - below) / (2 * step)
    return gradient


@pytest.mark.parametrize("hidden", [((6,), (7, 4)), ((), ()), ((4, 3), (5,))])
def test_gradients_equal_finite_differences(hidden: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    config = ModelConfig(3, 4, 5, bottom_hidden=hidden[0], top_hidden=hidden[1], chunk=16)
    model = Dlrm(config)
    sample = draw(model, batch=6, seed=3)

    def loss() -> float:
        return model.loss_and_gradients(sample.rows, sample.dense, sample.embeddings, sample.labels)[0]

    _, gradients = model.loss_and_gradients(sample.rows, sample.dense, sample.embeddings, sample.labels)
    expected_rows = numeric_gradient(loss, sample.rows)
    expected_embeddings = numeric_gradient(loss, sample.embeddings)
    assert np.abs(expected_rows).max() > 1e-3
    assert np.abs(expected_embeddings).max() > 1e-3
    np.testing.assert_allclose(gradients.dense_rows, expected_rows, atol=2e-9)
    np.testing.assert_allclose(gradients.embeddings, expected_embeddings, atol=2e-9)


def test_float32_gradients_are_near_float64() -> None:
    model = Dlrm(ModelConfig())
    sample = draw(model, batch=64, seed=5)
    loss, exact = model.loss_and_gradients(sample.rows, sample.dense, sample.embeddings, sample.labels)
    single = [part.astype(np.float32) for part in (sample.rows, sample.dense, sample.embeddings, sample.labels)]
    loss32, near = model.loss_and_gradients(*single)
    assert near.dense_rows.dtype == np.float32
    assert near.embeddings.dtype == np.float32
    assert loss32 == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(near.dense_rows, exact.dense_rows, atol=1e-4)
    np.testing.assert_allclose(near.embeddings, exact.embeddings, atol=1e-5)


def test_forward_and_gradients_equal_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed; install torch to compare with it")
    model = Dlrm(SMALL)
    sample = draw(model, batch=9, seed=7)
    layers = model.to_layers(sample.rows)
    weights = [torch.tensor(layer.weight, requires_grad=True) for layer in layers]
    biases = [torch.tensor(layer.bias, requires_grad=True) for layer in layers]
    embeddings = torch.tensor(sample.embeddings, requires_grad=True)
    h = torch.tensor(sample.dense)
    for index in range(2):
        h = torch.relu(h @ weights[index] + biases[index])
    vectors = torch.cat([h[:, None, :], embeddings], dim=1)
    dots = torch.bmm(vectors, vectors.transpose(1, 2))
    row, column = np.tril_indices(5, k=-1)
    top = torch.cat([h, dots[:, row, column]], dim=1)
    for index in range(2, 4):
        top = torch.relu(top @ weights[index] + biases[index])
    logits = (top @ weights[4] + biases[4]).reshape(-1)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor(sample.labels))
    loss.backward()

    ours, gradients = model.loss_and_gradients(sample.rows, sample.dense, sample.embeddings, sample.labels)
    predicted = model.predict(sample.rows, sample.dense, sample.embeddings)
    np.testing.assert_allclose(predicted, logits.detach().numpy(), atol=1e-12)
    assert ours == pytest.approx(loss.item(), abs=1e-12)
    np.testing.assert_allclose(gradients.embeddings, embeddings.grad.numpy(), atol=1e-12)
    for layer, weight, bias in zip(model.to_layers(gradients.dense_rows), weights, biases, strict=True):
        np.testing.assert_allclose(layer.weight, weight.grad.numpy(), atol=1e-12)
        np.testing.assert_allclose(layer.bias, bias.grad.numpy(), atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 16, 100, 128, 100_000])
def test_chunks_hold_every_parameter_once(chunk: int) -> None:
    model = Dlrm(ModelConfig(chunk=chunk))
    numbers = np.arange(1, model.chunks * chunk + 1, dtype=np.float64)
    numbers[model.parameters :] = 0
    rows = numbers.reshape(model.chunks, chunk)
    layers = model.to_layers(rows)
    assert sum(layer.weight.size + layer.bias.size for layer in layers) == model.parameters
    assert 0 <= rows.size - model.parameters < chunk
    assert np.array_equal(model.to_rows(layers), rows)
    assert not np.shares_memory(layers[0].weight, rows)


def test_padding_never_gets_a_gradient() -> None:
    model = Dlrm(ModelConfig())
    sample = draw(model, batch=8, seed=1)
    _, gradients = model.loss_and_gradients(sample.rows, sample.dense, sample.embeddings, sample.labels)
    assert model.chunks * 128 > model.parameters
    assert not gradients.dense_rows.reshape(-1)[model.parameters :].any()
    assert np.count_nonzero(gradients.dense_rows) > model.parameters // 4


def test_initial_rows_are_a_function_of_the_seed() -> None:
    model = Dlrm(ModelConfig())
    assert np.array_equal(model.initial_rows(4), Dlrm(ModelConfig()).initial_rows(4))
    assert not np.array_equal(model.initial_rows(4), model.initial_rows(5))
    assert model.initial_rows(4).dtype == np.float32
    layers = model.to_layers(model.initial_rows(4))
    assert [layer.weight.shape for layer in layers] == [(13, 32), (32, 16), (367, 64), (64, 32), (32, 1)]
    assert layers[2].weight.std() == pytest.approx(np.sqrt(2 / (367 + 64)), rel=0.05)
    assert not any(layer.bias.any() for layer in layers)


def test_loss_and_sigmoid_are_stable_at_the_ends() -> None:
    for dtype in (np.float32, np.float64):
        logits = np.array([-1e4, -30.0, 0.0, 30.0, 1e4], dtype)
        assert np.array_equal(sigmoid(logits)[[0, 2, 4]], np.array([0, 0.5, 1], dtype))
        assert sigmoid(logits).dtype == dtype
        assert bce_loss(logits[:1], np.ones(1, dtype)) == 1e4
        assert bce_loss(logits[4:], np.ones(1, dtype)) == 0.0
    assert bce_loss(np.zeros(3), np.ones(3)) == pytest.approx(np.log(2))


def misaligned(array: np.ndarray, numbers: int) -> np.ndarray:
    """A copy that starts `numbers` numbers past a 64-byte boundary."""
    flat = aligned_copy(np.zeros(array.size + 16, array.dtype))
    view = flat[numbers : numbers + array.size].reshape(array.shape)
    view[...] = array
    return view


def test_bits_do_not_depend_on_addresses() -> None:
    model = Dlrm(ModelConfig())
    sample = draw(model, batch=92, seed=2, dtype=np.float32)
    inputs = (sample.rows, sample.dense, sample.embeddings, sample.labels)
    loss, gradients = model.loss_and_gradients(*inputs)
    kept = []  # keeps the allocator from handing out the same addresses again
    for shift in range(16):
        moved_loss, moved = model.loss_and_gradients(*(misaligned(part, shift) for part in inputs))
        kept.append((moved, np.empty(4 * shift + 1, np.uint8)))
        assert moved_loss == loss
        assert moved.dense_rows.tobytes() == gradients.dense_rows.tobytes()
        assert moved.embeddings.tobytes() == gradients.embeddings.tobytes()


def test_inputs_are_only_read() -> None:
    model = Dlrm(SMALL)
    sample = draw(model, batch=4, seed=9, dtype=np.float32)
    inputs = (sample.rows, sample.dense, sample.embeddings, sample.labels)
    for part in inputs:
        part.flags.writeable = False
    before = [part.tobytes() for part in inputs]
    model.loss_and_gradients(*inputs)
    assert [part.tobytes() for part in inputs] == before


@pytest.mark.parametrize("wrong", [{"dim": 0}, {"chunk": 0}, {"bottom_hidden": (4, 0)}, {"top_hidden": (-1,)}])
def test_impossible_sizes(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        ModelConfig(**wrong)
