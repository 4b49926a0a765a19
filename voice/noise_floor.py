"""How loud is the room, and is what the detector takes for a voice only the room? Pure: levels in, verdicts out.

A detector tells a fan, a hum or music from a voice by itself. A crowd, a canteen or a choir is made of voices and it
answers "speech" for as long as they go on. What tells them from a speaker is the level: one voice rises and falls by
20 dB within a second and a half, many together stay within 11. So sound that the detector takes for speech, that is
well above the room's known noise and that stays level is the room; afterwards only what stands out of it is a voice.

Measured with Silero, levels smoothed over 0.1 s, spread within any 1.5 s of sound that it takes for speech: single
voices (three synthetic ones and a recorded speech) 18 dB or more, six voices at once at most 11 dB, twelve 8 dB.
"""

from __future__ import annotations

import math
from collections import deque

SILENCE_DBFS = -120.0
"""The level of digital silence, for an average that must stay finite."""

_START_DBFS = -70.0
"""Taken for the room's noise before any was heard."""
_QUIET_BELOW = 0.2
"""Windows that are less likely speech than this are the room."""
_FALL, _RISE, _FOLLOW = 0.3, 0.05, 0.2
"""How far the floor moves with each window of the room, as a share of the difference: down, up, and up after a jump."""
_JUMP_DB = 10.0
"""A room so much louder than the floor has changed: a fan that was switched on is known after a third of a second."""
_LEVEL_DB = 12.0
"""Sound whose level stays within this span is level."""
_OVER_DB, _UNDER_DB = 10.0, 5.0
"""Level sound may be the room when all of it lies this far above the known floor (it is no speaker over that noise)
or none of it does (nobody is heard in it). Between the two the detector decides alone."""
_LOST_DB, _GONE_DB = 4.0, 8.0
"""A speaker whose loudest syllables were this far above all of a level stretch has probably, and surely, stopped."""
_LOST_S, _STEADY_S = 1.4, 4.0
"""A level stretch is the room after so long: when a speaker was lost or it is the crowd known; else, as a long vowel
or a dense sentence over a new noise may be level for seconds."""
_STANDS_OUT_DB = 5.0
"""What is this far above a crowded room is a voice in front of it."""
_HANG_S = 0.6
"""A voice in front of a crowd goes on this long after it last stood out: the crowd hides its softer syllables."""
_DIP_DB, _DIP_WINDOWS = 16.0, 2
"""A room that falls this far for so many windows is no crowd."""
_QUIET_WINDOWS = 6
"""Nor is one in which the detector hears no speech for so many windows: it tells that room from a voice by itself."""


class NoiseFloor:
    """The room's noise, followed from window to window. Bounded: it keeps at most four seconds of levels.

    Args:
        window_s: Length of a window in seconds.

    Attributes:
        dbfs: Level of the room.
        crowded: Whether the room itself sounds like speech to the detector.
    """

    __slots__ = (
        "_before",
        "_dips",
        "_faint",
        "_hang",
        "_lost",
        "_peak_dbfs",
        "_quiet",
        "_steady",
        "_stretch",
        "crowded",
        "dbfs",
    )

    def __init__(self, window_s: float) -> None:
        self.dbfs = _START_DBFS
        self.crowded = False
        self._lost, self._steady = round(_LOST_S / window_s), round(_STEADY_S / window_s)
        self._hang = round(_HANG_S / window_s)
        self._stretch = LevelStretch(_LEVEL_DB, self._steady)
        self._before = (0.0, 0.0)  # power of the two windows before
        self._peak_dbfs = SILENCE_DBFS  # the loudest since the voice came on
        self._faint = 0  # windows since something stood out of the crowd
        self._dips = self._quiet = 0

    def voice_ago(
        self, level_dbfs: float, probability: float, threshold: float, *, speaking: bool, learn: bool = True
    ) -> int:
        """Windows since the voice was last heard: 0: it is in this one, the newest.

        Args:
            level_dbfs: The window's level.
            probability: What the detector said, 0-1.
            threshold: From where on it is speech.
            speaking: Whether the caller's voice was on before this window.
            learn: Whether the window tells of the room: not where something was taken out of it.
        """
        level_dbfs = max(SILENCE_DBFS, level_dbfs)
        smooth_dbfs = self._smoothed(level_dbfs)
        speech = probability >= threshold
        room = self._learn(level_dbfs, smooth_dbfs, probability, speech, speaking) if learn else 0
        return room or (self._behind_crowd(smooth_dbfs, speaking) if speech else 1)

    def _learn(
        self, level_dbfs: float, smooth_dbfs: float, probability: float, speech: bool, speaking: bool
    ) -> int:
        """Follow the room's level; returns windows for which all that sounded was the room, as far as is clear."""
        if not speaking and probability < _QUIET_BELOW:
            over_db = level_dbfs - self.dbfs
            self.dbfs += over_db * (_FALL if over_db < 0.0 else _RISE if over_db < _JUMP_DB else _FOLLOW)
        if self.crowded:
            self._follow_crowd(level_dbfs, probability)
        if not speech and not speaking:
            self._stretch.clear()
            self._peak_dbfs = SILENCE_DBFS
            return 0
        self._peak_dbfs = max(self._peak_dbfs, smooth_dbfs)
        self._stretch.add(smooth_dbfs)
        return self._room_for()

    def _smoothed(self, level_dbfs: float) -> float:
        """Level over three windows."""
        power = 10.0 ** (level_dbfs / 10.0)
        older, newer = self._before
        self._before = (newer, power)
        return 10.0 * math.log10((older + newer + power) / 3.0)

    def _room_for(self) -> int:
        """Length of the level stretch up to now if it is the room, or 1 where words may lie in it; else 0."""
        stretch = self._stretch
        if stretch.length < self._lost:
            return 0
        lost_db = self._peak_dbfs - stretch.high
        over = stretch.low > self.dbfs + _OVER_DB
        under = stretch.high < self.dbfs + _UNDER_DB
        if not (self.crowded or over or under or lost_db >= _GONE_DB):
            return 0
        known = self.crowded and stretch.low < self.dbfs + _STANDS_OUT_DB
        if not (known or lost_db >= _LOST_DB) and stretch.length < self._steady:
            return 0
        self.crowded = True
        self.dbfs = (stretch.low + stretch.high) / 2.0
        self._peak_dbfs = SILENCE_DBFS
        self._dips = self._quiet = 0
        self._faint = self._hang
        return stretch.length if lost_db >= _GONE_DB else 1

    def _behind_crowd(self, smooth_dbfs: float, speaking: bool) -> int:
        """Windows since a voice stood out of the crowd; a pause between its loud syllables doesn't count."""
        if not self.crowded or smooth_dbfs >= self.dbfs + _STANDS_OUT_DB:
            self._faint = 0
            return 0
        self._faint += 1
        return 0 if speaking and self._faint < self._hang else self._faint

    def _follow_crowd(self, level_dbfs: float, probability: float) -> None:
        """The crowd grows and fades slowly; a hole in it means that there is none, or no more."""
        self._dips = self._dips + 1 if level_dbfs < self.dbfs - _DIP_DB else 0
        self._quiet = self._quiet + 1 if probability < _QUIET_BELOW else 0
        if self._dips >= _DIP_WINDOWS:
            self.crowded, self.dbfs = False, level_dbfs
            self._stretch.clear()
        elif self._quiet >= _QUIET_WINDOWS:
            self.crowded = False
        elif level_dbfs < self.dbfs + _STANDS_OUT_DB:
            self.dbfs += _RISE * (level_dbfs - self.dbfs)


class LevelStretch:
    """The longest stretch up to now in which no two levels differ by more than a span.

    Args:
        span_db: The span.
        most: How many levels it holds at most; older ones leave it.
    """

    __slots__ = ("_first", "_highs", "_lows", "_most", "_next", "_span_db")

    def __init__(self, span_db: float, most: int) -> None:
        self._span_db, self._most = span_db, most
        self._first = self._next = 0
        # (number, level), each without those that a later one outdoes: the front is the extreme of the stretch
        self._highs: deque[tuple[int, float]] = deque()
        self._lows: deque[tuple[int, float]] = deque()

    @property
    def length(self) -> int:
        """How many levels are in it."""
        return self._next - self._first

    @property
    def low(self) -> float:
        """The lowest level in it. Not to be asked of an empty one."""
        return self._lows[0][1]

    @property
    def high(self) -> float:
        """The highest level in it. Not to be asked of an empty one."""
        return self._highs[0][1]

    def add(self, level_db: float) -> None:
        """Take the next level; what lies before the last one too far from it leaves the stretch."""
        highs, lows = self._highs, self._lows
        while highs and highs[-1][1] <= level_db:
            highs.pop()
        while lows and lows[-1][1] >= level_db:
            lows.pop()
        highs.append((self._next, level_db))
        lows.append((self._next, level_db))
        self._next += 1
        if self.length > self._most:
            self._leave(self._next - self._most)
        while highs[0][1] - lows[0][1] > self._span_db:
            self._leave(min(highs[0][0], lows[0][0]) + 1)

    def _leave(self, first: int) -> None:
        self._first = first
        for extremes in (self._highs, self._lows):
            while extremes[0][0] < first:
                extremes.popleft()

    def clear(self) -> None:
        """Begin anew."""
        self._first = self._next
        self._highs.clear()
        self._lows.clear()
