"""One passage of the agent's speech with what happens over it, window by window: ear, guard and policies in a closed
loop with a loudspeaker, a room and a microphone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np
import onnxruntime

from loadtest.overlap_sounds import RATE, Room, Wave, to_pcm, to_wave
from stages.vad.silero import CONTEXT_SAMPLES, MODEL_FILE, WINDOW_SAMPLES
from voice import models
from voice.audio import AudioFormat, rms_dbfs
from voice.echo import OwnVoice
from voice.hearing import Ear
from voice.interfaces import Pcm16
from voice.interruption import Interruptions, Sound, Verdict
from voice.options import Limits, TurnOptions

WINDOW_S = WINDOW_SAMPLES / RATE
_PRE_ROLL = int(0.2 * RATE)
_TAIL = int(0.1 * RATE)
_SAID_S = 1.2

Recognise = Callable[[Pcm16], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Passage:
    """What is played and what else reaches the microphone.

    Attributes:
        agent: The agent's voice, int16 at 16 kHz.
        text: What it says.
        near: User and noises at the microphone, as long as the passage may last, ±1.
        room: The loudspeaker's way back; ``None``: headphones.
        sound_s: When the sounds that are judged begin, in seconds.
        barge_in: Whether they are meant to interrupt.
    """

    agent: Pcm16
    text: str
    near: Wave
    room: Room | None
    sound_s: tuple[float, ...]
    barge_in: bool


@dataclass
class Outcome:
    """What came of a passage. Times in seconds from its start."""

    spoken_s: float = 0.0
    held_s: list[float] = field(default_factory=list)  # when the agent fell silent, for now or for good
    dips: int = 0  # silences that were taken back
    silent_s: float | None = None  # when it fell silent for good
    interrupted_s: float | None = None  # when that was decided
    by: str = ""
    text: str | None = None


class _Loudspeaker:
    """What is played, and how it comes back: block by block, since pauses depend on what was heard."""

    def __init__(self, room: Room | None, samples: int) -> None:
        self._room = room
        self._played = np.zeros(samples + WINDOW_SAMPLES)
        self._tail = np.zeros(0)
        self._end = 0
        if room is not None:
            self._size = 1 << int(np.ceil(np.log2(WINDOW_SAMPLES + room.response.size)))
            self._response = np.fft.rfft(room.response, self._size)
            self._tail = np.zeros(self._size)

    def play(self, pcm: Pcm16) -> Wave:
        """Play a window; returns what the microphone gets back in the same time."""
        start = self._end
        self._played[start : start + pcm.size] = to_wave(pcm)
        self._end += pcm.size
        room = self._room
        if room is None:
            return np.zeros(pcm.size)
        at = (start + np.arange(pcm.size)) * (1.0 - room.drift) - room.delay_s * RATE
        first = max(0, int(at[0]))
        recent = self._played[first : start + pcm.size]
        late = np.interp(at, np.arange(first, first + recent.size), recent, left=0.0)
        if room.overdrive:
            late = np.tanh((1.0 + 2.0 * room.overdrive) * late) / (1.0 + room.overdrive)
        self._tail = np.concatenate((self._tail[pcm.size :], np.zeros(pcm.size)))
        self._tail += np.fft.irfft(np.fft.rfft(late, self._size) * self._response, self._size)
        return np.asarray(self._tail[: pcm.size].copy())


class _Leveller:
    """A device's automatic gain: slow up, fast down, 6 dB down to 12 dB up."""

    def __init__(self) -> None:
        self._gain = 1.0

    def level(self, wave: Wave) -> Wave:
        out = wave.copy()
        for start in range(0, wave.size, 160):
            block = wave[start : start + 160]
            loud = float(np.sqrt(np.mean(block * block)))
            if loud > 0.003:
                want = min(4.0, max(0.5, 0.08 / loud))
                self._gain *= (want / self._gain) ** (0.02 if want > self._gain else 0.1)
            out[start : start + 160] = block * self._gain
        return out


class Detector:
    """Silero without batching: answers at once. What ``guard`` takes for the agent's own voice it does not get.

    Attributes:
        guard: Of the passage; ``None``: all is judged as it comes.
    """

    name = "silero-vad"
    window_samples = WINDOW_SAMPLES

    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._model = onnxruntime.InferenceSession(str(models.path("silero-vad") / MODEL_FILE), options)
        self.guard: OwnVoice | None = None

    def open(self) -> Detector:
        self.reset()
        self._windows = 0
        return self

    def reset(self) -> None:
        self._state = np.zeros((2, 1, 128), np.float32)
        self._context = np.zeros(CONTEXT_SAMPLES, np.float32)

    def close(self) -> None:
        self.guard = None

    def push(self, window: Pcm16, on_result: Callable[[float], None]) -> None:
        at = self._windows * WINDOW_S
        self._windows += 1
        if self.guard is not None:
            window = self.guard.without_echo(window, at)
        wave = np.concatenate((self._context, window.astype(np.float32) / 32768.0))
        self._context = wave[-CONTEXT_SAMPLES:]
        feed = {"input": wave[None], "state": self._state, "sr": np.array(RATE, np.int64)}
        probability, self._state = self._model.run(None, feed)
        on_result(float(probability[0, 0]))


class Overlap:
    """Plays one passage.

    Args:
        detector: Used for one passage after the other.
        recognise: Words of a piece of audio.
        policies: What judges the sounds.
        guarded: Whether the own-voice guard works.
        hold_s: Longest time a sound may stay undecided (a client that can only flush); ``None``: no limit.
        words_after_s: How long the recogniser takes, in the passage's time.
    """

    def __init__(
        self,
        detector: Detector,
        recognise: Recognise,
        policies: Interruptions,
        *,
        guarded: bool = True,
        hold_s: float | None = None,
        words_after_s: float = 0.3,
    ) -> None:
        self._recognise, self._policies = recognise, policies
        self._options = TurnOptions()
        self._hold_s, self._words_after_s = hold_s, words_after_s
        self._guard = OwnVoice(RATE) if guarded else None
        self._ear = Ear(detector, TurnOptions(), Limits(), AudioFormat(), self._began, self._paused)
        detector.guard = self._guard
        self._start: int | None = None  # of the sound that is judged
        self._end: int | None = None
        self._text: str | None = None
        self._text_s = 0.0
        self._asked_s = 0.0
        self._words: list[tuple[float, float, str]] = []  # due, covering, text
        self._held_at: float | None = None
        self._noise_dbfs = -60.0
        self.outcome = Outcome()

    def _began(self, index: int) -> None:
        if self._start is None:
            self._start, self._text, self._text_s, self._asked_s = index, None, 0.0, 0.0
            self._words.clear()
            self._ear.keep_from = max(self._ear.log.start, index - _PRE_ROLL)
        self._end = None

    def _paused(self, index: int) -> None:
        if self._start is not None:
            self._end = index

    async def play(self, passage: Passage) -> Outcome:
        """To the end of the agent's speech or its interruption."""
        out = self.outcome
        speaker, leveller = _Loudspeaker(passage.room, passage.near.size), _Leveller()
        at = 0
        for window in range(passage.near.size // WINDOW_SAMPLES):
            begin_s, now = window * WINDOW_S, (window + 1) * WINDOW_S
            chunk = np.zeros(WINDOW_SAMPLES, np.int16)
            if self._held_at is None:
                piece = passage.agent[at : at + WINDOW_SAMPLES]
                chunk[: piece.size] = piece
                at += WINDOW_SAMPLES
                out.spoken_s += WINDOW_S
                if self._guard is not None:
                    self._guard.played(chunk, begin_s)
            near = passage.near[window * WINDOW_SAMPLES : (window + 1) * WINDOW_SAMPLES]
            mixed = near + speaker.play(chunk)
            pcm = to_pcm(leveller.level(mixed) if passage.room is not None and passage.room.agc else mixed)
            if not self._ear.speaking and (self._guard is None or self._guard.own < 0.5):
                level = max(-90.0, rms_dbfs(pcm))
                self._noise_dbfs += (0.3 if level < self._noise_dbfs else 0.02) * (level - self._noise_dbfs)
            self._ear.hear(pcm, now)
            if self._start is not None:
                await self._judge(now, self._lately_said(passage, at))
                if out.interrupted_s is not None:
                    break
            if at >= passage.agent.size and self._start is None:
                break
        self._ear.close()
        return out

    @property
    def _echoes(self) -> bool:
        return self._guard is not None and self._guard.echoes

    def _lately_said(self, passage: Passage, at: int) -> str:
        """The agent's words of the last seconds."""
        per_sample = len(passage.text) / passage.agent.size
        begin = max(0, round(per_sample * (at - _SAID_S * RATE)))
        text = passage.text[begin : round(per_sample * at) + 8]
        return text if begin == 0 else text.partition(" ")[2]

    async def _judge(self, now: float, agent_text: str) -> None:
        """A sound is open: look what is known, hold the agent, decide."""
        start, out = self._start, self.outcome
        assert start is not None
        until = self._ear.voiced_until if self._end is None else self._end
        voiced_s = max(0, until - start) / RATE
        for due, covering_s, text in list(self._words):
            if due <= now:
                self._text, self._text_s = text, covering_s
                self._words.remove((due, covering_s, text))
        log = self._ear.log
        audio = log.read(max(log.start, start - _PRE_ROLL), min(until + _TAIL, log.end))
        sound = Sound(
            voiced_s,
            text=self._text,
            text_s=self._text_s,
            ended_s=None if self._end is None else now - self._end / RATE,
            over_noise_db=rms_dbfs(audio[min(start, _PRE_ROLL) :]) - self._noise_dbfs,
            echoes=self._echoes,
            agent_text=agent_text,
        )
        judgement = self._policies.judge(sound, self._options)
        if judgement.verdict is not Verdict.WAIT:
            self._close(now, judgement.verdict, judgement.by)
            return
        if self._held_at is None and self._policies.holds(sound, self._options):
            self._held_at = now
            out.held_s.append(now)
        if self._hold_s is not None and self._held_at is not None and now - self._held_at >= self._hold_s:
            on = self._end is None
            self._close(now, Verdict.INTERRUPT if on else Verdict.IGNORE, "longest hold")
        elif not self._words and self._wants_words(sound):
            self._asked_s = voiced_s
            self._words.append((now + self._words_after_s, voiced_s, await self._recognise(audio)))

    def _wants_words(self, sound: Sound) -> bool:
        if sound.ended_s is not None:
            return self._asked_s < sound.voiced_s
        return self._policies.wants_words(sound, self._options)

    def _close(self, now: float, verdict: Verdict, by: str) -> None:
        out = self.outcome
        out.text = self._text
        out.by = by
        if verdict is Verdict.INTERRUPT:
            out.interrupted_s = now
            out.silent_s = now if self._held_at is None else self._held_at
        elif self._held_at is not None:
            out.dips += 1
        self._start = self._held_at = self._ear.keep_from = None
