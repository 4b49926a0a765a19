"""Who is tested? Our recognisers and faster-whisper with the same weights, behind one call, and what a call costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from stages import presets
from voice import models
from voice.compute import CpuBudget
from voice.errors import BadRequest, ModelMissing
from voice.interfaces import ASR_RATE_HZ, Pcm16, Recogniser
from voice.scope import Scope

REFERENCE = "faster-whisper"
LANGUAGE = "en"
"""All speech here is English, and every engine is told so: none spends time on finding it out."""
_UTTERANCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Heard:
    """What an engine made of an utterance.

    Attributes:
        text: Empty: nothing was said, or what seemed to be was rejected.
        rejected: Why.
        cpu_s: Processor time of this process meanwhile, all threads. Of a remote engine: of its client.
        wall_s: Time it took.
    """

    text: str
    cpu_s: float
    wall_s: float
    rejected: str | None = None


class Engine(Protocol):
    """Hears one utterance at a time."""

    name: str

    async def words(self, audio: Pcm16) -> tuple[str, str | None]:
        """The text, and why it was rejected if it was.

        Raises:
            VoiceError: As the engine says.
        """


class Ours:
    """A recogniser of :mod:`voice`, asked as a session asks for a final text."""

    def __init__(self, name: str, recogniser: Recogniser) -> None:
        self.name, self.recogniser = name, recogniser

    async def words(self, audio: Pcm16) -> tuple[str, str | None]:
        """See :class:`Engine`."""
        deadline = asyncio.get_running_loop().time() + _UTTERANCE_S
        with Scope("process", deadline=deadline) as scope:
            transcript = await self.recogniser.transcribe(audio, scope, language=LANGUAGE)
        return transcript.text.strip(), transcript.rejected


class FasterWhisper:
    """faster-whisper's ``transcribe`` with its own defaults (a beam of 5, a window of 30 s, fallback temperatures,
    no VAD).

    Args:
        name: What the report calls it.
        folder: The converted model.
        compute_type: CTranslate2's name of the arithmetic.

    Raises:
        ModelMissing: The package is not installed, or the model can't be loaded.
    """

    def __init__(self, name: str, folder: Path, compute_type: str) -> None:
        try:
            from faster_whisper import WhisperModel
        except ImportError as error:
            raise ModelMissing("the comparison needs faster-whisper: pip install 'voice[local]'") from error
        self.name = name
        threads = CpuBudget.detect().asr_threads
        try:
            self._model: Any = WhisperModel(
                str(folder),
                device="cpu",
                compute_type=compute_type,
                cpu_threads=threads,
                local_files_only=True,
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise ModelMissing(f"faster-whisper can't load {folder}: {error}") from error

    async def words(self, audio: Pcm16) -> tuple[str, str | None]:
        """See :class:`Engine`."""
        return await asyncio.to_thread(self._words, audio), None

    def _words(self, audio: Pcm16) -> str:
        segments, _ = self._model.transcribe(audio.astype(np.float32) / 32768.0, language=LANGUAGE)
        return " ".join(segment.text.strip() for segment in segments)


def open_engines(asr: Sequence[str], against: str | None, compute_type: str | None) -> list[Engine]:
    """Ours, in this order, then the reference for each that has one.

    Args:
        asr: What :func:`stages.presets.local` takes; none: its default.
        against: :data:`REFERENCE`, with the weights of each of ours, or ``None``.
        compute_type: CTranslate2's name of the arithmetic, of ours and the reference; ``None``: ``"int8"``.

    Raises:
        BadRequest: An unknown name or arithmetic, or one twice; a reference for engines elsewhere.
        ModelMissing, EngineFailed: A model can't be had or loaded.
    """
    names = list(asr) or [presets.DEFAULT_ASR]
    if len(set(names)) < len(names):
        raise BadRequest("each recogniser can be tested once: their names are what tells them apart")
    if against is not None and all(presets.is_url(name) for name in names):
        raise BadRequest("only a local model can be compared with faster-whisper: it needs the same weights")
    ours: list[Engine] = [Ours(name, _recogniser(name, compute_type)) for name in names]
    theirs: list[Engine] = [
        FasterWhisper(reference_of(name), _folder(name), compute_type or "int8")
        for name in names
        if against is not None and not presets.is_url(name)
    ]
    return [*ours, *theirs]


def reference_of(name: str) -> str:
    """What the reference with the weights of ``name`` is called."""
    return f"{REFERENCE} {name}"


def _recogniser(name: str, compute_type: str | None) -> Recogniser:
    usual = presets.local(asr=name).recogniser
    if compute_type is None:
        return usual
    if presets.is_url(name):
        raise BadRequest(f"the arithmetic of {name} is its server's choice: leave --compute-type out")
    from stages.asr.whisper import WhisperCt2

    threads = CpuBudget.detect().asr_threads
    return WhisperCt2(model_path=_folder(name), threads=threads, compute_type=compute_type)


def _folder(name: str) -> Path:
    return Path(name) if Path(name).is_dir() else models.path(name)


async def hear(engine: Engine, audio: Pcm16) -> Heard:
    """One call, and what it cost. Nothing else may run in this process meanwhile.

    Raises:
        VoiceError: As the engine says.
    """
    clock = asyncio.get_running_loop().time
    cpu, wall = time.process_time(), clock()
    text, rejected = await engine.words(audio)
    return Heard(text, time.process_time() - cpu, clock() - wall, rejected)


async def warm(engines: Sequence[Engine], audio: Pcm16) -> None:
    """Each hears something once that counts for nothing; loading and first calls cost more."""
    for engine in engines:
        await engine.words(audio[: 10 * ASR_RATE_HZ])
