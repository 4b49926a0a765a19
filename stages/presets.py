"""Ready sets of stages: which engines fit together on this machine, shared by all sessions of the process."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urldefrag

import numpy as np

from voice import models
from voice.audio import PcmAssembler, resample
from voice.compute import ComputeGate, CpuBudget
from voice.errors import BadRequest, EngineFailed, ModelMissing
from voice.interfaces import (
    ASR_RATE_HZ,
    LanguageModel,
    Message,
    ModelOptions,
    Pcm16,
    Prompt,
    Recogniser,
    Stages,
    Synthesiser,
    TextPart,
    TurnModel,
    VoiceDetector,
)
from voice.models import Progress
from voice.scope import Scope
from voice.service import Service
from voice.speculation import GuessBudget
from voice.spoken import prepare

log = logging.getLogger("voice.presets")
T = TypeVar("T")

DEFAULT_LLM = "smollm2-135m-instruct"
DEFAULT_ASR = "whisper-tiny.en"
DEFAULT_TTS = "piper-en_US-joe-medium"
VAD = "silero-vad"
TURN = "smart-turn-v3.2"

WARM_UP_S = 300.0
"""Longest :func:`warm_up`; loading and running all local engines takes 3 s on two free cores."""

COPIES_BYTES = 500 << 20
"""Most memory for copies of one recogniser's model. A call on one core wastes none of it in waiting: two copies of
tiny.en on a core each took 17.1 s of processor time for ten minutes of prompts, one copy on both cores 18.5."""

RECORDING_BATCH = 2
"""Pieces of a call. Of 27 s each, four at once take a tenth less processor time, but 270 MB more."""
RECORDING_CALL_S = 600.0
"""Longest call on a recording's pieces: nobody waits for an answer, and a large model on a busy core takes minutes."""

_ENVIRONMENT = {"KMP_BLOCKTIME": "0", "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "100"}
"""Lets OpenMP's threads sleep almost as soon as their work is done, in GNU's library (CTranslate2 and llama.cpp on
Linux) and in Intel's. Otherwise they spin for their next work and take the cores from whoever has some: on two busy
cores, loading llama.cpp took 6.5 s of processor time rather than 1.9. The few spins that are left (under a
microsecond) are worth it: with two threads on two free cores llama.cpp wrote 70 tokens a second with them and 45
without, and 33 either way beside a busy neighbour."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of engine: how its models are known in the catalogue, and what it needs."""

    noun: str
    option: str
    file: str  # the end of a file's name that only models of this kind have
    module: str
    package: str
    instead: str

    def names(self) -> list[str]:
        return [e.name for e in models.catalogue.values() if any(f.name.endswith(self.file) for f in e.files)]

    def check(self, name: str) -> None:
        """Raises :class:`BadRequest` if ``name`` is no model of this kind."""
        if name not in self.names():
            known = ", ".join(self.names())
            raise BadRequest(f"there is no {self.noun} {name!r}: choose {known}, {self.instead}")

    def need_package(self) -> None:
        """Raises :class:`ModelMissing` if the engine is not installed: better said before the download."""
        if importlib.util.find_spec(self.module) is None:
            raise ModelMissing(
                f"the local {self.noun} needs the package {self.package}: pip install 'voice[local]'"
            )


_LLM = _Kind(
    "language model",
    "llm",
    ".gguf",
    "xllamacpp",
    "xllamacpp",
    "the path of a .gguf file, or the URL of an OpenAI-compatible server (http://host:port/v1#model)",
)
_ASR = _Kind(
    "recogniser",
    "asr",
    "model.bin",
    "ctranslate2",
    "faster-whisper",
    "the folder of a CTranslate2 model, or the URL of a transcription server (http://host:port/v1#model)",
)
_TTS = _Kind("voice", "tts", ".onnx.json", "piper", "piper-tts", "or the path of a Piper voice's .onnx file")

_engines: dict[tuple[object, ...], Any] = {}  # bounded by what a program asks for
_making = threading.Lock()


def local(
    *,
    llm: str | None = None,
    asr: str | None = None,
    tts: str | None = None,
    budget: CpuBudget | None = None,
    progress: Progress | None = None,
) -> Stages:
    """Silero VAD, Smart Turn, Whisper, a small language model and Piper, on this machine's processor.

    The same arguments give the same engines for the whole process, and all engines share one compute gate
    and one thread budget. Models that are not there are downloaded first, and the detector and the recogniser
    are loaded: call this at start-up or from a thread, not on an event loop that serves sessions. The other
    engines are loaded by their first use, or by :func:`warm_up`.

    Args:
        llm: A model of the catalogue, the path of a ``.gguf`` file, or the URL of an OpenAI-compatible
            server, with ``#name`` at its end to choose one of its models. Default: ``smollm2-135m-instruct``.
        asr: ``whisper-tiny.en`` (default; English), ``whisper-base`` (multilingual), the folder of a
            CTranslate2 Whisper model, or the URL of a server with ``/audio/transcriptions``, with ``#name`` at
            its end to choose one of its models.
        tts: A Piper voice of the catalogue, or the path of its ``.onnx`` file. Default:
            ``piper-en_US-joe-medium``.
        budget: Threads of each engine; ``None``: what this process may use.
        progress: Shows downloads; ``None``: a bar on a terminal, else one line on stderr.

    Raises:
        BadRequest: An unknown name; the message lists what there is.
        ModelMissing: A model can't be had, or a package of the extra ``local`` is not installed.
        EngineFailed: A model can't be loaded.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)  # read once, when the native libraries are loaded below
    budget = budget or CpuBudget.detect()
    with _making:
        needed = [VAD, TURN, *_check_llm(llm), *_check_asr(asr), *_check_tts(tts)]
        for name in needed:
            models.path(name, progress=progress)
        gate = _once(("gate", budget), lambda: ComputeGate(max(1, budget.cores // 2)))
        return Stages(
            detector=_once(("vad",), _make_detector),
            recogniser=_once(("asr", asr or DEFAULT_ASR, budget), lambda: _make_asr(asr, budget, gate)),
            model=_once(("llm", llm or DEFAULT_LLM, budget), lambda: _make_llm(llm, budget, gate)),
            synthesiser=_once(("tts", tts or DEFAULT_TTS, budget), lambda: _make_tts(tts, budget, gate)),
            guesses=_once(("guesses", budget), lambda: GuessBudget(load=gate.load)),
            service=_once(("service", budget), lambda: Service(processor=gate)),
            turn=_once(("turn", budget), lambda: _make_turn_model(gate)),
        )


def recording_recognisers(
    asr: Sequence[str] = (), *, budget: CpuBudget | None = None, progress: Progress | None = None
) -> list[Recogniser]:
    """Recognisers that share the pieces of long recordings; for a program that does nothing else meanwhile.

    Args:
        asr: What :func:`local` takes, any number; default: ``whisper-tiny.en``. A local model is loaded several
            times, each for its share of the cores, as long as the copies take less than :data:`COPIES_BYTES`.
        budget: As in :func:`local`.
        progress: As in :func:`local`.

    Raises:
        BadRequest, ModelMissing, EngineFailed: As :func:`local` does.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    budget = budget or CpuBudget.detect()
    found: list[Recogniser] = []
    for one in asr or (DEFAULT_ASR,):
        if is_url(one):
            found.append(_make_asr(one, budget, None))
            continue
        needed = _check_asr(one)
        folder = models.path(needed[0], progress=progress) if needed else Path(one)
        size = sum(file.stat().st_size for file in folder.glob("model.bin"))
        copies = max(1, min(budget.cores, COPIES_BYTES // max(1, size)))
        threads = max(1, min(8, budget.cores // copies))
        found += [_make_recording_asr(one, folder if not needed else None, threads) for _ in range(copies)]
    return found


async def warm_up(stages: Stages, *, language: str = "en") -> None:
    """Load every engine and run each once, side by side, so that the first turn is as fast as the next.

    The rules for speakable text in ``language`` are loaded too.

    The recogniser hears what the synthesiser says. Works with any stages.

    Raises:
        VoiceError: What the first engine failed with.
    """
    with Scope("process") as scope:
        jobs = [
            asyncio.to_thread(prepare, language),
            _warm_detector(stages.detector),
            *(_warm_turn_model(turn, scope) for turn in (stages.turn,) if turn is not None),
            _warm_speech(stages.synthesiser, stages.recogniser, scope),
            *(
                _warm_speech(other, stages.recogniser, scope)
                for other in (stages.fallback_synthesiser,)
                if other is not None
            ),
            *(
                _warm_model(model, scope)
                for model in (stages.model, stages.fallback_model)
                if model is not None
            ),
        ]
        try:
            async with asyncio.timeout(WARM_UP_S):
                outcomes = await asyncio.gather(*jobs, return_exceptions=True)
        except TimeoutError as error:
            raise EngineFailed(f"the engines were not ready after {WARM_UP_S:g} s") from error
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome


# ---------------------------------------------------------------- which engine an argument means


def is_url(argument: str | None) -> bool:
    """Whether an engine is named by its server's address."""
    return argument is not None and argument.lower().startswith(("http://", "https://"))


def _check_llm(llm: str | None) -> list[str]:
    """The models of the catalogue that are needed; raises if ``llm`` can't be used."""
    if is_url(llm):
        return []
    _LLM.need_package()
    if llm is not None and (llm.endswith(".gguf") or Path(llm).is_file()):
        if not Path(llm).is_file():
            raise ModelMissing(f"there is no language model file {llm}")
        return []
    _LLM.check(llm or DEFAULT_LLM)
    return [llm or DEFAULT_LLM]


def _check_asr(asr: str | None) -> list[str]:
    if is_url(asr):
        return []
    _ASR.need_package()
    if asr is not None and Path(asr).is_dir():
        return []
    _ASR.check(asr or DEFAULT_ASR)
    return [asr or DEFAULT_ASR]


def _check_tts(tts: str | None) -> list[str]:
    _TTS.need_package()
    if tts is not None and tts.endswith(".onnx"):
        return []
    _TTS.check(tts or DEFAULT_TTS)
    return [tts or DEFAULT_TTS]


# ---------------------------------------------------------------- making engines, each once a process


def _once(key: tuple[object, ...], make: Callable[[], T]) -> T:
    if key not in _engines:
        _engines[key] = make()
    return cast(T, _engines[key])


def _make_detector() -> VoiceDetector:
    from stages.vad.silero import SileroVad

    return SileroVad()


def _make_turn_model(gate: ComputeGate) -> TurnModel:
    from stages.turn.smart_turn import SmartTurn

    return SmartTurn(gate=gate)


def _make_asr(asr: str | None, budget: CpuBudget, gate: ComputeGate | None) -> Recogniser:
    if asr is not None and is_url(asr):
        from stages.asr.openai import OpenAITranscriber

        url, model = urldefrag(asr)
        return OpenAITranscriber(url, model or None)
    from stages.asr.whisper import WhisperCt2

    if asr is not None and Path(asr).is_dir():
        return WhisperCt2(model_path=Path(asr), threads=budget.asr_threads, gate=gate)
    return WhisperCt2(asr or DEFAULT_ASR, threads=budget.asr_threads, gate=gate)


def _make_recording_asr(asr: str, folder: Path | None, threads: int) -> Recogniser:
    from stages.asr.whisper import WhisperCt2

    return WhisperCt2(
        asr, model_path=folder, threads=threads, max_batch=RECORDING_BATCH, timeout_s=RECORDING_CALL_S
    )


def _make_llm(llm: str | None, budget: CpuBudget, gate: ComputeGate) -> LanguageModel:
    if llm is not None and is_url(llm):
        from stages.llm.openai import OpenAIChat

        url, model = urldefrag(llm)
        return OpenAIChat(url, model or None)
    from stages.llm.llamacpp import LlamaCpp

    path: Path | None = None
    if llm is not None and llm != DEFAULT_LLM:
        path = Path(llm) if Path(llm).is_file() else next(models.path(llm).glob("*.gguf"))
    return LlamaCpp(path, threads=budget.llm_threads, prefill_threads=budget.prefill_threads, gate=gate)


def _make_tts(tts: str | None, budget: CpuBudget, gate: ComputeGate) -> Synthesiser:
    from stages.tts.piper import Piper, PiperOptions

    return Piper(tts or DEFAULT_TTS, options=PiperOptions(threads=budget.onnx_threads), gate=gate)


# ---------------------------------------------------------------- one run of each


async def _warm(engine: object) -> None:
    warm: Callable[[], Awaitable[None]] | None = getattr(engine, "warm_up", None)
    if warm is not None:
        await warm()


async def _warm_detector(detector: VoiceDetector) -> None:
    judged: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    stream = detector.open()
    try:
        # a faint noise: engines may skip digital silence
        window = np.resize(np.array([3, -2, 1, -3], dtype=np.int16), detector.window_samples)
        stream.push(window, lambda p: None if judged.done() else judged.set_result(p))
        await judged
    finally:
        stream.close()


async def _warm_turn_model(model: TurnModel, scope: Scope) -> None:
    await model.completion(np.zeros(ASR_RATE_HZ, np.int16), scope)


async def _warm_speech(synthesiser: Synthesiser, recogniser: Recogniser, scope: Scope) -> None:
    await asyncio.gather(_warm(synthesiser), _warm(recogniser))
    assembler = PcmAssembler()
    parts: list[Pcm16] = []
    stream = cast(Any, synthesiser.synthesise("Hello there, how are you?", scope))
    async with aclosing(stream):
        async for speech in stream:
            parts.append(assembler.push(speech.pcm))
    if parts:
        audio = resample(np.concatenate(parts), synthesiser.sample_rate, ASR_RATE_HZ)
        await recogniser.transcribe(audio[: ASR_RATE_HZ * 4], scope)


async def _warm_model(model: LanguageModel, scope: Scope) -> None:
    warm = getattr(model, "warm_up", None)
    if warm is not None:
        await warm()
        return
    prompt = Prompt((Message("user", (TextPart("Hi"),)),), options=ModelOptions(max_tokens=1))
    stream = cast(Any, model.generate(prompt, scope))
    async with aclosing(stream):
        async for _ in stream:
            pass
