"""What do the words say about whether the user is done? Signs in a transcript, by plain rules over short word lists.

The word lists are English. For another language only punctuation counts (see :func:`read_signs`).
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from enum import Enum
from typing import Literal

# fmt: off
_OPEN_ENDINGS = frozenset({
    # conjunctions and relatives
    "and", "or", "but", "nor", "so", "because", "cause", "if", "unless", "until", "when", "while", "whether",
    "although", "though", "since", "than", "then", "which", "who", "whose", "where", "plus", "except",
    # articles, possessives, quantifiers
    "the", "a", "an", "my", "your", "our", "his", "her", "their", "its", "every", "another", "other", "both",
    "some", "any", "few", "many", "several", "between",
    # prepositions
    "to", "of", "for", "with", "without", "from", "in", "into", "on", "at", "by", "about", "under", "near", "behind",
    "against", "during", "through", "toward", "towards", "across", "via", "per", "like",
    # copulas, auxiliaries and pronouns that begin a clause
    "is", "are", "was", "were", "am", "be", "been", "has", "had", "would", "could", "should", "will", "might", "must",
    "i'm", "it's", "i'd", "i'll", "i've", "we're", "we'd", "we'll", "we've", "they're", "he's", "she's", "there's",
    "i", "we", "they", "he", "she", "dot", "called", "named", "maybe", "probably", "basically", "actually", "mr", "mrs",
    "very", "really", "just", "not",
})
_WANTS_OBJECT = frozenset({
    "change", "send", "buy", "give", "tell", "show", "bring", "put", "get", "make", "find", "use", "say",
})
"""After "to" the sentence goes on: "I'd like to change"."""
_FILLERS = frozenset({
    "um", "umm", "uh", "uhh", "uhm", "er", "erm", "err", "hmm", "hm", "mm", "mmm", "ah", "eh",
})
_HOLDS = (
    "wait", "hold on", "hang on", "let me see", "let me think", "let me check", "let me look", "let me find",
    "let me get", "let me grab", "one second", "one sec", "one moment", "just a second", "just a sec",
    "just a moment", "just a minute", "give me a second", "give me a moment", "give me a minute", "give me a sec",
    "bear with me", "what was it", "what is it called", "what's it called", "how do i say", "how do you say",
    "you know", "i mean", "or rather", "sort of", "kind of", "i guess", "such as", "for example", "for instance",
    "as well as", "in order", "due to", "instead", "the thing is", "the problem is", "let's see",
)
_SUBORDINATE = frozenset({"if", "when", "whenever", "while", "although", "though", "unless"})
_QUESTION_WORDS = frozenset({"what", "which", "who", "whose", "where", "when", "why", "how"})
_AUXILIARIES = frozenset({
    "do", "does", "did", "is", "are", "was", "were", "am", "can", "could", "will", "would", "shall", "should", "have",
    "has", "had", "may", "isn't", "aren't", "don't", "doesn't", "didn't", "won't", "wouldn't", "can't",
})
_YES_NO = frozenset({
    "yes", "yeah", "yep", "yup", "no", "nope", "nah", "sure", "okay", "ok", "right", "correct", "exactly", "absolutely",
    "definitely", "certainly", "please", "thanks", "thank", "you", "that's", "that", "is", "it", "of", "course", "do",
    "not", "go", "ahead", "sounds", "good", "fine", "works", "perfect", "great", "i", "am", "did", "would", "have",
    "it's", "i'm", "really", "all", "don't", "didn't", "never", "mm-hmm", "uh-huh", "true", "afraid",
})
_YES = frozenset({"yes", "yeah", "yep", "yup", "sure", "okay", "ok", "mm-hmm", "uh-huh"})
_NO = frozenset({"no", "nope", "nah"})
_OFFERS = frozenset({"would", "shall", "should", "can", "could", "may", "will"})
_COMMANDS = frozenset({
    "tell", "give", "show", "play", "stop", "turn", "set", "call", "cancel", "find", "open", "close", "read", "remind",
    "repeat", "explain", "start", "sing", "count", "translate",
})
_DETAILS = frozenset({"which", "when", "where", "who", "whose"})
_DETAIL_NOUNS = frozenset({
    "time", "day", "date", "month", "year", "colour", "color", "size", "kind", "type", "sort", "model", "brand", "make",
})
_DETAIL_MEASURES = frozenset({"long", "far", "often", "soon", "big", "tall", "late", "early"})
_STRANDED = frozenset({
    "to", "of", "for", "with", "from", "in", "into", "on", "at", "by", "about", "under", "near", "like",
})
"""Prepositions that end a question: "Who should I talk to"."""
_AND_OR = frozenset({"and", "or"})
_NO_ITEM = frozenset({
    "i", "you", "he", "she", "we", "they", "me", "him", "us", "them", "was", "are", "were", "sir", "madam", "well",
    "so", "oh", "then", "actually", "too", "hi", "hello", "today", "tomorrow", "though", "anyway",
})
_UNITS = frozenset({"zero", "oh", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"})
_TEENS = frozenset({
    "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
})
_TENS = frozenset({"twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"})
_REPEATS = {"double": 2, "triple": 3}
_STREETS = frozenset({
    "street", "st", "road", "rd", "avenue", "ave", "lane", "ln", "drive", "dr", "boulevard", "blvd", "court", "way",
    "square", "place", "close", "terrace", "crescent", "highway", "parkway", "row", "hill", "gardens", "grove",
})
# fmt: on

_TOKEN = re.compile(r"[^\W_]+(?:['’.@-][^\W_]+)*", re.UNICODE)
_REFUSAL = re.compile(
    r"\b((don't|do not) (know|have|remember|recall|want)|(can't|cannot) (say|tell|remember|recall|find|give)"
    r"|haven't|rather not|not sure|no idea|forgot|forgotten|sorry)\b"
)
_NO_MORE = re.compile(
    r"\b(that's (all|it|everything)|that is (all|it)|nothing( else)?|all good|i'm (good|fine))\b"
)
_REQUEST = re.compile(
    r"\b(please|tell|give|enter|say|spell|read|confirm|provide|describe|explain|let me know|need)\b"
)
_TELL = re.compile(r"\b(tell|describe|explain|help)\b")
_CHECK = re.compile(r"\b(correct|right|okay|ok|true|still there|hear me|is that)\b")
_SENTENCE_END = re.compile(r"[.!?。！？]+\s+")


class Ending(Enum):
    """How a transcript ends; the first that fits, from the top."""

    NOTHING = "nothing"  # no words
    HESITATION = "hesitation"  # a filler, or "let me see"
    OPEN = "open"  # a word that can't end a sentence
    CUT = "cut"  # ends in a comma, a dash or an ellipsis
    CLAUSE = "clause"  # a subordinate clause whose main clause is missing: "If the train is late."
    QUESTION = "question"
    POLITE = "polite"  # "…, please.", "thank you"
    SENTENCE = "sentence"
    FRAGMENT = "fragment"  # words without closing punctuation, or one or two words


Kind = Literal[
    "any", "open", "detail", "check", "offer", "more", "yes_no",
    "number", "quantity", "date", "email", "address", "name", "list",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Expected:
    """What kind of answer the agent asked for.

    Attributes:
        kind: ``"any"``: nothing in particular; ``"open"``: to tell something ("How can I help?"); ``"detail"``: one
            thing ("Which size?"); ``"check"``, ``"offer"``, ``"more"``, ``"yes_no"``: yes or no to "Is that right?",
            "Shall I book it?", "Anything else?" or any other such question.
        least, most: For ``"number"``: how many digits an answer has; 0 and 0: not known.
    """

    kind: Kind = "any"
    least: int = 0
    most: int = 0


@dataclass(frozen=True, slots=True)
class Signs:
    """What :func:`read_signs` found.

    Attributes:
        ending: How the words end.
        digits: Digits of the number that the words end in; 0: they don't end in one.
        in_list: The words end in a list whose last item ("and …") has not come.
        list_closed: They end in "… and …" or "… or …".
        in_address: The words end in a part of an address.
        words: How many words there are.
    """

    ending: Ending
    digits: int = 0
    in_list: bool = False
    list_closed: bool = False
    in_address: bool = False
    words: int = 0


def read_signs(text: str, *, english: bool = True) -> Signs:
    """The signs in the words of a turn so far. With ``english=False`` only punctuation is looked at."""
    words = words_of(text)
    if not words:
        return Signs(Ending.NOTHING)
    last = _last_sentence(text)
    ending = _ending(text, last, words, english)
    if not english:
        return Signs(ending, words=len(words))
    closed = bool(_AND_OR & set(words[-6:-1]))
    return Signs(ending, trailing_digits(text), _in_list(text, last), closed, _in_address(words), len(words))


def expected_answer(question: str) -> Expected:
    """What the agent's last words ask for: the kind of answer to its last question."""
    asked = _last_question(question).lower().replace("’", "'")
    if "?" not in asked and not _REQUEST.search(asked):
        return Expected()
    if exact := re.search(r"\b(?:last|first)? ?(\w+)[ -]digits?\b", asked):
        count = _small_number(exact.group(1))
        if count:
            return Expected("number", count, count)
    for pattern, expected in _ASKED:
        if re.search(pattern, asked):
            return expected
    return Expected(_kind_asked(asked, words_of(asked)))


def _kind_asked(asked: str, words: list[str]) -> Kind:
    at = next((i for i, word in enumerate(words) if word in _QUESTION_WORDS), len(words))
    auxiliary = next((i for i, word in enumerate(words[:4]) if word in _AUXILIARIES), len(words))
    if auxiliary < at:
        if " or " in asked:
            return "detail"
        if _CHECK.search(asked):
            return "check"
        if _TELL.search(asked):
            return "open"
        return "offer" if words[auxiliary] in _OFFERS else "yes_no"
    if at < len(words):
        word, following = words[at], words[at + 1 : at + 2]
        if word in _DETAILS or (word == "what" and set(following) <= _DETAIL_NOUNS):
            return "detail"
        return "detail" if word == "how" and set(following) <= _DETAIL_MEASURES else "open"
    if _CHECK.search(asked):
        return "check"
    return "open" if _TELL.search(asked) else "any"


_ASKED: tuple[tuple[str, Expected], ...] = (
    (r"\b(any|some)thing (else|more)\b|\bany (other|more) questions", Expected("more")),
    (r"e-?mail", Expected("email")),
    (r"(phone|mobile|cell|telephone|contact|callback) number|number (can|could|should) (i|we) (call|reach)",
     Expected("number", 7, 10)),
    (r"\b(zip|zip code)\b", Expected("number", 5, 5)),
    (r"\b(pin|passcode)\b", Expected("number", 4, 4)),
    (r"\b(card number|number (on|of) (your|the) (credit |debit |bank )?card)", Expected("number", 16, 16)),
    (r"\bsocial security", Expected("number", 9, 9)),
    (r"(account|order|reference|booking|policy|customer|tracking|confirmation|membership|invoice|serial|member|case|ticket"
     r"|meter|flight) (number|code|id)|\bnumber on\b", Expected("number", 0, 0)),
    (r"how many|how much|what (size|age)|how old", Expected("quantity")),
    (r"date of birth|birth ?day|birth date|were you born", Expected("date")),
    (r"\baddress\b|where (do you live|should (we|i) (send|deliver|ship))|deliver (it|this|that)? ?to",
     Expected("address")),
    (r"\bwhich [a-z]+s\b|what are (your|the)"
     r"|\bwhat\b.*\b(order|need|get you|missing|items|things|ingredients|on the list)\b",
     Expected("list")),
    (r"\b(your|the|full|first|last) (full |first |last )?(name|surname)\b|who am i speaking|who's calling|spell",
     Expected("name")),
)  # fmt: skip
"""First match wins. Lengths: North American telephone numbers, ZIP codes, card numbers (ISO/IEC 7812)."""


def trailing_digits(text: str) -> int:
    """How many digits the number at the end of ``text`` has, in figures or in words; 0: no number there.

    >>> trailing_digits("my number is 555-12"), trailing_digits("it's double four nine"), trailing_digits("two cats")
    (5, 3, 0)
    """
    count = 0
    previous = ""
    for word in reversed(words_of(text)):
        for part in reversed(re.split(r"[-.]", word)):
            if part.isdecimal():
                count += len(part)
            elif part in _REPEATS and previous:
                count += _REPEATS[part] - 1
            elif part in _TENS:
                count += 1 if previous in _UNITS and previous not in ("zero", "oh") else 2
            elif part in _UNITS:
                count += 1
            elif part in _TEENS:
                count += 2
            else:
                return count
            previous = part
    return count


def is_yes_or_no(text: str) -> bool:
    """Whether ``text`` is nothing but a short yes or no ("yeah, that's right")."""
    words = words_of(text)
    return 0 < len(words) <= 5 and all(w in _YES_NO for w in words)


def bare_answer(text: str) -> Literal["yes", "no"] | None:
    """ "yes" or "no" where ``text`` is nothing but that."""
    words = set(words_of(text))
    if words and words <= _YES:
        return "yes"
    return "no" if words and words <= _NO else None


def is_no_more(text: str) -> bool:
    """Whether ``text`` says that there is nothing else: "No.", "That's all I need."."""
    return bare_answer(text) == "no" or bool(_NO_MORE.search(text.lower().replace("’", "'")))


def is_command(text: str) -> bool:
    """Whether the last sentence of ``text`` tells the agent to do something: "Please tell me a joke."."""
    words = words_of(_last_sentence(text))
    return bool(_COMMANDS & set(words[: 2 if words[:1] == ["please"] else 1]))


def is_refusal(text: str) -> bool:
    """Whether ``text`` says that there is no such answer: "I don't know", "I'd rather not"."""
    return bool(_REFUSAL.search(text.lower().replace("’", "'")))


def has_year(text: str) -> bool:
    """Whether a year is named: "1985", "nineteen eighty five", or a date like 3/14/85."""
    if re.search(r"\b(19|20)\d\d\b|\d[/-]\d\d?[/-]\d\d", text):
        return True
    words = [part for word in words_of(text) for part in word.split("-")]
    pairs = itertools.pairwise(words)
    return any(
        a in ("nineteen", "twenty", "19", "20") and (b in _TENS | _TEENS or b.isdecimal()) for a, b in pairs
    )


def has_place(text: str) -> bool:
    """Whether an address has more than a house and a street: three words after the house number, or any after the
    street's name."""
    words = words_of(text)
    streets = [i for i, word in enumerate(words) if word in _STREETS and i > 0]
    numbers = [i for i, word in enumerate(words) if word.isdecimal()]
    after_street = bool(streets) and len(words) - 1 > streets[0]
    return after_street or (bool(numbers) and len(words) - 1 - numbers[0] >= 3)


def is_email(text: str) -> bool:
    """Whether ``text`` ends in a domain ("… at example dot com")."""
    return bool(re.search(r"(\.|dot )(com|org|net|edu|gov|io|co|uk|us|info|de)[.!?]?\s*$", text.lower()))


def words_of(text: str) -> list[str]:
    return [w.lower().replace("’", "'") for w in _TOKEN.findall(text)]


def _last_sentence(text: str) -> str:
    parts = [p for p in _SENTENCE_END.split(text.strip()) if _TOKEN.search(p)]
    return parts[-1] if parts else ""


def _last_question(text: str) -> str:
    """The last sentence with a question mark; else the last sentence ("Please tell me your name.")."""
    sentences: list[str] = re.findall(r"[^.!?]+[.!?]*", text)
    asked = [s for s in sentences if "?" in s]
    return (asked or sentences or [""])[-1].strip()


def _ending(text: str, last: str, words: list[str], english: bool) -> Ending:
    closing = text.rstrip().rstrip("\"')”’")
    cut = closing.endswith(("...", "…", ",", "-", "–", "—", ":", ";", "、", "，"))
    if english:
        tail = " ".join(words[-5:])
        filler = words[-1] in _FILLERS and not closing.endswith("?")  # "…, eh?" asks
        if filler or words == ["well"] or any(tail == hold or tail.endswith(f" {hold}") for hold in _HOLDS):
            return Ending.HESITATION
        lacks_object = words[-2:-1] == ["to"] and words[-1] in _WANTS_OBJECT
        asks = words_of(last)[0] in _QUESTION_WORDS and words[-1] in _STRANDED
        if (words[-1] in _OPEN_ENDINGS or lacks_object) and not asks and not closing.endswith("?"):
            return Ending.OPEN
    if cut:
        return Ending.CUT
    said = words_of(last)
    if (
        english
        and said[0] in _SUBORDINATE
        and "," not in last
        and len(said) <= 9
        and not closing.endswith("?")
    ):
        return Ending.CLAUSE
    if closing.endswith(("?", "？")):
        return Ending.QUESTION
    if english and (words[-1] in ("please", "thanks") or words[-2:] == ["thank", "you"]):
        return Ending.POLITE
    if closing.endswith((".", "!", "。", "！")) and len(said) >= 3:
        return Ending.SENTENCE
    return Ending.FRAGMENT


def _in_list(text: str, last: str) -> bool:
    """Two or more short items at the end, and no "and" or "or" before the last one: "two coffees, a sandwich"."""
    items = [words_of(item) for item in last.split(",")]
    if len(items) == 1:  # recognisers also write a list as "Milk. Eggs."
        items = [words for sentence in re.split(r"[.!?]", text) if (words := words_of(sentence))]
        if any(len(item) > 2 for item in items):
            return False
    items = [item for item in items if item]
    if len(items) < 2:
        return False
    before, final = items[-2:]
    if len(final) > 3 or len(before) > 12 or _AND_OR & set(final):
        return False
    return len(items) > 2 or not any(
        w in _NO_ITEM or w in _YES_NO or w.isdecimal() for w in (before[0], *final)
    )


def _in_address(words: list[str]) -> bool:
    """A house number ("at 42", "42 Maple") or a street that has only just been named."""
    if (
        len(words) >= 2
        and words[-1].isdecimal()
        and words[-2] in ("at", "number", "apartment", "flat", "unit", "suite")
    ):
        return True
    house = len(words) >= 2 and words[-2].isdecimal() and len(words[-2]) <= 4 and words[-1].isalpha()
    return words[-1] in _STREETS or house


def _small_number(word: str) -> int:
    names = [
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
    ]
    if word.isdecimal():
        return int(word) if int(word) <= 20 else 0
    return names.index(word) if word in names else 0
