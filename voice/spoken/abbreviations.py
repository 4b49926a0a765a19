"""Does a full stop after this word end a sentence? What is known of abbreviations, per language."""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import lru_cache

from voice.spoken.languages import word_set


class Stop(Enum):
    """What a full stop after a word means."""

    ENDS = auto()  # a sentence's end, whatever follows
    UNLESS_LOWER = auto()  # perhaps an abbreviation: an end unless a lower-case word or a digit follows
    BEFORE_STARTER = auto()  # an abbreviation: an end only before a word that begins sentences
    NEVER = auto()  # an abbreviation that needs what follows it
    IN_NAME = auto()  # part of a host, file name or address: an end before a space


# Titles and the like, always followed by what they belong to.
_NEVER = word_set(
    "dr mr mrs ms mx prof rev hon gen col maj capt cmdr lt sgt cpl pvt sen rep gov pres amb supt messrs "
    "mme mlle e.g i.e eg ie cf viz vs approx ca fig figs eq eqs sec ch vol pp nos resp incl esp"
)
# Abbreviations that may also be the last word of a sentence.
_MAYBE = word_set(
    "st ave blvd rd hwy mt ft jr sr esq inc ltd co corp llc bros dept univ assn est govt jan feb mar "
    "apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri etc al a.m p.m am pm ph.d "
    "m.d b.a m.a b.c a.d u.s u.k u.n e.u d.c no art ext max min tel temp"
)
# Words that are common at the start of a sentence and rare after an abbreviation.
_STARTERS = word_set(
    "the this that these those there then they their it its he she his her we our you your i i'm i'll "
    "it's we're you'll you're that's there's but and so or if when while after before because although "
    "however also as at in on for from with by to what where who why how which yes no not now let "
    "please would could should can do does did is are was were have has had will a an all some many "
    "most each every another other one here next finally first meanwhile instead overall once since "
    "until though"
)
_ORDINAL_STOP = word_set("de da no nb nn fi cs sk sl hr sr hu pl et lv is tr")
_INITIALS = re.compile(r"[^\W\d_](?:\.[^\W\d_])*")
_VOWEL = re.compile(r"[aeiouyàáâãäåæèéêëìíîïòóôõöøùúûüýœаеёиоуыэюяієї]", re.IGNORECASE)
_LATIN = re.compile(r"[a-zà-ÿ]+", re.IGNORECASE)


@lru_cache(maxsize=4096)
def stop_after(word: str, language: str, first_in_sentence: bool) -> Stop:
    """What a full stop after ``word`` (without the stop; inner stops included) means in a base language."""
    low = word.lower()
    if "@" in word or "/" in word:
        return Stop.IN_NAME
    if low == "no" and first_in_sentence:
        return Stop.ENDS
    if low in _NEVER and language == "en":
        return Stop.NEVER
    if _INITIALS.fullmatch(word) or (low in _MAYBE and language == "en"):
        return Stop.NEVER if low in ("e.g", "i.e", "z.b", "d.h") else Stop.BEFORE_STARTER
    if "." in word or "_" in word or (not word.isalpha() and any(c.isnumeric() for c in word)):
        return Stop.IN_NAME
    if language != "en" and _joins(word, "Xabc", language):
        return Stop.BEFORE_STARTER
    if len(word) <= 4 and _LATIN.fullmatch(word) and not _VOWEL.search(word) and not word.isupper():
        return Stop.UNLESS_LOWER
    return Stop.ENDS


@lru_cache(maxsize=4096)
def starts_sentence(following: str, word: str, language: str) -> bool:
    """Does ``following``, a capitalised word after the abbreviation ``word`` and its stop, begin a
    sentence?"""
    if language == "en":
        return following.replace("’", "'").lower() in _STARTERS
    return not _joins(word, following, language)


def writes_ordinal_stop(number: str, language: str) -> bool:
    """May ``number`` and a stop be an ordinal, as in German "3. Mai"?"""
    return language in _ORDINAL_STOP and len(number) <= 2


@lru_cache(maxsize=4096)
def ordinal_joins(number: str, following: str, language: str) -> bool:
    """Is ``number`` with a stop an ordinal of ``following``?"""
    return following[:1].islower() or _joins(number, following, language)


def _joins(word: str, following: str, language: str) -> bool:
    from sentencex import segment  # native and quick, but not needed by English

    return len(segment(language, f"{word}. {following}")) == 1
