"""When are the words of speech in progress recognised? One timer a speaking user, at most one pass at a time.

Two kinds of passes: partials, for who wants to read along, and the settling of long speech, so that no later pass is
long. Both give way to the pass at the pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from voice.degradation import Rung
from voice.errors import VoiceError
from voice.events import UserPartial
from voice.head_start import HeadStart
from voice.hearing import Ear
from voice.interfaces import ASR_RATE_HZ
from voice.partials import next_partial_s, quiet_cut
from voice.recognition import has_room, recognise_partial
from voice.scope import Priority, Reason, Scope
from voice.user_turn import UserTurn

if TYPE_CHECKING:
    from voice.listening import Listening
    from voice.session import Session

log = logging.getLogger("voice")

_LIMIT_S = 2.0
"""A partial that takes longer is stale."""
_VOICE_ON = ASR_RATE_HZ * 64 // 1000
"""The voice is on when its newest window of speech (32 ms) ended no longer ago: a partial that begins in a pause would
be in the way of the final text."""
_LOOK_AGAIN_S = 0.1
"""When a partial could not begin."""
_NEW_AUDIO = ASR_RATE_HZ // 5
"""A pass over hardly any new audio says nothing new."""
_SETTLE_AT_S = 20.0
"""So much speech without a pause is cut, and its beginning recognised for good…"""
_CUT_S = (8.0, 18.0)
"""…at the quietest place between these. With what is said meanwhile the rest stays well under 28 s, beyond which
recognisers must cut for themselves."""
_SETTLE_AGAIN_S = 2.0
"""After a failure."""


class PartialPasses:
    """Follows one user's speech at a time.

    Args:
        session: Where events go; its options and agent are read.
        ear: Keeps the audio.
        listening: Knows which audio is the turn's.

    Attributes:
        ahead: The pass at a silence that may become a pause.
    """

    def __init__(self, session: Session, ear: Ear, listening: Listening) -> None:
        self._session, self._ear, self._listening = session, ear, listening
        self.ahead = HeadStart(session, ear, listening, self)
        self._turn: UserTurn | None = None  # whose speech goes on
        self._timer: asyncio.TimerHandle | None = None
        self._running: Scope | None = None
        self._due = 0.0  # loop time of the next partial
        self._settle_at = 0.0  # loop time before which nothing is settled
        self._heard_until = 0  # where the audio of the last partial ended
        self._took_s = 0.0

    def follow(self, turn: UserTurn, began: float) -> None:
        """The user speaks, since the loop time ``began``."""
        self.stop()
        self._turn = turn
        self._due = began + next_partial_s(self._session.options.partial_interval_s, 0.0, self._rung)
        self._arm()

    def stop(self) -> None:
        """The user pauses, or the turn ends: from here on the final text has the recogniser."""
        if self._timer is not None:
            self._timer.cancel()
        if self._running is not None:
            self._running.cancel(Reason.SUPERSEDED)
        self._turn = self._timer = self._running = None

    @property
    def settling(self) -> bool:
        """Whether the beginning of long speech is being recognised for good."""
        return self._running is not None and self._running.priority is not Priority.PARTIAL

    def give_way(self) -> None:
        """A better pass over all there is has begun: a partial that runs is of no use any more."""
        if self._running is not None:
            self._running.cancel(Reason.SUPERSEDED)
            self._running = None
        self._due = max(self._due, self._now() + self._wait_s())

    def took(self, seconds: float) -> None:
        """A pass over the turn so far just ended, after so long."""
        self._took_s = seconds
        self._due = max(self._due, self._now() - seconds + self._wait_s())

    def heard(self, turn: UserTurn, text: str, speech_s: float) -> None:
        """A pass over all of the turn so far heard ``text``; the owner is told what is new.

        In a language that may turn out to be another one nothing is settled.
        """
        options = self._session.options
        if not options.partials or options.mode == "manual" or not turn.announced:
            return
        tentative = not turn.settled and self._session.spoken.is_open(speech_s)
        partial = turn.agreed.take(text, tentative=tentative)
        if partial != turn.told and partial.text:
            turn.told = partial
            self._session.emit(UserPartial(turn.item_id, partial.text, partial.stable))

    def count(self, turn: UserTurn, final: str) -> None:
        """The turn is certain: how much of what was told as settled is so?"""
        committed, changed = turn.agreed.changed(final)
        self._session.counters.committed_words += committed
        self._session.counters.committed_words_changed += changed

    # ------------------------------------------------------------ when

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def _rung(self) -> Rung:
        return self._session.agent.stages.service.rung

    def _wait_s(self) -> float:
        return next_partial_s(self._session.options.partial_interval_s, self._took_s, self._rung)

    def _arm(self) -> None:
        now = self._now()
        at = max(self._settle_at, now + _SETTLE_AT_S - self._listening.unsettled_s)
        if self._session.options.partials:
            at = min(at, self._due)
        self._timer = asyncio.get_running_loop().call_at(max(now, at), self._look)

    def _look(self) -> None:
        """A pass is due, and begins unless the last one still runs."""
        turn, now = self._turn, self._now()
        assert turn is not None
        if self._running is not None or self.ahead.runs:
            self._due = max(self._due, now + self._wait_s())
            self._settle_at = max(self._settle_at, now + _LOOK_AGAIN_S)
        elif self._listening.unsettled_s >= _SETTLE_AT_S and now >= self._settle_at:
            self._settle(turn)
        elif self._session.options.partials and now >= self._due:
            end = self._ear.log.end
            if end - self._ear.voiced_until > _VOICE_ON or end - self._heard_until < _NEW_AUDIO:
                self._due = now + _LOOK_AGAIN_S
            else:
                self._due = now + self._wait_s()
                self._hear_if_idle(turn, now)
        self._arm()

    def _hear_if_idle(self, turn: UserTurn, now: float) -> None:
        """A partial is skipped, and never queued, where others have more need of the recogniser."""
        session = self._session
        if self._rung < Rung.NO_GUESSES and has_room(session.agent.stages, session.language, now):
            self._hear(turn)

    # ------------------------------------------------------------ one pass

    def _begin(self, scope: Scope, work: Coroutine[object, object, None], name: str) -> None:
        self._running = scope
        task = scope.run(work, f"{name} {self._session.session_id}")
        task.add_done_callback(lambda _: self._ended(scope))

    def _ended(self, scope: Scope) -> None:
        if scope.reason is Reason.DEADLINE:
            self._took_s = _LIMIT_S
        scope.close()
        if self._running is scope:
            self._running = None

    def _hear(self, turn: UserTurn) -> None:
        self._heard_until = self._ear.log.end
        scope = turn.scope.child("stage", priority=Priority.PARTIAL, timeout_s=_LIMIT_S)
        self._begin(scope, self._partial(turn, scope), "partial of")

    async def _partial(self, turn: UserTurn, scope: Scope) -> None:
        session, listening, started = self._session, self._listening, self._now()
        audio = listening.audio(self._heard_until)
        speech_s = listening.speech_s(audio)
        text: str | None = None
        try:
            text = await recognise_partial(
                session.agent.stages,
                audio,
                scope,
                session.spoken,
                speech_s,
                pending=turn.settled_language,
                hints=session.hints,
            )
        except VoiceError as error:
            log.debug("%s: a partial failed: %s", session.session_id, error)
        if scope.cancelled:
            return
        self.took(self._now() - started)
        if text is None:
            turn.agreed.miss()
        else:
            self.heard(turn, f"{turn.settled} {text}", speech_s)

    def _settle(self, turn: UserTurn) -> None:
        scope = turn.scope.child("stage", priority=Priority.SPECULATIVE)
        self._begin(scope, self._recognise_beginning(turn, scope), "settle words of")

    async def _recognise_beginning(self, turn: UserTurn, scope: Scope) -> None:
        """The beginning of what is not settled becomes words that no later pass looks at."""
        session, listening = self._session, self._listening
        start = listening.unsettled_from
        audio = listening.audio(self._ear.log.end)
        first, last = (int(edge_s * ASR_RATE_HZ) for edge_s in _CUT_S)
        cut = quiet_cut(audio, first, last)
        try:
            words, language = await listening.words(
                audio[:cut], listening.speech_s(audio[:cut]), scope, session.hints, turn.settled_language
            )
        except VoiceError as error:  # the final pass has it all
            if not scope.cancelled:
                log.info("%s: long speech could not be settled: %s", session.session_id, error)
                self._settle_at = self._now() + _SETTLE_AGAIN_S
            return
        if not scope.cancelled:
            text = f"{turn.settled} {words}".strip()
            listening.settle(turn, start + cut, text, language or turn.settled_language)
