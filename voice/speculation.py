"""How much to guess: work that starts before a turn is certain, within a budget of waste and under the machine's load.

A guess is thrown away when the user goes on. Each session, and all of them together, remember what became of their
latest guesses; who wastes too much guesses at some pauses only. When the processor has no time to spare, nobody
guesses, and when it has none at all, recognition waits too: then there is nothing that could delay a turn that is
certain. Pure: time and load come in.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from voice.errors import BadRequest

log = logging.getLogger("voice")


class Level(IntEnum):
    """What starts at a pause, before the turn is certain."""

    NONE = 0  # nothing: recognition waits for ``min_delay_s``
    WORDS = 1  # recognition
    FULL = 2  # recognition, model and synthesis


@dataclass(frozen=True, slots=True)
class GuessOptions:
    """Bounds of what is guessed.

    Attributes:
        most_wasted: Share of a session's guesses that may be thrown away, 0–1; above it the session guesses less.
        most_wasted_together: The same over all sessions of the process; above it every session's bound is this less
            ``margin``, until the process's share is below that too.
        probe_every: A session above its bound still guesses at every such pause: a caller may change.
        margin: A share has to fall this far below its bound before guessing is free again.
        memory: So many of a session's latest guesses count, roughly: the newest most, older ones less and less.
        memory_together: The same for the process.
        memory_s: An outcome counts 1/e as much after so many seconds.
        stop_guesses: Load (0–1, see :meth:`voice.compute.ComputeGate.load`) from which on nobody guesses.
        resume_guesses: Load below which they do again.
        stop_words: Load from which on recognition waits too.
        resume_words: Load below which it begins at the pause again.
    """

    most_wasted: float = 0.6
    most_wasted_together: float = 0.5
    probe_every: int = 4
    margin: float = 0.1
    memory: float = 8.0
    memory_together: float = 40.0
    memory_s: float = 120.0
    stop_guesses: float = 0.8
    resume_guesses: float = 0.65
    stop_words: float = 0.9
    resume_words: float = 0.75

    def __post_init__(self) -> None:
        shares = (self.most_wasted, self.most_wasted_together)
        if not all(0.0 <= share <= 1.0 for share in shares) or not 0.0 <= self.margin <= min(shares):
            raise BadRequest("shares of wasted guesses must be 0 to 1, and the margin no larger")
        if self.probe_every < 1 or self.memory < 1 or self.memory_together < 1 or self.memory_s <= 0:
            raise BadRequest("probe_every and the memories must be at least 1, and memory_s positive")
        marks = (self.resume_guesses, self.stop_guesses, self.resume_words, self.stop_words)
        if not (
            marks[0] < marks[1] and marks[2] < marks[3] and marks[0] <= marks[2] and marks[1] <= marks[3]
        ):
            raise BadRequest("work resumes at a lower load than it stops at, and recognition stops last")


class Waste:
    """The share of guesses thrown away, forgetting older ones by number and by time.

    The share begins at :attr:`usual`, as if a third of ``memory`` had been seen: one bad guess proves nothing. As the
    guesses are forgotten it goes back there, so silence leads out of every bound above it.

    Args:
        memory: Guesses that count.
        memory_s: Seconds after which one counts 1/e as much.
    """

    usual = 0.2

    def __init__(self, memory: float, memory_s: float) -> None:
        self._keep = 1.0 - 1.0 / memory
        self._weight = memory / 3.0
        self._memory_s = memory_s
        self._kept = self._dropped = self._at = 0.0

    def add(self, dropped: bool, now: float) -> None:
        """A guess ended."""
        fade = self._fade(now) * self._keep
        self._kept = self._kept * fade + (not dropped)
        self._dropped = self._dropped * fade + dropped
        self._at = now

    def share(self, now: float) -> float:
        """0 to 1."""
        fade = self._fade(now)
        dropped, kept = self._dropped * fade, self._kept * fade
        return (dropped + self.usual * self._weight) / (dropped + kept + self._weight)

    def _fade(self, now: float) -> float:
        return math.exp(-max(0.0, now - self._at) / self._memory_s)


class _Bound:
    """Above a bound, until clearly below it."""

    def __init__(self) -> None:
        self.exceeded = False

    def look(self, share: float, bound: float, margin: float) -> bool:
        self.exceeded = share > (bound - margin if self.exceeded else bound)
        return self.exceeded


class GuessBudget:
    """The process's guesses. All methods are quick; time is any loop's that goes forward.

    Args:
        options: Bounds; ``None``: the defaults.
        load: Says how busy the processor is at a loop time, 0–1; ``None``: load is never a reason.

    Attributes:
        ceiling: Says the most that may be begun now, whatever the load; ``None``: everything. ``Stages`` sets it.
        asked: Pauses by the level that was used.
        begun, kept, dropped: Guesses so far.
    """

    def __init__(
        self, options: GuessOptions | None = None, *, load: Callable[[float], float] | None = None
    ) -> None:
        self.options = options or GuessOptions()
        self.asked = dict.fromkeys(Level, 0)
        self.begun = self.kept = self.dropped = 0
        self.ceiling: Callable[[], Level] | None = None
        self._load = load
        self._level = Level.FULL
        self._waste = Waste(self.options.memory_together, self.options.memory_s)
        self._bound = _Bound()

    def session(self) -> SessionGuesses:
        """The part of one session."""
        return SessionGuesses(self)

    def most(self, now: float) -> Level:
        """The highest level that the load and the ceiling allow."""
        load, options = self._measure(now), self.options
        # stopping is immediate; coming back needs a load clearly below the mark it stopped at
        stopped = Level((load < options.stop_guesses) + (load < options.stop_words))
        resumed = Level((load < options.resume_guesses) + (load < options.resume_words))
        self._level = max(min(self._level, stopped), resumed)
        return self._level if self.ceiling is None else min(self._level, self.ceiling())

    def _measure(self, now: float) -> float:
        """The load; a meter that fails is as good as none: nobody's pause is to be lost by it."""
        if self._load is None:
            return 0.0
        try:
            load = float(self._load(now))
        except Exception:
            log.exception("the load could not be measured")
            return 0.0
        return 0.0 if math.isnan(load) else load

    def share(self, now: float) -> float:
        """Share of all sessions' latest guesses that were thrown away, 0–1."""
        return self._waste.share(now)

    def allowed(self, now: float) -> float:
        """Share that a session may throw away now."""
        options = self.options
        wasteful = self._bound.look(self.share(now), options.most_wasted_together, options.margin)
        tighter = min(options.most_wasted, options.most_wasted_together - options.margin)
        return tighter if wasteful else options.most_wasted

    def note(self, dropped: bool, now: float) -> None:
        """A session's guess ended."""
        self.kept += not dropped
        self.dropped += dropped
        self._waste.add(dropped, now)


class SessionGuesses:
    """One session's guesses; made by :meth:`GuessBudget.session`.

    Tell it of each guess: :meth:`started`, then :meth:`kept` or :meth:`dropped`.
    """

    def __init__(self, budget: GuessBudget) -> None:
        self._budget = budget
        self._waste = Waste(budget.options.memory, budget.options.memory_s)
        self._bound = _Bound()
        self._since_probe = 0

    def level(self, now: float) -> Level:
        """What to start at this pause. Asked once at each."""
        level = self._budget.most(now)
        if level is Level.FULL and not self._affords(now):
            level = Level.WORDS
        self._budget.asked[level] += 1
        return level

    def reads_ahead(self, now: float) -> bool:
        """Whether the model may read the conversation so far while the user still speaks."""
        return self._budget.most(now) is Level.FULL

    def share(self, now: float) -> float:
        """Share of the session's latest guesses that were thrown away, 0–1."""
        return self._waste.share(now)

    def _affords(self, now: float) -> bool:
        options = self._budget.options
        if not self._bound.look(self.share(now), self._budget.allowed(now), options.margin):
            self._since_probe = 0
            return True
        self._since_probe += 1
        if self._since_probe < options.probe_every:
            return False
        self._since_probe = 0
        return True

    def started(self, now: float) -> None:
        """A guess began."""
        self._budget.begun += 1

    def kept(self, now: float) -> None:
        """The guess was used."""
        self._end(False, now)

    def dropped(self, now: float) -> None:
        """The guess was thrown away."""
        self._end(True, now)

    def _end(self, dropped: bool, now: float) -> None:
        self._waste.add(dropped, now)
        self._budget.note(dropped, now)
