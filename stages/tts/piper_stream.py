"""Which parts of a Piper voice's network can run window by window with the very samples of one long run.

A VITS voice is an encoder (text to noisy frames, as many as the durations say), a flow and a decoder (frames to
samples). Flow and decoder are convolutions: each output depends on a fixed number of frames around it. The
parts are found by the graph's shape and the number by trial, so a voice built otherwise is simply not split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.tts.onnx_graph import Graph

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
OpenSession = Callable[[bytes], Any]
"""Makes an onnxruntime session of a model's bytes."""

FIRST_FRAMES = 24
"""First window: 0.28 s of audio, of which up to 0.1 s is the silence that voices begin with."""
GROWTH = 2
MOST_FRAMES = 96
"""Longest window, 1.1 s of audio: about 0.13 s of one core. Every window costs two contexts on top."""

FLOW_FRAMES = 256
"""The flow's contexts are longer and its frames cheaper: behind the first window it goes on in longer steps."""

_PROBE_FRAMES = 80


class Indivisible(Exception):
    """The network can't be run in windows; says why."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the network whose output at a frame depends on ``context`` frames around it at most.

    Attributes:
        inputs: The tensor with the frames, (1, channels, frames); then, maybe, a mask of ones, (1, 1, frames).
        context: How many frames on either side matter.
        step: Values of output a frame.
    """

    session: Any
    inputs: tuple[str, ...]
    context: int
    step: int

    def run(self, frames: Float32, begin: int, end: int) -> Float32:
        """Its output for the frames from ``begin`` to ``end``, as a run over all frames would make it.

        Args:
            frames: float32 (1, channels, n); frames outside the context of the window are not read.

        Returns:
            float32 (1, channels out, (end - begin) * step).
        """
        first = max(0, begin - self.context)
        last = min(frames.shape[-1], end + self.context)
        output = _feed(self.session, self.inputs, frames[..., first:last])
        return output[..., (begin - first) * self.step : (end - first) * self.step]


@dataclass(frozen=True, slots=True)
class Split:
    """A network in parts. ``head`` gives the frames first, then the duration of each id in frames."""

    head: Any
    flow: Part | None
    decoder: Part

    def windows(self, frames: Float32, plan: Sequence[int] | None = None) -> Iterator[Float32]:
        """The samples of what ``head`` gave, one run of the decoder after the other.

        Args:
            frames: float32 (1, channels, n).
            plan: Where the windows end, in frames, the last at n; ``None``: :func:`window_ends`.

        Returns:
            An iterator of float32 (samples,), within ±1. Its work is done when it is asked for the next.
        """
        count = frames.shape[-1]
        ready = frames if self.flow is None else frames[..., :0]
        begin = 0
        for end in window_ends(count) if plan is None else plan:
            due = min(count, end + self.decoder.context)
            if self.flow is not None and ready.shape[-1] < due:
                at = ready.shape[-1]
                due = min(count, max(due, at + FLOW_FRAMES if at else 0))
                ready = np.concatenate((ready, self.flow.run(frames, at, due)), axis=-1)
            yield self.decoder.run(ready, begin, end).reshape(-1)
            begin = end


def window_ends(frames: int) -> list[int]:
    """Where the windows of a text of so many frames end: short first, then growing, no short one left over."""
    ends: list[int] = []
    at, size = 0, FIRST_FRAMES
    while at < frames:
        left = frames - at
        at += left if left <= size * 1.5 else size
        ends.append(at)
        size = min(size * GROWTH, MOST_FRAMES)
    return ends


# ---------------------------------------------------------------- finding the parts


def split(graph: Graph, open_session: OpenSession, try_feed: dict[str, Array]) -> Split:
    """Cut a voice's network behind its durations and noise, and before its decoder.

    Args:
        open_session: Called once for each part.
        try_feed: A short text as the network takes it.

    Raises:
        Indivisible: It can't be cut there.
    """
    if len(graph.outputs) != 1:
        raise Indivisible(f"it has {len(graph.outputs)} outputs")
    (output,) = graph.outputs
    durations = graph.made_by("Ceil")
    if len(durations) != 1:
        raise Indivisible("its durations can't be told")
    narrow = [cut for cut in graph.cuts(output, 1) if cut.tensors != (output,)]
    if not narrow:
        raise Indivisible("no single tensor leads to its decoder")
    middle = narrow[-1]
    # Beside the frames, the flow takes a mask of what is text in a batch of several: all ones in ours.
    wide = [cut for cut in graph.cuts(output, 2) if cut.at < middle.at and len(cut.tensors) == 2]
    if wide:
        try:
            return _split_at(graph, wide[-1].tensors, middle.tensors[0], open_session, try_feed)
        except Indivisible as reason:
            log.info("this Piper voice's flow runs as a whole: %s", reason)
    return _split_at(graph, middle.tensors, middle.tensors[0], open_session, try_feed)


def _split_at(
    graph: Graph, start: tuple[str, ...], middle: str, open_session: OpenSession, try_feed: dict[str, Array]
) -> Split:
    """Head up to ``start``, flow (none if it starts at the ``middle``), decoder behind the ``middle``."""

    def tried(inputs: tuple[str, ...], output: str, frames: Float32) -> tuple[Part, Float32]:
        session = open_session(graph.part(inputs, [output]))
        return _part(session, inputs, frames.shape[1]), _feed(session, inputs, frames)

    (output,) = graph.outputs
    head = open_session(graph.part(list(graph.inputs), [*start, *graph.made_by("Ceil")]))
    made = {name: np.asarray(value) for name, value in zip(start, head.run(None, try_feed), strict=False)}
    inputs = _frames_first(made)
    if inputs != start:
        head = _Reordered(head, ...)
