"""Callers who speak by the clock, without a sample of audio: when they begin, pause, nod, barge in and hang up is drawn
from a seed, and they write down when they first hear each answer.

No task and no timer per frame: a caller costs a few callbacks a turn.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from loadtest.drawn_ear import DrawnEar, give_drawn_ear
from loadtest.drawn_stages import NOD, RATE_HZ, SENTENCE
from loadtest.profile import Profile
from voice.agent import Agent
from voice.events import AudioStarted, ResponseEnded, SessionEnded, SessionEvent
from voice.interfaces import Capabilities, Pcm16
from voice.playout import Playout, Track
from voice.scope import Scope
from voice.session import Session

_FRAME_S = 0.02
"""The first sample of an answer is heard as a frame of so much."""


@dataclass(frozen=True, slots=True)
class Habits:
    """How callers behave; pairs are the bounds of an even draw, shares are 0–1.

    Attributes:
        speech_s: Length of what they say.
        think_s: Between an answer's end and their next words.
        hesitates: Share of their turns with a pause of ``hesitation_s`` in the middle.
        barges_in: Share of answers that they talk into, ``into_s`` after its first sound.
        nods: Share of answers that they nod to.
        patience_s: Without an answer for so long they say something again.
    """

    speech_s: tuple[float, float] = (1.0, 4.0)
    think_s: tuple[float, float] = (0.5, 2.5)
    hesitates: float = 0.1
    hesitation_s: tuple[float, float] = (0.5, 1.0)
    barges_in: float = 0.1
    into_s: tuple[float, float] = (1.0, 4.0)
    nods: float = 0.1
    patience_s: float = 30.0


@dataclass(slots=True)
class Heard:
    """What callers heard, all of them together.

    Attributes:
        turns: (when the caller's speech ended, seconds from there to the first sound of the answer).
        unanswered: Turns without an answer within the caller's patience.
        barge_ins: Answers that were talked into.
        apologies: Answers with an error.
    """

    turns: list[tuple[float, float]] = field(default_factory=list)
    unanswered: int = 0
    barge_ins: int = 0
    apologies: int = 0


class Line:
    """A transport that takes audio at the ear's pace, but looks only when that can matter: at the first of an answer,
    when what was made must have been heard, and when its caller is about to speak (:meth:`catch_up`)."""

    def __init__(self, rate_hz: int = RATE_HZ) -> None:
        self.capabilities = Capabilities("can_pause", rate_hz)
        self._rate_hz = rate_hz
        self._loop = asyncio.get_running_loop()
        self._playout: Playout | None = None
        self._track: Track | None = None
        self._since = 0.0  # the ear had the sample ``_base`` of the track then
        self._base = 0
        self._timer: asyncio.TimerHandle | None = None
        self._woken = False

    def attach(self, playout: Playout) -> None:
        """Listen to a session."""
        self._playout = playout
        playout.on_more = self._more

    def _more(self) -> None:
        if not self._woken and self._timer is None:
            self._woken = True
            self._loop.call_soon(self.catch_up)

    def catch_up(self) -> None:
        """Take what the ear has had by now, and plan when to look again."""
        self._woken = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        playout, now = self._playout, self._loop.time()
        track = None if playout is None else playout.track
        if playout is None or track is None or playout.held or not track.made:
            self._track = None
            return
        if track is not self._track:  # a new answer, or one that goes on
            self._track, self._since, self._base = track, now - _FRAME_S, track.taken
        due = self._base + round((now - self._since) * self._rate_hz)
        if due > track.taken:
            playout.read(due - track.taken)
        if playout.track is not track:
            self._track = None
        elif track.taken < track.made:
            self._timer = self._loop.call_at(
                self._since + (track.made - self._base) / self._rate_hz, self.catch_up
            )
        else:
            self._track = None  # all is heard, or it ran dry: the clock starts anew with what comes

    async def send_audio(self, pcm: Pcm16, response_id: str) -> None:
        """Nothing is pushed to a line that pulls."""
        raise AssertionError("audio was pushed to a line that pulls")

    def clear_audio(self) -> None:
        """Nothing is held here."""


class SimulatedCaller:
    """One conversation. Use :meth:`call`, later :meth:`hang_up`.

    Args:
        agent: Who is called.
        session_id: Names the session.
        profile: For the detector's delays.
        habits: How the caller behaves.
        heard: Where it is written down.
        chance: Draws.
        delay: What the event loop of the session's worker adds to an edge.
        rate_hz: Of the audio it hears.
    """

    def __init__(
        self,
        agent: Agent,
        session_id: str,
        profile: Profile,
        habits: Habits,
        heard: Heard,
        chance: random.Random,
        delay: Callable[[str], float],
        rate_hz: int = RATE_HZ,
    ) -> None:
        self.line = Line(rate_hz)
        self.session = Session(agent, self.line, session_id=session_id, on_event=self._told)
        self._profile, self._habits, self._heard = profile, habits, heard
        self._chance, self._delay = chance, delay
        self._noticed = random.Random(chance.random())  # of its own: real callers draw no delays
        self._ear: DrawnEar | None = None
        self._loop = asyncio.get_running_loop()
        self._waits_since: float | None = None  # the end of its speech, until it hears the answer
        self._speaks_until = 0.0
        self._next: asyncio.TimerHandle | None = None  # what it says next
        self._answers = 0

    async def call(self, scope: Scope) -> None:
        """Begin; the first words come soon."""
        self.session._process = scope
        await self.session.start()
        self._ear = give_drawn_ear(self.session)
        self.line.attach(self.session.playout)
        self._plan(self._chance.uniform(*self._habits.think_s), self._speak)

    async def hang_up(self) -> None:
        """End the call."""
        if self._next is not None:
            self._next.cancel()
        await self.session.close()

    def _plan(self, after_s: float, what: Callable[[], None]) -> None:
        if self._next is not None:
            self._next.cancel()
        self._next = self._loop.call_later(after_s, what)

    # ------------------------------------------------------------ speaking

    def _speak(self) -> None:
        chance, habits = self._chance, self._habits
        length_s = chance.uniform(*habits.speech_s)
        start = self._loop.time()
        if chance.random() < habits.hesitates:
            first_s = length_s / 2
            self._say(start, first_s, SENTENCE)
            start += first_s + chance.uniform(*habits.hesitation_s)
            length_s -= first_s
        self._say(start, length_s, SENTENCE)
        self._waits_since = self._speaks_until = start + length_s
        self._plan(start + length_s + habits.patience_s - self._loop.time(), self._lost_patience)

    def _say(self, start: float, length_s: float, level: int) -> None:
        """Speech from ``start`` on: its edges are noticed when a detector would have, and the loop was free."""
        assert self._ear is not None
        profile = self._profile
        began = start + profile.start_delay_s.at(self._noticed.random())
        ended = start + length_s + profile.pause_delay_s.at(self._noticed.random())
        self._loop.call_at(began, self._edge, self._ear.hear_began, start, level)
        self._loop.call_at(ended, self._edge, self._ear.hear_paused, start + length_s)

    def _edge(self, hear: Callable[..., None], *what: float) -> None:
        """The detector has noticed; the session is told when its event loop gets there."""
        self._loop.call_later(self._delay(self.session.session_id), self._tell, hear, *what)

    def _tell(self, hear: Callable[..., None], *what: float) -> None:
        self.line.catch_up()
        hear(*what)
        self.line.catch_up()

    def _lost_patience(self) -> None:
        self._heard.unanswered += 1
        self._speak()

    # ------------------------------------------------------------ hearing

    def _told(self, event: SessionEvent) -> None:
        match event:
            case AudioStarted():
                self._hears()
            case ResponseEnded():
                self._heard.apologies += event.error is not None
                own_words_follow = event.reason in ("barge_in", "resumed")  # and an answer to them
                if self._loop.time() >= self._speaks_until and not own_words_follow:
                    if self._waits_since is not None:  # an older answer may have gone on over its last words
                        self._heard.unanswered += not event.heard
                        self._waits_since = None
                    self._plan(self._chance.uniform(*self._habits.think_s), self._speak)
            case SessionEnded():
                if self._next is not None:
                    self._next.cancel()

    def _hears(self) -> None:
        now, chance, habits = self._loop.time(), self._chance, self._habits
        if self._waits_since is None or now < self._speaks_until:
            return
        self._heard.turns.append((self._waits_since, now - self._waits_since))
        self._waits_since = None
        if chance.random() < habits.barges_in:
            self._heard.barge_ins += 1
            self._plan(chance.uniform(*habits.into_s), self._speak)
            return
        self._plan(habits.patience_s + 60.0, self._speak)  # the answer's end comes first
        if chance.random() < habits.nods:
            self._say(now + chance.uniform(*habits.into_s), 0.4, NOD)
