"""The floor: who has it, and the moves by which it changes hands. :class:`voice.turns.TurnTaker` says when.

A move changes the state and returns what is to be done about it; no move looks at why.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

from voice.endpointing import TurnEnd
from voice.interruption import Interruptions
from voice.options import TurnOptions
from voice.over_answer import OverAnswer
from voice.scope import Reason
from voice.turn_events import (
    CloseEmpty,
    Commit,
    Decision,
    Interrupt,
    OpenTurn,
    Recognise,
    Release,
    Respond,
)
from voice.user_speech import Certainty, UserSpeech


class State(Enum):
    """Where the conversation is."""

    LISTENING = "listening"  # nobody speaks and nothing is owed
    USER_SPEAKING = "user_speaking"
    MAYBE_DONE = "maybe_done"  # the user paused; recognition and the guess run
    THINKING = "thinking"  # the turn is certain; the answer is not yet audible
    SPEAKING = "speaking"  # the ear hears the answer
    HELD = "held"  # the user made a sound over the answer, which is silenced until it is clear what it was


class Floor:
    """Who speaks, what is owed, and what may happen next.

    Args:
        options: Times and thresholds.
        playout: The transport's kind: decides how long a sound over the agent's voice may stay undecided.
        turn_end: When a pause is the end of a turn.
        interruptions: What a sound over the agent's voice is.
        judges: There is a turn model to ask.
        language: Of the user's words; ``None``: English is assumed.

    Attributes:
        certainty: When the turn in progress is over; what the agent said last is told to it.
        state: Where the conversation is.
    """

    def __init__(
        self,
        options: TurnOptions,
        playout: Literal["can_pause", "flush_only"] = "can_pause",
        turn_end: TurnEnd | None = None,
        interruptions: Interruptions | None = None,
        *,
        judges: bool = False,
        language: str | None = None,
    ) -> None:
        self.options = options
        self.certainty = Certainty(turn_end or TurnEnd(), judges=judges, language=language)
        self.interruptions = interruptions or Interruptions()
        self.state = State.LISTENING
        self._turns = 0
        self._open: UserSpeech | None = None
        self._owes_answer = False  # an answer was cut unheard: the next one covers its question
        self._answering = False  # the live answer is to the user, not something the owner made the agent say
        self._interruptible = True  # so is the live answer
        self._over = OverAnswer(playout, self.interruptions)

    @property
    def turn(self) -> int:
        """Number of the newest turn, from 1; 0 before the first."""
        return self._turns

    @property
    def response_live(self) -> bool:
        """Whether an answer is being made or heard."""
        return self.state in (State.THINKING, State.SPEAKING, State.HELD)

    @property
    def hearing(self) -> bool:
        """Whether a user turn is open, or a sound that may become one."""
        return self._open is not None

    @property
    def closing(self) -> bool:
        """A turn was closed from outside and waits for its words only: new edges belong to the next one."""
        return self._open is not None and self._open.forced

    @property
    def _automatic(self) -> bool:
        return self.options.mode == "automatic"

    @property
    def _can_interrupt(self) -> bool:
        return self.options.interrupt and self._interruptible

    @property
    def _beside(self) -> bool:
        """A user turn is open that does not interrupt the live answer: it goes on beside it."""
        return self.response_live and self._open is not None and self._open.announced

    # ------------------------------------------------------------ the user's turn

    def _new_turn(self, start: float) -> OpenTurn:
        self._turns += 1
        self._open = UserSpeech(self._turns, start)
        return OpenTurn(self._turns)

    def _ask(self, turn: UserSpeech) -> list[Decision]:
        """For the words of a turn that paused."""
        turn.asked, turn.asked_s = True, None
        return [Recognise(turn.turn, turn.revision, probe=not turn.announced)]

    def _settle(self, now: float) -> list[Decision]:
        """Commit or close a paused turn whose words are known, when its time has come."""
        turn = self._open
        if turn is None or turn.text is None or turn.end is None or now < self._due(turn):
            return []
        self._open = None
        if not turn.text or self._only_nods(turn):
            return self._closed_empty(turn)
        self.certainty.last_end = turn.end
        if self.response_live:  # it did not interrupt: it is answered when the live answer is over
            self._owes_answer = self._owes_answer or self.options.respond
            return [Commit(turn.turn, turn.revision, turn.text, respond=False)]
        respond = self.options.respond or self._owes_answer
        self._owes_answer = False
        self.state = State.LISTENING
        if respond:
            self._think()
        return [Commit(turn.turn, turn.revision, turn.text, respond)]

    def _due(self, turn: UserSpeech) -> float:
        return self.certainty.due(turn, self.options)

    def _only_nods(self, turn: UserSpeech) -> bool:
        """A nod to what the agent says, or has just said, asks for nothing, unless it asked."""
        if turn.forced or not (self.response_live or turn.over_answer):
            return False
        asked = not self.response_live and self.certainty.agent_said.rstrip().endswith("?")
        return not asked and self.interruptions.nods(turn.text or "", self.certainty.language)

    def _closed_empty(self, turn: UserSpeech) -> list[Decision]:
        closed: list[Decision] = [CloseEmpty(turn.turn, announced=True)]
        if self.response_live:
            return closed
        self.state = State.LISTENING
        return closed + self._answer_owed()

    # ------------------------------------------------------------ a sound over the answer

    def _barge_in(self) -> list[Decision]:
        """The sound over the answer is an interruption: its turn becomes a real one."""
        turn = self._open
        assert turn is not None
        turn.announced = True
        self._over.clear()
        self.state = State.USER_SPEAKING if turn.end is None else State.MAYBE_DONE
        return [Interrupt(Reason.BARGE_IN), OpenTurn(turn.turn, turn.revision)]

    def _announce_beside(self, turn: UserSpeech) -> list[Decision]:
        """The sound over the answer is a turn, and the answer goes on."""
        turn.announced = True
        released: list[Decision] = [Release()] if self.state is State.HELD else []
        self.state = State.SPEAKING
        self._over.clear()
        return [OpenTurn(turn.turn, turn.revision), *released]

    def _false_alarm(self) -> list[Decision]:
        """The sound over the answer was nothing: the answer goes on."""
        turn, self._open = self._open, None
        held = self.state is State.HELD
        self.state = State.SPEAKING
        self._over.clear()
        drop: list[Decision] = [CloseEmpty(turn.turn, announced=False)] if turn is not None else []
        return [*drop, Release()] if held else drop

    # ------------------------------------------------------------ the answer

    def _think(self, *, answer: bool = True, interruptible: bool = True) -> None:
        self.state = State.THINKING
        self._answering, self._interruptible = answer, interruptible

    def _cut_answer(self) -> list[Decision]:
        """The owner wants no more of it; a sound over it becomes a turn."""
        turn = self._open
        if turn is not None and not turn.announced:
            return self._barge_in()
        self.state = State.LISTENING
        if turn is not None:
            self.state = State.USER_SPEAKING if turn.end is None else State.MAYBE_DONE
        return [Interrupt(Reason.CLIENT)]

    def _owe_cut_answer(self) -> None:
        """The answer that is cut now was wanted: the next one covers its question too."""
        if self._answering and self.options.respond:
            self._owes_answer = True

    def _answer_owed(self) -> list[Decision]:
        """Nobody speaks: what was left unanswered gets its answer now."""
        if not self._owes_answer:
            return []
        self._owes_answer = False
        self._think()
        return [Respond()]
