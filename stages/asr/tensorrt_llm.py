"""How does TensorRT-LLM recognise? Whisper through its LLM API, for all sessions of a process.

Batching is the engine's own (in flight), so each piece of audio is one request. It takes at most 30 s of 16 kHz audio
and gives no probability of silence, no times and no language; what can be told is told from log probabilities, the
words and the levels. Facts: its guide "Use encoder-decoder models with the PyTorch backend" and
``tensorrt_llm/_torch/models/modeling_whisper.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stages.asr import levels
from stages.asr.guards import Judgement, usable
from stages.asr.recogniser_input import check_audio, check_language
from stages.asr.request_slots import RequestSlots
from stages.asr.tensorrt_model import Output, WhisperEngine, load
from stages.asr.text_guards import (
    SECOND_TEMPERATURE,
    badness,
    judge_text,
    voiced_between,
    wants_second_look,
)
from stages.asr.words import join_texts
from stages.patience import Patience
from voice.errors import DeadlineExceeded, EngineFailed, Overloaded, VoiceError
from voice.executor import Executor, ThreadExecutor
from voice.interfaces import ASR_RATE_HZ, Pcm16, RecogniserCapabilities, Transcript
from voice.scope import Scope

MAX_AUDIO_S = 120.0
LONGEST_PIECE_S = 28.0
"""The engine takes 30 s; cuts are made in the quietest place before that."""
TOKENS_PER_S = 8
SPARE_TOKENS = 16
"""A request makes at most 8 tokens a second of audio + 16: fast English speech has about 5."""
ANSWER_S = 20.0
"""Longest wait for an answer, of an engine that answers in a fraction of a second."""
LONGEST_WAIT_S = 600.0
"""Longest wait for a place, where the scope has no deadline: that of a long file whose pieces come all at once."""
SECOND_LOOK_S = 3.0
"""Longest second look: it may mend a doubtful text, and must not cost it."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch of audio that fits one request."""

    samples: npt.NDArray[np.float32]
    voiced_s: float

    @property
    def most_tokens(self) -> int:
        return SPARE_TOKENS + math.ceil(TOKENS_PER_S * len(self.samples) / ASR_RATE_HZ)


@dataclass(frozen=True, slots=True)
class _Text:
    """What was recognised in a piece."""

    text: str
    tokens: int
    logprob: float | None
    judgement: Judgement

    @property
    def order(self) -> tuple[int, float]:
        return badness(self.judgement, self.text, self.logprob)


class WhisperTensorRT:
    """A :class:`~voice.interfaces.Recogniser` on TensorRT-LLM: one model in the GPU's memory for all sessions.

    Loading takes up to minutes and blocks: make it at start-up or in a thread.

    Args:
        folder: A Whisper checkpoint as Hugging Face keeps it: ``config.json``, ``generation_config.json``, a tokenizer,
            weights in ``.safetensors``.
        max_batch: Most requests that the engine works on at once.
        gpu_memory: Share of the free GPU memory that the caches take, 0–1. Other engines may need the rest.
        executor: Where requests are prepared; ``None``: a thread.

    Attributes:
        counters: What happened since the start: ``utterances``, ``pieces``, ``requests``, ``second_looks``, ``aborted``
            and ``rejected_REASON``.

    Raises:
        ModelMissing: ``tensorrt_llm`` is not installed, or files of the checkpoint are absent.
        EngineFailed: This version can't run Whisper, or the model can't be loaded.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_batch: int = 8,
        gpu_memory: float = 0.3,
        executor: Executor | None = None,
    ) -> None:
        self._engine: WhisperEngine = load(folder, max_batch=max_batch, gpu_memory=gpu_memory)
        self.name = f"whisper {folder.name} on TensorRT-LLM"
        self.capabilities = RecogniserCapabilities(
            languages=self._engine.languages, word_times=False, hints=False, max_audio_s=MAX_AUDIO_S
        )
        self.counters: Counter[str] = Counter()
        self._own = [] if executor else [ThreadExecutor("tensorrt-prepare")]
        self._prepare_on: Executor = executor or self._own[0]
        self._slots = RequestSlots(self.name, max_batch)

    def close(self) -> None:
        """Give the GPU's memory back. Requests under way fail."""
        for executor in self._own:
            executor.close()
        self._engine.close()

    async def transcribe(
        self, audio: Pcm16, scope: Scope, *, language: str | None = None, hints: Sequence[str] = ()
    ) -> Transcript:
        """Recognise ``audio`` (16 kHz, at most 120 s). Its class is ``scope.priority``.

        ``language`` is a code like ``"de"`` or ``"en-US"``; ``None`` detects it from the first piece, which costs
        one more run of the encoder. ``hints`` are left out: the engine takes no text before the task's tokens.

        Raises:
            BadAudio: Not one-dimensional int16, or longer than 120 s.
            BadRequest: A language the model doesn't know.
            EngineFailed, Overloaded, DeadlineExceeded, ScopeCancelled: As named.
        """
        check_audio(audio, MAX_AUDIO_S)
        code = check_language(language, self.capabilities.languages, self.name)
        scope.check()
        self.counters["utterances"] += 1
        pieces = await self._prepare_on.run(_cut, audio)
        if isinstance(pieces, str):
            return self._reject(pieces, code, None)
        if code is None:
            code = await self._detect(pieces[0], scope)
        self.counters["pieces"] += len(pieces)
        found = await asyncio.gather(
            *(self._recognise(piece, scope, code) for piece in pieces), return_exceptions=True
        )
        return self._join([_raised(one) for one in found], code)

    async def _detect(self, piece: _Piece, scope: Scope) -> str:
        if not self._engine.multilingual:
            return self.capabilities.languages[0]
        return self._engine.language_of(await self._request(piece, scope, None, 0.0))

    async def _recognise(self, piece: _Piece, scope: Scope, language: str) -> _Text:
        """One request; a second one on doubt, while there is time."""
        text = _judged(await self._request(piece, scope, language, 0.0), piece)
        if wants_second_look(text.judgement, scope.priority):
            self.counters["second_looks"] += 1
            try:
                with scope.child("stage", timeout_s=SECOND_LOOK_S) as soon:
                    output = await self._request(piece, soon, language, SECOND_TEMPERATURE)
            except (Overloaded, DeadlineExceeded, EngineFailed):
                return text
            text = min(text, _judged(output, piece), key=lambda one: one.order)
        return text

    async def _request(self, piece: _Piece, scope: Scope, language: str | None, temperature: float) -> Output:
        patience = Patience(scope, self.name, LONGEST_WAIT_S, "took no further request")
        with patience.watching(), self._naming_failures():
            async with self._slots.one(patience):
                most_tokens = 1 if language is None else piece.most_tokens
                patience.extend(ANSWER_S, "gave no answer")
                prepared = await patience.wait(
                    self._prepare_on.run(
                        self._engine.prepare, piece.samples, language, most_tokens, temperature
                    )
                )
                scope.check()
                self.counters["requests"] += 1
                request = self._engine.start(prepared)
                try:
                    await patience.wait(request.aresult())
                except (asyncio.CancelledError, VoiceError):  # cancelled or late: its place is for others
                    self.counters["aborted"] += 1
                    request.abort()
                    raise
                return self._engine.read(request)

    @contextlib.contextmanager
    def _naming_failures(self) -> Iterator[None]:
        try:
            yield
        except VoiceError:
            raise
        except Exception as error:
            bad_input = isinstance(error, ValueError | TypeError)
            message = f"{self.name} failed: {str(error) or type(error).__name__}"
            raise EngineFailed(message, retryable=not bad_input) from error

    def _join(self, texts: Sequence[_Text], language: str) -> Transcript:
        """The pieces' texts in order; a rejected piece is left out."""
        kept = [one for one in texts if usable(one.judgement)]
        if not kept:
            return self._reject(texts[0].judgement.reason or "no_words", language, texts[0].logprob)
        scores = [(one.logprob, one.tokens) for one in kept if one.logprob is not None]
        tokens = sum(count for _, count in scores)
        logprob = sum(score * count for score, count in scores) / tokens if tokens else None
        return Transcript(join_texts([one.text for one in kept], language), language, logprob)

    def _reject(self, reason: str, language: str | None, logprob: float | None) -> Transcript:
        self.counters[f"rejected_{reason}"] += 1
        return Transcript("", language, logprob, rejected=reason)


def _cut(audio: Pcm16) -> list[_Piece] | str:
    """The audio in pieces that fit one request, or why there is no speech in it."""
    loudness = levels.block_levels(audio)
    if (reason := levels.why_no_speech(audio, loudness)) is not None:
        return reason
    edges = [0, *levels.cut_points(loudness, LONGEST_PIECE_S), len(audio)]
    pieces: list[_Piece] = []
    for start, end in itertools.pairwise(edges):
        samples = audio[start:end] * np.float32(1 / 32768)
        pieces.append(_Piece(samples, voiced_between(loudness, start / ASR_RATE_HZ, end / ASR_RATE_HZ)))
    return pieces


def _judged(output: Output, piece: _Piece) -> _Text:
    verdict = judge_text(
        output.text, piece.voiced_s, logprob=output.logprob, tokens=output.tokens, cut=output.cut
    )
    return _Text(output.text, output.tokens, output.logprob, verdict)


def _raised(outcome: _Text | BaseException) -> _Text:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
