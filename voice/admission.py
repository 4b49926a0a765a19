"""May a new conversation begin now, should it wait a moment, or is it refused before those inside suffer?

Decided on measured load. A newcomer costs nothing until its caller speaks, so what is measured lags behind what was let
in: each conversation that is still new counts with what one costs, as far as that is known, and a thousand callers at
once don't get in on the reading of an idle machine.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from voice.degradation import Rung
from voice.errors import BadRequest, Overloaded, VoiceError
from voice.load import Load

log = logging.getLogger("voice")

LOOK_S = 0.1
"""How often it is looked whether those who wait can be let in."""

LOCAL_COST, REMOTE_COST = 0.1, 0.01
"""What a conversation costs of the slowest stage's target: recognition, model and voice on two cores carry about ten
that talk, an event loop whose engines are elsewhere a few hundred."""

_TELL_AGAIN_S = 10.0
"""How often the log tells why callers are refused."""

_GOLDEN = 0.618
"""Steps of the golden ratio spread the times at which those refused come back, whatever their number."""


@dataclass(frozen=True, slots=True)
class AdmissionOptions:
    """Who is let in. Load is told as a share of its target (:class:`voice.load.LoadTargets`).

    Attributes:
        admit_below: Load up to which conversations are let in, those that are still new included; the rest of the
            way to 1 is for what those inside do at the same time.
        session_cost: Load that a conversation is taken to cost before any was measured; ``None``:
            :data:`LOCAL_COST` where the engines work on this machine's processor, else :data:`REMOTE_COST`.
        trust: So many measured conversations weigh as much as that assumption.
        blind_s: So long a conversation shows in no measurement: its caller has to speak first.
        ramp_s: After so long its cost is all measured.
        wait_s: Longest wait at the door; 0: nobody waits.
        waiting: Most that wait.
        highest: While more is given up than on this rung nobody is let in.
        retry_s: When those refused may come again, at the soonest; they are spread over twice as long.
    """

    admit_below: float = 0.9
    session_cost: float | None = None
    trust: float = 8.0
    blind_s: float = 4.0
    ramp_s: float = 12.0
    wait_s: float = 2.0
    waiting: int = 32
    highest: Rung = Rung.NO_GUESSES
    retry_s: float = 5.0

    def __post_init__(self) -> None:
        costs = self.session_cost is None or self.session_cost > 0.0
        if not 0.0 < self.admit_below <= 1.0 or not costs or self.trust <= 0.0:
            raise BadRequest("admit_below must be above 0 and at most 1, session_cost and trust above 0")
        if not 0.0 <= self.blind_s < self.ramp_s:
            raise BadRequest("blind_s must be 0 s or more, and ramp_s longer")
        if self.wait_s < 0.0 or self.waiting < 0 or self.retry_s <= 0.0:
            raise BadRequest("wait_s and waiting must not be negative, retry_s above 0 s")


@dataclass(frozen=True, slots=True)
class Admit:
    """Let it in."""


@dataclass(frozen=True, slots=True)
class Wait:
    """There will be room before long."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """There is no room. ``why`` is for people."""

    why: str


Decision: TypeAlias = Admit | Wait | Refuse


class Admission:
    """The decision, pure: load, counts and time come in.

    Args:
        options: ``None``: the defaults.
        local: The engines work on this machine's processor.
    """

    def __init__(self, options: AdmissionOptions | None = None, *, local: bool = False) -> None:
        self.options = options or AdmissionOptions()
        self._assumed = self.options.session_cost or (LOCAL_COST if local else REMOTE_COST)
        self._new: deque[float] = deque()  # when those let in of late came; no more than are let in in ramp_s

    def decide(self, load: Load, rung: Rung, sessions: int, ahead: int, now: float) -> Decision:
        """What becomes of one that comes now, or whose turn it is.

        Args:
            load: As measured.
            rung: What is given up now.
            sessions: Conversations inside.
            ahead: How many wait before it.
            now: Any clock's time, in seconds.
        """
        options = self.options
        if rung > options.highest:
            return Refuse(f"the service is reduced to {rung.label}")
        if load.pressure >= 1.0 or load.share >= options.admit_below:
            return Refuse(load.why())
        room = (options.admit_below - load.share) / self.cost(load, sessions, now)
        if ahead + 1 + self.unmeasured(now, sessions) <= room:
            return Admit()
        if ahead < options.waiting and ahead + 1 + self.unmeasured(now + options.wait_s, sessions) <= room:
            return Wait()
        return Refuse(f"many conversations have just begun, and {load.why()}")

    def cost(self, load: Load, sessions: int, now: float) -> float:
        """What a conversation costs, as a share of the slowest stage's target: measured, as far as there are any."""
        options = self.options
        settled = sessions - self.unmeasured(now, sessions)
        return (load.share + self._assumed * options.trust) / (settled + options.trust)

    def unmeasured(self, now: float, sessions: int) -> float:
        """How many of those let in the load does not show yet; one counts less and less from ``blind_s`` on. Those who
        have left again count no more: there are never more than ``sessions``."""
        ramp_s, shows_s = self.options.ramp_s, self.options.ramp_s - self.options.blind_s
        newest = itertools.islice(reversed(self._new), sessions)
        return sum(min(1.0, max(0.0, ramp_s - (now - at)) / shows_s) for at in newest)

    def admitted(self, now: float) -> None:
        """One was let in."""
        if self._new and now < self._new[-1]:
            self._new.clear()  # the clock began anew
        while self._new and now - self._new[0] >= self.options.ramp_s:
            self._new.popleft()
        self._new.append(now)


@dataclass(slots=True, eq=False)
class _Waiter:
    until: float
    let_in: asyncio.Future[None]


class Door:
    """Where conversations come in: at once, after a short wait, first come first served, or not at all.

    Args:
        options: ``None``: the defaults.
        load: How busy the stages are now.
        rung: What is given up now.
        sessions: How many conversations there are.
        local: The engines work on this machine's processor.

    Attributes:
        waited: How many waited and were let in.
        refused: How many were refused for the load.
    """

    def __init__(
        self,
        options: AdmissionOptions | None,
        *,
        load: Callable[[], Load],
        rung: Callable[[], Rung],
        sessions: Callable[[], int],
        local: bool = False,
    ) -> None:
        self.admission = Admission(options, local=local)
        self.waited = self.refused = 0
        self._load, self._rung, self._sessions = load, rung, sessions
        self._waiters: deque[_Waiter] = deque()
        self._granted = 0  # let in, but their tasks have not run yet
        self._timer: asyncio.TimerHandle | None = None
        self._spread = itertools.count()
        self._told_at: float | None = None

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiters)

    async def enter(self) -> None:
        """Return when the conversation may begin, which it then must at once. Cancelling gives up the place.

        Raises:
            Overloaded: There is no room, or it did not come in time.
        """
        now = asyncio.get_running_loop().time()
        match self._decide(len(self._waiters), now):
            case Admit() if not self._waiters:
                self.admission.admitted(now)
            case Refuse(why):
                raise self._refusal(why, now)
            case Admit() | Wait():
                await self._wait(now)

    def _decide(self, ahead: int, now: float) -> Decision:
        return self.admission.decide(self._load(), self._rung(), self._sessions() + self._granted, ahead, now)

    def _refusal(self, why: str, now: float) -> Overloaded:
        """What the caller is told: nothing of our engines. Those who run the server find the reason in its log."""
        self.refused += 1
        if self._told_at is None or not 0.0 <= now - self._told_at < _TELL_AGAIN_S:
            self._told_at = now
            extra = {"sessions": self._sessions(), "refused": self.refused}
            log.warning("a conversation was refused: %s", why, extra=extra)
        retry_s = self.admission.options.retry_s
        spread = math.modf(next(self._spread) * _GOLDEN)[0]
        busy = "the server is busy: one more conversation would harm those under way"
        return Overloaded(busy, retry_s * (1.0 + spread))

    # ------------------------------------------------------------ the queue

    async def _wait(self, now: float) -> None:
        loop = asyncio.get_running_loop()
        waiter = _Waiter(now + self.admission.options.wait_s, loop.create_future())
        self._waiters.append(waiter)
        if self._timer is None:
            self._timer = loop.call_later(LOOK_S, self._look)
        try:
            await waiter.let_in
            self.waited += 1
        finally:
            if waiter in self._waiters:  # it was cancelled
                self._waiters.remove(waiter)
            elif not waiter.let_in.cancelled() and waiter.let_in.exception() is None:
                self._granted -= 1

    def _look(self) -> None:
        """Let in whom there is room for, in order; refuse who has waited long enough."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._timer = None
        while self._waiters and isinstance(self._decide(0, now), Admit):
            self._let_in(self._waiters.popleft(), now)
        while self._waiters and self._waiters[0].until <= now:
            self._turn_away(self._waiters.popleft(), self._refusal("no place came free in time", now))
        if self._waiters:
            self._timer = loop.call_later(LOOK_S, self._look)

    def _let_in(self, waiter: _Waiter, now: float) -> None:
        if not waiter.let_in.done():
            self.admission.admitted(now)
            self._granted += 1
            waiter.let_in.set_result(None)

    def _turn_away(self, waiter: _Waiter, error: VoiceError) -> None:
        if not waiter.let_in.done():
            waiter.let_in.set_exception(error)

    def close(self, error: Callable[[], VoiceError]) -> None:
        """Turn away all who wait."""
        while self._waiters:
            self._turn_away(self._waiters.popleft(), error())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
