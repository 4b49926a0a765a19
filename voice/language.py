"""Which language does a session speak? One short or doubtful utterance never changes it. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from voice.errors import BadRequest
from voice.interfaces import Transcript

LEAST_SPEECH_S = 1.5
"""In shorter utterances languages can't be told apart: a "yes" may be taken for any."""
SURE = 0.8
"""Probability from which on another language is believed. Whisper's own mark for believing a detection is 0.5; a
change needs more."""


class Finding(Enum):
    """What an utterance says about the session's language."""

    STAYS = "stays"
    CHANGES = "changes"
    DOUBTFUL = "doubtful"  # it seems to be another language: hear it again in the session's


class SpokenLanguage:
    """The language of one session.

    Args:
        fixed: It is this one, whatever is heard; ``None``: it is found out.
        known: What the recogniser hears; with a single language there is nothing to find out.

    Attributes:
        fixed: See above.
        current: What is spoken now; ``None``: nothing has been said that tells.
    """

    def __init__(self, fixed: str | None, known: Collection[str]) -> None:
        self.fixed = self._given = fixed
        self.current = fixed or (next(iter(known)) if len(known) == 1 else None)
        self._known = known

    def give(self, fixed: str | None) -> None:
        """The settings say that it is ``fixed``; ``None``: that it is found out. Saying it again changes nothing."""
        if fixed != self._given:
            self._given = self.fixed = fixed
            self.current = fixed or self.current

    def request(self, language: str) -> bool:
        """Someone asks for this language: it is spoken from now on. Returns whether that is a change.

        Raises:
            BadRequest: Not a language that the recogniser hears.
        """
        code = language.strip().lower() if isinstance(language, str) else ""
        code = code if code in self._known else code.partition("-")[0]
        if not code or code not in self._known:
            heard = ", ".join(list(self._known)[:100])
            raise BadRequest(f"the recogniser doesn't hear {language!r:.40}; it hears: {heard}")
        if self.fixed is not None:
            self.fixed = code
        before, self.current = self.current, code
        return before != code

    def expected(self, speech_s: float) -> str | None:
        """In which language speech of this length is recognised; ``None``: the recogniser finds out."""
        if self.fixed is not None or (self.current is not None and len(self._known) == 1):
            return self.current
        return self.current if speech_s < LEAST_SPEECH_S else None

    def is_open(self, speech_s: float) -> bool:
        """Whether more speech may still show that this much was in another language."""
        return self.fixed is None and len(self._known) > 1 and speech_s < LEAST_SPEECH_S

    def judge(self, transcript: Transcript, speech_s: float, pending: str | None = None) -> Finding:
        """What a transcript says about the language, when the recogniser was to find it out.

        A detection without a probability is never sure.

        Args:
            transcript: What was heard.
            speech_s: How much speech that was.
            pending: What the same turn's earlier words have changed it to, which is not certain yet.
        """
        current = pending or self.current
        heard, probability = transcript.language, transcript.language_probability
        if self.fixed is not None or heard is None or heard == current:
            return Finding.STAYS
        believed = bool(transcript.text.strip()) and transcript.rejected is None
        sure = probability is not None and probability >= SURE
        if believed and sure and speech_s >= LEAST_SPEECH_S and heard in self._known:
            return Finding.CHANGES
        return Finding.STAYS if current is None else Finding.DOUBTFUL
