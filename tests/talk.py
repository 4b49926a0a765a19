"""One conversation with fakes, run in virtual time, and what there is to see of it afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from voice.agent import Agent
from voice.chat import AgentEntry
from voice.events import ResponseEnded, SessionEvent
from voice.interfaces import LanguageModel, Pcm16, Recogniser, Stages, Synthesiser, VoiceDetector
from voice.scope import Scope
from voice.session import Session
from voice.testing import (
    PullClient,
    PushClient,
    ScriptedDetector,
    ScriptedModel,
    ScriptedRecogniser,
    ToneSynthesiser,
    tone_runs,
    words_heard,
)

E = TypeVar("E")
RATE_HZ = 24_000
ONE_TO_FORTY = " ".join(f"word{n}" + "." * (n % 5 == 0) for n in range(1, 41))
"""Forty words in sentences of five: eight seconds."""


class WatchedDetector(ScriptedDetector):
    """Takes loud windows for speech and notes when the second in a row was judged: the edge "the user speaks"."""

    def __init__(self) -> None:
        super().__init__()
        self.edges: list[float] = []
        self._run = 0

    def judge(self, window: Pcm16, index: int) -> float:
        probability = super().judge(window, index)
        self._run = self._run + 1 if probability > 0.5 else 0
        if self._run == 2:  # start_s is 60 ms, a window 32 ms
            self.edges.append(asyncio.get_running_loop().time())
        return probability


def make_agent(
    replies: Sequence[Any] | LanguageModel = ("Okay.",),
    *,
    said: Sequence[str] = ("Hello there.", "And one more?", "One more."),
    recogniser: Recogniser | None = None,
    synthesiser: Synthesiser | None = None,
    detector: VoiceDetector | None = None,
    fallback: LanguageModel | None = None,
    **agent: Any,
) -> Agent:
    """An agent of fakes. ``replies``: a script for :class:`ScriptedModel`, or a model."""
    model = ScriptedModel(replies) if isinstance(replies, Sequence) else replies
    stages = Stages(
        detector or WatchedDetector(),
        recogniser or ScriptedRecogniser(list(said)),
        model,
        synthesiser or ToneSynthesiser(),
        fallback,
    )
    return Agent("be brief", stages, **agent)


@dataclass
class Talk:
    """A running conversation. ``events`` are pairs of loop time and event."""

    session: Session
    client: PullClient | PushClient
    events: list[tuple[float, SessionEvent]] = field(default_factory=list)

    def of(self, kind: type[E]) -> list[E]:
        """The events of one kind."""
        return [event for _, event in self.events if isinstance(event, kind)]

    def times_of(self, kind: type[Any]) -> list[float]:
        """When events of one kind came, in loop time."""
        return [at for at, event in self.events if isinstance(event, kind)]

    @property
    def words(self) -> list[tuple[int, int]]:
        """Turn and number of words, as heard by the client's ear."""
        return [(turn, words) for _, turn, words in words_heard(self.client.heard, RATE_HZ)]

    @property
    def sounds(self) -> list[tuple[float, float]]:
        """Start and end of each stretch of sound of the agent, on the client's timeline."""
        return [(run.start_s, run.end_s) for run in tone_runs(self.client.heard, RATE_HZ) if run.hz >= 400]

    @property
    def agent_entries(self) -> list[AgentEntry]:
        """What the history holds of the agent."""
        return [entry for entry in self.session.chat.entries if isinstance(entry, AgentEntry)]

    @property
    def ended(self) -> ResponseEnded:
        """How the newest answer ended."""
        return self.of(ResponseEnded)[-1]


@asynccontextmanager
async def talk(
    agent: Agent,
    client: PullClient | PushClient | None = None,
    *,
    session_id: str = "s0",
    scope: Scope | None = None,
    **session: Any,
) -> AsyncIterator[Talk]:
    """Open a session with a client attached; it is closed at the end."""
    loop = asyncio.get_running_loop()
    client = client or PullClient()
    events: list[tuple[float, SessionEvent]] = []
    live = Session(
        agent,
        client,
        session_id=session_id,
        scope=scope,
        on_event=lambda event: events.append((loop.time(), event)),
        **session,
    )
    async with live:
        client.attach(live)
        yield Talk(live, client, events)


def longest_silence_s(it: Talk, start_s: float, end_s: float) -> float:
    """The longest stretch without the agent's voice between two times of the client's timeline."""
    longest, since = 0.0, start_s
    for begin, end in [*it.sounds, (end_s, end_s)]:
        if begin > start_s:
            longest = max(longest, min(begin, end_s) - since)
        since = max(since, end)
    return longest
