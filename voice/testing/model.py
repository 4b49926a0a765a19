"""ScriptedModel: a language model that says what it is told, when it is told to, and checks its prompts."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

from voice.errors import EngineFailed
from voice.interfaces import (
    Finished,
    ImagePart,
    Message,
    ModelEvent,
    Prompt,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from voice.scope import Scope
from voice.testing.stages import KEPT


@dataclass(frozen=True, slots=True)
class Pause:
    """Say nothing for ``seconds``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise :class:`~voice.errors.EngineFailed`."""

    message: str = "the scripted model fails as it was told to"
    retryable: bool = True


@dataclass(frozen=True, slots=True)
class Hang:
    """Say nothing for ever."""


Step: TypeAlias = str | Pause | Fail | Hang | ModelEvent
"""A string is one token as it stands. A tool call without ``call_id`` gets one: ``call_1``, ``call_2``, …"""
Reply: TypeAlias = str | Sequence[Step]
"""A plain string is cut into words, a token each."""


class ScriptedModel:
    """A language model that follows a script.

    Args:
        replies: A sequence: one reply a generation, in order; the last is repeated. A mapping from the text
            of the prompt's last message to the reply (``"*"``: any other): not disturbed by guesses that are
            thrown away. A function of the prompt: what it returns.
        first_token_s: Loop time to the first step.
        token_s: Loop time between text tokens.
        strict: Refuse prompts that a provider would; see :func:`check_prompt`.

    Attributes:
        prompts: The latest prompts.
        opened, finished, failed, closed_early: Generations begun; ended by themselves; ended by an error;
            closed or cancelled before their end.
    """

    name = "scripted-model"

    def __init__(
        self,
        replies: Sequence[Reply] | Mapping[str, Reply] | Callable[[Prompt], Reply] = ("Okay.",),
        *,
        first_token_s: float = 0.1,
        token_s: float = 0.02,
        strict: bool = True,
    ) -> None:
        if isinstance(replies, str):
            raise TypeError("replies must be a sequence of replies: put the one text in a list")
        self.replies = replies
        self.first_token_s, self.token_s = first_token_s, token_s
        self.strict = strict
        self.prompts: deque[Prompt] = deque(maxlen=KEPT)
        self.opened = self.finished = self.failed = self.closed_early = 0
        self._tool_calls = 0

    @property
    def running(self) -> int:
        """Generations under way."""
        return self.opened - self.finished - self.failed - self.closed_early

    async def generate(self, prompt: Prompt, scope: Scope) -> AsyncIterator[ModelEvent]:
        """See :class:`~voice.interfaces.LanguageModel`. Of the options it knows ``max_tokens`` only."""
        number = self.opened
        self.opened += 1
        self.prompts.append(prompt)
        outcome = "closed"
        try:
            if self.strict:
                check_prompt(prompt)
            await asyncio.sleep(self.first_token_s)
            async with aclosing(self._play(self._reply(prompt, number), prompt)) as events:
                async for event in events:
                    yield event
            outcome = "finished"
        except EngineFailed:
            outcome = "failed"
            raise
        finally:
            self.finished += outcome == "finished"
            self.failed += outcome == "failed"
            self.closed_early += outcome == "closed"

    def _reply(self, prompt: Prompt, number: int) -> Reply:
        if callable(self.replies):
            return self.replies(prompt)
        if isinstance(self.replies, Mapping):
            text = prompt.messages[-1].text if prompt.messages else ""
            if (reply := self.replies.get(text, self.replies.get("*"))) is None:
                raise EngineFailed(f"the script has no reply to {text!r} and none to '*'", retryable=False)
            return reply
        return self.replies[min(number, len(self.replies) - 1)] if self.replies else ""

    async def _play(self, reply: Reply, prompt: Prompt) -> AsyncGenerator[ModelEvent, None]:
        steps: Sequence[Step] = re.findall(r"\s*\S+\s*$|\s*\S+", reply) if isinstance(reply, str) else reply
        tokens, reason = 0, "stop"
        for step in steps:
            match step:
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case Hang():
                    await asyncio.Event().wait()
                case Fail(message, retryable):
                    raise EngineFailed(message, retryable=retryable)
                case str() | TextDelta():
                    if prompt.options.max_tokens is not None and tokens >= prompt.options.max_tokens:
                        reason = "length"
                        break
                    if tokens:
                        await asyncio.sleep(self.token_s)
                    tokens += 1
                    yield TextDelta(step) if isinstance(step, str) else step
                case ToolCall():
                    reason = "tool_calls"
                    yield self._with_id(step)
                case Finished():
                    reason = step.reason
                    break
                case ToolCallDelta() | Usage():
                    yield step
        yield Usage(sum(len(m.text.split()) for m in prompt.messages), tokens)
        yield Finished(reason)

    def _with_id(self, call: ToolCall) -> ToolCall:
        if call.call_id:
            return call
        self._tool_calls += 1
        return dataclasses.replace(call, call_id=f"call_{self._tool_calls}")


def check_prompt(prompt: Prompt) -> None:
    """Refuse what a strict provider refuses.

    A prompt needs a message; users and assistants must say something; every tool call has an id of its own
    and is answered by exactly one ``tool`` message, all of them right after the call; there is no other
    ``tool`` message.

    Raises:
        EngineFailed: Not retryable; says which message breaks which rule.
    """
    if not prompt.messages:
        raise _refused("it has no messages")
    open_calls: list[str] = []
    seen: set[str] = set()
    for index, message in enumerate(prompt.messages):
        where = f"message {index} ({message.role})"
        if message.role == "tool":
            if message.tool_call_id not in open_calls:
                raise _refused(f"{where} answers {message.tool_call_id!r}, open are {open_calls}")
            open_calls.remove(message.tool_call_id)
            continue
        if open_calls:
            raise _refused(f"{where} comes before the results of {open_calls}")
        if message.tool_calls and message.role != "assistant":
            raise _refused(f"{where} has tool calls")
        if message.role in ("user", "assistant") and not message.tool_calls and not _says_something(message):
            raise _refused(f"{where} is empty")
        for call in message.tool_calls:
            if not call.call_id or call.call_id in seen:
                raise _refused(f"{where} has a tool call whose id {call.call_id!r} is empty or used before")
            seen.add(call.call_id)
            open_calls.append(call.call_id)
    if open_calls:
        raise _refused(f"the results of {open_calls} are missing at its end")


def _says_something(message: Message) -> bool:
    return bool(message.text.strip()) or any(isinstance(part, ImagePart) for part in message.content)


def _refused(why: str) -> EngineFailed:
    return EngineFailed(f"the prompt is invalid: {why}", retryable=False)
