"""Fakes of the engines that listen: a detector and a recogniser that follow a script."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from voice.errors import BadAudio, BadRequest, EngineFailed
from voice.interfaces import (
    ASR_RATE_HZ,
    Pcm16,
    RecogniserCapabilities,
    Transcript,
)
from voice.scope import Identity, Scope
from voice.testing.audio import rms, tone_runs

_VOICE = 1500
"""Sample value a user's tone rises above and noise hardly does."""
KEPT = 1000
"""How many of the latest calls a fake remembers."""


# ---------------------------------------------------------------- voice activity


class ScriptedDetector:
    """A voice activity detector without a model. It takes a window for speech when it is loud.

    Args:
        script: ``None``: 0.98 for windows at or above ``speech_rms``, 0.02 below. A sequence: the probability
            of each window of a stream in turn, by loudness after its end. A function of ``(window, index)``:
            that. ``nan`` stands for a failed call.
        speech_rms: RMS of int16 samples from which a window is speech (1000 is −30 dBFS).
        delay_s: Loop time between a window and its answer; 0 answers inside ``push``.

    Attributes:
        opened, closed: Streams so far.
        windows: Windows judged so far, all streams together.
    """

    name = "scripted-detector"
    window_samples = 512

    def __init__(
        self,
        script: Sequence[float] | Callable[[Pcm16, int], float] | None = None,
        *,
        speech_rms: float = 1000.0,
        delay_s: float = 0.0,
    ) -> None:
        self.script = script
        self.speech_rms = speech_rms
        self.delay_s = delay_s
        self.opened = self.closed = self.windows = 0

    def open(self) -> ScriptedDetectorStream:
        """A stream for a new session."""
        self.opened += 1
        return ScriptedDetectorStream(self)

    def judge(self, window: Pcm16, index: int) -> float:
        """The probability of speech in window number ``index`` of a stream."""
        self.windows += 1
        if callable(self.script):
            return self.script(window, index)
        if self.script is not None and index < len(self.script):
            return self.script[index]
        return 0.98 if rms(window) >= self.speech_rms else 0.02


class ScriptedDetectorStream:
    """One session's stream; see :class:`~voice.interfaces.DetectorStream`.

    Attributes:
        index: Windows pushed so far.
        resets: How often the context was forgotten.
    """

    def __init__(self, detector: ScriptedDetector) -> None:
        self.index = self.resets = 0
        self._detector = detector
        self._busy = self._closed = False

    def push(self, window: Pcm16, on_result: Callable[[float], None]) -> None:
        """See the protocol.

        Raises:
            BadAudio: Not ``window_samples`` of int16.
            BadRequest: The last window has not been answered, or the stream is closed.
        """
        size = self._detector.window_samples
        if window.dtype != np.int16 or window.shape != (size,):
            raise BadAudio(
                f"a window must be {size} samples of int16, not {window.dtype} of shape {window.shape}"
            )
        if self._busy or self._closed:
            raise BadRequest("the stream is closed" if self._closed else "the last window has no answer yet")
        probability = self._detector.judge(window, self.index)
        self.index += 1
        if self._detector.delay_s <= 0:
            on_result(probability)
            return
        self._busy = True
        asyncio.get_running_loop().call_later(self._detector.delay_s, self._answer, on_result, probability)

    def _answer(self, on_result: Callable[[float], None], probability: float) -> None:
        self._busy = False
        if not self._closed:
            on_result(probability)

    def reset(self) -> None:
        """Count it; there is no context to forget."""
        self.resets += 1

    def close(self) -> None:
        """Deliver nothing more."""
        if not self._closed:
            self._closed = True
            self._detector.closed += 1


# ---------------------------------------------------------------- recognition


class ScriptedRecogniser:
    """A recogniser that knows beforehand what was said.

    Args:
        texts: A sequence: one text a call, in order, ``""`` after its end. A function of the audio: what it
            returns. A mapping of Hz to text: each stretch of ``speak(seconds, hz)`` in the audio gives its
            text (nearest key within 12 Hz), so that any number of sessions and repeated passes over a
            growing utterance get the right words.
        delay_s: Loop time of a call, or a function of the audio that says it.
        by_tone: Without a mapping: each stretch of tone gives ``"tone 220"``, its Hz rounded to tens.
        fail_at, hang_at: Numbers of the calls (from 0) that fail or never answer.

    Attributes:
        heard: The exact audio of the latest calls, copied.
        asked: Who asked, for the latest calls.
        calls, running, cancelled: Calls begun so far, under way, and given up by their caller.
    """

    name = "scripted-recogniser"

    def __init__(
        self,
        texts: Sequence[str] | Mapping[int, str] | Callable[[Pcm16], str] = (),
        *,
        delay_s: float | Callable[[Pcm16], float] = 0.05,
        by_tone: bool = False,
        fail_at: Collection[int] = (),
        hang_at: Collection[int] = (),
        capabilities: RecogniserCapabilities | None = None,
    ) -> None:
        self.capabilities = capabilities or RecogniserCapabilities()
        self.texts = texts
        self.delay_s = delay_s
        self.by_tone = by_tone
        self.fail_at, self.hang_at = fail_at, hang_at
        self.heard: deque[Pcm16] = deque(maxlen=KEPT)
        self.asked: deque[Identity] = deque(maxlen=KEPT)
        self.calls = self.running = self.cancelled = 0

    async def transcribe(
        self, audio: Pcm16, scope: Scope, *, language: str | None = None, hints: Sequence[str] = ()
    ) -> Transcript:
        """See :class:`~voice.interfaces.Recogniser`."""
        scope.check()
        if audio.dtype != np.int16 or audio.ndim != 1:
            raise BadAudio(f"a recogniser takes mono int16, not {audio.dtype} of shape {audio.shape}")
        if len(audio) > self.capabilities.max_audio_s * ASR_RATE_HZ:
            raise BadAudio(f"{len(audio) / ASR_RATE_HZ:.1f} s of audio is longer than this recogniser takes")
        number = self.calls
        self.calls += 1
        self.heard.append(audio.copy())
        self.asked.append(scope.identity)
        self.running += 1
        try:
            if number in self.hang_at:
                await asyncio.Event().wait()
            await asyncio.sleep(self.delay_s(audio) if callable(self.delay_s) else self.delay_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        if number in self.fail_at:
            raise EngineFailed(f"call {number} of the scripted recogniser fails as it was told to")
        return Transcript(self._text(audio, number), language=language or self.capabilities.languages[0])

    def _text(self, audio: Pcm16, number: int) -> str:
        if isinstance(self.texts, Mapping):
            return self._by_tone(audio, self.texts)
        if self.by_tone:
            return self._by_tone(audio, {})
        if callable(self.texts):
            return self.texts(audio)
        return self.texts[number] if number < len(self.texts) else ""

    @staticmethod
    def _by_tone(audio: Pcm16, texts: Mapping[int, str]) -> str:
        said: list[tuple[float, str]] = []
        for run in tone_runs(audio, ASR_RATE_HZ, grid_hz=5.0, min_s=0.03, floor=_VOICE):
            near = min(texts, key=lambda hz: abs(hz - run.hz), default=None)
            known = near is not None and abs(near - run.hz) <= 12
            text = texts[near] if near is not None and known else f"tone {round(run.hz, -1):.0f}"
            if not said or said[-1][1] != text or run.start_s - said[-1][0] > 0.02:
                said.append((run.end_s, text))
            else:  # the same tone again right away: a lost sample, not a new word
                said[-1] = (run.end_s, text)
        return " ".join(text for _, text in said)
