"""Which words has a hypothesis, when was each said, and is there sound that none of them accounts for?

Pure functions over tokens and their alignment with the audio. Whisper's alignment gives every frame to some token: a
pause belongs to the word before or after it, and so does speech that was skipped. Levels tell the two apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stages.asr.levels import BLOCK_S
from voice.interfaces import Word

Sounding = npt.NDArray[np.bool_]
"""Which blocks of 20 ms are loud enough for speech, shape (n,)."""

FRAME_S = 0.02
"""One frame of the encoder."""

NO_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages written without spaces between words: there every token counts as a word."""

LETTER_S = 0.09
"""Sound that a letter accounts for, at a slow pace."""
LETTERS_OF_A_DIGIT, LETTERS_OF_A_SYLLABLE = 4, 3
"""How many letters a digit ("7" is "seven") and a character of Han or kana stand for."""

SLOWEST_CHARACTERS_PER_S = 16.0
"""A text with so many letters a second of sound has surely skipped nothing worth a look. The 66 prompts of a slow
telephone voice have 12–15 in whole texts and 3–8 in those that were cut short."""

QUICKEST_LETTER_S = 0.015
"""Two words in a row take at least so long a letter, or one of them is a loop's: those have no time of their own."""

_ALIGN_FROM_S = 1.0
_SQUEEZED_WORDS = 2
_REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """When the tokens of a text were said.

    Attributes:
        starts_s: Of each token, and the end of the last one; one more than there are tokens.
        probabilities: Of each token, 0–1.
    """

    starts_s: tuple[float, ...]
    probabilities: tuple[float, ...]

    @classmethod
    def of(
        cls, path: Sequence[tuple[int, int]], probabilities: Sequence[float], tokens: int, audio_s: float
    ) -> TokenTimes:
        """From an alignment: pairs of (token, frame), both never falling."""
        first: dict[int, int] = {}
        last = 0
        for token, frame in path:
            first.setdefault(token, frame)
            last = max(last, frame + 1)
        starts = [first.get(token, last) * FRAME_S for token in range(tokens + 1)]
        # A token without a frame of its own begins where the next one does.
        for token in range(tokens - 1, -1, -1):
            starts[token] = min(starts[token], starts[token + 1])
        padded = [*probabilities, *[0.0] * (tokens - len(probabilities))]
        return cls(tuple(min(at, audio_s) for at in starts), tuple(padded[:tokens]))


def words_of(
    tokens: Sequence[int],
    times: TokenTimes,
    decode: Callable[[list[int]], str],
    *,
    language: str | None,
    sounding: Sounding,
) -> tuple[Word, ...]:
    """The words of a text with their times, without the silence before and after them.

    A word's probability is the mean of its tokens', as in the reference.
    """
    words: list[Word] = []
    for first, end in _groups(tokens, decode, spaced=language not in NO_SPACES):
        text = decode(list(tokens[first:end])).strip()
        if not text:
            continue
        start_s, end_s = _without_silence(times.starts_s[first], times.starts_s[end], sounding)
        probability = sum(times.probabilities[first:end]) / (end - first)
        words.append(Word(text, start_s, end_s, min(1.0, max(0.0, probability))))
    return tuple(words)


def _groups(
    tokens: Sequence[int], decode: Callable[[list[int]], str], *, spaced: bool
) -> list[tuple[int, int]]:
    """Which tokens make a word: those up to the next space; or, without spaces, those up to a whole character.
    Punctuation belongs to the word before it."""
    groups: list[tuple[int, int]] = []
    first = 0
    for end in range(1, len(tokens) + 1):
        text = decode(list(tokens[first:end]))
        if _REPLACEMENT in text and end < len(tokens):
            continue  # a character's bytes are spread over tokens
        begins = text[:1].isspace() or (not spaced and any(c.isalnum() for c in text))
        if begins or not groups:
            groups.append((first, end))
        else:
            groups[-1] = (groups[-1][0], end)
        first = end
    return groups


def _without_silence(start_s: float, end_s: float, sounding: Sounding) -> tuple[float, float]:
    first, last = round(start_s / BLOCK_S), round(end_s / BLOCK_S)
    loud = np.flatnonzero(sounding[first:last])
    if not len(loud):
        return start_s, max(start_s, end_s)
    return round((first + int(loud[0])) * BLOCK_S, 3), round((first + int(loud[-1]) + 1) * BLOCK_S, 3)


def may_have_skipped(text: str, sounding: Sounding) -> bool:
    """Whether the text is so short for its sound that an alignment should tell if something is missing."""
    sound_s = float(np.count_nonzero(sounding)) * BLOCK_S
    return sound_s - _letters(text) / SLOWEST_CHARACTERS_PER_S > _ALIGN_FROM_S


def _letters(text: str) -> int:
    """As many letters as the text takes time to say; a character of a script without an alphabet is a syllable."""
    spoken = (c for c in text if c.isalnum())
    return sum(
        LETTERS_OF_A_DIGIT if c.isdigit() else LETTERS_OF_A_SYLLABLE if c >= "\u2e80" else 1 for c in spoken
    )


def skipped_s(words: Sequence[Word], sounding: Sounding) -> float:
    """The most sound, in seconds, in one place that no word accounts for: within a word that is much too long, or
    behind the last one."""
    if not words:
        return 0.0
    most = _sound_s(words[-1].end_s, len(sounding) * BLOCK_S, sounding)
    nexts = [*(word.start_s for word in words[1:]), words[-1].end_s]
    for word, next_s in zip(words, nexts, strict=True):
        most = max(most, _sound_s(word.start_s, next_s, sounding) - LETTER_S * _letters(word.text))
    return most


def without_unsaid_end(words: Sequence[Word]) -> tuple[Word, ...]:
    """The words without those at the end that have no time of their own: a loop that went on after the speech.

    Their frames are all the last one. A single short word may be squeezed like that though it was said.
    """
    said = len(words)
    while said and words[said - 1].end_s - words[said - 1].start_s <= FRAME_S:
        said -= 1
    return tuple(words[:said] if len(words) - said >= _SQUEEZED_WORDS else words)


def paced(words: Sequence[Word]) -> bool:
    """Whether every few words in a row took the time that it takes to say them. Those of a loop did not."""
    few = _SQUEEZED_WORDS
    for at in range(max(1, len(words) - few + 1)):
        some = words[at : at + few]
        took_s = some[-1].end_s - some[0].start_s if some else 0.0
        if took_s < QUICKEST_LETTER_S * sum(_letters(word.text) for word in some):
            return False
    return True


def _sound_s(start_s: float, end_s: float, sounding: Sounding) -> float:
    return float(np.count_nonzero(sounding[round(start_s / BLOCK_S) : round(end_s / BLOCK_S)])) * BLOCK_S


def join_texts(texts: Sequence[str], language: str | None) -> str:
    """Texts of one utterance in order, as one."""
    return ("" if language in NO_SPACES else " ").join(t.strip() for t in texts if t.strip())


def shifted(words: Sequence[Word], by_s: float) -> tuple[Word, ...]:
    """The words of a piece that begins at ``by_s``."""
    return tuple(replace(w, start_s=w.start_s + by_s, end_s=w.end_s + by_s) for w in words)
