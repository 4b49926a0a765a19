"""Which characters are never spoken: emoji with their joiners, and control and formatting characters."""

from __future__ import annotations

# Blocks of pictographs, dingbats, arrows-as-emoji and technical symbols; skin tones and flags are within the
# first. Lone surrogates come from streams that cut an escaped pair: half an emoji, spoken as nothing.
EMOJI = (
    "\U0001f000-\U0001faff\u2600-\u27bf\u2b00-\u2bff\u2300-\u23ff\u25a0-\u25ff\u00a9\u00ae\u2122\u2139"
    "\u203c\u2049\u3030\u303d\u3297\u3299\ufe0e\ufe0f\u20e3\U000e0020-\U000e007f\ud800-\udfff\ue000-\uf8ff\ufffd"
)
# Direction marks, zero-width space and no-break, soft hyphen; the joiner only counts next to an emoji.
INVISIBLE = "\u200b\u2060\ufeff\u00ad\u200e\u200f\u202a-\u202e\u2066-\u2069"
CONTROL = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
JOINER = "\u200d"
KEYCAP_TAIL = "\ufe0f\u20e3"  # after a digit, # or *
