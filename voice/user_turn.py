"""A user turn on its way to an answer: its audio's words, and the guess that was built on them."""

from __future__ import annotations

from dataclasses import dataclass, field

from voice.partials import AgreedPrefix, Partial
from voice.response import Response
from voice.scope import Identity, Priority, Reason, Scope


@dataclass(slots=True)
class UserTurn:
    """One turn, announced or only a sound that is being looked at.

    Attributes:
        number: As the turn taker counts.
        item_id: Names it in events and, once certain, in the history.
        revision: Raised each time the user goes on after a pause.
        announced: The owner was told of it; before, it is only a sound over the agent's voice.
        settled: Words of stretches that are not recognised again.
        settled_language: What those change the session's language to; ``None``: it stays.
        text: Words of the current revision, settled ones included.
        language: The session's language changes to this one with the turn; ``None``: it stays.
        agreed: Which words of partial transcripts are settled.
        told: The newest of those that was told.
        lost: They are not known: the recogniser failed.
        speech_end: Loop time of the last sample of speech.
        paused_at: Loop time when the pause after it was noticed.
        committed_at: Loop time when it became certain.
        asr_s: How long the recognition that was used took.
        work: Recognition and guess of the current revision.
        guess: The answer that waits behind the gate.
        reading: The model reads the conversation so far, while the user speaks.
    """

    number: int
    item_id: str
    scope: Scope
    revision: int = 0
    announced: bool = False
    settled: str = ""
    settled_language: str | None = None
    text: str = ""
    language: str | None = None
    agreed: AgreedPrefix = field(default_factory=AgreedPrefix)
    told: Partial | None = None
    lost: bool = False
    speech_end: float | None = None
    paused_at: float | None = None
    committed_at: float | None = None
    asr_s: float | None = None
    work: Scope | None = None
    guess: Response | None = None
    reading: Scope | None = None

    def new_work(self, revision: int) -> Scope:
        """A speculation scope for recognition and guess of ``revision``."""
        self.revision = revision
        identity = Identity(self.scope.identity.session, self.number, revision)
        self.work = self.scope.child("speculation", identity=identity, priority=Priority.SPECULATIVE)
        return self.work

    def drop_work(self, reason: Reason) -> bool:
        """Stop recognition and guess; returns whether there was a guess."""
        if self.work is not None:
            self.work.cancel(reason)
            self.work = None
        dropped, self.guess = self.guess is not None, None
        return dropped
