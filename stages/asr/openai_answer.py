"""What does the answer of a transcription server say? JSON of any such server → text, scores and times; and what of
it is believed.

OpenAI's own server, vLLM, speaches and Groq fill different fields, some with placeholders (vLLM once sent -1 for every
score). Whatever is missing or out of range counts as not said; only an answer without a text is an error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.asr.guards import Judgement, Severity, usable
from stages.asr.levels import SHORTEST_WORD_S, voiced_s
from stages.asr.text_guards import badness, judge_text, voiced_between
from stages.asr.whisper_languages import code_of
from stages.asr.words import join_texts
from stages.llm.chat_format import error_sentence
from voice.errors import EngineFailed
from voice.interfaces import Transcript, Word

MOST_SEGMENTS = 2000
MOST_WORDS = 20_000
MOST_CHARS = 100_000
_SLACK_S = 32.0  # times may lie so far beyond the audio: servers round, and pad to whole windows


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the answer, with what the server says of it; ``None`` where it says nothing."""

    text: str
    start_s: float
    end_s: float
    average_logprob: float | None = None
    no_speech: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer to one request.

    Attributes:
        text: All of it, stripped.
        language: As a code, where the server tells one.
        segments: Its parts in order; empty where the server names none or they don't make up the text.
        words: Its words with times; empty without.
        average_logprob: Mean log probability of its tokens.
    """

    text: str
    language: str | None = None
    segments: tuple[Segment, ...] = ()
    words: tuple[Word, ...] = ()
    average_logprob: float | None = None

    @property
    def scored(self) -> bool:
        """Whether there is any score to judge it by."""
        return self.average_logprob is not None or any(
            s.average_logprob is not None or s.no_speech is not None for s in self.segments
        )


def read_answer(payload: object, audio_s: float, source: str) -> Answer:
    """The answer in decoded JSON.

    Args:
        payload: What the server sent.
        audio_s: Length of the audio it was asked about.
        source: The server, as errors name it.

    Raises:
        EngineFailed: There is no text in it, or an error instead.
    """
    if not isinstance(payload, dict):
        raise EngineFailed(f"{source} answered {type(payload).__name__}, not an object with a text")
    text = payload.get("text")
    if text is None and payload.get("error"):
        raise EngineFailed(f"{source} failed: {error_sentence(payload)}")
    if not isinstance(text, str):
        raise EngineFailed(f"{source} answered without a text")
    if len(text) > MOST_CHARS:
        raise EngineFailed(
            f"{source} answered {len(text)} characters, more than anyone says in {audio_s:.0f} s"
        )
    text = " ".join(text.split())
    segments = _segments(payload.get("segments"), audio_s)
    if _letters("".join(s.text for s in segments)) != _letters(text):
        segments = ()
    return Answer(
        text,
        code_of(payload.get("language")),
        segments,
        _words(payload.get("words"), audio_s),
        _mean_logprob(payload.get("logprobs"), segments),
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is believed of an answer, how bad that is, and why parts were left out."""

    transcript: Transcript
    judgement: Judgement
    dropped: tuple[str, ...] = ()

    @property
    def order(self) -> tuple[int, float]:
        """Of several verdicts the lowest is the best."""
        return badness(self.judgement, self.transcript.text, self.transcript.average_logprob)


def believe(answer: Answer, loudness: npt.NDArray[np.float32]) -> Verdict:
    """Judge each segment by its own sound and scores, then what is left as a whole.

    Args:
        answer: Of the server.
        loudness: Of the audio: :func:`stages.asr.levels.block_levels`.
    """
    kept: list[Segment] = []
    dropped: list[str] = []
    worst = Judgement(Severity.FINE)
    for segment in answer.segments:
        verdict = _judge_segment(segment, loudness)
        if usable(verdict):
            kept.append(segment)
            worst = max(worst, verdict, key=lambda one: one.severity)
        else:
            dropped.append(verdict.reason or "no_words")
    if dropped and not kept:
        nothing = Transcript("", answer.language, answer.average_logprob)
        return Verdict(nothing, Judgement(Severity.SILENT, dropped[0]), tuple(dropped))
    text = join_texts([s.text for s in kept], answer.language) if dropped else answer.text
    no_speech = min((s.no_speech for s in kept if s.no_speech is not None), default=None)
    overall = judge_text(text, voiced_s(loudness), logprob=answer.average_logprob, no_speech=no_speech)
    overall = max(overall, worst, key=lambda one: one.severity)
    words = _words_within(answer.words, kept) if dropped else answer.words
    found = Transcript(text, answer.language, answer.average_logprob, words)
    return Verdict(found, overall, tuple(dropped))


def final(verdict: Verdict) -> Transcript:
    """The transcript of the best verdict there is; empty, with the reason, when even that can't be believed."""
    if usable(verdict.judgement):
        return verdict.transcript
    found = verdict.transcript
    reason = verdict.judgement.reason or "no_words"
    return Transcript("", found.language, found.average_logprob, rejected=reason)


def _judge_segment(segment: Segment, loudness: npt.NDArray[np.float32]) -> Judgement:
    sound_s = voiced_between(loudness, segment.start_s, segment.end_s)
    if sound_s < SHORTEST_WORD_S:
        return Judgement(Severity.SILENT, "silence")
    verdict = judge_text(segment.text, sound_s, logprob=segment.average_logprob, no_speech=segment.no_speech)
    # Times of segments are not exact enough to miss words by; the whole text is judged for that.
    return Judgement(Severity.FINE) if verdict.reason == "truncated" else verdict


# ---------------------------------------------------------------- reading


def _segments(found: object, audio_s: float) -> tuple[Segment, ...]:
    """The segments, if all of them make sense."""
    if not isinstance(found, list) or len(found) > MOST_SEGMENTS:
        return ()
    segments: list[Segment] = []
    for one in found:
        times = _times(one, audio_s)
        if times is None or not isinstance(one.get("text"), str):
            return ()
        logprob, no_speech = _number(one.get("avg_logprob")), _number(one.get("no_speech_prob"))
        placeholders = _number(one.get("compression_ratio")) == -1.0  # no ratio can be negative
        segments.append(
            Segment(
                one["text"],
                *times,
                None if placeholders or logprob is None or logprob > 0.0 else logprob,
                None if placeholders or no_speech is None or not 0.0 <= no_speech <= 1.0 else no_speech,
            )
        )
    return tuple(segments)


def _words(found: object, audio_s: float) -> tuple[Word, ...]:
    """The words that make sense."""
    if not isinstance(found, list) or len(found) > MOST_WORDS:
        return ()
    words: list[Word] = []
    for one in found:
        times = _times(one, audio_s)
        text = one.get("word") if isinstance(one, dict) else None
        if times is None or not isinstance(text, str) or not text.strip():
            return ()
        probability = _number(one.get("probability"))
        sure = None if probability is None or not 0.0 <= probability <= 1.0 else probability
        words.append(Word(text.strip(), *times, sure))
    return tuple(words)


def _times(one: object, audio_s: float) -> tuple[float, float] | None:
    if not isinstance(one, dict):
        return None
    start_s, end_s = _number(one.get("start")), _number(one.get("end"))
    if start_s is None or end_s is None or not 0.0 <= start_s <= end_s <= audio_s + _SLACK_S:
        return None
    return min(start_s, audio_s), min(end_s, audio_s)


def _mean_logprob(found: object, segments: tuple[Segment, ...]) -> float | None:
    """Over the tokens where the server lists them, else over the segments by their length."""
    if isinstance(found, list) and found:
        scores = [_number(t.get("logprob")) if isinstance(t, dict) else None for t in found]
        known = [s for s in scores if s is not None and s <= 0.0]
        if len(known) == len(found):
            return sum(known) / len(known)
    parts = [(s.average_logprob, len(s.text)) for s in segments if s.average_logprob is not None]
    chars = sum(length for _, length in parts)
    return sum(score * length for score, length in parts) / chars if chars else None


def _words_within(words: tuple[Word, ...], kept: list[Segment]) -> tuple[Word, ...]:
    return tuple(w for w in words if any(s.start_s <= (w.start_s + w.end_s) / 2 <= s.end_s for s in kept))


def _number(found: Any) -> float | None:
    """A finite number (some servers send them as strings), or nothing."""
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        return None
    try:
        number = float(found)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _letters(text: str) -> str:
    return "".join(text.split())
