"""Which languages does Whisper know, and what does it call them? Codes and English names, as in its tokenizer."""

from __future__ import annotations

_PAIRS = """
af afrikaans am amharic ar arabic as assamese az azerbaijani ba bashkir be belarusian bg bulgarian bn bengali bo tibetan
br breton bs bosnian ca catalan cs czech cy welsh da danish de german el greek en english es spanish et estonian
eu basque fa persian fi finnish fo faroese fr french gl galician gu gujarati ha hausa haw hawaiian he hebrew hi hindi
hr croatian ht haitian_creole hu hungarian hy armenian id indonesian is icelandic it italian ja japanese jw javanese
ka georgian kk kazakh km khmer kn kannada ko korean la latin lb luxembourgish ln lingala lo lao lt lithuanian lv latvian
mg malagasy mi maori mk macedonian ml malayalam mn mongolian mr marathi ms malay mt maltese my myanmar ne nepali
nl dutch nn nynorsk no norwegian oc occitan pa punjabi pl polish ps pashto pt portuguese ro romanian ru russian
sa sanskrit sd sindhi si sinhala sk slovak sl slovenian sn shona so somali sq albanian sr serbian su sundanese
sv swedish sw swahili ta tamil te telugu tg tajik th thai tk turkmen tl tagalog tr turkish tt tatar uk ukrainian
ur urdu uz uzbek vi vietnamese yi yiddish yo yoruba yue cantonese zh chinese
"""
_NAMES = _PAIRS.split()

NAMES = {code: name.replace("_", " ") for code, name in zip(_NAMES[::2], _NAMES[1::2], strict=True)}
"""Code → English name, of every language of the multilingual models (``yue`` since large-v3)."""

_CODES = {name: code for code, name in NAMES.items()}


def code_of(language: object) -> str | None:
    """``"German"``, ``"de"`` or ``"de-AT"`` → ``"de"``; ``None`` for anything else."""
    if not isinstance(language, str):
        return None
    known = language.strip().lower().replace("_", "-")
    if known in _CODES:
        return _CODES[known]
    base = known.split("-")[0]
    return base if 2 <= len(base) <= 3 and base.isascii() and base.isalpha() else None
