"""English number words: cardinals, ordinals, decimals, years, digits one by one.

Our own and not a library's because they are needed within the first sentence, where loading one would be
heard.
"""

from __future__ import annotations

from voice.spoken.languages import words

_ONES = words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
)
_TENS = words("zero ten twenty thirty forty fifty sixty seventy eighty ninety")
_SCALES = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (10**3, "thousand"))
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
MAX_DIGITS = 15


def cardinal(value: int) -> str:
    """``1234`` → "one thousand two hundred thirty-four"; for 0 ≤ value < 10¹⁵."""
    if value < 20:
        return _ONES[value]
    if value < 100:
        tens, ones = divmod(value, 10)
        return _TENS[tens] + (f"-{_ONES[ones]}" if ones else "")
    if value < 1000:
        hundreds, rest = divmod(value, 100)
        return f"{_ONES[hundreds]} hundred" + (f" {cardinal(rest)}" if rest else "")
    for size, name in _SCALES:
        if value >= size:
            count, rest = divmod(value, size)
            return f"{cardinal(count)} {name}" + (f" {cardinal(rest)}" if rest else "")
    raise AssertionError(value)


def ordinal(value: int) -> str:
    """``21`` → "twenty-first"."""
    words = cardinal(value)
    cut = max(words.rfind(" "), words.rfind("-")) + 1
    head, last = words[:cut], words[cut:]
    if last in _ORDINALS:
        return head + _ORDINALS[last]
    return head + (last[:-1] + "ieth" if last.endswith("y") else last + "th")


def year(value: int) -> str:
    """``1999`` → "nineteen ninety-nine", ``2006`` → "two thousand six", ``2026`` → "twenty twenty-six"."""
    century, rest = divmod(value, 100)
    if not 1000 <= value <= 2099 or (century % 10 == 0 and rest < 10):
        return cardinal(value)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def digits(text: str) -> str:
    """``"0123"`` → "zero one two three"; other characters are skipped."""
    return " ".join(_ONES[int(c)] for c in text if c in "0123456789")


def number(text: str) -> str:
    """A written number (``1,234``, ``3.14``, ``-2``, ``007``) in words."""
    sign = "minus " if text[:1] in ("-", "−") else ""
    whole, point, fraction = text.lstrip("-−+").replace(",", "").partition(".")
    if (len(whole) > 1 and whole[0] == "0") or len(whole) > MAX_DIGITS:
        words = digits(whole)
    else:
        words = cardinal(int(whole or "0"))
    return sign + words + (f" point {digits(fraction)}" if point and fraction else "")
