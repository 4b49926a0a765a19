"""Whisper for all sessions of a process: a greedy pass in a window that fits, checks, and further looks on doubt.

Whisper's encoder always ran over 30 s; here its window is as short as the utterance allows, which costs a fifth for
short ones. What that loses (loops and slips in short windows) the checks of :mod:`stages.asr.guards` notice, and the
looks of :mod:`stages.asr.looks` mend.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from stages.asr import seams
from stages.asr.guards import Hypothesis, Judgement, judge, usable
from stages.asr.looks import badness, cut_smaller, first_look, next_look
from stages.asr.pieces import OVERLAP_S, Piece, halves, prepare
from stages.asr.whisper_model import WhisperModel
from stages.asr.whisper_pass import Pass
from stages.asr.words import join_texts, shifted
from voice.batching import Batcher, BatcherStats
from voice.compute import ComputeGate
from voice.errors import BadAudio, DeadlineExceeded, Overloaded
from voice.executor import Executor, ThreadExecutor
from voice.interfaces import ASR_RATE_HZ, Pcm16, RecogniserCapabilities, Transcript, Word
from voice.scope import Scope

MAX_AUDIO_S = 120.0

_Found: TypeAlias = tuple[Hypothesis, Judgement]


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
        word_times: Transcripts have their words, with times and probabilities; costs a tenth more.
        timeout_s: A call that takes longer hangs, and everyone is told so.

    Attributes:
        counters: What happened since the start: ``utterances``, ``pieces``, ``passes``, ``retries``, and
            ``rejected_REASON`` / ``retried_REASON``, by piece; ``cut_smaller``, ``seams``,
            ``unsaid_words`` (left out at the ends of texts).

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
        timeout_s: float = 30.0,
        word_times: bool = False,
    ) -> None:
        self.name = model if model_path is None else f"whisper {model_path.name}"
        self._model = WhisperModel(
            model_path or _from_catalogue(model), device=device, compute_type=compute_type, threads=threads
        )
        self.capabilities = RecogniserCapabilities(
            languages=self._model.languages, word_times=word_times, hints=True, max_audio_s=MAX_AUDIO_S
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
            timeout_s=timeout_s,
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
        ``"no_speech"``, ``"invented"``, ``"no_words"``, ``"endless"``, ``"too_fast"``, ``"hopeless"``.

        Raises:
            BadAudio: Not one-dimensional int16, or longer than 120 s.
            BadRequest: A language the model doesn't know, or hints that are no texts.
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
        prepared = await self._prepare_on.run(prepare, audio, self._model.mels)
        if isinstance(prepared, str):
            return self._reject(prepared, code)
        asked = self._model.hint_tokens(hints)
        timed = self.capabilities.word_times or any(piece.overlaps for piece in prepared)
        done = await asyncio.gather(
            *(self._recognise(piece, scope, code, asked, timed) for piece in prepared), return_exceptions=True
        )
        return self._join(prepared, [_raised(one) for one in done])

    async def _recognise(
        self, piece: Piece, scope: Scope, language: str | None, hints: tuple[int, ...], timed: bool
    ) -> _Found:
        """Look after look until one is good enough; the best of them."""
        self.counters["pieces"] += 1
        waiting = self._batcher.stats.depth
        one = first_look(piece, language, hints, scope.priority, word_times=timed, waiting=waiting)
        done: list[Pass] = []
        best: _Found | None = None
        try:
            while True:
                found = await self._look(one, piece, scope)
                best = found if best is None else min(best, found, key=badness)
                done.append(one)
                following = next_look(done, *best, scope.priority)
                if following is None:
                    break
                self._count_retry(best[1])
                one = following
            if cut_smaller(*best, scope.priority) and (parts := halves(piece)) is not None:
                self.counters["cut_smaller"] += 1
                best = min(best, await self._in_parts(piece, parts, scope, best[0], timed), key=badness)
        except (DeadlineExceeded, Overloaded):
            if best is None or scope.cancelled:
                raise  # otherwise there is no time for another look: what there is must do
        return best

    async def _look(self, one: Pass, piece: Piece, scope: Scope) -> _Found:
        hypothesis = await self._batcher.submit(one, scope)
        self.counters["passes"] += 1
        self.counters["unsaid_words"] += hypothesis.unsaid
        return hypothesis, judge(hypothesis, piece.voiced_s)

    def _count_retry(self, verdict: Judgement) -> None:
        self.counters["retries"] += 1
        self.counters[f"retried_{verdict.reason}"] += 1

    async def _in_parts(
        self, piece: Piece, parts: Sequence[Piece], scope: Scope, best: Hypothesis, timed: bool
    ) -> _Found:
        """The piece heard part by part, as one hypothesis."""
        looks = [first_look(part, best.language, (), scope.priority, word_times=timed) for part in parts]
        heard = await asyncio.gather(
            *(self._look(look, part, scope) for look, part in zip(looks, parts, strict=True)),
            return_exceptions=True,
        )
        found = [_raised(one) for one in heard]
        kept = [(part, h) for part, (h, verdict) in zip(parts, found, strict=True) if usable(verdict)]
        if not kept:
            return found[0]
        whole = replace(
            best,
            text=join_texts([h.text for _, h in kept], best.language),
            tokens=sum(h.tokens for _, h in kept),
            average_logprob=_mean_logprob([h for _, h in kept]),
            no_speech=min(h.no_speech for _, h in kept),
            cut=any(h.cut for _, h in kept),
            words=tuple(w for part, h in kept for w in shifted(h.words, part.start_s - piece.start_s)),
            skipped_s=max(h.skipped_s for _, h in kept),
        )
        return whole, judge(whole, piece.voiced_s)

    def _join(self, pieces: Sequence[Piece], found: Sequence[_Found]) -> Transcript:
        """The pieces' texts in order; a rejected piece is left out, and counted."""
        kept: list[tuple[Piece, Hypothesis]] = []
        for piece, (hypothesis, verdict) in zip(pieces, found, strict=True):
            if usable(verdict):
                kept.append((piece, hypothesis))
            else:
                self.counters[f"rejected_{verdict.reason or 'no_words'}"] += 1
        if not kept:
            hypothesis, verdict = found[0]
            return _nothing(verdict.reason or "no_words", hypothesis)
        longest = max((h for _, h in kept), key=lambda h: h.tokens)
        language = longest.language
        words = [shifted(h.words, piece.start_s) for piece, h in kept]
        if any(piece.overlaps for piece, _ in kept):
            text, said = self._over_seams([piece for piece, _ in kept], words, language)
        else:
            text, said = (
                join_texts([h.text for _, h in kept], language),
                tuple(w for some in words for w in some),
            )
        return Transcript(
            text,
            language,
            _mean_logprob([h for _, h in kept]),
            said if self.capabilities.word_times else (),
            language_probability=longest.language_probability,
        )

    def _over_seams(
        self, pieces: Sequence[Piece], words: Sequence[Sequence[Word]], language: str | None
    ) -> tuple[str, tuple[Word, ...]]:
        said = list(words[0])
        for piece, following in zip(pieces[1:], words[1:], strict=True):
            if piece.overlaps:
                self.counters["seams"] += 1
                said = seams.joined(said, following, piece.cut_s, OVERLAP_S)
            else:
                said += following
        return join_texts([word.text for word in said], language), tuple(said)

    def _reject(self, reason: str, language: str | None) -> Transcript:
        self.counters[f"rejected_{reason}"] += 1
        return Transcript("", language, rejected=reason)


def _nothing(reason: str, hypothesis: Hypothesis) -> Transcript:
    return Transcript(
        "",
        hypothesis.language,
        hypothesis.average_logprob,
        rejected=reason,
        language_probability=hypothesis.language_probability,
    )


def _mean_logprob(found: Sequence[Hypothesis]) -> float:
    tokens = sum(h.tokens + 1 for h in found)
    return sum(h.average_logprob * (h.tokens + 1) for h in found) / tokens


def _from_catalogue(name: str) -> Path:
    from voice import models

    return models.path(name)


def _raised(outcome: _Found | BaseException) -> _Found:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
