"""Are these words a listener's nod ("mm-hm", "yeah, right"), a demand to stop, or something to answer?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import Enum

_SPACELESS = "\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
"""Scripts without spaces between words (Thai, Lao, Khmer, Japanese, Chinese): two signs are about a word."""
_WORD = re.compile(rf"[{_SPACELESS}]{{1,2}}|(?:(?![{_SPACELESS}])[^\W\d_])+(?:['’][^\W\d_]+)*|\d+")
_HUM = re.compile(r"[mh]+|u+h+|h+u+h+|u+m+|a+h+|a+ha+|o+h+|e+h+|hu+m+")
"""How recognisers write a sound of assent without words: mm, hm, mhm, uh, huh, um, ah, aha, oh, eh, hum."""

_NODS = """
    yeah, yea, ya, yep, yup, yes, okay, ok, kay, right, alright, all right, sure, sure thing, fine, good, great, cool,
    nice, perfect, lovely, wonderful, wow, really, exactly, absolutely, totally, definitely, indeed, true, correct,
    i see, i know, i understand, understood, got it, gotcha, got you, of course, makes sense, that makes sense,
    sounds good, that's right, that's true, that's good, for sure, fair enough, no problem, no worries, oh really,
    go on, go ahead, thanks, thank you, interesting, you know
"""
_STOPS = """
    stop, wait, no, nope, hold on, hang on, pause, cancel, quiet, be quiet, silence, shut up, enough, excuse me, one
    moment, one second, one minute, just a moment, just a second, just a minute, never mind, forget it, help, hey,
    not that, actually, but, what, why, who, how, when, where, which, pardon, sorry, repeat, again, hello, question
"""
"""Asking to speak counts: one such word is enough."""
_GHOSTS = """
    you, thanks for watching, thank you for watching, thank you very much, bye, bye bye, please subscribe, so
"""
"""What Whisper hears in a cough or a breath more often than anyone says it over another's voice."""

_ALIKE = 0.75
"""Words with that share of letters in common are one, misheard ("expect", "expects")."""


class Meaning(Enum):
    """What words over the agent's voice are for."""

    NOTHING = "nothing"  # no words
    HUM = "hum"  # "mm-hm": not even words
    NOD = "nod"  # "yeah, right": the listener wants to hear on
    STOP = "stop"  # "no wait": the listener wants silence
    WORDS = "words"  # anything else


@dataclass(frozen=True, slots=True)
class Said:
    """Words, judged.

    Attributes:
        meaning: What they are for.
        words: How many there are beside nods and hums.
    """

    meaning: Meaning
    words: int


class Backchannels:
    """Judges the words of one language; punctuation and case don't matter.

    Args:
        nods: Words and phrases that ask for nothing. Any sequence of them, and of hums, is a nod.
        stops: Words and phrases that ask for silence wherever they come.
        ghosts: What the recogniser makes of noise: nothing, if it is all there is.
        language: Whose words these are.
    """

    def __init__(
        self,
        nods: Iterable[str],
        stops: Iterable[str],
        ghosts: Iterable[str] = (),
        *,
        language: str = "en",
    ) -> None:
        self._language = language
        self._nods = frozenset(tuple(word_list(phrase)) for phrase in nods)
        self._stops = frozenset(tuple(word_list(phrase)) for phrase in stops)
        self._ghosts = frozenset(tuple(word_list(phrase)) for phrase in ghosts)
        self._longest = max((len(p) for p in self._nods | self._stops), default=1)

    def know(self, language: str | None) -> bool:
        """Whether the lists are of this language; ``None`` may be any."""
        return language is None or language.lower().split("-")[0] == self._language

    def judge(self, text: str) -> Said:
        """What ``text`` is for."""
        words = word_list(text)
        if not words or tuple(words) in self._ghosts:
            return Said(Meaning.NOTHING, 0)
        others, nodded, stop = 0, False, False
        at = 0
        while at < len(words):
            if length := self._phrase_at(words, at, self._nods):  # "no problem" comes before "no"
                nodded = True
            elif length := self._phrase_at(words, at, self._stops):
                stop = True
                others += length
            else:
                length = 1
                others += not _HUM.fullmatch(words[at])
            at += length
        if stop:
            return Said(Meaning.STOP, others)
        if others:
            return Said(Meaning.WORDS, others)
        return Said(Meaning.NOD if nodded else Meaning.HUM, 0)

    def without_own_words(self, text: str, agent_text: str) -> str:
        """``text`` without words that sound like ones of the agent's, which the microphone heard beside the user.

        A word that asks for silence only counts as the agent's if it said just that: "wait" is not a misheard "want".
        """
        own = set(word_list(agent_text))

        def is_own(word: str) -> bool:
            return word in own or ((word,) not in self._stops and any(_alike(word, one) for one in own))

        return " ".join(word for word in word_list(text) if not is_own(word))

    def _phrase_at(self, words: Sequence[str], at: int, phrases: frozenset[tuple[str, ...]]) -> int:
        """Length in words of the longest phrase that begins here; 0: none."""
        for length in range(min(self._longest, len(words) - at), 0, -1):
            if tuple(words[at : at + length]) in phrases:
                return length
        return 0


def word_list(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation; hyphens part them."""
    return [word.replace("’", "'") for word in _WORD.findall(text.lower())]


def _alike(one: str, other: str) -> bool:
    return SequenceMatcher(None, one, other, autojunk=False).ratio() >= _ALIKE


def _listed(text: str) -> list[str]:
    return [phrase.strip() for phrase in " ".join(text.split()).split(",")]


ENGLISH_HINTS = ("Mm-hm.", "Uh-huh.", "Stop.", "Wait.", "No.")
"""For the recogniser, when it is asked about a sound over the agent's voice: it then writes "Stop." for a cut "top",
and "Mm-hm." for a hum."""

ENGLISH = Backchannels(_listed(_NODS), _listed(_STOPS), _listed(_GHOSTS))
"""The default."""
