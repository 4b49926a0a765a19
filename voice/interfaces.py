"""What an engine must offer: one small protocol class per kind of stage, and the values that cross them.

Rules for every engine:

* Work is done for a :class:`~voice.scope.Scope`. When the scope is cancelled the engine stops as soon as it can:
  the task is cancelled, and ``scope.on_cancel`` is there for what a task can't do (aborting a native call).
* Nothing blocks the event loop: native calls go through an :class:`~voice.executor.Executor`.
* Errors are :class:`~voice.errors.VoiceError` children, in words an engineer can act on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from voice.scope import Scope
from voice.service import Service
from voice.speculation import GuessBudget

Pcm16: TypeAlias = npt.NDArray[np.int16]
"""Mono audio, shape (n,), full scale ±32768."""

ASR_RATE_HZ = 16_000
"""Rate of all audio that a detector, turn model or recogniser gets."""


# ---------------------------------------------------------------- voice activity


class DetectorStream(Protocol):
    """One session's view of a voice activity detector; it owns that session's model state."""

    def push(self, window: Pcm16, on_result: Callable[[float], None]) -> None:
        """Judge the next window (exactly ``window_samples`` at 16 kHz).

        ``on_result(probability)`` is called on the event loop, maybe before ``push`` returns. Never push a
        second window before the first has answered. An engine error answers with ``nan``.
        """

    def reset(self) -> None:
        """Forget the context: the next window starts a new stretch of audio."""

    def close(self) -> None:
        """Drop the stream; a result still under way is not delivered."""


class VoiceDetector(Protocol):
    """Tells speech from silence, for all sessions of the process."""

    name: str
    window_samples: int

    def open(self) -> DetectorStream:
        """A stream for a new session."""


# ---------------------------------------------------------------- recognition


@dataclass(frozen=True, slots=True)
class Word:
    """A recognised word; times in seconds from the start of the audio handed in, probability 0–1."""

    text: str
    start_s: float
    end_s: float
    probability: float | None = None


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was said. ``text`` is empty when nothing was, or when the words were rejected as invented.

    Attributes:
        rejected: Why a hypothesis was thrown away (``"no_speech"``, ``"repetition"``, …); ``None`` otherwise.
        language_probability: Of ``language``, 0–1, where the engine found it out; ``None``: it was told, or can't say.
        average_logprob: Mean token log probability; ``None`` where the engine has none.
    """

    text: str
    language: str | None = None
    average_logprob: float | None = None
    words: tuple[Word, ...] = ()
    rejected: str | None = None
    language_probability: float | None = None


@dataclass(frozen=True, slots=True)
class RecogniserCapabilities:
    """What a recogniser can do beyond text for an utterance."""

    languages: tuple[str, ...] = ("en",)
    word_times: bool = False
    hints: bool = False
    max_audio_s: float = 120.0


class Recogniser(Protocol):
    """Speech to text, one utterance at a time."""

    name: str
    capabilities: RecogniserCapabilities

    async def transcribe(
        self, audio: Pcm16, scope: Scope, *, language: str | None = None, hints: Sequence[str] = ()
    ) -> Transcript:
        """Recognise ``audio`` (16 kHz). Which class it runs in is ``scope.priority``.

        Raises:
            BadAudio: Longer than ``capabilities.max_audio_s``.
            EngineFailed, Overloaded, DeadlineExceeded: As named.
        """


# ---------------------------------------------------------------- language model


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An encoded picture (``image/png``, ``image/jpeg`` or ``image/webp``)."""

    data: bytes
    media_type: str
    detail: Literal["auto", "low", "high"] = "auto"


ContentPart: TypeAlias = TextPart | ImagePart


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model asks for a tool. ``arguments`` is the raw JSON text it wrote, not yet validated."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a prompt. Assistant messages may carry ``tool_calls``; each is answered by a ``tool``
    message with its ``tool_call_id`` right after."""

    role: Literal["system", "user", "assistant", "tool"]
    content: tuple[ContentPart, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(p.text for p in self.content if isinstance(p, TextPart))


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it; ``parameters`` is a JSON schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Sampling and limits. ``None`` leaves a value to the engine.

    Attributes:
        tool_choice: ``"auto"``, ``"none"``, ``"required"`` or the name of one tool.
        max_tokens: Longest answer, in tokens.
        temperature: 0–2.
    """

    tool_choice: str = "auto"
    max_tokens: int | None = None
    temperature: float | None = None
    stop: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prompt:
    """All a model is given for one generation. Earlier messages never change from call to call (prefix cache)."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    options: ModelOptions = ModelOptions()


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer, to be spoken."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of a tool call's JSON arguments, for owners that show them as they come. The finished
    :class:`ToolCall` follows."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one generation; ``cached_tokens`` of the prompt came from the prefix cache."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The generation ended by itself: ``"stop"``, ``"length"``, ``"tool_calls"`` or ``"content_filter"``."""

    reason: str


ModelEvent: TypeAlias = TextDelta | ToolCallDelta | ToolCall | Usage | Finished


class LanguageModel(Protocol):
    """Chat completion, streamed.

    A model whose context is short may say so with an attribute ``window_tokens`` (prompt and answer together);
    the history is then kept short enough. A model that keeps what it has read may offer
    ``async prepare(prompt, scope)``: it is called when the user begins to speak, with the conversation so far and a
    stand-in for the words to come, so that only those are left to read when the answer is wanted.
    """

    name: str

    def generate(self, prompt: Prompt, scope: Scope) -> AsyncIterator[ModelEvent]:
        """Stream an answer to ``prompt``. An async generator: closing it aborts the generation.

        A generation that ends well yields ``Finished`` as its last event; ``Usage`` may come before it. Reasoning
        text is not yielded.

        Raises:
            EngineFailed: The engine or server failed; may come after some text.
        """


# ---------------------------------------------------------------- turn detection


class TurnModel(Protocol):
    """Tells from the sound whether the user is done.

    Attributes:
        window_s: How much of the turn's end it looks at, in seconds.
    """

    name: str
    window_s: float

    async def completion(self, audio: Pcm16, scope: Scope) -> float:
        """The probability, 0–1, that the user is done.

        Args:
            audio: The turn from its true start, 16 kHz, shape (n,), with the silence after it.
            scope: Its class is ``scope.priority``; when it ends before the model runs, the model does not run.

        Raises:
            EngineFailed, Overloaded, DeadlineExceeded, ScopeCancelled: As named.
        """


# ---------------------------------------------------------------- synthesis


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """When a word of the text begins and ends in its audio, in seconds from the start of the text's audio."""

    text: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Speech:
    """A piece of synthesised audio: samples, or raw little-endian int16 bytes cut anywhere."""

    pcm: Pcm16 | bytes
    words: tuple[SpokenWord, ...] = ()


class Synthesiser(Protocol):
    """Text to speech.

    Attributes:
        sample_rate: Rate of what it yields, Hz.
        max_chars: Longest text one call takes; longer text is cut before.

    One that has several voices may say so with an attribute ``voices``, a collection of their names.
    """

    name: str
    sample_rate: int
    max_chars: int

    def synthesise(self, text: str, scope: Scope, *, voice: str | None = None) -> AsyncIterator[Speech]:
        """Speak one clause or sentence of speakable text. An async generator: closing it aborts.

        Raises:
            BadRequest: Unknown voice, or text longer than ``max_chars``.
            EngineFailed: The engine failed.
        """


# ---------------------------------------------------------------- transports


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a transport's client can do with the agent's audio.

    Attributes:
        playout: ``"can_pause"``: the transport pulls audio at the ear's pace (nothing is ahead), so silence is
            immediate and reversible. ``"flush_only"``: audio is pushed ahead into the client's buffer; it can be
            dropped, not paused.
        sample_rate: Rate of the audio the transport wants, Hz.
        ahead_s: How far the sender may be ahead of the client's ear, in seconds (push only).
        burst_s: What may be sent at once at the start of an answer, in seconds (push only).
        reports_position: The transport calls ``session.playout.report(position)``; otherwise it is estimated
            from the clock and what was sent.
        delay_s: Fixed delay between the transport and the ear (device buffers), subtracted from the position.
    """

    playout: Literal["can_pause", "flush_only"]
    sample_rate: int = 24_000
    ahead_s: float = 0.4
    burst_s: float = 0.4
    reports_position: bool = False
    delay_s: float = 0.0


@runtime_checkable
class Transport(Protocol):
    """The side of a transport that a session calls. Input comes the other way, through ``session.hear`` and friends.

    A ``can_pause`` transport takes audio from ``session.playout.read`` on its own clock and leaves ``send_audio``
    and ``clear_audio`` unused.
    """

    capabilities: Capabilities

    async def send_audio(self, pcm: Pcm16, response_id: str) -> None:
        """Send audio towards the ear. Waits while the peer does not take it; the session bounds that wait."""

    def clear_audio(self) -> None:
        """Drop what the client holds. Called once at an interruption; must not wait."""


@dataclass(frozen=True, slots=True)
class Stages:
    """The engines of an agent. All may be shared by any number of sessions.

    Attributes:
        fallback_model: Answers when ``model`` fails; ``None``: nobody does.
        fallback_synthesiser: Speaks when ``synthesiser`` fails, with its default voice and to the end of that answer;
            ``None``: nobody does.
        turn: Tells from the sound whether the user is done; ``None``: silence and words decide.
        guesses: Bounds the work that starts before turns are certain, over all sessions of these stages.
        small_recogniser: Hears in place of ``recogniser`` when that fails, or when the load stays too high; quicker
            and less exact. ``None``: there is none.
        service: Measures the load of these stages over all sessions, gives up what can be spared when it stays too
            high, and remembers which engines are dead.
    """

    detector: VoiceDetector
    recogniser: Recogniser
    model: LanguageModel
    synthesiser: Synthesiser
    fallback_model: LanguageModel | None = None
    turn: TurnModel | None = None
    guesses: GuessBudget = field(default_factory=GuessBudget, compare=False)
    small_recogniser: Recogniser | None = None
    service: Service = field(default_factory=Service, compare=False)
    fallback_synthesiser: Synthesiser | None = None

    def __post_init__(self) -> None:
        self.guesses.ceiling = self.service.most_guessed
        if self.small_recogniser is not None:
            self.service.small_recogniser = True
        self.service.engine("detector", self.detector)
        if self.turn is not None:
            self.service.engine("turn", self.turn)
