"""Whisper for all sessions of a process: a greedy pass in a window that fits, checks, and further passes on
doubt.

Whisper's encoder always ran over 30 s; here its window is as short as the utterance allows, which costs a
fifth for short ones. What that loses (loops and slips in short windows) the checks of
:mod:`stages.asr.guards` notice, and a wider window mends.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from stages.asr import levels
from stages.asr.guards import Hypothesis, Judgement, Severity, count_words, judge
from stages.asr.mel import Features, log_mel
from stages.asr.whisper_model import Pass, WhisperModel
from voice.batching import Batcher, BatcherStats
from voice.compute import ComputeGate
from voice.errors import BadAudio, DeadlineExceeded, Overloaded
from voice.executor import Executor, ThreadExecutor
from voice.interfaces import ASR_RATE_HZ, Pcm16, RecogniserCapabilities, Transcript
from voice.scope import Priority, Scope

NARROWEST_FRAMES = 1_000
"""Below about 10 s of window Whisper begins to repeat itself."""

WIDER_FRAMES = (1_500, 3_000)
"""What a second and third look get. 3,000 frames (30 s) are what Whisper was trained on."""

STEP_FRAMES = 200
TAIL_FRAMES = 50
"""Windows grow in steps, so that requests share batches, and end in at least 0.5 s of silence."""

LONGEST_PIECE_S = 28.0
MAX_AUDIO_S = 120.0
BEAM = 5
"""Width of the second look, as in the reference."""

HOT = 0.4
"""Temperature of the third look."""

_NO_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch of audio that fits one window."""

    features: Features
    silence: float
    audio_s: float
    voiced_s: float


class WhisperCt2:
    """A :class:`~voice.interfaces.Recogniser` on CTranslate2: one model in memory, batched over sessions.

    Args:
        model: Name in the catalogue, downloaded on first use.
        model_path: Folder of a converted model, instead of one of the catalogue.
        threads: CPU threads of a call.
        device: ``"cpu"`` or ``"cuda"``.
        compute_type: CTranslate2's name of the arithmetic.
        gate: Taken for each call.
        executor: Where calls and preparation run; ``None``: a thread for each of the two.
        max_batch: Most utterances of a call.

    Attributes:
        counters: What happened since the start: ``utterances``, ``pieces``, ``passes``, ``retries``, and
            ``rejected_REASON`` / ``retried_REASON``.

    Raises:
        ModelMissing: The model is neither here nor to be had.
        EngineFailed: CTranslate2 can't load it.
    """

    def __init__(
        self,
        model: str = "whisper-tiny.en",
        *,
        model_path: Path | None = None,
        threads: int = 2,
        device: str = "cpu",
        compute_type: str = "int8",
        gate: ComputeGate | None = None,
        executor: Executor | None = None,
        max_batch: int = 8,
    ) -> None:
        self.name = model if model_path is None else f"whisper {model_path.name}"
        self._model = WhisperModel(
            model_path or _from_catalogue(model), device=device, compute_type=compute_type, threads=threads
        )
        self.capabilities = RecogniserCapabilities(
            languages=self._model.languages, word_times=False, hints=True, max_audio_s=MAX_AUDIO_S
        )
        self.counters: Counter[str] = Counter()
        self._own = [] if executor else [ThreadExecutor("whisper"), ThreadExecutor("whisper-prepare")]
        # Preparation has its own thread: it must not wait behind a call of another session.
        self._prepare_on: Executor = executor or self._own[1]
        self._batcher: Batcher[Pass, Hypothesis] = Batcher(
            self._model.run,
            name=self.name,
            executor=executor or self._own[0],
            max_batch=max_batch,
            bucket=lambda one: one.bucket,
            gate=gate,
        )

    @property
    def stats(self) -> BatcherStats:
        """The batcher's counts."""
        return self._batcher.stats

    def close(self) -> None:
        """Take no more work; a call that runs still answers."""
        self._batcher.close()
        for executor in self._own:
            executor.close()

    async def transcribe(
        self, audio: Pcm16, scope: Scope, *, language: str | None = None, hints: Sequence[str] = ()
    ) -> Transcript:
        """Recognise ``audio`` (16 kHz, at most 120 s). Its class is ``scope.priority``; partials get no
        second look for mere doubt.

        ``language`` is a code like ``"de"`` or ``"en-US"``; ``None`` detects it (multilingual models).
        ``rejected`` of the result: ``"silence"``, ``"click"``, ``"steady"`` (by level alone),
        ``"no_speech"``, ``"invented"``, ``"no_words"``, ``"endless"``, ``"too_fast"``.

        Raises:
            BadAudio: Not one-dimensional int16, or longer than 120 s.
            BadRequest: A language the model doesn't know.
            EngineFailed, Overloaded, DeadlineExceeded, ScopeCancelled: As named.
        """
        if audio.ndim != 1 or audio.dtype != np.int16:
            raise BadAudio(f"audio must be int16 of shape (n,), not {audio.dtype} of shape {audio.shape}")
        if len(audio) > MAX_AUDIO_S * ASR_RATE_HZ:
            seconds = len(audio) / ASR_RATE_HZ
            raise BadAudio(f"{seconds:.1f} s of audio are too long; at most {MAX_AUDIO_S:g} s")
        code = self._model.check_language(language)
        scope.check()
        self.counters["utterances"] += 1
        prepared = await self._prepare_on.run(_prepare, audio, self._model.mels)
        if isinstance(prepared, str):
            return self._reject(prepared, code)
        asked = self._model.hint_tokens(hints)
        done = await asyncio.gather(
            *(self._recognise(piece, scope, code, asked) for piece in prepared), return_exceptions=True
        )
        return self._join([_raised(one) for one in done])

    async def _recognise(
        self, piece: _Piece, scope: Scope, language: str | None, hints: tuple[int, ...]
    ) -> tuple[Hypothesis, Judgement]:
        """Pass after pass until one is good enough; the best of them."""
        self.counters["pieces"] += 1
        best: tuple[Hypothesis, Judgement] | None = None
        for look, one in enumerate(_passes(piece, language, hints)):
            if best is not None:
                one = replace(one, language=best[0].language)
                self.counters["retries"] += 1
                self.counters[f"retried_{best[1].reason}"] += 1
            try:
                hypothesis = await self._batcher.submit(one, scope)
            except (DeadlineExceeded, Overloaded):
                if best is None or scope.cancelled:
                    raise
                break  # no time for another look: what there is must do
            self.counters["passes"] += 1
            found = hypothesis, judge(hypothesis, piece.voiced_s)
            best = found if best is None else min(best, found, key=_badness)
            if not _look_again(look, best[1].severity, scope.priority):
                break
        assert best is not None  # _passes yields at least once
        return best

    def _join(self, pieces: Sequence[tuple[Hypothesis, Judgement]]) -> Transcript:
        """The pieces' texts in order; a rejected piece is left out."""
        kept = [h for h, judgement in pieces if _usable(judgement)]
        language = pieces[0][0].language
        if not kept:
            return self._reject(pieces[0][1].reason or "no_words", language, pieces[0][0].average_logprob)
        tokens = sum(h.tokens + 1 for h in kept)
        logprob = sum(h.average_logprob * (h.tokens + 1) for h in kept) / tokens
        separator = "" if language in _NO_SPACES else " "
        return Transcript(separator.join(h.text for h in kept), language, logprob)

    def _reject(self, reason: str, language: str | None, logprob: float | None = None) -> Transcript:
        self.counters[f"rejected_{reason}"] += 1
        return Transcript("", language, logprob, rejected=reason)


def _from_catalogue(name: str) -> Path:
    from voice import models

    return models.path(name)


def _prepare(audio: Pcm16, mels: int) -> str | list[_Piece]:
    """Features of the audio's pieces, or why it can't hold speech."""
    loudness = levels.block_levels(audio)
    if (reason := levels.why_no_speech(audio, loudness)) is not None:
        return reason
    pieces: list[_Piece] = []
    edges = [0, *levels.cut_points(loudness, LONGEST_PIECE_S), len(audio)]
    for start, end in itertools.pairwise(edges):
        part = audio[start:end]
        features, silence = log_mel(part, mels)
        sound_s = levels.voiced_s(levels.block_levels(part))
        pieces.append(_Piece(features, silence, len(part) / ASR_RATE_HZ, sound_s))
    return pieces


def _passes(piece: _Piece, language: str | None, hints: tuple[int, ...]) -> Iterator[Pass]:
    """A greedy pass in the narrowest window; a beam in a wider one; sampling in the widest. Hints only at
    first: they can be what misled it."""
    steps = -(-(piece.features.shape[1] + TAIL_FRAMES) // STEP_FRAMES)
    fitting = min(max(NARROWEST_FRAMES, steps * STEP_FRAMES), WIDER_FRAMES[-1])
    one = Pass(piece.features, piece.silence, piece.audio_s, fitting, language=language, hints=hints)
    yield one
    wider = next((frames for frames in WIDER_FRAMES if frames > fitting), WIDER_FRAMES[-1])
    yield replace(one, window=wider, beam=BEAM, hints=())
    yield replace(one, window=WIDER_FRAMES[-1], temperature=HOT, hints=())


def _look_again(look: int, severity: Severity, priority: Priority) -> bool:
    """Whether the best outcome of ``look + 1`` passes deserves another."""
    if severity in (Severity.FINE, Severity.SILENT):
        return False
    if priority >= Priority.PARTIAL:
        return look == 0 and severity in (Severity.SUSPECT, Severity.BAD)
    return look == 0 or severity is Severity.BAD


def _badness(found: tuple[Hypothesis, Judgement]) -> tuple[int, float]:
    """Order of preference. Of two that seem cut short, the one with more words is the better."""
    hypothesis, judgement = found
    if judgement.reason == "truncated":
        return judgement.severity, -count_words(hypothesis.text)
    return judgement.severity, -hypothesis.average_logprob


def _usable(judgement: Judgement) -> bool:
    """Whether the best of all passes is taken for what was said. What only seems unlikely is (the reference
    keeps it too); what nobody can have said in that time is not."""
    if judgement.severity is Severity.BAD:
        return judgement.reason in ("improbable", "repetition")
    return judgement.severity is not Severity.SILENT and judgement.reason != "no_words"


def _raised(
    outcome: tuple[Hypothesis, Judgement] | BaseException,
) -> tuple[Hypothesis, Judgement]:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
