"""What is in force for one client's session? The protocol's ``session`` object: defaults, use, echo."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Literal

from transports.realtime.agent_defaults import AgentDefaults
from transports.realtime.client_tools import wire_tool, wire_tool_choice
from transports.realtime.errors import RealtimeError
from transports.realtime.response_request import ResponseRequest, read_response_request
from transports.realtime.session_update import updated_session
from transports.realtime.settings import FORMATS, Modality, SessionKind, WireFormat, wire_format
from transports.realtime.transcription import Transcription
from transports.realtime.turn_detection import TurnDetection
from voice.agent import Agent
from voice.audio import AudioFormat
from voice.interfaces import ToolSpec
from voice.options import AnswerOptions, TurnOptions

__all__ = ["ResponseRequest", "SessionConfig", "Transcription", "TurnDetection"]


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """The settings in force. Made by :meth:`of`, changed by :meth:`updated`.

    Attributes:
        session_id: ``sess_…``.
        model: The name by which the client calls the agent.
        expires_at: End of the session, seconds since 1970.
        agent: What the agent brings.
        type: A conversation, or transcription only.
        instructions: The client's system prompt; ``None``: the agent's.
        modality: Whether answers are spoken (with a transcript) or written.
        input_type, output_type: How audio is coded each way.
        turn_detection: How the voice decides whose turn it is; ``None``: the client commits.
        transcription: ``None``: the client does not want the user's words.
        voice: The synthesiser's voice; ``None``: the agent's.
        tools: The client's functions.
        tool_choice: A mode or the name of a tool; ``None``: the agent's.
        max_tokens: Longest answer, in tokens; ``None``: the agent's.
    """

    session_id: str
    model: str
    expires_at: int
    agent: AgentDefaults
    type: SessionKind = "realtime"
    instructions: str | None = None
    modality: Modality = "audio"
    input_type: WireFormat = "audio/pcm"
    output_type: WireFormat = "audio/pcm"
    turn_detection: TurnDetection | None = field(default_factory=TurnDetection)
    transcription: Transcription | None = field(default_factory=Transcription)
    voice: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str | None = None
    max_tokens: int | None = None

    @classmethod
    def of(cls, agent: Agent, *, session_id: str, model: str, expires_at: int) -> SessionConfig:
        """The settings of a session whose client has asked for nothing yet."""
        defaults = AgentDefaults.of(agent)
        automatic = defaults.turns.mode == "automatic"
        detection = TurnDetection() if automatic else None
        return cls(session_id, model, expires_at, defaults, turn_detection=detection)

    # ------------------------------------------------------------ for the session

    @property
    def input_format(self) -> AudioFormat:
        """How the client's audio is coded."""
        return FORMATS[self.input_type]

    @property
    def output_format(self) -> AudioFormat:
        """How the client wants the agent's audio."""
        return FORMATS[self.output_type]

    @property
    def language(self) -> str | None:
        """Language of the user's voice in force; ``None``: the recogniser finds out."""
        asked = self.transcription.language if self.transcription else None
        return asked or self.agent.language

    @property
    def hints(self) -> tuple[str, ...]:
        """Words that the recogniser may expect."""
        asked = self.transcription
        return () if asked is None else (*asked.keywords, *((asked.prompt,) if asked.prompt else ()))

    @property
    def voice_name(self) -> str:
        """Name of the voice in force."""
        return self.voice or self.agent.voice

    @property
    def max_output_tokens(self) -> int | Literal["inf"]:
        """Longest answer in force, as the protocol writes it."""
        return self.max_tokens or self.agent.max_tokens or "inf"

    def turn_options(self, base: TurnOptions) -> TurnOptions:
        """``base`` with what the client asked for.

        Without turn detection nothing is answered by itself: a client that commits also asks for the response.
        """
        if self.turn_detection is None:
            return replace(base, mode="manual", idle_s=None, respond=False)
        if self.type == "transcription" or (self.transcription is not None and self.transcription.asked):
            # this client reads along; for others it would be work for nothing
            base = replace(base, partials=True)
        options = self.turn_detection.turn_options(base)
        return replace(options, respond=False, idle_s=None) if self.type == "transcription" else options

    def answer_options(self) -> AnswerOptions:
        """How answers are made."""
        return AnswerOptions(
            instructions=self.instructions,
            tools=self.tools,
            tool_choice=self.tool_choice,
            max_tokens=self.max_tokens,
            voice=self.voice,
            speak=self.modality == "audio",
        )

    def response_request(self, patch: object | None) -> ResponseRequest:
        """What a ``response.create`` asks for: these settings with those of its ``response``.

        Raises:
            RealtimeError: What can't be done; ``param`` begins with ``response``.
        """
        if self.type == "transcription":
            raise RealtimeError("A transcription session gives no responses.")
        return read_response_request(self, patch)

    def updated(
        self,
        patch: object,
        *,
        first: bool = False,
        audio_made: bool = False,
        agent_tools: Collection[str] = (),
    ) -> SessionConfig:
        """The settings after a ``session.update``; all of it is taken or nothing.

        What equals the echo is no change, so a client may send back what it was given.

        Args:
            patch: The event's ``session``.
            first: The client has not set anything yet: it may still choose the type and name the model.
            audio_made: The agent has spoken, so its voice stays.
            agent_tools: Names of tools that the client can't have, beside the agent's own.

        Raises:
            RealtimeError: What can't be done; ``param`` begins with ``session``.
        """
        agent = self.agent
        if agent_tools:
            agent = replace(agent, tools=agent.tools.union(agent_tools))
        return updated_session(replace(self, agent=agent), patch, first=first, audio_made=audio_made)

    # ------------------------------------------------------------ for the client

    def wire(self, *, hide_instructions: bool = False) -> dict[str, object]:
        """The whole ``session`` object with what is in force.

        Args:
            hide_instructions: Leave the system prompt out.
        """
        hearing: dict[str, object] = {
            "format": wire_format(self.input_type),
            "transcription": self.transcription.wire(self.agent) if self.transcription else None,
            "noise_reduction": None,
            "turn_detection": self._wire_turn_detection(),
        }
        if self.type == "transcription":
            return {
                "type": "transcription",
                "object": "realtime.transcription_session",
                "id": self.session_id,
                "expires_at": self.expires_at,
                "audio": {"input": hearing},
                "include": None,
            }
        session: dict[str, object] = {
            "type": "realtime",
            "object": "realtime.session",
            "id": self.session_id,
            "model": self.model,
            "expires_at": self.expires_at,
            "output_modalities": [self.modality],
            "instructions": self.agent.instructions if self.instructions is None else self.instructions,
            "tools": [wire_tool(tool) for tool in self.tools],
            "tool_choice": wire_tool_choice(self.tool_choice or self.agent.tool_choice),
            "max_output_tokens": self.max_output_tokens,
            "truncation": "auto",
            "tracing": None,
            "prompt": None,
            "include": None,
            "audio": {
                "input": hearing,
                "output": {"format": wire_format(self.output_type), "voice": self.voice_name, "speed": 1.0},
            },
        }
        if hide_instructions:
            del session["instructions"]
        return session

    def _wire_turn_detection(self) -> dict[str, object] | None:
        if self.turn_detection is None:
            return None
        shown = self.turn_detection.wire(self.agent.turns)
        if self.type == "transcription":
            del shown["create_response"], shown["interrupt_response"]
        return shown
