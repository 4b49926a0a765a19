"""Silero VAD for all sessions of a process: each session's own state, one call for all windows that are due.

The model judges 512 new samples after 64 samples of context and carries a state of two vectors of 128 from window to
window. It runs as :mod:`stages.vad.silero_graph` writes it, on the event loop itself: the windows that come in one
turn of the loop are a batch, which takes a fraction of a millisecond; waking a thread and being woken by it costs as
much (230 µs measured), and under load it waits for its turn twice. The busier the loop, the larger the batches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextvars import Context
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from stages.vad.silero_graph import HIDDEN, PADDED, fast_model
from voice.batching import BatcherStats
from voice.errors import BadAudio, BadRequest, EngineFailed, VoiceError
from voice.interfaces import ASR_RATE_HZ, DetectorStream, Pcm16

if TYPE_CHECKING:
    import onnxruntime

log = logging.getLogger("voice")
Floats: TypeAlias = npt.NDArray[np.float32]
_Outcome: TypeAlias = tuple[float, Floats, Floats]
"""Probability and the two states after a window."""

WINDOW_SAMPLES = 512
CONTEXT_SAMPLES = 64
WINDOW_S = WINDOW_SAMPLES / ASR_RATE_HZ
_WHOLE = CONTEXT_SAMPLES + WINDOW_SAMPLES

MODEL_FILE = "silero_vad_16k_op15.onnx"
"""The 16 kHz graph, whose weights are used."""

MOST_AT_ONCE = 64
"""Windows of a call: about 1.5 ms. What is more waits for the next turn of the loop."""

GATHER_FROM = 400
"""Windows a second from which on a batch waits for more…"""
GATHER_S = 0.004
"""…for so long: a window of 32 ms is known a little later, and costs half."""

QUIET_BELOW = 0.35
"""Probability under which a window counts as quiet: Silero's own end-of-speech threshold (0.5 − 0.15)."""

RESET_AFTER_S = 5.0
"""After so much quiet the state starts afresh. Without it, speech after 5 minutes of −34 dBFS noise scores
0.05 lower on average than at the start of a stream; with it the two are equal to 0.002."""

SILENT_DBFS = -65.0
"""A window below this is silence to a listener, and to the model once it has settled."""
SETTLED_BELOW, SETTLED_WINDOWS = 0.1, 8
"""After so many silent windows in a row with a probability below that, the next ones are not judged: the state stays as
it is, and the last probability is the answer. Between a caller's sentences that is most of a call's work."""


class SileroVad:
    """A :class:`~voice.interfaces.VoiceDetector` on ONNX Runtime, shared by any number of sessions of one loop.

    Args:
        model_path: The ``.onnx`` file or its folder; ``None``: ``silero-vad`` of the catalogue, downloaded
            on first use.
        skip_silence: Leave out windows of silence (see :data:`SILENT_DBFS`); ``False``: judge each.

    Attributes:
        skipped: Windows of silence that were not judged.

    Raises:
        ModelMissing: The model is neither here nor to be had, or it is another model.
        EngineFailed: ONNX Runtime can't load it.
    """

    window_samples = WINDOW_SAMPLES

    def __init__(
        self,
        model_path: Path | None = None,
        *,
        skip_silence: bool = True,
    ) -> None:
        self.name = "silero-vad"
        self.skip_silence = skip_silence
        self.skipped = 0
        self._session = load(model_file(model_path))
        self._due: list[_Stream] = []  # at most one window of each open stream
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flush_at: asyncio.Handle | None = None
        self._closed = False
        self._due_since = 0.0
        self._context = Context()  # a batch is all sessions', not that of the one whose window came first
        self._calls = self._items = self._failed = 0
        self._service_s: float | None = None
        self._counted, self._counted_at, self._rate = 0, 0.0, 0.0

    def open(self) -> DetectorStream:
        """A stream for a new session."""
        return _Stream(self)

    @property
    def stats(self) -> BatcherStats:
        """Counts: calls, windows, waiting."""
        return BatcherStats(
            calls=self._calls,
            items=self._items,
            refused=0,
            expired=0,
            cancelled=0,
            failed=self._failed,
            depth=len(self._due),
            oldest_age_s=self._age_s(),
            mean_batch=self._items / self._calls if self._calls else 0.0,
            service_s=self._service_s,
            broken=False,
            max_batch=MOST_AT_ONCE,
        )

    def _age_s(self) -> float:
        if not self._due or self._loop is None:
            return 0.0
        return max(0.0, self._loop.time() - self._due_since)

    def close(self) -> None:
        """Take no more windows; those under way still answer."""
        self._closed = True

    # ------------------------------------------------------------ batches

    def take(self, stream: _Stream) -> None:
        """A stream's window is due: judge it with the others of this turn of the loop."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._bind(loop)
        now = loop.time()
        if not self._due:
            self._due_since = now
        self._due.append(stream)
        if self._busy(now) and self._flush_at is None:
            self._flush_at = loop.call_later(GATHER_S, self._flush, context=self._context)
        elif self._flush_at is None:
            self._flush_at = loop.call_soon(self._flush, context=self._context)

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Adopt the running loop; what an ended one left behind can't be answered any more."""
        if self._loop is not None and self._loop.is_running():
            raise BadRequest(f"{self.name} already serves an event loop in another thread")
        self._loop, self._flush_at = loop, None
        self._due.clear()
        self._counted, self._counted_at, self._rate = 0, loop.time(), 0.0

    def _busy(self, now: float) -> bool:
        """Whether so many windows come that waiting a moment pays."""
        self._counted += 1
        if now - self._counted_at >= 1.0:
            self._rate = self._counted / (now - self._counted_at)
            self._counted, self._counted_at = 0, now
        return self._rate > GATHER_FROM

    def drop(self, stream: _Stream) -> None:
        """The stream is closed: its window is not judged."""
        if stream in self._due:
            self._due.remove(stream)

    def _flush(self) -> None:
        assert self._loop is not None
        due, self._due = self._due[:MOST_AT_ONCE], self._due[MOST_AT_ONCE:]
        self._flush_at = self._loop.call_soon(self._flush, context=self._context) if self._due else None
        if not due:
            return
        self._calls += 1
        began = self._loop.time()
        try:
            outcomes = self._judge(due)
        except Exception as error:
            self._failed += len(due)
            if self._failed == len(due):  # once: there may be thirty a second
                log.exception("ONNX Runtime failed in %s", self.name)
            for stream in due:
                self._tell(stream, EngineFailed(f"{self.name} failed: {error}"))
            return
        took_s = self._loop.time() - began
        self._service_s = took_s if self._service_s is None else 0.9 * self._service_s + 0.1 * took_s
        self._items += len(due)
        for stream, outcome in zip(due, outcomes, strict=True):
            self._tell(stream, outcome)

    def _tell(self, stream: _Stream, outcome: _Outcome | VoiceError) -> None:
        """One session's fault is not its neighbours'."""
        try:
            stream.done(outcome)
        except Exception:
            log.exception("a session failed on the answer of %s", self.name)

    def _judge(self, streams: Sequence[_Stream]) -> Sequence[_Outcome]:
        """One call for one window of each stream: probability and next states. Changes no stream."""
        feed = {
            "input": np.concatenate([stream.input for stream in streams]),
            "h": np.concatenate([stream.h for stream in streams]),
            "c": np.concatenate([stream.c for stream in streams]),
        }
        output, h, c = self._session.run(None, feed)
        return [(probability, h[i], c[i]) for i, probability in enumerate(output[:, 0].tolist())]


class _Stream:
    """One session's window, context and state.

    Attributes:
        input: Context, window and mirrored end, shape (1, 640).
        h, c: State of the network, shape (1, 128) each.
    """

    __slots__ = (
        "_closed",
        "_detector",
        "_forget",
        "_last",
        "_on_result",
        "_quiet_s",
        "_settled",
        "c",
        "h",
        "input",
    )

    def __init__(self, detector: SileroVad) -> None:
        self._detector = detector
        self._on_result: Callable[[float], None] | None = None
        self._closed = False
        self._forget = False  # a reset came while a window was under way
        self._quiet_s = 0.0
        self._settled = 0  # silent windows in a row
        self._last = 0.0
        self.input = np.zeros((1, PADDED), np.float32)
        self.h = np.zeros((1, HIDDEN), np.float32)
        self.c = np.zeros((1, HIDDEN), np.float32)

    def push(self, window: Pcm16, on_result: Callable[[float], None]) -> None:
        """Judge the next window; see :class:`~voice.interfaces.DetectorStream`.

        Raises:
            BadAudio: Not exactly 512 samples.
            BadRequest: The stream is closed, or its last window has not been answered.
        """
        if len(window) != WINDOW_SAMPLES:
            raise BadAudio(f"a window has {WINDOW_SAMPLES} samples at 16 kHz, not {len(window)}")
        if self._closed or self._detector._closed:
            raise BadRequest("this detector stream is closed")
        if self._on_result is not None:
            raise BadRequest("the last window of this stream has not been answered yet")
        whole = self.input[0]
        whole[:CONTEXT_SAMPLES] = whole[WINDOW_SAMPLES:_WHOLE]
        fresh = whole[CONTEXT_SAMPLES:_WHOLE]
        np.multiply(window, _SCALE, out=fresh)
        if float(fresh @ fresh) < _SILENT:
            if self._settled >= SETTLED_WINDOWS and self._detector.skip_silence:
                self._detector.skipped += 1
                self._watch_quiet(self._last)
                on_result(self._last)
                return
            self._settled += 1
        else:
            self._settled = 0
        whole[_WHOLE:] = whole[
            _WHOLE - 2 : WINDOW_SAMPLES - 2 : -1
        ]  # the end, mirrored about its last sample
        self._on_result = on_result
        self._detector.take(self)

    def done(self, result: _Outcome | VoiceError) -> None:
        """The window was judged, or could not be."""
        on_result, self._on_result = self._on_result, None
        if on_result is None:
            return
        if isinstance(result, VoiceError):
            self._forget = False
            on_result(float("nan"))
            return
        probability, h, c = result
        if self._forget:
            self._forget = False
            self.input.fill(0.0)
        else:
            self.h[0], self.c[0] = h, c
            self._last = probability
            if probability >= SETTLED_BELOW:
                self._settled = 0
            self._watch_quiet(probability)
        on_result(probability)

    def _watch_quiet(self, probability: float) -> None:
        """Start the state afresh in long quiet, never in speech. The context is audio and stays."""
        self._quiet_s = self._quiet_s + WINDOW_S if probability < QUIET_BELOW else 0.0
        if self._quiet_s >= RESET_AFTER_S:
            self.h.fill(0.0)
            self.c.fill(0.0)
            self._quiet_s = 0.0
            self._settled = 0

    def reset(self) -> None:
        """Forget the context. A window under way is still answered, but leaves nothing behind."""
        self._forget = self._on_result is not None
        self._quiet_s = 0.0
        self._settled = 0
        self.h.fill(0.0)
        self.c.fill(0.0)
        if not self._forget:
            self.input.fill(0.0)

    def close(self) -> None:
        """Drop the stream; a result still under way is not delivered."""
        self._closed = True
        if self._on_result is not None:
            self._on_result = None
            self._detector.drop(self)


_SCALE = np.float32(1 / 32768)
_SILENT = WINDOW_SAMPLES * 10.0 ** (SILENT_DBFS / 10.0)
"""Energy of a window at :data:`SILENT_DBFS`."""


def model_file(path: Path | None) -> Path:
    """The network's file: in ``path`` if that is a folder; ``None``: of the catalogue, downloaded on first use."""
    if path is None:
        from voice import models

        path = models.path("silero-vad")
    return path / MODEL_FILE if path.is_dir() else path


def load(path: Path) -> onnxruntime.InferenceSession:
    """The network in the form that runs fastest here, on the calling thread alone.

    Raises:
        ModelMissing: It is another model.
        EngineFailed: ONNX Runtime can't load it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        model = fast_model(path.read_bytes())
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except VoiceError:
        raise
    except Exception as error:
        raise EngineFailed(
            f"the voice detector {path.name} can't be loaded: {error}", retryable=False
        ) from error
