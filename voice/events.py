"""What a session tells its owner. Small frozen values, matched with ``match``; times are seconds of session time.

Events of a guess are never sent: they wait at the gate or vanish with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from voice.interfaces import ToolCall, Usage


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """The user began to speak. ``item_id`` names the user item to come.

    Attributes:
        at_s: Where the turn's audio begins, pre-roll included.
        edge_s: When the detector noticed; over the agent's voice this comes before the event, which waits
            until it is clear that the user means to interrupt.
    """

    item_id: str
    at_s: float
    edge_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """The user fell silent; the turn may still be reopened."""

    item_id: str
    at_s: float


@dataclass(frozen=True, slots=True)
class UserPartial:
    """What the user has said so far, as far as it is understood; only with ``TurnOptions.partials``.

    ``text`` begins with ``stable``: words that later partials of the item begin with, too. The rest may change.
    ``UserSaid`` is the authority on both.
    """

    item_id: str
    text: str
    stable: str


@dataclass(frozen=True, slots=True)
class LanguageChanged:
    """From now on the user speaks this language (ISO 639-1): it was heard for long and surely enough, or asked for.

    Comes before the ``UserSaid`` that it was heard in, and before the answer to that is begun."""

    language: str


@dataclass(frozen=True, slots=True)
class UserSaid:
    """A turn is certain: the user's words are in the history. ``audio_s`` is the length of the turn's audio;
    ``text`` is empty when there was speech but no words (nothing enters the history then)."""

    item_id: str
    text: str
    audio_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ResponseStarted:
    """The agent is about to answer."""

    response_id: str
    item_id: str


@dataclass(frozen=True, slots=True)
class ResponseText:
    """More of the answer as it was written (display text)."""

    response_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ResponseMade:
    """All of the answer has been written and synthesised; its audio may still be on its way to the ear."""

    response_id: str
    item_id: str
    usage: Usage = field(default_factory=Usage)
    finish: str | None = None
    """Why the model ended: ``"stop"``, ``"length"``, ``"tool_calls"``, ``"content_filter"``."""
    error: str | None = None
    """What went wrong with it, in one sentence; it may have been said aloud that something did."""


@dataclass(frozen=True, slots=True)
class AudioSent:
    """All of the answer's audio has left towards the ear. Comes after :class:`ResponseMade`, also without audio."""

    response_id: str


@dataclass(frozen=True, slots=True)
class AudioStarted:
    """The first audible sample of the answer went out."""

    response_id: str
    at_s: float


@dataclass(frozen=True, slots=True)
class AudioStopped:
    """The ear has heard the answer's last sample, or the rest was dropped."""

    response_id: str
    at_s: float


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """More of a call's JSON arguments, as the model writes them. A call that no :class:`ToolStarted` follows was
    given up (the model failed in the middle of it)."""

    response_id: str
    call_id: str
    name: str
    delta: str


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A tool was called by the model. ``by_client``: the owner runs it, and hands in what it returns with
    ``session.tool_result()``; the answer ends here."""

    response_id: str
    call: ToolCall
    by_client: bool = False


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A tool returned; ``error`` is set when it failed or was refused, and ``output`` is what the model is told."""

    response_id: str
    call: ToolCall
    output: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TurnTimes:
    """Where a turn's time went; all relative to the end of the user's speech unless said otherwise.

    Attributes:
        speech_end_s: Last sample of user speech, in session time.
        first_audio_s: First audible sample of the answer, in session time.
        voice_to_voice_ms: Between the two.
        pause_ms: Until the pause was noticed.
        ready_ms: Until the answer had its first audio, behind the gate or not.
        endpoint_ms: Until the turn was certain.
        asr_ms: Duration of the recognition that was used.
        llm_first_token_ms: From the model's call to its first text.
        llm_first_clause_ms: From the model's call to the first clause that the synthesiser got.
        tts_first_audio_ms: From the first call of the synthesiser to its first audio.
        gate_to_audio_ms: From the commit to the first audible sample.
        speculated: The answer was begun before the turn was certain, and used.
    """

    speech_end_s: float | None = None
    first_audio_s: float | None = None
    voice_to_voice_ms: float | None = None
    pause_ms: float | None = None
    ready_ms: float | None = None
    endpoint_ms: float | None = None
    asr_ms: float | None = None
    llm_first_token_ms: float | None = None
    llm_first_clause_ms: float | None = None
    tts_first_audio_ms: float | None = None
    gate_to_audio_ms: float | None = None
    speculated: bool = False


@dataclass(frozen=True, slots=True)
class ResponseEnded:
    """The answer is over. ``heard`` is the written text up to where the ear got; the history holds the same.

    Attributes:
        status: ``"completed"``, ``"interrupted"``, ``"cancelled"`` (nothing was heard) or ``"failed"``.
        reason: Why it was cut: ``"barge_in"``, ``"resumed"`` (the user went on before it was audible),
            ``"client"`` (the owner stopped it), ``"deadline"``, ``"closed"``; ``None`` when it wasn't.
        finish: Why the model ended; see :class:`ResponseMade`.
        heard_s: Seconds of its audio that the ear got.
    """

    response_id: str
    item_id: str
    status: str
    heard: str
    generated: str
    times: TurnTimes = TurnTimes()
    usage: Usage = field(default_factory=Usage)
    user_text: str = ""
    error: str | None = None
    reason: str | None = None
    finish: str | None = None
    heard_s: float = 0.0


@dataclass(frozen=True, slots=True)
class KeysPressed:
    """The user keyed something in on a telephone; it is in the history as a message of its own."""

    item_id: str
    keys: str


@dataclass(frozen=True, slots=True)
class Idle:
    """Nobody has spoken for the agent's ``idle_s``."""

    after_s: float


@dataclass(frozen=True, slots=True)
class ServiceChanged:
    """All sessions of the process are served less well than usual, or better again (:mod:`voice.degradation`).

    Attributes:
        level: How much is given up: 0 is nothing.
        label: The same for people, such as ``"no guesses"``.
        why: What it is due to, in words.
    """

    level: int
    label: str
    why: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Something went wrong, in one sentence. The session goes on unless ``SessionEnded`` follows.

    ``item_id``: the user item whose words were lost by it, if any were."""

    message: str
    kind: str
    item_id: str | None = None


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The last event. ``reason`` is ``"closed"``, ``"slow_client"``, ``"events_overflow"``, …"""

    reason: str
    counters: dict[str, int] = field(default_factory=dict)


SessionEvent: TypeAlias = (
    SpeechStarted
    | SpeechStopped
    | UserPartial
    | LanguageChanged
    | UserSaid
    | ResponseStarted
    | ResponseText
    | ResponseMade
    | AudioSent
    | AudioStarted
    | AudioStopped
    | ToolArguments
    | ToolStarted
    | ToolEnded
    | ResponseEnded
    | KeysPressed
    | Idle
    | ServiceChanged
    | Problem
    | SessionEnded
)
