"""Piper: how a clause becomes audio on one CPU core, window by window, so that its beginning is heard early."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stages.tts.piper_model import PiperModel, Rendering, read_config
from stages.tts.piper_plan import Piece, Plan, Timeline
from stages.tts.piper_stream import Float32, Threads
from stages.tts.word_times import weigh_word
from voice import models
from voice.audio import BLOCK_S, first_audible
from voice.compute import ComputeGate, CpuBudget
from voice.errors import BadRequest, EngineFailed, VoiceError
from voice.executor import Executor, ThreadExecutor
from voice.interfaces import Pcm16, Speech
from voice.scope import Scope

DEFAULT_VOICE = "piper-en_US-joe-medium"
MAX_CHARS = 600

GAIN = 1.5
"""Piper's voices peak near -5 dBFS; this brings speech to about -20 dBFS. Clauses keep their
loudness relative to each other (scaling each to full range, as Piper's own program does, makes a short "Yes."
shout)."""

KNEE = 0.8
"""Only the few peaks above this part of full scale are bent; a curve that begins with slope 1 adds no click."""

_NOTHING: Pcm16 = np.zeros(0, np.int16)


@dataclass(frozen=True, slots=True)
class PiperOptions:
    """How a voice speaks.

    Attributes:
        speed: 0.5–2; 1 is the voice's own pace.
        deterministic: The same text gives the same samples (no sampling noise).
        threads: Threads inside one operator of the network.
        first_threads: The same for the first window of a clause and all that comes before it. Two make it a
            fifth to a third sooner while the second core is idle, and up to a tenth later while it is busy. For all
            windows, they would slow a busy neighbour and cost a quarter more processor time.
    """

    speed: float = 1.0
    deterministic: bool = False
    threads: int = 1
    first_threads: int = field(default_factory=lambda: min(2, CpuBudget.detect().cores))

    def __post_init__(self) -> None:
        if not 0.5 <= self.speed <= 2.0:
            raise BadRequest(f"Piper's speed must lie between 0.5 and 2, not {self.speed}")
        if min(self.threads, self.first_threads) < 1:
            raise BadRequest(f"Piper needs at least one thread, not {min(self.threads, self.first_threads)}")


@dataclass(slots=True)
class _Run:
    """A piece on its way: begin and end of its groups in samples (none if the voice doesn't tell), samples left."""

    rendering: Rendering
    groups: list[tuple[int, int]]
    left: int


class Piper:
    """Text to speech with a Piper voice; implements :class:`voice.interfaces.Synthesiser`.

    Args:
        voice: A catalogue name, or the path of an ``.onnx`` file with its ``.onnx.json`` beside it.
        options: How it speaks.
        gate: The process's compute gate; each window of audio takes a slot of it. ``None``: no gate.
        executor: Where the blocking calls run; ``None``: two threads of its own.

    Raises:
        ModelMissing: ``voice`` is a path and a file is absent or damaged.
        BadRequest: ``voice`` is neither a path nor a name of the catalogue.
    """

    max_chars = MAX_CHARS

    def __init__(
        self,
        voice: str | Path = DEFAULT_VOICE,
        *,
        options: PiperOptions | None = None,
        gate: ComputeGate | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.options = options or PiperOptions()
        self._gate = gate
        self._executor = executor or ThreadExecutor("piper", threads=2)
        self._loading = threading.Lock()
        self._model: PiperModel | None = None
        self._source = str(voice)
        if self._source.endswith(".onnx"):
            self.name = Path(voice).stem
            self.sample_rate = int(read_config(Path(voice))["audio"]["sample_rate"])
        else:
            files = models.get(self._source).files
            if not any(file.name.endswith(".onnx.json") for file in files):
                raise BadRequest(f"{self._source} is a model, but not a Piper voice")
            self.name = self._source
            # By Piper's naming, the qualities x_low and low are 16 kHz, medium and high 22.05 kHz.
            self.sample_rate = 16_000 if self._source.endswith("low") else 22_050

    async def warm_up(self) -> None:
        """Load the voice and speak once into the void, so that the first turn doesn't pay for it."""
        await self._executor.run(self._warm_up)

    async def synthesise(self, text: str, scope: Scope, *, voice: str | None = None) -> AsyncIterator[Speech]:
        """Speak ``text``; see :class:`voice.interfaces.Synthesiser`.

        Text without a letter or digit gives nothing.

        Args:
            voice: The name of a speaker of this voice; ``None`` or the voice's own name: its default.
        """
        if len(text) > MAX_CHARS:
            raise BadRequest(f"Piper takes at most {MAX_CHARS} characters a call, this text has {len(text)}")
        if not weigh_word(text):
            return
        speaker, plan = await self._executor.run(self._plan, text, voice)
        timeline = Timeline(plan, self.sample_rate)
        silent = True  # nothing audible was made yet
        for piece in plan.pieces:
            run: _Run | None = None
            pcm = _NOTHING
            told = False
            while run is None or run.left:
                scope.check()
                run, made = await self._next_window(run, piece, speaker, scope)
                pcm = np.concatenate((pcm, made))
                skipped = 0
                if silent:
                    if run.left and not self._audible(pcm):
                        continue
                    silent = False
                    skipped = leading_silence(pcm, self.sample_rate)
                words = () if told else timeline.add(run.rendering.length - skipped, run.groups, skipped)
                told = True
                yield Speech(pcm[skipped:], words)
                pcm = _NOTHING

    async def _next_window(
        self, run: _Run | None, piece: Piece, speaker: int | None, scope: Scope
    ) -> tuple[_Run, Pcm16]:
        if self._gate is not None:
            async with self._gate.slot(scope):
                return await self._executor.run(self._go_on, run, piece, speaker)
        return await self._executor.run(self._go_on, run, piece, speaker)

    def _audible(self, pcm: Pcm16) -> bool:
        """Whether there is a whole audible block: so far, the silence before it is as long as it will be."""
        begin = first_audible(pcm, self.sample_rate)
        return begin is not None and begin + round(self.sample_rate * BLOCK_S) <= len(pcm)

    # ------------------------------------------------ on a worker thread

    def _loaded(self) -> PiperModel:
        with self._loading:
            if self._model is None:
                path = Path(self._source)
                if path.suffix != ".onnx":  # a name of the catalogue: downloaded when it is not there
                    path = next(models.path(self._source).glob("*.onnx"))
                model = PiperModel(path, Threads(self.options.first_threads, self.options.threads))
                if model.config.sample_rate != self.sample_rate:
                    raise EngineFailed(
                        f"the Piper voice {self.name} runs at {model.config.sample_rate} Hz, not at the "
                        f"{self.sample_rate} Hz of its name: give the path of its .onnx file instead",
                        retryable=False,
                    )
                self._model = model
            return self._model

    def _warm_up(self) -> None:
        _, plan = self._plan("Hello there, how are you?", None)
        for piece in plan.pieces:
            run: _Run | None = None
            while run is None or run.left:
                run, _ = self._go_on(run, piece, None)

    def _plan(self, text: str, voice: str | None) -> tuple[int | None, Plan]:
        model = self._loaded()
        speaker = None
        if voice not in (None, self.name):
            speaker = model.config.speaker_id_map.get(voice)
            if speaker is None:
                known = ", ".join(map(repr, model.config.speaker_id_map)) or f"only {self.name!r}"
                raise BadRequest(f"the Piper voice {self.name} has no speaker {voice!r}; there is {known}")
        return speaker, Plan.of(text, model.phonemise(text))

    def _go_on(self, run: _Run | None, piece: Piece, speaker: int | None) -> tuple[_Run, Pcm16]:
        """The next window of a piece; ``None``: begin it."""
        try:
            if run is None:
                run = self._begin(piece, speaker)
            samples = next(run.rendering.windows)
        except VoiceError:
            raise
        except Exception as error:  # onnxruntime's own errors share no parent but Exception
            raise EngineFailed(f"Piper failed on {len(piece.phonemes)} phonemes: {error!r}") from error
        run.left -= len(samples)
        return run, to_pcm16(samples)

    def _begin(self, piece: Piece, speaker: int | None) -> _Run:
        rendering = self._loaded().begin(
            piece.phonemes,
            speaker=speaker,
            speed=self.options.speed,
            deterministic=self.options.deterministic,
        )
        groups: list[tuple[int, int]] = []
        if rendering.ends is not None:
            begins = np.concatenate(([0], rendering.ends))
            groups = [(int(begins[a]), int(rendering.ends[b - 1])) for a, b in piece.groups]
        return _Run(rendering, groups, rendering.length)


def to_pcm16(samples: Float32) -> Pcm16:
    """float32 within ±1 to int16 at :data:`GAIN`, bent above :data:`KNEE` so that nothing clips.

    Each sample is treated by itself: windows join without a step, and loudness never changes within a clause.
    """
    scaled = samples * np.float32(GAIN)
    over = np.abs(scaled) > KNEE
    if over.any():
        room = 1.0 - KNEE
        loud = scaled[over]
        scaled[over] = np.copysign(KNEE + room * np.tanh((np.abs(loud) - KNEE) / room), loud)
    pcm: Pcm16 = np.rint(scaled * 32767.0).astype(np.int16)
    return pcm


def leading_silence(pcm: Pcm16, sample_rate: int) -> int:
    """Samples before the first audible 10 ms block, less one block; 0 where nothing is audible."""
    begin = first_audible(pcm, sample_rate)
    return 0 if begin is None else max(0, begin - int(sample_rate * BLOCK_S))
