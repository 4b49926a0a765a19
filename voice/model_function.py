"""How does an async generator function become a language model?

This is how an existing agent app plugs in.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from voice.errors import BadRequest, EngineFailed, VoiceError
from voice.interfaces import (
    Finished,
    LanguageModel,
    Message,
    ModelEvent,
    ModelOptions,
    Prompt,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolSpec,
    Usage,
)
from voice.schema import clip
from voice.scope import Scope

log = logging.getLogger("voice")


@dataclass(frozen=True, slots=True)
class ChatView:
    """The conversation as a model function sees it; read-only.

    Attributes:
        instructions: The system messages at the start, joined.
        messages: All that follows them, oldest first; the last is what to answer.
        tools: The agent's tools, for a function that yields :class:`~voice.interfaces.ToolCall`.
        options: Sampling and limits the agent was given.
    """

    instructions: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    options: ModelOptions = field(default_factory=ModelOptions)

    @classmethod
    def of(cls, prompt: Prompt) -> ChatView:
        """The view of a prompt."""
        start = next((i for i, m in enumerate(prompt.messages) if m.role != "system"), len(prompt.messages))
        instructions = "\n\n".join(message.text for message in prompt.messages[:start])
        return cls(instructions, prompt.messages[start:], prompt.tools, prompt.options)

    @property
    def last_user_text(self) -> str:
        """What the user said last; empty before the first word."""
        return next((message.text for message in reversed(self.messages) if message.role == "user"), "")


ModelFunction: TypeAlias = Callable[[ChatView, Scope], AsyncIterator[Any]]
"""An async generator function: yields ``str``, and model events if it wants. Closing it stops the answer."""

_EXPECTED = "an async generator function: async def model(chat, scope): yield 'text'"


class CallableModel:
    """A language model made of an async generator function ``(chat, scope)`` that yields text.

    Text goes to the voice as it comes. The model events of :mod:`voice.interfaces` may be yielded too; a
    ``Finished`` ends the answer, and is added when the function just returns. The generator is always closed.

    Raises:
        BadRequest: Not an async generator function of two arguments.
    """

    def __init__(self, function: ModelFunction, name: str | None = None) -> None:
        _check_model_function(function)
        self.function = function
        self.name: str = name or getattr(function, "__name__", "") or type(function).__name__

    async def generate(self, prompt: Prompt, scope: Scope) -> AsyncIterator[ModelEvent]:
        """Run the function for one answer.

        Raises:
            EngineFailed: The function raised, or yielded something else than text and model events.
        """
        finish = "stop"
        async with aclosing(self._answer(prompt, scope)) as answer:
            async for piece in answer:
                match piece:
                    case "":
                        continue
                    case str():
                        yield TextDelta(piece)
                    case Finished():
                        yield piece
                        return
                    case TextDelta() | ToolCallDelta() | ToolCall() | Usage():
                        if isinstance(piece, ToolCall):
                            finish = "tool_calls"
                        yield piece
                    case _:
                        raise EngineFailed(
                            f'the model function "{self.name}" yielded something of type {type(piece).__name__}; '
                            "it must yield str (or the model events of voice.interfaces)",
                            retryable=False,
                        )
        yield Finished(finish)

    async def _answer(self, prompt: Prompt, scope: Scope) -> AsyncGenerator[object, None]:
        """The function's own stream, closed at the end, with its errors put into our words."""
        stream: object = None
        try:
            stream = self.function(ChatView.of(prompt), scope)
            if not isinstance(stream, AsyncIterator):
                if inspect.iscoroutine(stream):
                    stream.close()
                raise EngineFailed(
                    f'the model function "{self.name}" returned something of type {type(stream).__name__}; '
                    f"expected {_EXPECTED}",
                    retryable=False,
                )
            async for piece in stream:
                yield piece
        except (VoiceError, GeneratorExit):
            raise
        except Exception as error:
            text = clip(f"{type(error).__name__}: {error}", 300)
            raise EngineFailed(f'the model function "{self.name}" failed: {text}') from error
        finally:
            if isinstance(stream, AsyncGenerator):
                await self._close(stream)

    async def _close(self, stream: AsyncGenerator[object, None]) -> None:
        try:
            await stream.aclose()
        except Exception:  # the answer is over either way, and what went wrong in it must not be hidden
            log.exception("the model function %s failed while it was closed", self.name)


def _check_model_function(function: object) -> None:
    def refuse(what: str) -> BadRequest:
        return BadRequest(f"model is {what}; give a LanguageModel, or {_EXPECTED}")

    if isinstance(function, type):
        raise refuse(f"the class {function.__name__}, not an object of it")
    if not callable(function):
        raise refuse(f"of type {type(function).__name__}")
    body = function if inspect.isroutine(function) else getattr(function, "func", type(function).__call__)
    name = getattr(function, "__name__", type(function).__name__)
    if inspect.isgeneratorfunction(body):
        raise refuse(f'"{name}", a plain generator that would block the event loop (write async def)')
    if inspect.iscoroutinefunction(body):
        raise refuse(f'"{name}", an async function that returns once (use yield instead of return)')
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise refuse(f'"{name}", which does not take the two arguments (chat, scope): {error}') from None
    except ValueError:  # a builtin without a signature: its first call will tell
        return


def as_model(model: LanguageModel | ModelFunction) -> LanguageModel:
    """A language model as it is, a function as a :class:`CallableModel`.

    Raises:
        BadRequest: Neither of the two.
    """
    if not isinstance(model, type) and callable(getattr(model, "generate", None)):
        return model  # type: ignore[return-value]
    return CallableModel(model)  # type: ignore[arg-type]
