"""What does a session hear, and when does it say so? Callers who speak known utterances in real time, and a record of
every partial, final and recognition."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from loadtest.asr_corpus import Utterance, room, trimmed
from loadtest.asr_engines import LANGUAGE
from loadtest.pacer import Pacer
from voice.agent import Agent
from voice.audio import first_audible, last_audible
from voice.batching import BatcherStats
from voice.errors import VoiceError
from voice.events import Problem, SessionEvent, SpeechStarted, SpeechStopped, UserPartial, UserSaid
from voice.interfaces import ASR_RATE_HZ, Capabilities, Pcm16, Recogniser, Stages, Transcript
from voice.metrics import Counters
from voice.options import TurnOptions
from voice.scope import Priority, Scope
from voice.session import Session

FRAME_S = 0.02
_FRAME = int(FRAME_S * ASR_RATE_HZ)
LEAD_S = 1.5
"""Before the first utterance: the ear learns the room's noise."""
GAP_S = 1.4
"""After each at least, and until its turn is over: so each utterance is a turn, however slow the recogniser is…"""
PATIENCE_S = 15.0
"""…but no longer than this beyond it."""
_LONGEST_WAIT_S = 1.0
_AHEAD_S = 0.2
"""The pass of the final text begins at most so long before the pause is noticed."""
_BEFORE_S = 0.3
"""What is told so long before an utterance begins belongs to it, not to the one before."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One recognition; times are loop times. ``answered_s`` is ``None``: it was given up, or failed."""

    session: str
    priority: Priority
    asked_s: float
    answered_s: float | None
    audio_s: float


class Watched:
    """A recogniser of which every call is noted."""

    def __init__(self, inner: Recogniser) -> None:
        self._inner = inner
        self.name, self.capabilities = inner.name, inner.capabilities
        self.passes: list[Pass] = []

    @property
    def stats(self) -> BatcherStats | None:
        """Of the recogniser, if it has any."""
        stats = getattr(self._inner, "stats", None)
        return stats if isinstance(stats, BatcherStats) else None

    async def transcribe(
        self, audio: Pcm16, scope: Scope, *, language: str | None = None, hints: Sequence[str] = ()
    ) -> Transcript:
        """As the recogniser does."""
        now = asyncio.get_running_loop().time
        asked_s, priority, answered_s = now(), scope.priority, None
        try:
            transcript = await self._inner.transcribe(audio, scope, language=language, hints=hints)
            answered_s = now()
        finally:
            session, length_s = scope.identity.session, len(audio) / ASR_RATE_HZ
            self.passes.append(Pass(session, priority, asked_s, answered_s, length_s))
        return transcript


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """An utterance as it was said: the loop times of its first and last audible sample."""

    said: str
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Told:
    """A partial: when it came, of which turn it is, and its text, of which the beginning is settled."""

    item_id: str
    at_s: float
    text: str
    settled: str


@dataclass(frozen=True, slots=True)
class Talk:
    """What came of one utterance; times in loop time.

    Attributes:
        said: The words.
        began_s, ended_s: Its first and last audible sample.
        partials: What was told before its last pause.
        edge_s: When its last pause was noticed; ``None``: never.
        final_s: When the recognition of all of it was there.
        finals: What was certain at last, by turn; one, unless it was taken for several turns or none.
        passes: Recognitions of its partials: asked for, and answered.
    """

    said: str
    began_s: float
    ended_s: float
    partials: tuple[Told, ...]
    edge_s: float | None
    final_s: float | None
    finals: dict[str, str]
    passes: tuple[int, int]


class Talker:
    """A transport whose caller speaks utterances one after another, in a quiet room.

    Args:
        name: Of the session.
        utterances: What is said, in order.
        seed: Of the room and the gaps.
    """

    capabilities = Capabilities("can_pause")

    def __init__(self, name: str, utterances: Sequence[Utterance], seed: int) -> None:
        self.name = name
        self.events: list[tuple[float, SessionEvent]] = []
        self.counters = Counters()
        self.lines: list[Line] = []
        self._rng = np.random.default_rng(seed)
        self._room = room(0.1, self._rng)
        self._left = list(reversed(utterances))
        self._sound: Pcm16 = room(LEAD_S + self._rng.uniform(0.0, 1.0), self._rng)  # what is being sent
        self._at = 0
        self._next_s = 0.0  # loop time before which the next utterance does not begin
        self._session: Session | None = None
        self._failed: VoiceError | None = None
        self._done = asyncio.Event()

    async def send_audio(self, pcm: Pcm16, response_id: str) -> None:
        """Nobody answers."""

    def clear_audio(self) -> None:
        """There is nothing to drop."""

    async def talk(self, stages: Stages, options: TurnOptions, pacer: Pacer, number: int) -> None:
        """Say everything at the pacer's pace.

        Raises:
            VoiceError: The session could not be started, or takes no more audio.
        """
        agent = Agent("You listen.", stages, turns=options)
        session = Session(agent, self, session_id=self.name, on_event=self._note, language=LANGUAGE)
        async with session:
            self._session = session
            pacer.add(self._tick, number)
            try:
                await self._done.wait()
            finally:
                pacer.remove(self._tick)
            self.counters = session.counters
        if self._failed is not None:
            raise self._failed

    def _note(self, event: SessionEvent) -> None:
        self.events.append((asyncio.get_running_loop().time(), event))

    def _tick(self, due_s: float) -> None:
        """The frame that is complete at ``due_s``."""
        assert self._session is not None
        if self._at >= len(self._sound):
            self._sound, self._at = self._room, 0
            if self._may_go_on(due_s):
                if not self._left or self._session.ended is not None:
                    self._done.set()
                    return
                self._speak(self._left.pop(), due_s - FRAME_S)
        try:
            self._session.hear(self._sound[self._at : self._at + _FRAME])
        except VoiceError as error:  # the pacer has other callers to tick
            self._failed = error
            self._done.set()
        self._at += _FRAME

    def _may_go_on(self, now: float) -> bool:
        """Whether the last turn is over, its words included; or was waited for long enough."""
        assert self._session is not None
        over = self._session.is_quiet() and not self._session.taker.closing
        return now >= self._next_s and (over or now >= self._next_s + PATIENCE_S)

    def _speak(self, utterance: Utterance, now: float) -> None:
        sound = trimmed(utterance.audio)
        first = first_audible(sound, ASR_RATE_HZ) or 0
        last = last_audible(sound, ASR_RATE_HZ) or len(sound)
        self.lines.append(Line(utterance.text, now + first / ASR_RATE_HZ, now + last / ASR_RATE_HZ))
        self._sound = np.concatenate([sound, self._room[: -len(sound) % _FRAME]])
        self._next_s = now + last / ASR_RATE_HZ + GAP_S + self._rng.uniform(0.0, 0.4)

    def talks(self, passes: Sequence[Pass]) -> list[Talk]:
        """What came of each utterance."""
        own = [one for one in passes if one.session == self.name]
        starts = [line.began_s - _BEFORE_S for line in self.lines]
        ends = [*starts[1:], float("inf")]
        return [
            self._talk(line, own, since_s, until_s)
            for line, since_s, until_s in zip(self.lines, starts, ends, strict=True)
        ]

    def _talk(self, line: Line, passes: Sequence[Pass], since_s: float, until_s: float) -> Talk:
        """What was told of the turns that began between two times, and recognised meanwhile."""
        items = {item for item, at_s in self._items().items() if since_s <= at_s < until_s}
        events = [(at_s, event) for at_s, event in self.events if getattr(event, "item_id", None) in items]
        edges = [at_s for at_s, event in events if isinstance(event, SpeechStopped)]
        certain = [at_s for at_s, event in events if isinstance(event, UserSaid)]
        certain_s = certain[-1] if certain else until_s
        edge_s = max((at_s for at_s in edges if at_s <= certain_s), default=None)
        mine = [one for one in passes if since_s <= one.asked_s < until_s]
        partial = [one for one in mine if one.priority >= Priority.PARTIAL]
        # Asked for at the edge, in the same turn of the loop or just after it, or shortly before: when the voice fell
        # silent. One that is answered before the edge makes nobody wait.
        whole = [
            max(one.answered_s, edge_s)
            for one in mine
            if one.priority < Priority.PARTIAL
            and one.answered_s is not None
            and edge_s is not None
            and edge_s - _AHEAD_S <= one.asked_s
            and one.answered_s <= certain_s + FRAME_S
        ]
        return Talk(
            line.said,
            line.began_s,
            line.ended_s,
            tuple(
                Told(event.item_id, at_s, event.text, event.stable)
                for at_s, event in events
                if isinstance(event, UserPartial) and (edge_s is None or at_s < edge_s)
            ),
            edge_s,
            max(whole, default=certain_s if certain else None),
            {event.item_id: event.text for _, event in events if isinstance(event, UserSaid)},
            (len(partial), sum(one.answered_s is not None for one in partial)),
        )

    def _items(self) -> dict[str, float]:
        """When each turn began."""
        began: dict[str, float] = {}
        for at_s, event in self.events:
            if isinstance(event, SpeechStarted):
                began.setdefault(event.item_id, at_s)
        return began

    @property
    def problems(self) -> list[str]:
        """What the session complained of."""
        return [event.message for _, event in self.events if isinstance(event, Problem)]


def listening_options(partials: bool) -> TurnOptions:
    """Turns that are not answered, and certain soon: the next utterance comes after a set gap."""
    return replace(TurnOptions(), respond=False, idle_s=None, max_delay_s=_LONGEST_WAIT_S, partials=partials)


@dataclass
class Talks:
    """What came of a crowd, by caller."""

    by_caller: list[list[Talk]] = field(default_factory=list)
    counters: list[Counters] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    late_s: float = 0.0

    @property
    def all(self) -> list[Talk]:
        """Of everybody."""
        return [talk for talks in self.by_caller for talk in talks]


async def talk_at_once(
    stages: Stages, utterances: Sequence[Sequence[Utterance]], options: TurnOptions, seed: int
) -> Talks:
    """Each caller says its utterances in a session of its own, all at the same time."""
    watched = Watched(stages.recogniser)
    heard_by = replace(stages, recogniser=watched)
    talkers = [Talker(f"caller-{n}", said, seed + n) for n, said in enumerate(utterances)]
    pacer = Pacer(FRAME_S)
    pacer.start()
    try:
        calls = (talker.talk(heard_by, options, pacer, number) for number, talker in enumerate(talkers))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    finally:
        pacer.stop()
    for failure in (one for one in outcomes if one is not None):
        raise failure
    return Talks(
        [talker.talks(watched.passes) for talker in talkers],
        [talker.counters for talker in talkers],
        [problem for talker in talkers for problem in talker.problems],
        pacer.worst_s,
    )
