"""Which parts of a Piper voice's network can run window by window with the very samples of one long run.

A VITS voice is an encoder (text to noisy frames, as many as the durations say), a flow and a decoder (frames to
samples). Flow and decoder are convolutions: each output depends on a fixed number of frames around it. The
parts are found by the graph's shape and the number by trial, so a voice built otherwise is simply not split.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.onnx_graph import Graph

log = logging.getLogger("voice.piper")
Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
OpenSession = Callable[[bytes, int], Any]
"""Makes an onnxruntime session of a model's bytes, with so many threads."""

FIRST_FRAMES = 32
"""First window: 0.37 s of audio, made in 0.05 s of one core."""
SECOND_FRAMES = 48
"""Second window: made in about 0.13 s with its flow, a third of what the first one lasts. The rest is in hand for
neighbours on the same cores: a longer one runs dry while they are busy."""
MOST_FRAMES = 128
"""Longest window, 1.5 s of audio: about 0.18 s of one core. Each window costs two contexts on top: few are cheap,
but short ones let others in, and cancelling waits for none."""

FLOW_FRAMES = 96
"""The flow's contexts are longer and its frames cheaper: behind the first window it goes on in steps this long."""

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
    """A network in parts.

    Attributes:
        told: What to ask the head for: the frames, and how many of them each id takes.
        decoder: Decodes the first window, ``later`` all others.
    """

    head: Any
    told: tuple[str, str]
    flow: Part | None
    decoder: Part
    later: Part

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
                if at:
                    due = max(due, at + FLOW_FRAMES)
                if due + 3 * self.flow.context >= count:  # a run of its own would be mostly context
                    due = count
                ready = np.concatenate((ready, self.flow.run(frames, at, due)), axis=-1)
            decoder = self.later if begin else self.decoder
            yield decoder.run(ready, begin, end).reshape(-1)
            begin = end


def window_ends(frames: int) -> list[int]:
    """Where the windows of a text of so many frames end: short ones first, then equal ones."""
    ends: list[int] = []
    for size in (FIRST_FRAMES, SECOND_FRAMES):
        at = ends[-1] if ends else 0
        if frames - at <= size * 1.5:
            return [*ends, frames]
        ends.append(at + size)
    at = ends[-1]
    rest = frames - at
    windows = -(-rest // MOST_FRAMES)
    return [*ends, *(at + rest * i // windows for i in range(1, windows + 1))]


# ---------------------------------------------------------------- finding the parts


@dataclass(frozen=True, slots=True)
class Threads:
    """Threads inside one operator: until the first window is made, and from then on."""

    first: int
    later: int


def split(graph: Graph, open_session: OpenSession, threads: Threads, try_feed: dict[str, Array]) -> Split:
    """Cut a voice's network behind its durations and noise, and before its decoder.

    Args:
        open_session: Called once for each part, and once more where the decoder needs other ``threads`` later.
        try_feed: A short text as the network takes it.

    Raises:
        Indivisible: It can't be cut there.
    """
    if len(graph.outputs) != 1:
        raise Indivisible(f"it has {len(graph.outputs)} outputs")
    (output,) = graph.outputs
    if len(graph.made_by("Ceil")) != 1:
        raise Indivisible("its durations can't be told")
    narrow = [cut for cut in graph.cuts(output, 1) if cut.tensors != (output,)]
    if not narrow:
        raise Indivisible("no single tensor leads to its decoder")
    middle = narrow[-1]
    # Beside the frames, the flow takes a mask of what is text in a batch of several: all ones in ours.
    wide = [cut for cut in graph.cuts(output, 2) if cut.at < middle.at and len(cut.tensors) == 2]
    if wide:
        try:
            return _split_at(graph, wide[-1].tensors, middle.tensors[0], open_session, threads, try_feed)
        except Indivisible as reason:
            log.info("this Piper voice's flow runs as a whole: %s", reason)
    return _split_at(graph, middle.tensors, middle.tensors[0], open_session, threads, try_feed)


def _split_at(
    graph: Graph,
    start: tuple[str, ...],
    middle: str,
    open_session: OpenSession,
    threads: Threads,
    try_feed: dict[str, Array],
) -> Split:
    """Head up to ``start``, flow (none if ``start`` is the ``middle``), decoder behind the ``middle``."""
    (output,), (durations,) = graph.outputs, graph.made_by("Ceil")
    head = open_session(graph.part(list(graph.inputs), [*start, durations]), threads.first)
    made = {
        name: np.asarray(value) for name, value in zip(start, head.run(list(start), try_feed), strict=True)
    }
    inputs = _frames_first(made)
    frames, flow = made[inputs[0]], None
    if middle not in start:
        flow = measure_part(
            open_session(graph.part(inputs, [middle]), threads.first), inputs, frames.shape[1]
        )
        frames = _feed(flow.session, inputs, frames)
    tail = graph.part([middle], [output])
    decoder = later = measure_part(open_session(tail, threads.first), (middle,), frames.shape[1])
    if threads.later != threads.first:
        later = replace(decoder, session=open_session(tail, threads.later))
    return Split(head, (inputs[0], durations), flow, decoder, later)


def _frames_first(made: dict[str, Array]) -> tuple[str, ...]:
    """The names of the frames and, if there is one, of the mask."""
    shapes = {name: value.shape for name, value in made.items()}
    inputs = tuple(sorted(made, key=lambda name: made[name].size, reverse=True))
    frames, *mask = (made[name] for name in inputs)
    if frames.ndim != 3 or frames.shape[0] != 1 or frames.dtype != np.float32:
        raise Indivisible(f"its frames have the shapes {shapes}")
    if any(one.shape != (1, 1, frames.shape[2]) or not np.all(one == 1) for one in mask):
        raise Indivisible(f"more than frames and a mask leads to its flow: {shapes}")
    return inputs


def measure_part(session: Any, inputs: tuple[str, ...], channels: int) -> Part:
    """Measure how far one frame reaches: what is not a number spreads to all that depends on it."""
    middle = _PROBE_FRAMES // 2
    frames = np.random.default_rng(0).standard_normal((1, channels, _PROBE_FRAMES), dtype=np.float32)
    whole = _feed(session, inputs, frames)
    frames[..., middle] = np.nan
    touched = np.flatnonzero(np.any(_feed(session, inputs, frames) != whole, axis=(0, 1)))
    step, rest = divmod(whole.shape[-1], _PROBE_FRAMES)
    if rest or not step or not len(touched):
        raise Indivisible(f"{_PROBE_FRAMES} frames give {whole.shape[-1]} values")
    context = max(middle - int(touched[0]) // step, int(touched[-1]) // step - middle)
    if context >= _PROBE_FRAMES - 1 - middle:
        raise Indivisible(f"a frame reaches further than {context - 1} others")
    return Part(session, inputs, context, step)


def _feed(session: Any, inputs: tuple[str, ...], frames: Float32) -> Float32:
    feed = {inputs[0]: frames}
    for mask in inputs[1:]:
        feed[mask] = np.ones((1, 1, frames.shape[-1]), np.float32)
    output = np.asarray(session.run(None, feed)[0], dtype=np.float32)
    return output.reshape(1, -1, output.shape[-1])
