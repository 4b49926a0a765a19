"""The parts an answer is made with, and what came of one attempt to make it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from voice.chat import Chat
from voice.degradation import Rung
from voice.engine_watch import Call
from voice.errors import VoiceError
from voice.events import SessionEvent
from voice.executor import Executor
from voice.interfaces import ModelOptions, Prompt, Stages, ToolCall, ToolSpec, Usage
from voice.options import AnswerOptions, Limits, SpeechOptions
from voice.playout import Pace
from voice.scope import Scope
from voice.service import Service
from voice.tools import AnyTool
from voice.turn_events import TurnInput


@dataclass(frozen=True, slots=True)
class Parts:
    """What all answers of a session are made with.

    ``rate_hz`` is the playout's; ``pace`` is learnt as the voice speaks; ``client_tools`` are run by the session's
    owner; ``instructions`` replace the history's when not ``None``; ``speak``: else answers are text only.
    """

    stages: Stages
    chat: Chat
    tools: Mapping[str, AnyTool]
    model_options: ModelOptions
    speech: SpeechOptions
    limits: Limits
    executor: Executor
    rate_hz: int
    voice: str | None = None
    language: str | None = "en"
    pace: Pace = field(default_factory=Pace)
    client_tools: tuple[ToolSpec, ...] = ()
    instructions: str | None = None
    speak: bool = True

    def using(self, options: AnswerOptions, chat: Chat | None = None) -> Parts:
        """The same with other options, and maybe another history."""
        model = self.model_options
        if options.tool_choice is not None:
            model = replace(model, tool_choice=options.tool_choice)
        if options.max_tokens is not None:
            model = replace(model, max_tokens=options.max_tokens)
        return replace(
            self,
            chat=chat or self.chat,
            model_options=model,
            client_tools=options.tools,
            instructions=options.instructions,
            voice=self.voice if options.voice is None else options.voice,
            speak=options.speak,
        )


def prompt_of(parts: Parts, *, saying: str | None) -> Prompt:
    """The conversation as the model is shown it now; ``saying``: words that are not certain yet."""
    specs = [*(t.spec for t in parts.tools.values()), *parts.client_tools]
    options = parts.model_options
    if (most := most_tokens(parts.stages.service, options, tools=bool(specs))) != options.max_tokens:
        options = replace(options, max_tokens=most)
    return parts.chat.prompt(specs, options, saying=saying, instructions=parts.instructions)


def most_tokens(service: Service, options: ModelOptions, *, tools: bool) -> int | None:
    """Longest answer now: as the options say, and shorter while the load is too high."""
    if service.rung < Rung.SHORT_ANSWERS:
        return options.max_tokens
    short = service.options.short_answer_tokens * (3 if tools else 1)  # arguments of tools must not be cut
    return short if options.max_tokens is None else min(short, options.max_tokens)


class Owner(Protocol):
    """What an answer needs of its session."""

    tool_scope: Scope

    def emit(self, event: SessionEvent) -> None:
        """Tell the session's owner."""

    def late_result(self, call_id: str) -> None:
        """A tool returned after its answer was cut; its result is in the history."""

    def saw_results(self, call_ids: set[str]) -> None:
        """An answer was made knowing the results of these calls."""

    def was_heard(self, text: str) -> None:
        """The user has heard this of an answer, which is over."""

    def feed_after(self, work: Callable[[], None], event: TurnInput) -> None:
        """Do ``work`` and tell the turn taker, before anything that is asked for meanwhile."""


@dataclass(slots=True)
class Attempt:
    """One generation of the model, whatever came of it."""

    last_at: float
    started_at: float
    call: Call
    first_text_at: float | None = None
    text: str = ""
    spoke: bool = False  # some of the text is meant for the ear
    calls: list[ToolCall] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    finished: str | None = None
    error: VoiceError | None = None
    any_event: bool = False
    waiting: bool = False  # the attempt is held back by its consumer, so its silence is not the model's
    released: bool = False
    call_ids: dict[str, str] = field(default_factory=dict)  # the model's → ours, of calls it is writing
    argument_chars: int = 0


@dataclass(slots=True)
class AnswerTimes:
    """When things happened, in loop time; ``None`` while they haven't."""

    started: float
    opened: float | None = None
    model_called: float | None = None
    first_token: float | None = None
    synthesis_called: float | None = None
    first_audio: float | None = None
    audible: float | None = None
