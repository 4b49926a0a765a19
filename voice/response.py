"""Response: how one answer is made, from prompt to track, with a plan for every way it can fail.

It may begin as a guess: then it stays behind the gate (:meth:`Response.open`), where it runs model and synthesis
and nothing else. Tools, history, events and usage wait until the gate opens; a guess that is cancelled before
leaves no trace.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from voice.answer_parts import AnswerTimes, Owner, Parts, prompt_of
from voice.answer_tools import AnswerTools
from voice.chat import AgentEntry, ToolEntry
from voice.degradation import Rung
from voice.errors import EngineFailed, VoiceError
from voice.events import (
    Problem,
    ResponseMade,
    ResponseStarted,
    ResponseText,
    SessionEvent,
)
from voice.generation import Generation
from voice.interfaces import LanguageModel, Prompt, ToolCall, Usage
from voice.playout import Track
from voice.saying import Said
from voice.scope import Reason, Scope
from voice.speaking import Speaker
from voice.tools import SessionHandle

log = logging.getLogger("voice")

_MOST_CHARS = 20_000
"""An answer that is longer than this has run away; it is ended there."""
_MOST_CALLS = 16
_MOST_HELD = 1000
_WORDS_S = 15.0
"""Longest wait for the words of something the user said that was handed in whole."""
_SENTENCE_ENDS = (".", "!", "?", "。", "！", "？", "…")


class Response:
    """One answer.

    Args:
        parts: Engines, history and options.
        owner: The session.
        scope: Everything the answer does runs under it; cancelling it is how an answer is cut.
        response_id: Names it in events and in the history.
        saying: User words that are not in the history yet (a guess).
        text: Say this, without asking the model.
        asked_for: The owner wants it; it takes the place of the answer that a turn gets by itself.
        interruptible: The user's voice may cut it.

    Attributes:
        track: Its audio.
        generated: What was written so far, for display.
        started: It is being made.
        opened: The gate is open.
        spoiled: Behind the gate, something failed; a new answer is needed.
        failed: Why it failed, in one sentence; ``None``: it didn't.
        written: All of it has been written.
        made: All of it has been written and synthesised.
        finish: Why the model ended.
        on_made: Called once when it is made and the gate is open, unless it was cut.
        shown: Tool calls whose results the model was shown.
        ended: How it went, once it is over.
    """

    def __init__(
        self,
        parts: Parts,
        owner: Owner,
        scope: Scope,
        *,
        response_id: str,
        saying: str | None = None,
        text: str | None = None,
        context: SessionHandle | None = None,
        asked_for: bool = False,
        interruptible: bool = True,
    ) -> None:
        self.interruptible = interruptible
        self.parts, self.owner, self.scope = parts, owner, scope
        self.asked_for = asked_for
        self.response_id = response_id
        self.item_id = parts.chat.new_id()
        self.track = Track(response_id, scope, parts.rate_hz, parts.limits.playout_s, pace=parts.pace)
        self.generated = ""
        self.started = False
        self.opened = False
        self.spoiled = False
        self.failed: str | None = None
        self.written = False
        self.made = False
        self.finish: str | None = None
        self.on_made: Callable[[Response], None] | None = None
        self.usage = Usage()
        self.shown: set[str] = set()
        self.times = AnswerTimes(started=self._now())
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[Said] = asyncio.get_running_loop().create_future()
        self._saying, self._text = saying, text
        self._tools = AnswerTools(parts, owner, scope, response_id, context)
        self._gate = asyncio.Event()
        self._speaker = Speaker(parts, scope, self.track, self.times, self._problem)
        self._entries: list[AgentEntry] = []
        self._held: list[SessionEvent] = []
        self._late_timer: asyncio.TimerHandle | None = None
        scope.on_cancel(self._on_cancel)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Begin to make the answer."""
        self.started = True
        self.scope.run(self._make(), f"answer {self.response_id}")
        self.scope.run(self._voice(), f"voice {self.response_id}")

    def open(self) -> None:
        """The turn is certain: what waited behind the gate becomes real, in the order it happened."""
        self.opened = True
        self._saying = None
        now = self.times.opened = self._now()
        self.owner.emit(ResponseStarted(self.response_id, self.item_id))
        if self.scope.cancelled:
            return  # the owner cut it when it was told
        self._begin_entry()
        if self.generated:
            self._record(self.generated)
        for event in self._held:
            self.owner.emit(event)
        self._held.clear()
        if self.track.made == 0 and not self.track.ended and self.parts.speech.filler and self.parts.speak:
            loop = asyncio.get_running_loop()
            self._late_timer = loop.call_at(now + self.parts.speech.first_audio_s, self._late)
        self._gate.set()
        self._tell_made()

    def conclude(self, position: int | None) -> str:
        """The answer is over: the history keeps what was heard.

        Args:
            position: The ear's last sample of the track; ``None``: it heard everything.

        Returns:
            The written text that was heard.
        """
        if self._late_timer is not None:
            self._late_timer.cancel()
        if not self.done.done():
            self.done.set_result(None)
        if not self.parts.speak:  # text is with the reader as it is written
            for entry in self._entries:
                entry.heard, entry.interrupted = entry.generated, position is not None
            return self.generated
        if position is None and not any(mark.partial for mark in self.track.marks):
            for entry in self._entries:
                entry.heard = entry.generated
            return self.generated
        position = self.track.made if position is None else position
        heard_of: dict[int, str] = {}
        for (_, heard), step in zip(self.track.written_at(position), self._speaker.steps, strict=False):
            heard_of[step] = heard_of.get(step, "") + heard
        for step, entry in enumerate(self._entries):
            entry.heard = heard_of.get(step, "").rstrip()
            entry.interrupted = entry.heard != entry.generated.rstrip()
        return "".join(heard_of.values()).rstrip()

    def _on_cancel(self, reason: Reason) -> None:
        self.track.drop()
        if self._late_timer is not None:
            self._late_timer.cancel()
        if not self.opened:
            if not self.done.done():
                self.done.set_result(None)
            self.end(Said("cancelled", reason=str(reason)))

    def end(self, said: Said) -> None:
        """It is over: tell who waits."""
        if not self.ended.done():
            self.ended.set_result(said)
        self.on_made = None
        self._speaker.forget_owner()  # else the two would keep each other until a garbage collection

    async def _make(self) -> None:
        try:
            if self._text is not None:
                await self._phrase(self._text)
            else:
                await self._rounds()
        except Exception as error:
            if self.scope.cancelled:
                raise
            await self._give_up(self._fault(error), self.parts.speech.apology)
        finally:
            self.written = True
            self._speaker.end()

    async def _voice(self) -> None:
        try:
            await self._speaker.run()
        except Exception as error:
            if self.scope.cancelled:
                raise
            self._problem(self._fault(error))
        self.made = True
        self._tell_made()

    def _fault(self, error: Exception) -> VoiceError:
        """A fault of our own, or of an owner's policy or history: a turn ends with an error, not in silence."""
        if isinstance(error, VoiceError):
            return error
        log.exception("%s could not be made", self.response_id)
        return EngineFailed(f"the answer could not be made: {type(error).__name__}: {error}"[:300])

    def _tell_made(self) -> None:
        if self.made and self.opened and not self.scope.cancelled:
            self.owner.emit(
                ResponseMade(self.response_id, self.item_id, self.usage, self.finish, self.failed)
            )
            if self.on_made is not None:
                self.on_made(self)

    # ------------------------------------------------------------ writing

    def _begin_entry(self) -> None:
        """A new stretch of the agent's words in the history, one for each round of the model."""
        item_id = self.item_id if not self._entries else None
        self._entries.append(self.parts.chat.add_agent(self.response_id, item_id))

    def _record(self, text: str) -> None:
        entry = self._entries[-1]
        entry.generated += text
        entry.heard = entry.generated  # corrected when the answer is over
        self.owner.emit(ResponseText(self.response_id, text))

    def _note(self, text: str) -> None:
        if self.scope.cancelled:
            return  # the owner cut it when it was told of something
        self.generated += text
        if self.opened:
            self._record(text)

    async def _phrase(self, text: str) -> None:
        """Say something of our own: a greeting, an apology."""
        text = text if not self.generated or self.generated[-1].isspace() else f" {text}"
        self._note(text)
        if self.parts.speak:
            await self._speaker.feed(text)
            await self._speaker.flush()

    def _late(self) -> None:
        """Nothing to hear for ``first_audio_s``: bridge the gap, unless words are with the synthesiser already.

        Words that are written are spoken: a filler would come before them, and stand behind them in the history.
        """
        if self.track.made == 0 and not self._speaker.busy and not self.written and not self.scope.cancelled:
            if self.generated.strip():
                self._speaker.release()
                return
            self._note(self.parts.speech.filler + " ")
            if not self.scope.cancelled:  # by the owner, when it was told
                self._speaker.say_now(self.parts.speech.filler + " ")

    def _problem(self, error: VoiceError) -> None:
        self._tell(Problem(str(error), type(error).__name__))
        self.failed = self.failed or str(error)

    def _tell(self, event: SessionEvent) -> None:
        if self.opened:
            self.owner.emit(event)
        elif len(self._held) < _MOST_HELD:
            self._held.append(event)

    # ------------------------------------------------------------ rounds

    async def _rounds(self) -> None:
        """Model, tools, model again, until it calls no more tools."""
        await self.parts.chat.words_known(_WORDS_S)
        await self._wait_for_tools()
        for step in range(self.parts.speech.max_tool_rounds):
            if step:
                self._begin_entry()
            calls = await self._generate()
            if not calls:
                return
            await self._gate.wait()
            if await self._tools.run(calls, step):
                return  # whoever runs them asks for the next answer
            self._speaker.step += 1
        self._problem(EngineFailed("the model called tools again and again without an answer"))
        await self._phrase(self.parts.speech.apology)

    async def _wait_for_tools(self) -> None:
        """An interrupted answer may have left tools running: a moment's wait spares the model a stand-in."""
        entries = self.parts.chat.pending_tools
        if entries:
            waits = [asyncio.ensure_future(entry.returned.wait()) for entry in entries]
            _, late = await asyncio.wait(waits, timeout=self.parts.speech.tool_wait_s)
            for wait in late:
                wait.cancel()

    def _prompt(self) -> Prompt:
        done = (e for e in self.parts.chat.entries if isinstance(e, ToolEntry) and e.output is not None)
        self.shown.update(entry.call.call_id for entry in done)
        return prompt_of(self.parts, saying=self._saying)

    async def _generate(self) -> list[ToolCall]:
        """One round of the model, with the plan of DESIGN §7; returns the tools it calls."""
        speech, models = self.parts.speech, self._models()
        hedge = models[1] is not models[0]
        for number, model in enumerate(models):
            last = number == len(models) - 1
            generation = Generation(
                self.parts,
                self.scope,
                self._speaker,
                self._tools,
                self.times,
                prompt=self._prompt,
                take=self._take,
                tell=self._tell,
            )
            attempt = await generation.run(model, self.response_id, hedged=hedge and not last)
            self.usage = _sum(self.usage, attempt.usage)
            self.finish = attempt.finished
            if attempt.error is None:
                if attempt.calls:
                    return attempt.calls[:_MOST_CALLS]
                if attempt.spoke or self._said_something:
                    return []
                if not last and (hedge or self._may_ask_again()):
                    continue  # nothing to say: ask once more
                await self._give_up(None, speech.empty)
                return []
            again = attempt.error.retryable if isinstance(attempt.error, EngineFailed) else False
            if not last and not attempt.text and (hedge or (again and self._may_ask_again())):
                log.warning("%s failed before its first word, asking %s", model.name, models[-1].name)
                continue
            whole = attempt.text.rstrip().endswith(_SENTENCE_ENDS) and attempt.finished is None
            dropped = isinstance(attempt.error, EngineFailed)
            await self._give_up(attempt.error, "" if whole and dropped else speech.apology)
            return []
        return []

    def _models(self) -> list[LanguageModel]:
        """Who is asked first, and who if that fails. One that is taken for dead is asked only if the other is, too."""
        stages, now = self.parts.stages, self._now()
        both = [stages.model, stages.fallback_model or stages.model]
        usable = [model for model in both if stages.service.engine("model", model).usable(now)]
        return usable * 2 if len(usable) == 1 else both

    def _may_ask_again(self) -> bool:
        return self.parts.stages.service.retries["model"].spend(self._now())

    async def _give_up(self, error: VoiceError | None, phrase: str) -> None:
        if not self.opened:
            self.spoiled = True
            if error is not None:
                self._tell(Problem(str(error), type(error).__name__))
            return
        if error is not None:
            self._problem(error)
        if phrase:
            await self._phrase(phrase)

    @property
    def _said_something(self) -> bool:
        return self._speaker.said_something if self.parts.speak else bool(self.generated.strip())

    def _take(self, text: str) -> bool:
        """More of the answer; returns whether there may be more still."""
        if len(self.generated) + len(text) > _MOST_CHARS or self._is_enough(text):
            return False
        self._note(text)
        return True

    def _is_enough(self, more: str) -> bool:
        """While the load is too high, an answer ends with a sentence, rather than wherever its last token falls."""
        service = self.parts.stages.service
        if service.rung < Rung.SHORT_ANSWERS or len(self.generated) < service.options.short_answer_chars:
            return False
        # "3." may become "3.14"; where sentences need no blank, none is waited for
        between = more[0].isspace() or self.generated[-1].isspace() or self.generated[-1] in "。！？"
        return between and self.generated.rstrip().endswith(_SENTENCE_ENDS)


def _sum(a: Usage, b: Usage) -> Usage:
    return Usage(
        a.prompt_tokens + b.prompt_tokens,
        a.completion_tokens + b.completion_tokens,
        a.cached_tokens + b.cached_tokens,
    )
