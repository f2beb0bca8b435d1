"""DLRM in NumPy: forward and hand-written backward of one batch, as pure functions of parameters and batch.

Architecture (Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation
Systems", arXiv 1906.00091, section 2):

    x [B, 13] -- bottom MLP (ReLU after every layer) --> h [B, D] --+
                                                                     +-- T [B, F, D], F = 1 + 26
    embeddings e [B, 26, D] ----------------------------------------+
    pairwise dots p [B, F(F-1)/2] = strict lower triangle of T T'
    [h, p] -- top MLP (ReLU after every layer but the last) --> logit z [B]
    loss = mean over B of BCE(sigmoid(z), y)

The dense parameters (weights and biases of both MLPs) are one flat vector, cut into rows of `chunk` values
and padded with zeros: rows of a replicated table. The gradient comes back in the same shape; the padding's
gradient is zero, so no optimizer ever moves it.

Everything computes in the dtype of its inputs: float32 in training, float64 where a test checks gradients.
The same arrays give the same bits in every run with the same number of BLAS threads: all loops have a fixed
order, and arrays from outside are copied to 64-byte-aligned memory first, so that an address decides nothing.
BLAS may split a sum differently for another number of threads; fix it (OPENBLAS_NUM_THREADS=1, set before
NumPy is imported) where runs of different processes are to be equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ecstore.errors import ConfigError

Array = npt.NDArray[np.floating[Any]]
_ALIGNMENT = 64  #: bytes; a cache line, and the widest vector register


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of the model. Raises `ConfigError` for sizes below 1."""

    dense_features: int = 13
    categorical_features: int = 26
    dim: int = 16  #: D: width of an embedding, and of the bottom MLP's last layer
    bottom_hidden: tuple[int, ...] = (32,)  #: hidden layers of the bottom MLP
    top_hidden: tuple[int, ...] = (64, 32)  #: hidden layers of the top MLP
    chunk: int = 128  #: floats in one row of the dense table

    def __post_init__(self) -> None:
        sizes = (self.dense_features, self.categorical_features, self.dim, self.chunk)
        for size in (*sizes, *self.bottom_hidden, *self.top_hidden):
            if size < 1:
                raise ConfigError(f"a model size is {size}; all sizes of {self} must be at least 1")

    @property
    def bottom_sizes(self) -> tuple[int, ...]:
        """Widths of the bottom MLP, input first."""
        return (self.dense_features, *self.bottom_hidden, self.dim)

    @property
    def top_sizes(self) -> tuple[int, ...]:
        """Widths of the top MLP, input first."""
        vectors = 1 + self.categorical_features
        return (self.dim + vectors * (vectors - 1) // 2, *self.top_hidden, 1)


@dataclass(frozen=True, slots=True)
class Layer:
    """One fully connected layer: y = x @ weight + bias."""

    weight: Array  #: [inputs, outputs]
    bias: Array  #: [outputs]


@dataclass(frozen=True, slots=True)
class Gradients:
    """Of the mean loss over the batch."""

    dense_rows: Array  #: [chunks, chunk], for the rows of the dense table
    embeddings: Array  #: [B, 26, D], one for each category of each sample
    logits: Array  #: [B], of the forward pass


@dataclass(frozen=True, slots=True)
class _Activations:
    """What the forward pass leaves for the backward pass."""

    bottom: list[Array]  #: input of each bottom layer, then the output h [B, D]
    vectors: Array  #: T [B, F, D]
    top: list[Array]  #: input of each top layer, then the logits [B, 1]


class Dlrm:
    """The model: sizes and layout only. Parameters are arguments of every call: no state to lose."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self._layers = [
            *_pairs(config.bottom_sizes),
            *_pairs(config.top_sizes),
        ]  # (inputs, outputs) of each layer
        self._bottom_layers = len(config.bottom_sizes) - 1
        vectors = 1 + config.categorical_features
        self._row, self._column = np.tril_indices(vectors, k=-1)  # the pairs, in a fixed order
        self.parameters = sum(inputs * outputs + outputs for inputs, outputs in self._layers)
        self.chunks = -(-self.parameters // config.chunk)

    # -- parameters <-> rows of the dense table

    def initial_rows(self, seed: int) -> npt.NDArray[np.float32]:
        """Seeded initial dense parameters, float32[chunks, chunk].

        Weights are normal with variance 2 / (inputs + outputs) (Glorot & Bengio, AISTATS 2010), biases zero.
        """
        random = np.random.Generator(np.random.PCG64([seed, 0xD1]))
        layers = []
        for inputs, outputs in self._layers:
            scale = np.sqrt(2.0 / (inputs + outputs))
            weight = (random.standard_normal((inputs, outputs)) * scale).astype(np.float32)
            layers.append(Layer(weight, np.zeros(outputs, np.float32)))
        return cast("npt.NDArray[np.float32]", self.to_rows(layers))

    def to_rows(self, layers: list[Layer]) -> Array:
        """Layers -> [chunks, chunk]: layer by layer, weight (row-major) then bias, then zeros."""
        flat = np.zeros(self.chunks * self.config.chunk, dtype=layers[0].weight.dtype)
        start = 0
        for layer in layers:
            for part in (layer.weight, layer.bias):
                flat[start : start + part.size] = part.reshape(-1)
                start += part.size
        return flat.reshape(self.chunks, self.config.chunk)

    def to_layers(self, rows: Array) -> list[Layer]:
        """[chunks, chunk] -> layers, as aligned copies. Inverse of `to_rows`."""
        flat = rows.reshape(-1)
        layers = []
        start = 0
        for inputs, outputs in self._layers:
            middle = start + inputs * outputs
            weight = aligned_copy(flat[start:middle].reshape(inputs, outputs))
            layers.append(Layer(weight, aligned_copy(flat[middle : middle + outputs])))
            start = middle + outputs
        return layers

    # -- one batch

    def predict(self, dense_rows: Array, dense: Array, embeddings: Array) -> Array:
        """Logits [B] of a batch: dense_rows [chunks, chunk], dense [B, 13], embeddings [B, 26, D]."""
        return self._forward(self.to_layers(dense_rows), dense, embeddings).top[-1].reshape(-1)

    def loss_and_gradients(
        self, dense_rows: Array, dense: Array, embeddings: Array, labels: Array
    ) -> tuple[float, Gradients]:
        """Mean loss of a batch (labels [B] of 0 and 1) and its gradients; shapes as in `predict`."""
        layers = self.to_layers(dense_rows)
        activations = self._forward(layers, dense, embeddings)
        logits = activations.top[-1].reshape(-1)
        return bce_loss(logits, labels), self._backward(layers, activations, labels)

    def _forward(self, layers: list[Layer], dense: Array, embeddings: Array) -> _Activations:
        bottom = [aligned_copy(dense)]
        for layer in layers[: self._bottom_layers]:
            bottom.append(_relu(bottom[-1] @ layer.weight + layer.bias))
        h = bottom[-1]  # [B, D]
        samples, features, dim = embeddings.shape
        vectors = aligned((samples, 1 + features, dim), embeddings.dtype)  # T [B, F, D]
        vectors[:, 0] = h
        vectors[:, 1:] = embeddings
        dots = vectors @ vectors.transpose(0, 2, 1)  # [B, F, F]
        top = [np.concatenate([h, dots[:, self._row, self._column]], axis=1)]  # [B, D + F(F-1)/2]
        top_layers = layers[self._bottom_layers :]
        for layer in top_layers[:-1]:
            top.append(_relu(top[-1] @ layer.weight + layer.bias))
        top.append(top[-1] @ top_layers[-1].weight + top_layers[-1].bias)  # [B, 1]
        return _Activations(bottom, vectors, top)

    def _backward(self, layers: list[Layer], done: _Activations, labels: Array) -> Gradients:
        config = self.config
        logits = done.top[-1]  # [B, 1]
        upstream: Array = (sigmoid(logits) - labels.reshape(-1, 1)) / logits.dtype.type(len(labels))  # dloss/dz
        top_gradients, upstream = _mlp_backward(layers[self._bottom_layers :], done.top, upstream)
        dots = np.zeros((len(labels), done.vectors.shape[1], done.vectors.shape[1]), logits.dtype)
        # dots is symmetric in T: dT = (G + G') T, where G holds the gradient of each pair once
        dots[:, self._row, self._column] = upstream[:, config.dim :]
        dots[:, self._column, self._row] = upstream[:, config.dim :]
        vectors = dots @ done.vectors  # dT [B, F, D]
        h = upstream[:, : config.dim] + vectors[:, 0]  # h feeds the top MLP directly and through the dots
        bottom_layers = layers[: self._bottom_layers]
        h = h * (done.bottom[-1] > 0)  # the bottom MLP's last layer has a ReLU as well
        bottom_gradients, _ = _mlp_backward(bottom_layers, done.bottom, h)
        return Gradients(self.to_rows([*bottom_gradients, *top_gradients]), vectors[:, 1:], logits.reshape(-1))


def _mlp_backward(layers: list[Layer], inputs: list[Array], upstream: Array) -> tuple[list[Layer], Array]:
    """Gradients of the layers and of the MLP's input.

    inputs[i] is what layer i read; upstream [B, outputs] is the gradient before the last layer's activation.
    """
    gradients: list[Layer] = []
    for index in range(len(layers) - 1, -1, -1):
        gradients.append(Layer(inputs[index].T @ upstream, upstream.sum(axis=0)))
        upstream = upstream @ layers[index].weight.T
        if index > 0:
            upstream = upstream * (inputs[index] > 0)  # ReLU between the layers; its gradient at 0 is 0
    gradients.reverse()
    return gradients, upstream


def bce_loss(logits: Array, labels: Array) -> float:
    """Mean binary cross-entropy with logits, without overflow: max(z, 0) - y z + log(1 + e^-|z|)."""
    terms = np.maximum(logits, 0) - labels * logits + np.log1p(np.exp(-np.abs(logits)))
    return float(terms.mean())


def sigmoid(logits: Array) -> Array:
    """1 / (1 + e^-z), without overflow: e^-|z| is at most 1."""
    small = np.exp(-np.abs(logits))
    return cast("Array", np.where(logits >= 0, 1, small) / (1 + small))


def aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """An uninitialised C-contiguous array that starts at a multiple of 64 bytes."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return cast("Array", memory[start : start + size].view(dtype).reshape(shape))


def aligned_copy(array: Array) -> Array:
    """A C-contiguous copy at a multiple of 64 bytes."""
    copy = aligned(array.shape, array.dtype)
    copy[...] = array
    return copy


def _relu(array: Array) -> Array:
    return np.maximum(array, 0)


def _pairs(sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(pairwise(sizes))
