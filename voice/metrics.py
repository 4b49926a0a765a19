"""What happened in a session, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Counts since the session began.

    Attributes:
        turns: User turns that entered the history.
        guesses: Answers begun before the turn was certain; ``kept`` were used, ``dropped`` thrown away.
        barge_ins: Answers that the user interrupted.
        false_alarms: Sounds over the agent's voice that turned out to be nothing: it went on where it was.
        empty_turns: Speech without words.
        committed_words: Words that partial transcripts told as settled; ``changed``: the final text says otherwise.
    """

    turns: int = 0
    guesses: int = 0
    guesses_kept: int = 0
    guesses_dropped: int = 0
    barge_ins: int = 0
    false_alarms: int = 0
    empty_turns: int = 0
    committed_words: int = 0
    committed_words_changed: int = 0
