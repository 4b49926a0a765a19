"""Silero's network, written anew as a few matrix products: the same weights and answers, a third of the time.

The graph of the package convolves each window by itself and asks for shapes again and again. Here a window is four
overlapping frames whose convolutions are products over a whole batch. Per window on one core: 21 µs against 65 µs in a
batch of 32, 27 against 73 of 8; alone 140 against 270 (measured side by side with other work on the machine). The
answers differ by less than 1e-6.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stages.onnx_build import Builder
from stages.onnx_graph import Graph
from voice.errors import ModelMissing

PADDED = 640
"""Samples the network looks at: 64 of context, 512 new ones, and the last 64 mirrored."""
HIDDEN = 128
_FRAMES, _HOP, _BINS = 4, 128, 129
_SHAPES = {
    "model.stft.forward_basis_buffer": (258, 1, 256),
    "model.encoder.0.reparam_conv.weight": (128, 129, 3),
    "model.encoder.1.reparam_conv.weight": (64, 128, 3),
    "model.encoder.2.reparam_conv.weight": (64, 64, 3),
    "model.encoder.3.reparam_conv.weight": (128, 64, 3),
    "model.decoder.rnn.weight_ih": (512, 128),
    "model.decoder.rnn.weight_hh": (512, 128),
    "model.decoder.decoder.2.weight": (1, 128, 1),
}
"""What makes it the network that is written here (version 5 and 6, 16 kHz)."""

Floats = npt.NDArray[np.float32]


def fast_model(model: bytes) -> bytes:
    """The model of ``silero_vad_16k_op15.onnx`` as matrix products.

    Inputs: ``input`` (batch, 640), ``h`` and ``c`` (batch, 128), all float32. Outputs: ``p`` (batch, 1), the
    probability; ``h_after`` and ``c_after``.

    Raises:
        ModelMissing: It is not that model.
    """
    graph = Graph.read(model)
    for name, shape in _SHAPES.items():
        if graph.floats(name).shape != shape:
            raise ModelMissing(f"this is not the Silero network that is known: {name} has another shape")
    build = Builder()
    features = _encoder(build, graph, _spectrum(build, graph))
    _decoder(build, graph, features)
    sizes = {"input": PADDED, "h": HIDDEN, "c": HIDDEN}
    return build.model(sizes, {"p": 1, "h_after": HIDDEN, "c_after": HIDDEN})


def _spectrum(build: Builder, graph: Graph) -> str:
    """Magnitudes of four frames, each half over the one before: (batch, 4, 129)."""
    halves = build.op("Reshape", "input", build.ints(0, PADDED // _HOP, _HOP))
    first = _cut(build, halves, 0, _FRAMES, axis=1)
    frames = build.op("Concat", first, _cut(build, halves, 1, _FRAMES + 1, axis=1), axis=2)
    basis = graph.floats("model.stft.forward_basis_buffer")[:, 0].T
    waves = build.op("MatMul", frames, build.weight(basis))
    power = build.op("Mul", waves, waves)
    real, imaginary = _cut(build, power, 0, _BINS, axis=2), _cut(build, power, _BINS, 2 * _BINS, axis=2)
    return build.op("Sqrt", build.op("Add", real, imaginary))


def _encoder(build: Builder, graph: Graph, magnitudes: str) -> str:
    """Four convolutions of width 3 over the frames, of which the last two see one frame: (batch, 128)."""
    padded = build.op("Pad", magnitudes, build.ints(0, 1, 0, 0, 1, 0))
    taps = [_cut(build, padded, tap, tap + _FRAMES, axis=1) for tap in range(3)]
    x = _layer(build, build.op("Concat", *taps, axis=2), *_conv(graph, 0))
    flat = build.op("Reshape", build.op("Pad", x, build.ints(0, 1, 0, 0, 0, 0)), build.ints(0, 5 * 128))
    pair = build.op("Concat", _cut(build, flat, 0, 384, axis=1), _cut(build, flat, 256, 640, axis=1), axis=1)
    x = _layer(build, build.op("Reshape", pair, build.ints(0, 2, 384)), *_conv(graph, 1))
    x = build.op("Reshape", x, build.ints(0, 2 * 64))
    # from here on the frames outside are padding: only the taps that meet something count
    x = _layer(build, x, *_conv(graph, 2, slice(1, 3)))
    return _layer(build, x, *_conv(graph, 3, slice(1, 2)))


def _decoder(build: Builder, graph: Graph, features: str) -> None:
    """One step of an LSTM cell (gates in the order of PyTorch: input, forget, cell, output) and the probability."""
    weights = np.concatenate(
        [graph.floats(f"model.decoder.rnn.weight_{part}") for part in ("ih", "hh")], axis=1
    )
    bias = graph.floats("model.decoder.rnn.bias_ih") + graph.floats("model.decoder.rnn.bias_hh")
    both = build.op("Concat", features, "h", axis=1)
    gates = build.op("Gemm", both, build.weight(weights.T), build.weight(bias))
    take, keep, cell, show = build.split(gates, 4, axis=1)
    kept = build.op("Mul", build.op("Sigmoid", keep), "c")
    taken = build.op("Mul", build.op("Sigmoid", take), build.op("Tanh", cell))
    after = build.op("Add", kept, taken, name="c_after")
    shown = build.op("Mul", build.op("Sigmoid", show), build.op("Tanh", after), name="h_after")
    weight = graph.floats("model.decoder.decoder.2.weight").reshape(HIDDEN, 1)
    bias = graph.floats("model.decoder.decoder.2.bias").reshape(1)
    score = build.op("Gemm", build.op("Relu", shown), build.weight(weight), build.weight(bias))
    build.op("Sigmoid", score, name="p")


def _conv(graph: Graph, number: int, taps: slice = slice(0, 3)) -> tuple[Floats, Floats]:
    """A convolution's weights as a matrix (taps · inputs, outputs), and its bias."""
    weight = graph.floats(f"model.encoder.{number}.reparam_conv.weight")[:, :, taps]
    matrix = weight.transpose(2, 1, 0).reshape(-1, weight.shape[0])
    return matrix, graph.floats(f"model.encoder.{number}.reparam_conv.bias")


def _layer(build: Builder, x: str, weight: Floats, bias: Floats) -> str:
    return build.op("Relu", build.op("Add", build.op("MatMul", x, build.weight(weight)), build.weight(bias)))


def _cut(build: Builder, x: str, start: int, stop: int, *, axis: int) -> str:
    return build.op("Slice", x, build.ints(start), build.ints(stop), build.ints(axis))
