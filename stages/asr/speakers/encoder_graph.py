"""The GE2E speaker encoder as an ONNX graph: three LSTM layers over mel frames, whose end becomes one direction.

Network and weights: Wan et al. 2018, "Generalized end-to-end loss for speaker verification", as trained for the
Resemblyzer package.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from stages.asr.speakers.torch_tensors import read_tensors
from stages.onnx_build import Builder
from voice.errors import ModelMissing

Floats = npt.NDArray[np.float32]

FRAMES = 160
"""Mel frames of a window: 1.6 s, the length it was trained on."""
MELS = 40
SIZE = 256
"""Of the layers and of an embedding."""
_LAYERS = 3


def encoder_model(weights_file: bytes) -> bytes:
    """The model of ``pretrained.pt``. Takes 40 ms, so it is made anew at each load rather than kept on disk.

    Input: ``mel`` (160 · windows, 40), float32: the first frame of each window, then the second of each, and so on.
    Output: ``embedding`` (windows, 256), not negative, of any length.

    Raises:
        ModelMissing: It is another file.
    """
    weights = read_tensors(weights_file, "model_state")
    build = Builder()
    x = build.op("Reshape", "mel", build.ints(FRAMES, -1, MELS))
    for layer in range(_LAYERS):
        heard = _known(weights, f"lstm.weight_ih_l{layer}", (4 * SIZE, SIZE if layer else MELS))
        kept = _known(weights, f"lstm.weight_hh_l{layer}", (4 * SIZE, SIZE))
        biases = [_known(weights, f"lstm.bias_{part}_l{layer}", (4 * SIZE,)) for part in ("ih", "hh")]
        inputs = [_gates(heard), _gates(kept), np.concatenate([_gates(bias) for bias in biases])]
        made = build.op("LSTM", x, *(build.weight(values[None]) for values in inputs), hidden_size=SIZE)
        x = build.op("Reshape", made, build.ints(FRAMES, -1, SIZE))
    end = build.op("Slice", x, build.ints(FRAMES - 1), build.ints(FRAMES), build.ints(0))
    end = build.op("Reshape", end, build.ints(-1, SIZE))
    turned = build.op("MatMul", end, build.weight(_known(weights, "linear.weight", (SIZE, SIZE)).T))
    shifted = build.op("Add", turned, build.weight(_known(weights, "linear.bias", (SIZE,))))
    build.op("Relu", shifted, name="embedding")
    return build.model({"mel": MELS}, {"embedding": SIZE})


def _known(weights: Mapping[str, Floats], name: str, shape: tuple[int, ...]) -> Floats:
    values = weights.get(name)
    if values is None or values.shape != shape or not np.isfinite(values).all():
        raise ModelMissing(f"this is not the GE2E speaker encoder that is known: {name} differs")
    return values


def _gates(values: Floats) -> Floats:
    """From the order of torch (input, forget, cell, output) to that of ONNX (input, output, forget, cell)."""
    take, keep, cell, show = np.split(values, 4)
    return np.concatenate([take, show, keep, cell])
