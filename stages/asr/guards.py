"""Is a hypothesis what was said? Pure checks of a recogniser's text against its scores and the audio's
length.

The thresholds for compression, log probability and no-speech are those of Whisper's reference decoder.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from enum import IntEnum

from voice.interfaces import Word

COMPRESSION_RATIO = 2.4
"""Text that compresses better than this repeats itself."""

LOGPROB = -1.0
"""Mean token log probability under which a hypothesis is a bad guess."""

HOPELESS_LOGPROB = -1.4
"""Under this it is not taken for speech, even if no look finds better: words in noise (10 dB) scored −0.95 and more,
what tiny.en makes of white noise ("I'm going to go to the left.") −1.7."""

UNSURE_LOGPROB = -0.5
"""Under this a second look pays: tiny.en put 6 of 66 clear sentences under it, and loops aside they held
all 7 of the wrong words that a wider window and a beam mended."""

NO_SPEECH = 0.6
"""Probability of Whisper's no-speech token above which low-scored text is invented."""

NO_SPEECH_PHRASE = 0.3
"""The same for texts that Whisper is known to invent. Clear speech scores below 0.2, noise above 0.7."""

FEW_WORDS = 3
"""With no-speech above :data:`NO_SPEECH`, so few words are invented however sure they are ("you",
"Okay.")."""

FASTEST_WORDS_PER_S = 8.0
"""More words than this a second of voiced audio nobody says (480 a minute)."""

FAST_WORDS_PER_S = 4.0
"""Above this repetitive text is a loop rather than a list (240 a minute)."""

SLOWEST_WORDS_PER_S = 0.7
"""Fewer words than this a second of voiced audio mean that the pass ended early."""

SKIPPED_S = 1.4
"""More sound than this that no word accounts for is speech that was passed over. In 230 long utterances whole texts
left at most 1.0 s, those that lacked words 1.8 s and more."""

SURE_LANGUAGE = 0.7
"""A detected language less probable than this is tried against the next one. In noise (10 dB) base takes English of two
seconds for Thai at up to 0.6."""

_TRUNCATION_LEAST_S = 3.0
_RUN_WORDS = 3  # so many copies of a phrase in a row are a loop, unless a wider window says so too
_TAIL_WORDS = 4
_RECENT_WORDS = 20
_GRAM_WORDS = 3
_GRAM_COPIES = 3
_INVENTED = frozenset(
    {
        "thank you",
        "thanks for watching",
        "thank you for watching",
        "thank you very much",
        "thank you so much for watching",
        "please subscribe",
        "subscribe",
        "bye",
        "bye bye",
        "you",
        "okay",
        "oh",
        "the",
        "so",
        "i am sorry",
        "see you next time",
        "see you in the next video",
    }
)
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f]")


class Severity(IntEnum):
    """What to do with a hypothesis; of several, the lowest wins."""

    FINE = 0
    UNSURE = 1  # usable; a second look may be better
    SUSPECT = 2  # probably wrong; if the second look agrees it was said so
    BAD = 3  # not usable unless all passes fail in the same mild way
    SILENT = 4  # no speech: nothing to look at again


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """The outcome of one pass.

    Attributes:
        text: Decoded text, stripped.
        tokens: How many were made, without the end token.
        average_logprob: Mean log probability of a token, the end token included.
        no_speech: Probability that there is no speech, 0–1.
        cut: The pass was stopped at its token limit.
        language: The language it was decoded in.
        language_probability: Of the language, where it was detected.
        runner_up: The next most probable language.
        words: With their times, where it was aligned.
        skipped_s: The most sound in one place that no word accounts for, where it was aligned.
        paced: All its words have time of their own, where it was aligned: what it repeats was said so.
        unsaid: How many words at its end were left out because they have none.
    """

    text: str
    tokens: int
    average_logprob: float
    no_speech: float
    cut: bool = False
    language: str | None = None
    language_probability: float | None = None
    runner_up: str | None = None
    words: tuple[Word, ...] = ()
    skipped_s: float = 0.0
    paced: bool = False
    unsaid: int = 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """How bad it is, and why (``None`` when fine)."""

    severity: Severity
    reason: str | None = None


def judge(hypothesis: Hypothesis, voiced_s: float) -> Judgement:
    """Judge one pass over audio that has ``voiced_s`` seconds of sound."""
    h = hypothesis
    count = count_words(h.text)
    words = _words(h.text)
    if h.no_speech > NO_SPEECH and (h.average_logprob < LOGPROB or count <= FEW_WORDS):
        return Judgement(Severity.SILENT, "no_speech")
    if h.no_speech > NO_SPEECH_PHRASE and " ".join(words) in _INVENTED:
        return Judgement(Severity.SILENT, "invented")
    if not words:
        return Judgement(Severity.SUSPECT, "no_words")
    if h.cut:
        return Judgement(Severity.BAD, "endless")
    if count > FASTEST_WORDS_PER_S * voiced_s + 2:
        return Judgement(Severity.BAD, "too_fast")
    if compression_ratio(h.text) > COMPRESSION_RATIO and not h.paced:
        # People do count and chant, at a human pace; a loop fills the window.
        hurried = count > FAST_WORDS_PER_S * voiced_s
        return Judgement(Severity.BAD if hurried else Severity.SUSPECT, "repetition")
    if h.average_logprob < LOGPROB:
        return Judgement(Severity.BAD, "hopeless" if h.average_logprob < HOPELESS_LOGPROB else "improbable")
    if repeats(words) and not h.paced:
        return Judgement(Severity.SUSPECT, "repetition")
    if h.skipped_s > SKIPPED_S:
        return Judgement(Severity.SUSPECT, "skipped")
    if voiced_s > _TRUNCATION_LEAST_S and count < SLOWEST_WORDS_PER_S * voiced_s:
        return Judgement(Severity.SUSPECT, "truncated")
    if h.language_probability is not None and h.language_probability < SURE_LANGUAGE:
        return Judgement(Severity.UNSURE, "language")
    if h.average_logprob < UNSURE_LOGPROB:
        return Judgement(Severity.UNSURE, "unsure")
    return Judgement(Severity.FINE)


def usable(judgement: Judgement) -> bool:
    """Whether the best text there is may be taken for what was said. What only seems unlikely may; what nobody can
    have said in that time may not."""
    if judgement.severity is Severity.BAD:
        return judgement.reason in ("improbable", "repetition")
    return judgement.severity is not Severity.SILENT and judgement.reason != "no_words"


def compression_ratio(text: str) -> float:
    """Bytes of the text per byte of its zlib form; 0 for empty text."""
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw)) if raw else 0.0


def seems_to_repeat(text: str) -> bool:
    """Whether there is reason to look when each of the words was said."""
    return compression_ratio(text) > COMPRESSION_RATIO or repeats(_words(text))


def count_words(text: str) -> float:
    """Words of the text; where a script has no spaces, a word is taken as two characters."""
    return len(_words(_CJK.sub(" ", text))) + len(_CJK.findall(text)) / 2


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+(?:['’][^\W_]+)*", text.lower())


def repeats(words: list[str]) -> bool:
    """Whether the same two or more words follow each other twice, one word :data:`_RUN_WORDS` + 1 times, the
    text ends in the middle of saying again what it just said, or three words come three times in twenty."""
    if _comes_again(words):
        return True
    n = len(words)
    for size in range(1, n):
        copies = 2 if size > 1 else _RUN_WORDS + 1
        matched = 0
        for i in range(size, n):
            matched = matched + 1 if words[i] == words[i - size] else 0
            if matched >= size * (copies - 1):
                return True
        if matched >= _TAIL_WORDS:
            return True
    return False


def _comes_again(words: list[str]) -> bool:
    """Whether an n-gram comes so often among a few words, wherever in the text."""
    places: dict[tuple[str, ...], list[int]] = {}
    for at in range(len(words) - _GRAM_WORDS + 1):
        seen = places.setdefault(tuple(words[at : at + _GRAM_WORDS]), [])
        if not seen or at - seen[-1] >= _GRAM_WORDS:
            seen.append(at)
        if len(seen) >= _GRAM_COPIES and at + _GRAM_WORDS - seen[-_GRAM_COPIES] <= _RECENT_WORDS:
            return True
    return False
