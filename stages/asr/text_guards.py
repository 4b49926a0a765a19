"""Is a text what was said, when its recogniser gives few scores or none? The checks of
:mod:`stages.asr.guards` for engines that are not ours.

Pure functions. A score that is missing says nothing: it neither condemns a text nor clears it.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stages.asr import levels
from stages.asr.guards import UNSURE_LOGPROB, Hypothesis, Judgement, Severity, count_words, judge
from voice.scope import Priority

SECOND_TEMPERATURE = 0.4
"""Of a second look: enough to leave a loop, little enough to stay with the words."""

_SLOWEST_PHRASE_PER_S = 0.5  # words: nobody draws "thank you" out to 2 s a word, but breath is that long
_ECHOED_WORDS = 3
_PERHAPS_SILENT = 0.5  # stands in for a no-speech score: doubt enough for known phrases, for nothing else
_MARGIN_S = 0.3  # by so much a server's times of a segment may be off


def judge_text(
    text: str,
    voiced_s: float,
    *,
    logprob: float | None = None,
    no_speech: float | None = None,
    tokens: int = 0,
    cut: bool = False,
) -> Judgement:
    """Judge a text over audio that has ``voiced_s`` seconds of sound.

    Without a no-speech score a text that recognisers are known to invent counts as invented when it is
    improbable, or much too short for the sound.

    Args:
        text: What was recognised.
        voiced_s: Seconds of sound.
        logprob: Mean log probability of its tokens.
        no_speech: Probability that there is no speech, 0–1.
        tokens: How many it has.
        cut: It ended at its token limit.
    """
    hypothesis = Hypothesis(text, tokens, logprob or 0.0, no_speech or 0.0, cut)
    verdict = judge(hypothesis, voiced_s)
    if no_speech is None and verdict.severity is not Severity.SILENT:
        slow = count_words(text) < _SLOWEST_PHRASE_PER_S * voiced_s
        if slow or (logprob is not None and logprob < UNSURE_LOGPROB):
            doubted = judge(replace(hypothesis, no_speech=_PERHAPS_SILENT), voiced_s)
            if doubted.severity is Severity.SILENT:
                return doubted
    return verdict


def echoes(text: str, prompt: str) -> bool:
    """Whether ``text`` only repeats the hints it was given: what Whisper does with noise."""
    said, given = _words(text), _words(prompt)
    at_most = len(given) - len(said)
    return len(said) >= _ECHOED_WORDS and any(
        given[i : i + len(said)] == said for i in range(max(0, at_most + 1))
    )


def wants_second_look(judgement: Judgement, priority: Priority) -> bool:
    """Whether a text should be asked for once more, at :data:`SECOND_TEMPERATURE` and without hints. Never for
    partials: the next one comes soon."""
    if priority is Priority.PARTIAL:
        return False
    suspect = judgement.severity is Severity.SUSPECT and judgement.reason in ("repetition", "truncated")
    return suspect or judgement.severity is Severity.BAD


def badness(judgement: Judgement, text: str, logprob: float | None) -> tuple[int, float]:
    """Order of preference among texts for the same audio, best first. Of two that seem cut short the one with more
    words is the better."""
    if judgement.reason == "truncated":
        return judgement.severity, -count_words(text)
    return judgement.severity, -(logprob or 0.0)


def voiced_between(loudness: npt.NDArray[np.float32], start_s: float, end_s: float) -> float:
    """How long there is sound from ``start_s`` to ``end_s`` (and a little around), measured by the utterance's own
    loudest parts.

    Args:
        loudness: Of the utterance: :func:`stages.asr.levels.block_levels`.
        start_s: In seconds.
        end_s: In seconds.
    """
    if not len(loudness):
        return 0.0
    threshold = max(levels.SILENCE_DBFS, float(np.percentile(loudness, 95)) - levels.VOICED_RANGE_DB)
    first = max(0, int((start_s - _MARGIN_S) / levels.BLOCK_S))
    last = int((end_s + _MARGIN_S) / levels.BLOCK_S) + 1
    return float(np.count_nonzero(loudness[first:last] > threshold)) * levels.BLOCK_S


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
