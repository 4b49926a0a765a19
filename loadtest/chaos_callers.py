"""Callers and owners who do anything at any time, lines that fail, and what must hold whatever happens.

Each caller checks what it hears and what its session tells: answers one at a time, each ended within its deadline,
never a sound of an answer that was cut, never a word or sound of another session's.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any

import numpy as np

from loadtest.chaos_stages import CALLER, FIRST_CODE, NEUTRAL, RATE_HZ, codes_in, letters
from loadtest.chaos_trouble import Trouble
from loadtest.drawn_ear import DrawnEar, give_drawn_ear
from voice.agent import Agent
from voice.chat import AgentEntry
from voice.errors import EngineFailed, VoiceError
from voice.events import (
    AudioStarted,
    ResponseEnded,
    ResponseMade,
    ResponseStarted,
    ResponseText,
    SessionEnded,
    SessionEvent,
    SpeechStarted,
    SpeechStopped,
    UserSaid,
)
from voice.executor import Executor
from voice.interfaces import Capabilities, Pcm16
from voice.options import Limits, SpeechOptions, TurnOptions
from voice.scope import Reason, Scope
from voice.session import Session
from voice.testing import check_prompt
from voice.turns import State

SPEECH = SpeechOptions(
    first_token_s=2.0,
    gap_s=1.0,
    first_audio_s=1.0,
    synthesis_s=2.0,
    timeout_s=25.0,
    max_tool_rounds=3,
    filler="Moment.",
)
LIMITS = Limits(send_stall_s=3.0, history_entries=40)
CALM_S = 45.0
"""Once nothing goes wrong any more, everything must be over within this."""
_WORDS_S = 60.0
"""Longest wait for the words of what was said: two tries of the recogniser, each 15 s and the speech."""
_SLACK_S = 3.0
_RAMP = round(0.005 * RATE_HZ)
_TICK_S = 0.1


class Violation(AssertionError):
    """Something happened that must not."""


class ChaosLine:
    """A caller's line: it pushes or is pulled, and fails now and then.

    Args:
        kind: The kind of playout.
        trouble: What fails.
        hear: Called with what the ear has had.
    """

    def __init__(self, kind: Any, trouble: Trouble, hear: Any) -> None:
        self.capabilities = Capabilities(kind, RATE_HZ)
        self.rests_until = 0.0  # a client that is pulled takes nothing before this
        self.full_until = 0.0  # a client that is pushed to has audio until then
        self.clear_failed = False
        self._clears = 0
        self._trouble, self._hear = trouble, hear

    async def send_audio(self, pcm: Pcm16, response_id: str) -> None:
        """See :class:`~voice.interfaces.Transport`."""
        trouble, loop, clears = self._trouble, asyncio.get_running_loop(), self._clears
        with trouble.call("line"):
            if trouble.strikes(trouble.rate / 40):
                kind = trouble.chance.choice(["stall", "reset", "bug", "slow", "slow", "slow", "cancelled"])
                kind = kind if trouble.wants(f"line {kind}") else "slow"
                trouble.note("line", kind)
                match kind:
                    case "stall":
                        await asyncio.Event().wait()
                    case "reset":
                        raise ConnectionResetError("the client is gone")
                    case "bug":
                        raise RuntimeError("the library has a bug")
                    case "cancelled":
                        raise asyncio.CancelledError
                    case _:
                        await asyncio.sleep(trouble.chance.uniform(0.1, 2.0))
        if clears != self._clears:
            return  # the clear went out behind this piece, and dropped it
        self.full_until = max(self.full_until, loop.time()) + pcm.size / RATE_HZ
        self._hear(pcm, 0)

    def clear_audio(self) -> None:
        """See :class:`~voice.interfaces.Transport`."""
        self._clears += 1  # what is on its way to a client that is gone is not heard either
        if self._trouble.strikes():
            self._trouble.note("line", "clear")
            self.clear_failed = True
            raise ConnectionResetError("the client is gone")
        self.full_until = 0.0

    def pull(self, session: Session) -> None:
        """A tick of the client that is pulled."""
        now, trouble = asyncio.get_running_loop().time(), self._trouble
        if now < self.rests_until:
            return
        if trouble.strikes(trouble.rate / 40):
            trouble.note("line", "rests")
            self.rests_until = now + trouble.chance.uniform(0.2, 5.0)
        self._hear(session.playout.read(round(_TICK_S * RATE_HZ)), _RAMP)


class ChaosCaller:
    """One caller and the owner of its session.

    Args:
        number: Names it, unique in a round.
        trouble: What goes wrong.
        asked_by: Which session asked for the answer of a code.
    """

    def __init__(
        self, number: int, agent: Agent, trouble: Trouble, asked_by: dict[int, str], rest: Any
    ) -> None:
        self.name = f"caller{letters(number)}"
        self.number, self._trouble, self._asked_by = number, trouble, asked_by
        self._chance = random.Random(f"{rest} {number}")
        self.trace: deque[tuple[float, str]] = deque(maxlen=40)
        self.turns = 0
        self.events = 0
        kind = self._chance.choice(["can_pause", "flush_only"])
        self.line = ChaosLine(kind, trouble, self._hear)
        self.session = Session(agent, self.line, session_id=self.name, on_event=self._told)
        self._ear: DrawnEar | None = None
        self._loop = asyncio.get_running_loop()
        self._live: str | None = None
        self._live_since = 0.0
        self._codes: set[int] = set()
        self._cut: dict[int, str] = {}  # code → answer that is over
        self._items: dict[str, float] = {}  # user items in progress, and when they last paused
        self._owed_since: float | None = None
        self._greeting: str | None = None

    # ------------------------------------------------------------ life

    async def start(self, scope: Scope, executor: Executor) -> None:
        """Begin the call."""
        self.session._process, self.session._executor = scope, executor
        options = TurnOptions(idle_s=self._chance.choice([None, 4.0]), echo_guard=False)
        self.session.options = options
        await self.session.start()
        self.session.chat.instructions = f"You are asked by {self.name}."
        self._ear = give_drawn_ear(self.session)

    async def act(self, seconds: float) -> None:
        """Do anything for so long."""
        end = self._loop.time() + seconds
        while self._loop.time() < end and self.session.ended is None:
            await self._one_thing()
            pause_s = self._chance.choice([0.02, 0.3, 1.0, 3.0, 8.0]) * self._chance.uniform(0.5, 1.5)
            await self._sleep(pause_s)
        assert self._ear is not None
        self._ear.hear_paused(self._loop.time())

    async def _sleep(self, seconds: float) -> None:
        """Let time pass, a tick at a time."""
        end = self._loop.time() + seconds
        while self._loop.time() < end:
            await asyncio.sleep(min(_TICK_S, max(0.0, end - self._loop.time())) or _TICK_S)
            self.tick()

    def tick(self) -> None:
        """Pull audio, and look whether all is well."""
        if self.session.ended is None and self.line.capabilities.playout == "can_pause":
            self.line.pull(self.session)
        if self.session.ended is None:  # the owner may hang up when it is told of the audio
            self.check()

    async def _one_thing(self) -> None:
        chance, session = self._chance, self.session
        act = chance.choices(
            (
                "speak",
                "speak and go on",
                "nod",
                "text",
                "key",
                "interrupt",
                "say",
                "ask",
                "options",
                "end",
                "gone",
            ),
            (40, 12, 8, 5, 3, 4, 4, 3, 3, 2, 1),
        )[0]
        self._note(act)
        try:
            match act:
                case "speak":
                    await self._speak(chance.uniform(0.3, 4.0))
                case "speak and go on":
                    for _ in range(chance.choice([2, 2, 3])):
                        await self._speak(chance.uniform(0.2, 1.5))
                        await self._sleep(chance.uniform(0.15, 1.2))
                case "nod":
                    await self._speak(0.25)
                case "text":
                    session.send_text(f"{self.name} writes.", answer=chance.random() < 0.8)
                case "key":
                    session.press(chance.choice("0123456789*#"))
                case "interrupt":
                    session.interrupt()
                case "say":
                    session.say("This is what I have to say.", interruptible=chance.random() < 0.8)
                case "ask":
                    session.respond()
                case "options":
                    self._other_options()
                case "end":
                    await self._end()
                case "gone":
                    self.session.scope.cancel(Reason.CLOSED)
        except VoiceError as error:
            self._note(f"refused: {error}")

    def _other_options(self) -> None:
        chance = self._chance
        options = TurnOptions(
            idle_s=chance.choice([None, 3.0]),
            echo_guard=False,
            speculate=chance.random() < 0.8,
            interrupt=chance.random() < 0.8,
            min_delay_s=chance.choice([0.2, 0.4, 0.8]),
            max_turn_s=chance.choice([2.0, 120.0]),
        )
        self.session.configure(options)

    async def _end(self) -> None:
        if self._chance.random() < 0.5:
            self.session.hang_up("enough")
        else:
            await self.session.close()

    async def _speak(self, seconds: float) -> None:
        assert self._ear is not None
        start = self._loop.time()
        await self._sleep(0.08)
        self._ear.hear_began(start, self.number)
        await self._sleep(seconds)
        self._ear.hear_paused(self._loop.time() - 0.13)

    # ------------------------------------------------------------ what it hears

    def _hear(self, pcm: Pcm16, ramp: int) -> None:
        body = pcm[ramp:]
        if not body.size:
            return
        for level in np.unique(body).tolist():
            if level in (0, NEUTRAL):
                continue
            code = level - FIRST_CODE
            whose = self._asked_by.get(code)
            if whose != self.name:
                self._fail(f"hears the level {level}, which is {whose or 'nobody'}'s")
            if code in self._cut:
                self._fail(f"hears {letters(code)} of {self._cut[code]}, which is over")
            if code not in self._codes:
                self._fail(f"hears {letters(code)}, which is not of the live answer {self._live}")

    # ------------------------------------------------------------ what it is told

    def _told(self, event: SessionEvent) -> None:
        self.events += 1
        self._note(repr(event)[:200])
        if others := set(CALLER.findall(repr(event))) - {self.name}:
            self._fail(f"is told of {others}: {event!r}")
        now = self._loop.time()
        match event:
            case SpeechStarted():
                self._items[event.item_id] = now + 1e6
                self._owed_since = None
            case SpeechStopped():
                self._items[event.item_id] = now
            case UserSaid():
                self._items.pop(event.item_id, None)
                self.turns += bool(event.text)
                if event.text and self.session.options.respond:
                    self._owed_since = now
            case ResponseStarted():
                if self._live is not None:
                    self._fail(f"{event.response_id} begins while {self._live} is live")
                self._live, self._live_since, self._codes = event.response_id, now, set()
                self._owed_since = None
            case ResponseText() | ResponseMade() | AudioStarted():
                if event.response_id != self._live:
                    self._fail(f"{type(event).__name__} of {event.response_id} while {self._live} is live")
                if isinstance(event, ResponseText):
                    self._codes |= codes_in(event.text)
            case ResponseEnded():
                self._answer_over(event, now)
            case SessionEnded():
                self._live = None
        self._owner_acts(event)

    def _answer_over(self, event: ResponseEnded, now: float) -> None:
        if event.response_id != self._live:
            self._fail(f"{event.response_id} ends while {self._live} is live")
        self._cut.update(dict.fromkeys(self._codes, event.response_id))
        heard_any = (
            self._live is not None and event.heard_s > 0.0
        )  # else what the client has is of the one before
        self._live, self._codes = None, set()
        if not _is_part(event.heard, event.generated):
            self._fail(f"heard {event.heard!r} of {event.generated!r}")
        unheard_s = self.line.full_until - now
        if event.status != "completed" and heard_any and unheard_s > 0 and not self.line.clear_failed:
            self._fail(f"{event.response_id} was cut, and the client still has {unheard_s:.2f} s of it")

    def _owner_acts(self, event: SessionEvent) -> None:
        """Now and then the owner does something at the very moment it is told, or fails."""
        trouble = self._trouble
        if isinstance(event, SessionEnded) or not trouble.wants(f"owner at {type(event).__name__}"):
            return
        if not trouble.strikes(trouble.rate / 4):
            return
        act = trouble.chance.choice(
            ["bug", "bug", "hang up", "interrupt", "say", "text", "ask", "close text"]
        )
        trouble.note("owner", act)
        self._note(f"owner: {act}")
        try:
            match act:
                case "bug":
                    raise RuntimeError("the owner's callback has a bug")
                case "hang up":
                    self.session.hang_up("owner")
                case "interrupt":
                    self.session.interrupt()
                case "say":
                    self.session.say("By the way.")
                case "text":
                    self.session.send_text(f"{self.name} adds.")
                case "ask":
                    self.session.respond()
        except VoiceError as error:
            self._note(f"refused: {error}")

    # ------------------------------------------------------------ what must hold

    def check(self) -> None:
        """Nothing waits for ever, and the parts of the session agree."""
        now, session = self._loop.time(), self.session
        if self._live is not None and now - self._live_since > SPEECH.timeout_s + _SLACK_S:
            self._fail(f"{self._live} is not over {now - self._live_since:.0f} s after it began")
        for item_id, since in self._items.items():
            if now - since > _WORDS_S:
                self._fail(f"no words for {item_id}, {now - since:.0f} s after it ended")
        taker = session.taker
        live = session._answering.live is not None
        if taker.response_live != live:
            self._fail(f"the turn taker is {taker.state}, an answer is {'' if live else 'not '}live")
        if live != (self._live is not None):
            self._fail(f"the owner knows of {self._live}, an answer is {'' if live else 'not '}live")
        if session.playout.held != (taker.state is State.HELD):
            self._fail(
                f"the turn taker is {taker.state}, the playout is {'' if session.playout.held else 'not '}held"
            )
        if self._owed_since is not None and taker.state is State.LISTENING and now - self._owed_since > 1.0:
            self._fail("a question is left without an answer")

    def check_history(self) -> None:
        """The model would take the history, and it holds no more than was written."""
        chat = self.session.chat
        try:
            check_prompt(chat.prompt((), None, saying="And now?"))
        except EngineFailed as error:
            self._fail(f"the history is invalid: {error}")
        for entry in chat.entries:
            if isinstance(entry, AgentEntry) and not _is_part(entry.heard, entry.generated):
                self._fail(f"the history holds {entry.heard!r} of {entry.generated!r}")

    async def check_recovered(self) -> None:
        """Everything is over; and once nothing fails any more, a question gets its answer."""
        if self.session.ended is not None:
            return
        await self._sleep(CALM_S)
        if self.session.ended is None and not self.session.is_quiet():
            self._fail(f"is not quiet {CALM_S:g} s after the last trouble: {self.session.state}")
        if self.session.ended is None and self.session.options.respond:
            await self._expect_answer()

    async def _expect_answer(self) -> None:
        """Twice, and not all at once: an engine that failed is tried with one request, and others are refused then."""
        await self._sleep(self._chance.uniform(0.0, 5.0))
        for _ in range(2):
            self._note("asks when nothing fails any more")
            known = set(map(id, self.session.chat.entries))
            await self._speak(1.5)
            await self._sleep(20.0)
            fresh = [e for e in self.session.chat.entries if isinstance(e, AgentEntry) and id(e) not in known]
            if self.session.ended is not None or any(codes_in(entry.heard) for entry in fresh):
                return
        self._fail("asks when nothing fails any more, and hears no answer")

    def _note(self, what: str) -> None:
        if self.trace and what.startswith("ResponseText") and self.trace[-1][1].startswith("ResponseText"):
            return
        self.trace.append((self._loop.time(), what))

    def _fail(self, what: str) -> None:
        lines = "\n".join(f"    {at:9.3f} {line}" for at, line in self.trace)
        self._trouble.failed.append(f"{self.name} ({self.line.capabilities.playout}) {what}\n{lines}")
        raise Violation(what)


def _is_part(heard: str, generated: str) -> bool:
    """Whether all that was heard was written, in that order. A voice that fails leaves words out, a filler goes before
    what was written but not yet said, and blanks don't count."""
    written = iter("".join(generated.replace(SPEECH.filler, " ").split()))
    said = "".join(heard.replace(SPEECH.filler, " ").split())
    return all(any(sign == one for one in written) for sign in said)
