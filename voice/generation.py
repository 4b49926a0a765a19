"""Generation: one call of a model for an answer, watched: its text goes to the speaker as it comes, and a model that
stalls is left behind, not waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

from voice.answer_parts import AnswerTimes, Attempt, Parts
from voice.answer_tools import AnswerTools
from voice.errors import DeadlineExceeded, EngineFailed, VoiceError
from voice.events import SessionEvent
from voice.interfaces import Finished, LanguageModel, Prompt, TextDelta, ToolCall, ToolCallDelta, Usage
from voice.scope import Reason, Scope
from voice.speaking import Speaker

log = logging.getLogger("voice")


class Generation:
    """Runs one generation.

    Args:
        parts: Engines and options.
        scope: The answer's; the call runs under a child of it.
        speaker: Gets the text, if the answer is spoken.
        tools: Names the calls that the model makes.
        times: Of the answer; the first call and the first token are noted.
        prompt: What the model is given.
        take: Writes more of the answer; returns whether there may be more still.
        tell: Takes events of calls that are being written.
    """

    def __init__(
        self,
        parts: Parts,
        scope: Scope,
        speaker: Speaker,
        tools: AnswerTools,
        times: AnswerTimes,
        *,
        prompt: Callable[[], Prompt],
        take: Callable[[str], bool],
        tell: Callable[[SessionEvent], None],
    ) -> None:
        self._parts, self._scope, self._speaker = parts, scope, speaker
        self._tools, self._times = tools, times
        self._prompt, self._take, self._tell = prompt, take, tell

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def run(self, model: LanguageModel, response_id: str, *, hedged: bool) -> Attempt:
        """Ask ``model``; ``hedged``: another one is there if it fails. Failures are in the result, none is raised."""
        speech, now = self._parts.speech, self._now()
        scope = self._scope.child("stage")
        call = self._parts.stages.service.engine("model", model).begin(scope, now)
        attempt = Attempt(last_at=now, started_at=now, call=call)
        # who finds out whether an engine is back soon turns to the other one
        first_token_s = speech.first_token_s * (0.5 if hedged and call.probes else 1.0)
        task = scope.run(self._consume(model, scope, attempt), f"model {model.name} {response_id}")
        if self._times.model_called is None:
            self._times.model_called = now
        try:
            await self._watch(model, task, attempt, first_token_s)
        except asyncio.CancelledError:
            call.given_up()
            raise
        call.ended(attempt.error, self._now())
        scope.cancel(Reason.DEADLINE) if not task.done() else scope.close()
        if self._times.first_token is None:
            self._times.first_token = attempt.first_text_at
        spoke = self._speaker.said_count
        await self._speaker.flush()
        attempt.spoke = attempt.spoke or self._speaker.said_count > spoke
        if not self._parts.speak:
            attempt.spoke = bool(attempt.text.strip())
        return attempt

    async def _watch(
        self, model: LanguageModel, task: asyncio.Task[None], attempt: Attempt, first_token_s: float
    ) -> None:
        """Until the generation is over, or has kept the user waiting for too long."""
        speech = self._parts.speech
        while not task.done():
            now = self._now()
            if attempt.waiting:
                attempt.last_at = now
            due = attempt.last_at + (speech.gap_s if attempt.any_event else first_token_s)
            if now >= due:
                what = "between two tokens" if attempt.any_event else "for its first token"
                attempt.error = DeadlineExceeded(f"{model.name} took too long {what}")
                return
            release_at = attempt.last_at + speech.release_s
            if not attempt.released and now >= release_at:
                attempt.released = True
                self._speaker.release()
            wake = due if attempt.released else min(due, release_at)
            await asyncio.wait({task}, timeout=max(0.001, wake - now))

    async def _consume(self, model: LanguageModel, scope: Scope, attempt: Attempt) -> None:
        said = self._speaker.said_count
        try:
            async with aclosing(model.generate(self._prompt(), scope)) as events:  # type: ignore[type-var]
                async for event in events:
                    if scope.cancelled:
                        return
                    attempt.last_at, attempt.any_event = self._now(), True
                    attempt.call.answered(attempt.last_at)
                    attempt.released = False
                    match event:
                        case TextDelta():
                            if not await self._take_text(event.text, attempt):
                                return
                        case ToolCall():
                            if not isinstance(event.name, str) or not isinstance(event.arguments, str):
                                raise TypeError(f"a tool call must be text, not {event!r}")
                            attempt.calls.append(self._tools.with_own_id(event, attempt))
                        case Usage():
                            attempt.usage = event
                        case Finished():
                            attempt.finished = event.reason
                        case ToolCallDelta():
                            self._tell(self._tools.arguments(event, attempt))
        except VoiceError as error:
            attempt.error = error
        except asyncio.CancelledError:
            if (running := asyncio.current_task()) is None or running.cancelling():
                raise
            attempt.error = EngineFailed(f"{model.name} was cancelled from within")
        except Exception as error:
            log.warning("the model %s failed", model.name, exc_info=error)
            attempt.error = EngineFailed(f"{model.name} failed: {type(error).__name__}: {error}"[:300])
        finally:
            attempt.spoke = self._speaker.said_count > said

    async def _take_text(self, text: str, attempt: Attempt) -> bool:
        if not text:
            return True
        if attempt.first_text_at is None:
            attempt.first_text_at = attempt.last_at
        attempt.text += text
        if not self._take(text):
            attempt.finished = "length"
            return False
        if self._parts.speak:
            attempt.waiting = True
            await self._speaker.feed(text)
            attempt.waiting = False
        attempt.last_at = self._now()
        return True
