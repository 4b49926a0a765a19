"""A whole conversation for a case: a real session, fake engines and a scripted caller, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar

from voice.agent import Agent
from voice.chat import AgentEntry, UserEntry
from voice.events import Problem, SessionEvent
from voice.interfaces import Recogniser, Stages
from voice.session import Session
from voice.testing import (
    PullClient,
    PushClient,
    ScriptedDetector,
    ScriptedModel,
    ScriptedRecogniser,
    ToneSynthesiser,
    WordRun,
    speak,
    tone_for,
    tone_runs,
    words_heard,
)

E = TypeVar("E")
Kind = Literal["pull", "push"]
KINDS: tuple[Kind, Kind] = ("pull", "push")
"""A client that can pause, and one that can only flush."""


class Conversation:
    """One session and its caller. ``async with`` starts it; the caller then lives until the time :meth:`to` is told.

    Args:
        kind: The client's kind.
        texts: Hz → what the recogniser makes of a stretch of user speech at that pitch.
        model, synthesiser, recogniser, detector: Engines; fakes with their defaults when ``None``.
        client: A client of one's own.
        session_id: Its digits pick the session's tone.
        on_event: Called with each event beside the record.
        agent: Further arguments of :class:`~voice.agent.Agent`.

    Attributes:
        events: What the session told, with the client's time.
    """

    def __init__(
        self,
        kind: Kind = "pull",
        *,
        texts: dict[int, str] | None = None,
        model: Any = None,
        synthesiser: Any = None,
        recogniser: Recogniser | None = None,
        detector: Any = None,
        client: PullClient | PushClient | None = None,
        session_id: str = "s0",
        on_event: Callable[[SessionEvent], None] | None = None,
        instructions: str = "Be kind.",
        **agent: Any,
    ) -> None:
        self.model: ScriptedModel = model or ScriptedModel()
        self.synthesiser: ToneSynthesiser = synthesiser or ToneSynthesiser()
        self.recogniser: Any = recogniser or ScriptedRecogniser(texts or {220: "Hello there."})
        stages = Stages(detector or ScriptedDetector(), self.recogniser, self.model, self.synthesiser)
        self.agent = Agent(instructions, stages, **agent)
        self.client = client or (PullClient() if kind == "pull" else PushClient())
        self.events: list[tuple[float, SessionEvent]] = []
        self._on_event = on_event
        self.session = Session(self.agent, self.client, session_id=session_id, on_event=self._told)

    def _told(self, event: SessionEvent) -> None:
        self.events.append((self.client.now_s, event))
        if self._on_event is not None:
            self._on_event(event)

    async def __aenter__(self) -> Conversation:
        await self.session.start()
        self.client.attach(self.session)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.session.close()

    # ------------------------------------------------------------ the caller

    def say(self, at_s: float, seconds: float, hz: int = 220) -> None:
        """The caller speaks."""
        self.client.say(speak(seconds, hz), at_s=at_s)

    async def to(self, at_s: float) -> None:
        """Go on to that second of the conversation."""
        await self.client.run(at_s - self.client.now_s)

    async def until(self, kind: type[SessionEvent], count: int = 1, *, within_s: float = 30.0) -> float:
        """Go on until ``count`` events of ``kind`` have come; returns the time of the last."""
        end = self.client.now_s + within_s
        while len(self.of(kind)) < count:
            assert self.client.now_s < end, f"no {kind.__name__} number {count} within {within_s} s"
            await self.client.run(0.02)
        return self.times(kind)[count - 1]

    # ------------------------------------------------------------ what came of it

    def of(self, kind: type[E]) -> list[E]:
        """The events of a kind."""
        return [event for _, event in self.events if isinstance(event, kind)]

    def times(self, kind: type[SessionEvent]) -> list[float]:
        """When the events of a kind came, on the client's timeline."""
        return [at for at, event in self.events if isinstance(event, kind)]

    @property
    def problems(self) -> list[str]:
        return [p.message for p in self.of(Problem)]

    @property
    def heard(self) -> list[WordRun]:
        """Whose words the caller heard: session, turn, words."""
        return words_heard(self.client.heard, self.client.rate)

    def sound_of(self, turn: int, session: int = 0) -> list[tuple[float, float]]:
        """When the caller heard the tone of a turn."""
        runs = tone_runs(self.client.heard, self.client.rate)
        return [(r.start_s, r.end_s) for r in runs if r.hz == tone_for(session, turn)]

    @property
    def user_texts(self) -> list[str]:
        return [e.text for e in self.session.chat.entries if isinstance(e, UserEntry)]

    @property
    def agent_entries(self) -> list[AgentEntry]:
        return [e for e in self.session.chat.entries if isinstance(e, AgentEntry)]


WORDS = (
    "alpha",
    "bravo",
    "charlie",
    "delta",
    "echo",
    "foxtrot",
    "golf",
    "hotel",
    "india",
    "juliet",
    "kilo",
    "lima",
)


def words(count: int, ends: Sequence[int] = ()) -> str:
    """A reply of ``count`` words; a sentence ends after each word numbered in ``ends`` (from 1)."""
    return " ".join(WORDS[i % len(WORDS)] + ("." if i + 1 in ends else "") for i in range(count))
