"""The settings of a conversation, in small groups with their defaults and units."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from voice.errors import BadRequest
from voice.interfaces import ToolSpec


@dataclass(frozen=True, slots=True)
class TurnOptions:
    """Whose turn it is.

    Attributes:
        mode: ``"automatic"``: the voice decides; ``"manual"``: the owner calls ``session.commit()``.
        speech_threshold: Voice probability above which a window is speech, 0–1. It ends 0.15 below.
        start_s: Speech this long makes the edge "the user speaks".
        pause_s: Silence this long is a pause: recognition and the guess start.
        min_delay_s: Silence after which a turn that is surely over is certain.
        max_delay_s: Silence after which any turn is certain; between the two, the policies of ``Agent.turn_end``
            decide.
        pre_roll_s: Audio kept from before the edge, so that the first syllable is not lost.
        max_turn_s: The longest user turn; it is ended there with what was said.
        speculate: Start recognition, model and synthesis at the pause, behind the gate; else recognition waits for
            ``min_delay_s`` and the rest for the commit.
        interrupt_words: Words, nods and hums not counted, that interrupt the answer; words like "stop" always do,
            and so does any when the agent has asked.
        interrupt_after_s: Speech over the answer whose words are not known yet interrupts once it is this long.
        wordless_after_s: Speech over the answer in which the recogniser finds no words interrupts once it is this
            long.
        interrupt_least_s: A shorter sound never interrupts, whatever is heard in it.
        interrupt_over_noise_db: A sound that is not this far above the room's noise never interrupts.
        echo_hold_s: While the agent's voice comes back from a loudspeaker, the agent falls silent only for a sound of
            at least this length: what is left of an echo is short.
        ask_words_s: The words of a sound that goes on are asked for after so much of it, and again after as much. A
            sound that is over sooner interrupts only with words like "stop", or when the agent has asked.
        hold_s: Longest wait for the decision on transports that can only flush; 0 decides at the edge.
        decide_s: Longest wait for the words of a sound that is over, on transports that can pause.
        idle_s: Silence on both sides before an ``Idle`` event; ``None`` for never.
        respond: Answer a turn by itself; else it only enters the history, and the owner calls ``session.respond()``.
        echo_guard: The agent's own voice, back from a loudspeaker, is kept from the detector.
        interrupt: Speech over the agent's voice can interrupt it; else it is a turn that waits for its end.
        partials: Tell the user's words while they speak, as ``UserPartial`` events. Off by default, since each costs
            the recogniser a pass over the turn so far. Realtime clients that ask for transcription turn it on. Without
            turn detection there are none: nobody knows yet whether what is said will be a turn.
        partial_interval_s: Speech between two partials. Under load there are fewer, and then none.
    """

    mode: Literal["automatic", "manual"] = "automatic"
    speech_threshold: float = 0.5
    start_s: float = 0.06
    pause_s: float = 0.12
    min_delay_s: float = 0.4
    max_delay_s: float = 2.5
    pre_roll_s: float = 0.4
    max_turn_s: float = 120.0
    speculate: bool = True
    interrupt_words: int = 2
    interrupt_after_s: float = 1.2
    wordless_after_s: float = 3.0
    interrupt_least_s: float = 0.1
    interrupt_over_noise_db: float = 6.0
    echo_hold_s: float = 0.13
    ask_words_s: float = 0.5
    hold_s: float = 0.25
    decide_s: float = 1.0
    idle_s: float | None = 15.0
    respond: bool = True
    interrupt: bool = True
    echo_guard: bool = True
    partials: bool = False
    partial_interval_s: float = 0.4

    def __post_init__(self) -> None:
        _check(self.mode in ("automatic", "manual"), 'mode must be "automatic" or "manual"')
        for name in self.__slots__:
            value = getattr(self, name)
            number = isinstance(value, int | float) and math.isfinite(value)
            _check(
                number or name == "mode" or (name == "idle_s" and value is None), f"{name} must be a number"
            )
        _check(0.05 <= self.speech_threshold <= 0.95, "speech_threshold must be 0.05 to 0.95")
        _check(0.0 <= self.start_s <= 1.0, "start_s must be 0 to 1 s")
        _check(
            0.0 <= self.pre_roll_s <= 1.0, "pre_roll_s must be 0 to 1 s: no more is kept while nobody speaks"
        )
        _check(0.05 <= self.pause_s <= 5.0, "pause_s must be 0.05 to 5 s")
        _check(
            self.pause_s <= self.min_delay_s <= self.max_delay_s <= 30.0,
            "delays must be in order: pause_s <= min_delay_s <= max_delay_s <= 30 s",
        )
        _check(1.0 <= self.max_turn_s <= 600.0, "max_turn_s must be 1 to 600 s")
        _check(0.0 <= self.hold_s <= 2.0, "hold_s must be 0 to 2 s")
        _check(1 <= self.interrupt_words <= 100, "interrupt_words must be 1 to 100")
        _check(0.0 <= self.interrupt_after_s <= 60.0, "interrupt_after_s must be 0 to 60 s")
        _check(0.0 <= self.wordless_after_s <= 60.0, "wordless_after_s must be 0 to 60 s")
        _check(0.0 <= self.interrupt_least_s <= 2.0, "interrupt_least_s must be 0 to 2 s")
        _check(-60.0 <= self.interrupt_over_noise_db <= 60.0, "interrupt_over_noise_db must be -60 to 60 dB")
        _check(0.0 <= self.echo_hold_s <= 2.0, "echo_hold_s must be 0 to 2 s")
        _check(0.1 <= self.ask_words_s <= 60.0, "ask_words_s must be 0.1 to 60 s")
        _check(0.0 < self.decide_s <= 10.0, "decide_s must be more than 0, at most 10 s")
        _check(0.1 <= self.partial_interval_s <= 60.0, "partial_interval_s must be 0.1 to 60 s")
        _check(self.idle_s is None or self.idle_s > 0, "idle_s must be positive, or None for never")


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How answers are made, for a session or for a single answer.

    Attributes:
        instructions: The system prompt; ``None``: the agent's.
        tools: Tools that the session's owner (or its client) runs itself: a call ends the answer, and the result is
            handed in with ``session.tool_result()``. They come beside the agent's own, which run here.
        tool_choice: ``"auto"``, ``"none"``, ``"required"`` or the name of one tool; ``None``: the agent's.
        max_tokens: Longest answer, in tokens; ``None``: the agent's.
        voice: Voice of the synthesiser; ``None``: the agent's.
        speak: The answer is spoken; else it is text only.
    """

    instructions: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str | None = None
    max_tokens: int | None = None
    voice: str | None = None
    speak: bool = True


@dataclass(frozen=True, slots=True)
class SpeechOptions:
    """What is said, and what is said when things go wrong (DESIGN §7). Empty phrases are not said.

    Attributes:
        first_token_s: Longest wait for the model's first token before the fallback engine is asked.
        gap_s: Longest gap between two tokens.
        release_s: When the model has been quiet this long, the clause in hand is spoken.
        first_audio_s: Silence after a commit before the filler.
        synthesis_s: Longest wait for the next audio of the synthesiser.
        filler: Said when the answer is late and nothing was heard yet.
        apology: Said when the answer failed.
        empty: Said when the model had nothing to say, even when asked again.
        timeout_s: Hard end of an answer's making, from its start.
        tool_wait_s: How long a new answer waits for tools that an interrupted one left running.
        max_tool_rounds: How often one answer may go from tools back to the model.
    """

    first_token_s: float = 4.0
    gap_s: float = 2.0
    release_s: float = 0.6
    first_audio_s: float = 2.5
    synthesis_s: float = 10.0
    filler: str = "One moment."
    apology: str = "Sorry, something went wrong. Could you say that again?"
    empty: str = "Sorry, I have no answer to that."
    timeout_s: float = 120.0
    tool_wait_s: float = 0.5
    max_tool_rounds: int = 8

    def __post_init__(self) -> None:
        for name in ("first_token_s", "gap_s", "release_s", "first_audio_s", "synthesis_s", "timeout_s"):
            _check(getattr(self, name) > 0, f"{name} must be positive")
        _check(self.max_tool_rounds >= 1, "max_tool_rounds must be at least 1")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one session's memory and patience.

    Attributes:
        playout_s: Audio synthesised but not yet heard, seconds; the synthesiser is held back above it.
        text_chars: Text written but not yet synthesised; the model is held back above it.
        hear_backlog_s: Caller audio not yet judged by the detector; above it the oldest is dropped and counted.
        events: Events the owner has not taken; above it the session is closed.
        send_stall_s: A client that takes no audio for this long is closed.
        history_chars: Text in the prompt; the oldest entries leave above it.
        history_entries: Entries kept in the history.
        images: Pictures kept in the prompt; older ones are replaced by a note.
        close_s: Longest wait for tasks when the session closes.
        text_input_chars: Longest typed message.
        image_bytes: Largest picture.
    """

    playout_s: float = 10.0
    text_chars: int = 400
    hear_backlog_s: float = 5.0
    events: int = 1000
    send_stall_s: float = 10.0
    history_chars: int = 12_000
    history_entries: int = 400
    images: int = 2
    close_s: float = 2.0
    text_input_chars: int = 20_000
    image_bytes: int = 5_000_000

    def __post_init__(self) -> None:
        _check(self.playout_s >= 1.0, "playout_s must be at least 1 s")
        _check(self.text_chars >= 50, "text_chars must be at least 50")
        _check(self.hear_backlog_s >= 1.0, "hear_backlog_s must be at least 1 s")
        _check(self.events >= 10, "events must be at least 10")
        _check(
            self.history_chars >= 200 and self.history_entries >= 4, "the history is too short to hold a turn"
        )


def _check(ok: bool, message: str) -> None:
    if not ok:
        raise BadRequest(message)
