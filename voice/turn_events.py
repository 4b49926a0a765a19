"""What a :class:`~voice.turns.TurnTaker` is told and what it decides: small frozen values, matched with ``match``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from voice.scope import Reason
from voice.speculation import Level

# ---------------------------------------------------------------- what happened


@dataclass(frozen=True, slots=True)
class Around:
    """What else is known of a sound while the agent speaks; see :class:`voice.interruption.Sound`."""

    over_noise_db: float | None = None
    echoes: bool = False
    agent_text: str = ""
    asked: bool = False
    language: str | None = None
    sparing: bool = False  # the load is high: its words are asked for again half as often


NOTHING_AROUND = Around()


@dataclass(frozen=True, slots=True)
class SpeechBegan:
    """The detector's edge; ``start`` is when the speech began."""

    now: float
    start: float
    around: Around = NOTHING_AROUND


@dataclass(frozen=True, slots=True)
class SpeechPaused:
    """Silence for ``pause_s``; ``end`` is when the speech ended. ``level``: how much may be done before the turn is
    certain. ``start``: when it began, by what is known of the caller's clock now: audio that came late, all at once,
    seemed to begin later than it did. ``None``: when it seemed to."""

    now: float
    end: float
    around: Around = NOTHING_AROUND
    level: Level = Level.FULL
    start: float | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """Recognition of a turn's revision is done. ``text`` is empty for no words, also after a failure; ``failed`` tells
    the two apart."""

    now: float
    turn: int
    revision: int
    text: str
    around: Around = NOTHING_AROUND
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """The turn model's answer about a pause with ``silence_s`` of silence: the probability that the user is done;
    ``None``: it failed."""

    now: float
    turn: int
    revision: int
    silence_s: float
    probability: float | None


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. ``voiced_until`` is the end of the newest window with speech in it, ``start`` when that speech
    began (see :class:`SpeechPaused`)."""

    now: float
    voiced_until: float | None = None
    around: Around = NOTHING_AROUND
    start: float | None = None


@dataclass(frozen=True, slots=True)
class Audible:
    """The first audible sample of the answer is out."""

    now: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is over: heard to its end, or ended without sound."""

    now: float


@dataclass(frozen=True, slots=True)
class Typed:
    """The user wrote something; it is in the history. ``answer``: it wants an answer."""

    now: float
    answer: bool = True


@dataclass(frozen=True, slots=True)
class Committed:
    """The owner says that the user is done (manual mode, or a client's commit)."""

    now: float


@dataclass(frozen=True, slots=True)
class Cleared:
    """The owner drops what the user said since the last turn."""

    now: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """The owner or client stops the answer."""

    now: float


@dataclass(frozen=True, slots=True)
class Spoke:
    """The owner makes the agent speak (a greeting, a requested answer). ``answer``: it answers the user;
    ``interruptible``: the user's voice may cut it."""

    now: float
    answer: bool = False
    interruptible: bool = True


TurnInput: TypeAlias = (
    SpeechBegan
    | SpeechPaused
    | Heard
    | Judged
    | Tick
    | Audible
    | Finished
    | Typed
    | Committed
    | Cleared
    | Stopped
    | Spoke
)

# ---------------------------------------------------------------- what to do


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """A user turn begins: announce it."""

    turn: int
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Reopen:
    """The user went on after a pause: drop the guess and the recognition of earlier revisions."""

    turn: int
    revision: int
    speech: bool = True  # false: not the voice but a typed message made the guess void


@dataclass(frozen=True, slots=True)
class Recognise:
    """Transcribe the turn's audio up to its pause. ``probe``: only to learn whether a sound has words; ``so_far``: it
    goes on, and its audio up to now is meant."""

    turn: int
    revision: int
    probe: bool = False
    so_far: bool = False


@dataclass(frozen=True, slots=True)
class Judge:
    """Ask the turn model about the turn's audio up to ``silence_s`` after its pause began."""

    turn: int
    revision: int
    silence_s: float


@dataclass(frozen=True, slots=True)
class Guess:
    """Start model and synthesis behind the gate."""

    turn: int
    revision: int
    text: str


@dataclass(frozen=True, slots=True)
class Commit:
    """The turn is certain: put it in the history and open the gate (or start the answer).

    ``respond``: false where it only enters the history."""

    turn: int
    revision: int
    text: str
    respond: bool = True


@dataclass(frozen=True, slots=True)
class CloseEmpty:
    """The turn had no words, or was cleared: it leaves no trace in the history.

    ``announced``: an ``OpenTurn`` was given for it."""

    turn: int
    announced: bool


@dataclass(frozen=True, slots=True)
class Respond:
    """Answer the history as it stands."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Silence the answer, reversibly."""


@dataclass(frozen=True, slots=True)
class Release:
    """Go on where the answer was silenced."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Cut the answer for good."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class CutInput:
    """The turn is too long: what the user says until the next pause belongs to no turn."""

    turn: int


@dataclass(frozen=True, slots=True)
class GoneIdle:
    """Nobody has spoken for ``idle_s``."""


Decision: TypeAlias = (
    OpenTurn
    | Reopen
    | Recognise
    | Judge
    | Guess
    | Commit
    | CloseEmpty
    | Respond
    | Hold
    | Release
    | Interrupt
    | CutInput
    | GoneIdle
)
