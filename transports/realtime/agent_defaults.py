"""What does the agent bring to a session before its client says a word? And which voices does it have?"""

from __future__ import annotations

from dataclasses import dataclass

from transports.realtime import fields
from transports.realtime.errors import wrong_value
from voice.agent import Agent
from voice.options import TurnOptions

STOCK_VOICES = frozenset(
    ("alloy", "ash", "ballad", "cedar", "coral", "echo", "marin", "sage", "shimmer", "verse")
)
"""The vendor's voices, which clients ask for without being told to; here they stand for the agent's voice."""


@dataclass(frozen=True, slots=True)
class AgentDefaults:
    """The settings of an agent that its clients see or build upon.

    Attributes:
        instructions: The system prompt.
        voice: Name of the voice that speaks when the client chooses none.
        voices: All names the synthesiser knows; ``None`` when it doesn't tell (it has no attribute ``voices``).
        recogniser: Name of the recogniser.
        hints: The recogniser can be told which words to expect.
        language: Language of the conversation; ``None``: the recogniser finds out.
        languages: The languages it can hear.
        turns: Whose turn it is.
        tools: Names of the agent's own tools.
        tool_choice: How the model chooses tools.
        max_tokens: Longest answer, in tokens; ``None``: no bound.
    """

    instructions: str
    voice: str
    voices: frozenset[str] | None
    recogniser: str
    hints: bool
    language: str | None
    languages: tuple[str, ...]
    turns: TurnOptions
    tools: frozenset[str]
    tool_choice: str
    max_tokens: int | None

    @classmethod
    def of(cls, agent: Agent) -> AgentDefaults:
        """The defaults of ``agent``, as of now."""
        synthesiser, recogniser = agent.stages.synthesiser, agent.stages.recogniser
        voices = getattr(synthesiser, "voices", None)
        return cls(
            instructions=agent.instructions,
            voice=agent.voice or synthesiser.name,
            voices=None if voices is None else frozenset(voices),
            recogniser=recogniser.name,
            hints=recogniser.capabilities.hints,
            language=agent.language,
            languages=tuple(recogniser.capabilities.languages),
            turns=agent.turns,
            tools=frozenset(agent.tool_table()),
            tool_choice=agent.model_options.tool_choice,
            max_tokens=agent.model_options.max_tokens,
        )

    def read_voice(self, value: object, param: str) -> str | None:
        """The synthesiser's name for a voice that a client asks for; ``None`` for the agent's.

        Raises:
            RealtimeError: Not a name, or a voice that the synthesiser does not have.
        """
        if isinstance(value, dict):
            fields.only_known(value, param, ("id",))
            value, param = fields.required(value, "id", param), f"{param}.id"
        if value is None:
            return None
        name = fields.as_text(value, param, most=128, least=1)
        if name == self.voice:
            return None
        if self.voices is not None and name in self.voices:
            return name
        if name in STOCK_VOICES:
            return None
        if self.voices is not None:
            known = ", ".join(f"'{one}'" for one in sorted({self.voice, *self.voices})[:20])
            raise wrong_value(param, f"one of {known}", name)
        return name

    def read_language(self, value: object, param: str) -> str | None:
        """The recogniser's code of a language such as ``"en"`` or ``"en-US"``; ``None`` for the agent's.

        Raises:
            RealtimeError: Not a language, or one that the recogniser can't hear.
        """
        if value is None:
            return None
        given = fields.as_text(value, param, most=35)
        code = given.lower() if given.lower() in self.languages else given.lower().partition("-")[0]
        if code == self.language or code in self.languages:
            return code
        known = ", ".join(f"'{one}'" for one in self.languages[:100])
        raise wrong_value(param, f"a language that this server hears ({known})", given)
