"""Speech that spells its words in the height of its samples, a recogniser that reads them, and a user who speaks so.

A word is 0.25 s long, and dies away after that, as a voice does that is no steady noise. What was cut off at an end of
the audio reads as another word, as it does in real speech; so does a word that was cut in two.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from voice.agent import Agent
from voice.batching import Batcher, BatcherStats
from voice.errors import EngineFailed
from voice.events import SessionEvent, UserPartial, UserSaid
from voice.interfaces import ASR_RATE_HZ, Pcm16, RecogniserCapabilities, Stages, Transcript
from voice.options import TurnOptions
from voice.scope import Priority, Scope
from voice.service import Service
from voice.session import Session
from voice.testing import PullClient, ScriptedDetector, ScriptedModel, ToneSynthesiser

E = TypeVar("E", bound=SessionEvent)
WORD_S, TAIL_S, GAP_S = 0.25, 0.06, 0.05
PERIOD_S = WORD_S + TAIL_S + GAP_S
_LOWEST, _STEP, _TAIL = 2000, 20, 500


def spell(words: Sequence[int], gap_s: float = GAP_S) -> Pcm16:
    """Speech of words by their numbers, 0 to 1500, without a pause."""
    tail = np.full(int(TAIL_S * ASR_RATE_HZ), _TAIL, np.int16)
    tail[1::2] *= -1
    gap = np.zeros(int(gap_s * ASR_RATE_HZ), np.int16)
    pieces: list[Pcm16] = []
    for number in words:
        wave = np.full(int(WORD_S * ASR_RATE_HZ), _LOWEST + _STEP * number, np.int16)
        wave[1::2] *= -1
        pieces += [wave, tail, gap]
    return np.concatenate(pieces)


def text_of(words: Sequence[int]) -> str:
    """What the recogniser makes of them."""
    return " ".join(f"w{number}" for number in words)


def read(audio: Pcm16) -> str:
    """The words in audio; of one that is not whole, ``cut``."""
    heights = np.abs(audio.astype(np.int32))
    edges = np.flatnonzero(np.diff(heights)) + 1
    words = []
    for start, end in zip([0, *edges], [*edges, heights.size], strict=True):
        if end > start and heights[start] >= _LOWEST:
            number = (heights[start] - _LOWEST) // _STEP
            whole = end - start == int(WORD_S * ASR_RATE_HZ)
            words.append(f"w{number}" if whole else f"cut{number}")
    return " ".join(words)


@dataclass(frozen=True)
class Asked:
    """A call of the recogniser; loop times."""

    at: float
    session: str
    priority: Priority
    audio_s: float
    language: str | None


@dataclass
class Speller:
    """A :class:`~voice.interfaces.Recogniser` that reads what :func:`spell` wrote.

    Args:
        delay_s: Of a call, without a batcher.
        batcher: Takes the calls, if there is one; runs :func:`read_all`.
        answer: Changes what was read; may raise.
    """

    delay_s: float | Callable[[Priority], float] = 0.12
    batcher: Batcher[Pcm16, str] | None = None
    answer: Callable[[Transcript, Asked], Transcript] = lambda transcript, asked: transcript
    capabilities: RecogniserCapabilities = field(default_factory=RecogniserCapabilities)
    name: str = "speller"
    asked: deque[Asked] = field(default_factory=lambda: deque(maxlen=5000))
    running: dict[str, int] = field(default_factory=dict)
    most_running: int = 0
    took_s: dict[Priority, list[float]] = field(default_factory=lambda: {one: [] for one in Priority})

    @property
    def stats(self) -> BatcherStats | None:
        return None if self.batcher is None else self.batcher.stats

    async def transcribe(
        self, audio: Pcm16, scope: Scope, *, language: str | None = None, hints: Sequence[str] = ()
    ) -> Transcript:
        scope.check()
        session, seconds = scope.identity.session, audio.size / ASR_RATE_HZ
        asked = Asked(asyncio.get_running_loop().time(), session, scope.priority, seconds, language)
        self.asked.append(asked)
        self.running[session] = self.running.get(session, 0) + 1
        self.most_running = max(self.most_running, self.running[session])
        try:
            if self.batcher is not None:
                text = await self.batcher.submit(audio, scope)
            else:
                delay = self.delay_s
                await asyncio.sleep(delay(scope.priority) if callable(delay) else delay)
                text = read(audio)
        finally:
            self.running[session] -= 1
        self.took_s[scope.priority].append(asyncio.get_running_loop().time() - asked.at)
        return self.answer(Transcript(text, language or self.capabilities.languages[0]), asked)

    def of(self, priority: Priority) -> list[Asked]:
        """The calls of a class."""
        return [asked for asked in self.asked if asked.priority is priority]


def read_all(batch: Sequence[Pcm16]) -> list[str]:
    """:func:`read` for a batch."""
    return [read(audio) for audio in batch]


def failing(transcript: Transcript, asked: Asked) -> Transcript:
    """An answer that is none."""
    raise EngineFailed("the speller fails as it was told to")


class Speaker:
    """One session and its user, who speaks in words by number.

    Attributes:
        events: What the session told, with the user's time.
    """

    def __init__(
        self,
        recogniser: Speller,
        *,
        options: TurnOptions | None = None,
        service: Service | None = None,
        session_id: str = "s0",
        detector: Any = None,
        **agent: Any,
    ) -> None:
        self.model, self.synthesiser = ScriptedModel(), ToneSynthesiser()
        self.stages = Stages(
            detector or ScriptedDetector(speech_rms=300.0),
            recogniser,
            self.model,
            self.synthesiser,
            service=service or Service(),
        )
        self.agent = Agent("Be kind.", self.stages, turns=options or TurnOptions(partials=True), **agent)
        self.client = PullClient()
        self.events: list[tuple[float, SessionEvent]] = []
        self.session = Session(self.agent, self.client, session_id=session_id, on_event=self._told)

    def _told(self, event: SessionEvent) -> None:
        self.events.append((self.client.now_s, event))

    def say(self, at_s: float, words: Sequence[int], gap_s: float = GAP_S) -> float:
        """Speak; returns when the last word has died away."""
        speech = spell(words, gap_s)
        self.client.say(speech, at_s=at_s)
        return at_s + speech.size / ASR_RATE_HZ - gap_s

    async def to(self, at_s: float) -> None:
        await self.client.run(at_s - self.client.now_s)

    def of(self, kind: type[E]) -> list[E]:
        return [event for _, event in self.events if isinstance(event, kind)]

    def times(self, kind: type[SessionEvent]) -> list[float]:
        return [at for at, event in self.events if isinstance(event, kind)]

    @property
    def partials(self) -> list[UserPartial]:
        return self.of(UserPartial)

    @property
    def said(self) -> list[str]:
        return [event.text for event in self.of(UserSaid)]


@asynccontextmanager
async def speaking(*speakers: Speaker) -> AsyncIterator[None]:
    """All their conversations, from the start to the end."""
    for one in speakers:
        await one.session.start()
        one.client.attach(one.session)
    try:
        yield
    finally:
        for one in speakers:
            await one.session.close()
