"""Is the user done? Pure policies over silence and transcript; the answer is how much silence makes it certain."""

from __future__ import annotations

from typing import Protocol

from voice.options import TurnOptions

# fmt: off
_OPEN_ENDINGS = frozenset({
    "and", "or", "but", "so", "because", "if", "when", "while", "the", "a", "an", "my", "your", "our",
    "his", "her", "their", "its", "to", "of", "for", "with", "from", "in", "on", "at", "by", "about",
    "um", "uh", "er", "hmm", "like", "is", "are", "was", "were", "i'm", "it's", "that", "which", "who",
})
# fmt: on


class Endpointing(Protocol):
    """How much silence after the last word makes a turn certain."""

    def delay_s(self, text: str, options: TurnOptions) -> float:
        """Seconds of silence, between ``options.min_delay_s`` and ``options.max_delay_s``."""


class SilenceEndpointing:
    """The minimum when the words look complete, the maximum when they plainly go on.

    "Plainly go on": the text ends in a comma, dash or ellipsis, or in a word that can't end a sentence.
    """

    def delay_s(self, text: str, options: TurnOptions) -> float:
        return options.max_delay_s if looks_open(text) else options.min_delay_s


def looks_open(text: str) -> bool:
    """Whether a transcript ends as if more were to come."""
    stripped = text.rstrip().rstrip("\"')")
    if not stripped:
        return False
    if stripped.endswith(("...", "…", ",", "-", "–", "—", ":")):
        return True
    if stripped[-1] in ".!?。！？":
        return False
    last = stripped.split()[-1].lower().strip(".,;:!?")
    return last in _OPEN_ENDINGS
