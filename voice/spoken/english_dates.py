"""How dates and times are read in English."""

from __future__ import annotations

import re

from voice.spoken.english_units import MONTH_NAMES, MONTHS
from voice.spoken.numerals import cardinal, ordinal, year


def date(year_text: str, month: int, day: int) -> str | None:
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return f"{month_name(month)} {ordinal(day)}" + (f", {year(int(year_text))}" if year_text else "")


def month_name(month: int) -> str:
    return MONTH_NAMES[month - 1]


def slash_date(m: re.Match[str]) -> str | None:
    first, second = int(m[1]), int(m[2])
    return date(m[3], first, second) or date(m[3], second, first)


def month_first(m: re.Match[str]) -> str | None:
    return date(m[3] or "", MONTHS[m[1].rstrip(".")], int(m[2]))


def day_first(m: re.Match[str]) -> str | None:
    day = int(m[1])
    if not 1 <= day <= 31:
        return None
    tail = f", {year(int(m[3]))}" if m[3] else ""
    article = "" if m.string[: m.start()].endswith("the ") else "the "
    return f"{article}{ordinal(day)} of {month_name(MONTHS[m[2].rstrip('.')])}{tail}"


def clock(m: re.Match[str]) -> str | None:
    hour, minute = int(m[1]), int(m[2] or 0)
    half = m["half"]
    if hour > 24 or minute > 59 or (half and hour > 12):
        return None
    words = cardinal(hour)
    if minute:
        words += f" {'oh ' if minute < 10 else ''}{cardinal(minute)}"
    elif not half:
        words += " o'clock" if hour <= 12 else " hundred"
    if m["second"]:
        words += f" and {cardinal(int(m['second']))} seconds"
    if half:
        words += f" {half.upper()}M"
    return words + stop_at_end(m)


def stop_at_end(m: re.Match[str]) -> str:
    """An abbreviation's point that also ends the sentence."""
    return "." if m.group().endswith(".") and not m.string[m.end() :].strip(" \n\"'”’)") else ""


def decade(m: re.Match[str]) -> str:
    century, tens = m[1] or "", int(m[2]) * 10
    decade = "hundreds" if tens == 0 else cardinal(tens) + "s" if tens == 10 else cardinal(tens)[:-1] + "ies"
    if century == "20" and tens == 0:
        return "two thousands"
    return f"{cardinal(int(century))} {decade}" if century else decade
