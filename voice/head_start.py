"""The pass over a turn's words, begun when the voice falls silent and not only when that is a pause.

A pause is certain after some 120 ms. A pass that is begun after half of that is ready so much sooner; if the user goes
on, it was one more partial.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from voice.degradation import Rung
from voice.errors import VoiceError
from voice.hearing import Ear
from voice.interfaces import Pcm16
from voice.partials import next_partial_s
from voice.recognition import has_room
from voice.scope import Priority, Reason, Scope
from voice.user_turn import UserTurn

if TYPE_CHECKING:
    from voice.listening import Listening
    from voice.partial_passes import PartialPasses
    from voice.session import Session

EVERY_S = 0.3
"""At most one so often: some consonants are as silent as this, and a pass is work."""

Words: TypeAlias = tuple[str, str | None]
"""The words of a stretch of audio, and the language that the session's changes to with them."""


@dataclass(frozen=True, slots=True)
class _Pass:
    start: int  # where its audio begins and ends
    stop: int
    scope: Scope
    task: asyncio.Task[Words | VoiceError]


class HeadStart:
    """One user's pass ahead of the pause.

    Args:
        session: Its options and agent are read.
        ear: Keeps the audio.
        listening: Recognises it.
        partials: Other passes give way to this one.
    """

    def __init__(self, session: Session, ear: Ear, listening: Listening, partials: PartialPasses) -> None:
        self._session, self._ear, self._listening, self._partials = session, ear, listening, partials
        self._pass: _Pass | None = None
        self._not_before = 0.0

    def hushed(self, turn: UserTurn) -> None:
        """The voice fell silent. Nothing is done where others have more need of the recogniser."""
        session, now = self._session, asyncio.get_running_loop().time()
        stages = session.agent.stages
        spared = stages.service.rung >= Rung.FEWER_PARTIALS or not has_room(stages, session.language, now)
        busy = self.runs or self._partials.settling
        if spared or busy or now < self._not_before or not session.options.speculate:
            return
        self.drop()
        self._partials.give_way()
        self._not_before = now + EVERY_S
        listening = self._listening
        start, audio = listening.unsettled_from, listening.audio(self._ear.log.end)
        speech_s = listening.speech_s(audio)
        scope = turn.scope.child("stage", priority=Priority.SPECULATIVE)
        task = scope.run(self._outcome(turn, audio, speech_s, scope), f"head start of {session.session_id}")
        self._pass = ahead = _Pass(start, start + audio.size, scope, task)
        task.add_done_callback(lambda _: self._ended(ahead, turn, speech_s, now))

    @property
    def runs(self) -> bool:
        """Whether one is at work that nobody has taken."""
        return self._pass is not None and not self._pass.task.done()

    async def _outcome(
        self, turn: UserTurn, audio: Pcm16, speech_s: float, scope: Scope
    ) -> Words | VoiceError:
        """A failure is told to who takes the pass, or to nobody."""
        try:
            return await self._listening.words(
                audio, speech_s, scope, self._session.hints, turn.settled_language
            )
        except VoiceError as error:
            return error

    def _ended(self, ahead: _Pass, turn: UserTurn, speech_s: float, began: float) -> None:
        """If nobody took it, because the user went on or it is not a pause yet, it was a partial."""
        ahead.scope.close()
        if self._pass is not ahead or ahead.task.cancelled():
            return
        took_s = asyncio.get_running_loop().time() - began
        self._not_before = began + next_partial_s(EVERY_S, took_s, Rung.FULL)
        self._partials.took(took_s)
        outcome = ahead.task.result()
        if not isinstance(outcome, VoiceError) and outcome[0] and outcome[1] is None and self._ear.speaking:
            self._partials.heard(turn, f"{turn.settled} {outcome[0]}", speech_s)

    def take(self, start: int, work: Scope) -> asyncio.Task[Words | VoiceError] | None:
        """The pass, as a part of ``work``, if it heard all that was said since ``start``; ``None``: there is none."""
        ahead = self._pass
        if (
            ahead is None
            or ahead.start != start
            or self._ear.voiced_until > ahead.stop
            or ahead.scope.cancelled
        ):
            self.drop()
            return None
        self._pass = None
        ahead.scope.promote()  # what waits for it waits no longer than it would for a pass of its own
        work.on_cancel(ahead.scope.cancel)
        return ahead.task

    def drop(self) -> None:
        """It is of no use any more."""
        if self._pass is not None:
            self._pass.scope.cancel(Reason.SUPERSEDED)
            self._pass = None


async def words_of(task: asyncio.Task[Words | VoiceError]) -> Words:
    """What a pass found.

    Raises:
        VoiceError: It failed.
    """
    outcome = await task
    if isinstance(outcome, VoiceError):
        raise outcome
    return outcome
