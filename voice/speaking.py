"""Speaker: from an answer's written text to its track: split, synthesise, bring to the playout's rate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

import numpy as np

from voice.answer_parts import AnswerTimes, Parts
from voice.audio import PcmAssembler, Resampler, trim_leading_silence
from voice.buffers import StageBuffer
from voice.engine_watch import Call
from voice.errors import DeadlineExceeded, EngineFailed, Overloaded, ScopeCancelled, VoiceError
from voice.interfaces import Pcm16, Speech, Synthesiser
from voice.playout import Mark, Track, voiced_samples
from voice.scope import Scope
from voice.spoken import Segment, SpeechText

log = logging.getLogger("voice")

_EAR_WAITS_S = 1.0
_PART_S, _LONG_PART_S = 0.2, 1.0
"""Audio goes on in such pieces, so that the playout's bound holds whatever a synthesiser yields; in short ones where
each means work."""
_LONGEST_SEGMENT = 300
"""Characters of one synthesis call at most, where the voice itself would take more."""


class Speaker:
    """Speaks one answer. Text goes in with :meth:`feed`; :meth:`run` is the task that fills the track.

    Attributes:
        step: Which round of the model the text now fed belongs to.
        steps: The round of each of the track's marks.
        said_count: Segments with something for the ear, so far.
        busy: Words are with the synthesiser or wait for it.
    """

    def __init__(
        self,
        parts: Parts,
        scope: Scope,
        track: Track,
        times: AnswerTimes,
        on_problem: Callable[[VoiceError], None],
    ) -> None:
        self.parts, self.scope, self.track, self.times = parts, scope, track, times
        self.step = 0
        self.steps: list[int] = []
        self.said_count = 0
        self._on_problem = on_problem
        self._text = self._fresh()
        self._queue: StageBuffer[tuple[Segment, int]] = StageBuffer(
            parts.limits.text_chars, size=lambda item: float(max(1, len(item[0].written))), scope=scope
        )
        self._ahead: list[Segment] = []  # released while it could not be waited: goes first
        self._audible = False
        self._speaking = False
        self._fell_back = False  # one answer does not change its voice more than once

    def _fresh(self) -> SpeechText:
        stages = self.parts.stages
        voices = (stages.synthesiser, stages.fallback_synthesiser or stages.synthesiser)
        longest = min(_LONGEST_SEGMENT, *(voice.max_chars for voice in voices))
        return SpeechText(self.parts.language or "en", max_chars=longest)

    @property
    def busy(self) -> bool:
        return self._speaking or self._queue.stats.items > 0 or bool(self._ahead)

    @property
    def said_something(self) -> bool:
        return self.said_count > 0

    # ------------------------------------------------------------ text in

    async def feed(self, text: str) -> None:
        """More of the answer; waits while the synthesiser is behind."""
        await self._put(self._text.feed(text))

    async def flush(self) -> None:
        """The text so far is whole: nothing more belongs to its last sentence."""
        segments, self._text = self._text.finish(), self._fresh()
        await self._put(segments)

    def release(self) -> None:
        """The model is quiet: speak what is in hand, unless there is enough to say already. Never waits.

        An ear that has heard nothing for a while gets single words too.
        """
        if not self.busy:
            dry_s = asyncio.get_running_loop().time() - (self.track.dry_since or self.times.started)
            waiting = self.track.queued_s <= 0 and dry_s > _EAR_WAITS_S
            self._enqueue(self._text.release(any_word=waiting))

    def say_now(self, text: str) -> None:
        """Put a phrase of our own before what comes."""
        text_of = self._fresh()
        self._enqueue([*text_of.feed(text), *text_of.finish()])

    def end(self) -> None:
        """No more text."""
        self._queue.close()

    def forget_owner(self) -> None:
        """Nobody wants to hear of problems any more."""
        self._on_problem = _unheard

    def _enqueue(self, segments: list[Segment]) -> None:
        self.said_count += sum(bool(s.spoken) for s in segments)
        self._ahead += segments
        while self._ahead:
            try:
                self._queue.put_nowait((self._ahead[0], self.step))
            except Overloaded:
                return  # the next put takes it along
            self._ahead.pop(0)

    async def _put(self, segments: list[Segment]) -> None:
        self.said_count += sum(bool(s.spoken) for s in segments)
        self._ahead += segments
        while self._ahead:
            await self._queue.put((self._ahead[0], self.step))
            self._ahead.pop(0)

    # ------------------------------------------------------------ audio out

    async def run(self) -> None:
        """Synthesise what is fed, in order, until :meth:`end`; then the track is finished."""
        try:
            async for segment, step in self._queue:
                mark = self.track.begin(segment)
                self.steps.append(step)
                if segment.spoken:
                    mark.partial = self._speaking = True
                    await self._speak(segment, mark)
                    self._speaking = False
        finally:
            self.track.finish()

    async def _speak(self, segment: Segment, mark: Mark) -> None:
        """One segment; if nothing of it was made it is tried again, by the other synthesiser if there is one."""
        first, second = self._order()
        hedged = second is not first
        try:
            await self._synthesise(first, segment, mark, hedged=hedged)
            return
        except ScopeCancelled:
            raise
        except VoiceError as error:
            hung = isinstance(error, DeadlineExceeded)  # the ear has waited long enough for the same one
            again = hedged or (not hung and self._may_ask_again())
            if mark.end > mark.start or not again:
                self._on_problem(error)
                return
            asked = f"asking {second.name}" if hedged else "trying once more"
            log.warning("the synthesiser failed, %s: %s", asked, error)
        try:
            await self._synthesise(second, segment, mark)
        except ScopeCancelled:
            raise
        except VoiceError as error:
            self._on_problem(error)

    def _order(self) -> tuple[Synthesiser, Synthesiser]:
        """Who speaks, and who if that fails."""
        stages, now = self.parts.stages, asyncio.get_running_loop().time()
        usual, other = stages.synthesiser, stages.fallback_synthesiser
        if other is None:
            return usual, usual
        if self._fell_back:
            return other, other
        usable = [one for one in (usual, other) if stages.service.engine("synthesiser", one).usable(now)]
        return (usable[0], usable[0]) if len(usable) == 1 else (usual, other)

    def _may_ask_again(self) -> bool:
        return self.parts.stages.service.retries["synthesiser"].spend(asyncio.get_running_loop().time())

    async def _synthesise(
        self, synthesiser: Synthesiser, segment: Segment, mark: Mark, *, hedged: bool = False
    ) -> None:
        """One call; ``hedged``: another synthesiser is there, so this one is waited for half as long."""
        clock, scope = asyncio.get_running_loop().time, self.scope.child("stage")
        self._fell_back = self._fell_back or synthesiser is self.parts.stages.fallback_synthesiser
        if self.times.synthesis_called is None:
            self.times.synthesis_called = clock()
        limit_s = self.parts.speech.synthesis_s * (0.5 if hedged else 1.0)
        try:
            with self.parts.stages.service.engine("synthesiser", synthesiser).calling(scope, clock) as call:
                await self._make(synthesiser, segment, mark, scope, call, limit_s)
        finally:
            scope.close()
        mark.partial = False
        self.track.pace.learn(len(segment.spoken), (mark.voiced_end - mark.start) / self.parts.rate_hz)

    async def _make(
        self, synthesiser: Synthesiser, segment: Segment, mark: Mark, scope: Scope, call: Call, limit_s: float
    ) -> None:
        """All audio of a segment; what goes wrong is a :class:`VoiceError`."""
        loop = asyncio.get_running_loop()
        voice = self.parts.voice if synthesiser is self.parts.stages.synthesiser else None
        assembler = PcmAssembler()
        resampler = Resampler(synthesiser.sample_rate, self.parts.rate_hz)
        part_s = _LONG_PART_S if resampler.in_hz == resampler.out_hz else _PART_S
        try:
            async with asyncio.timeout(limit_s) as limit:
                speech_of = synthesiser.synthesise(segment.spoken, scope, voice=voice)
                async with aclosing(speech_of) as pieces:  # type: ignore[type-var]
                    async for piece in pieces:
                        limit.reschedule(None)
                        call.answered(loop.time())
                        if piece.words:
                            mark.words = (*mark.words, *piece.words)
                        for part in _parts(_samples(piece, assembler), round(part_s * resampler.in_hz)):
                            await self._deliver(resampler.process(part), mark)
                            if resampler.in_hz != resampler.out_hz:
                                await asyncio.sleep(0)  # that was work: others run between the parts
                        limit.reschedule(loop.time() + limit_s)
                limit.reschedule(None)
                await self._deliver(resampler.flush(), mark)
        except TimeoutError:
            raise DeadlineExceeded(f"{synthesiser.name} made no audio for {limit_s:.0f} s") from None
        except VoiceError:
            raise
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            raise EngineFailed(f"{synthesiser.name} was cancelled from within") from error
        except Exception as error:
            log.warning("the synthesiser %s failed", synthesiser.name, exc_info=error)
            raise EngineFailed(f"{synthesiser.name} failed: {type(error).__name__}: {error}"[:300]) from error

    async def _deliver(self, pcm: Pcm16, mark: Mark) -> None:
        rate_hz = self.parts.rate_hz
        if not self._audible and pcm.size:  # the answer begins with a sound, not with the voice's silence
            made = pcm.size
            pcm = trim_leading_silence(pcm, rate_hz)
            mark.trimmed += made - pcm.size
            self._audible = pcm.size > 0
        if pcm.size == 0:
            return
        if self.times.first_audio is None:
            self.times.first_audio = asyncio.get_running_loop().time()
        await self.track.put(pcm, mark, voiced_samples(pcm, rate_hz))


def _unheard(error: VoiceError) -> None:
    log.debug("after the answer was over: %s", error)


async def spoken_text(synthesiser: Synthesiser, text: str, voice: str | None = None) -> Pcm16:
    """All of ``text``, made speakable and spoken: samples at the synthesiser's rate, outside of any session.

    Raises:
        VoiceError: As the synthesiser says.
    """
    speakable = SpeechText(max_chars=min(_LONGEST_SEGMENT, synthesiser.max_chars))
    parts: list[Pcm16] = []
    with Scope("process") as scope:
        for segment in [*speakable.feed(text), *speakable.finish()]:
            assembler = PcmAssembler()
            if segment.spoken:
                speech_of = synthesiser.synthesise(segment.spoken, scope, voice=voice)
                async with aclosing(speech_of) as pieces:  # type: ignore[type-var]
                    async for piece in pieces:
                        parts.append(assembler.push(piece.pcm))
    return np.concatenate(parts) if parts else np.zeros(0, np.int16)


def _parts(pcm: Pcm16, size: int) -> list[Pcm16]:
    return [pcm[start : start + size] for start in range(0, pcm.size, size)]


def _samples(piece: Speech, assembler: PcmAssembler) -> Pcm16:
    if isinstance(piece.pcm, bytes | bytearray | memoryview):
        return assembler.push(piece.pcm)
    if piece.pcm.dtype != np.int16 or piece.pcm.ndim != 1:
        raise EngineFailed(
            f"the synthesiser gave {piece.pcm.dtype} audio of shape {piece.pcm.shape}; mono int16 is expected"
        )
    return piece.pcm
