"""What is a tool, and how is a call carried out so that it never fails, blocks or outlives the session?

A tool is a plain function with types and a docstring. Its arguments are checked before it runs; all that goes
wrong is told to the model in words it can act on.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import math
import re
import sys
import types
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar, get_args, get_origin, overload

import msgspec

from voice.docstrings import Docstring, docstring_of
from voice.errors import BadRequest, VoiceError
from voice.executor import Executor
from voice.interfaces import ImagePart, ToolCall, ToolSpec
from voice.schema import Field, Shape, annotated_text, clip, object_shape, shape_of
from voice.scope import Reason, Scope
from voice.tool_context import SessionHandle, ToolContext
from voice.tool_output import output_of

__all__ = [
    "AnyTool",
    "SessionHandle",
    "Tool",
    "ToolContext",
    "ToolResult",
    "as_tool",
    "declare_tool",
    "run_tool",
    "tool",
]

log = logging.getLogger("voice")
P = ParamSpec("P")
R = TypeVar("R")

OnInterrupt: TypeAlias = Literal["finish", "cancel"]

MAX_ARGUMENT_CHARS = 100_000
"""The longest JSON text of arguments that is looked at."""
MAX_COMPLAINTS = 8
"""How many mistakes of one call the model is told."""
MAX_ERROR_CHARS = 300
"""How much of an exception's message the model is told."""


# ---------------------------------------------------------------- declaring


@dataclass(frozen=True, eq=False)
class Tool(Generic[P, R]):
    """A function that a model may call. Made by :func:`tool`; calling it calls the function.

    Attributes:
        name: What the model calls it.
        description: First paragraph of the docstring.
        function: The function itself.
        parameters: JSON schema of its arguments.
        timeout_s: Longest run of one call, seconds; the scope's own deadline may end it sooner.
        on_interrupt: ``"finish"``: it runs on when the user interrupts (its effect counts). ``"cancel"``: it
            is stopped. The session reads this.
        pure: It changes nothing, so a guess may run it before the turn is certain. The session reads this.
        injected: Parameters the model does not see, each filled with the call's ``"scope"`` or ``"context"``.
    """

    name: str
    description: str
    function: Callable[P, R]
    parameters: Mapping[str, Any]
    timeout_s: float = 10.0
    on_interrupt: OnInterrupt = "finish"
    pure: bool = False
    injected: Mapping[str, str] = field(default_factory=dict)
    _shape: Shape = field(default_factory=lambda: object_shape((), dict), repr=False)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @property
    def spec(self) -> ToolSpec:
        """The tool as a model is shown it."""
        return ToolSpec(self.name, self.description, self.parameters)

    @property
    def is_async(self) -> bool:
        """Whether it runs on the event loop; otherwise it runs in a thread."""
        return inspect.iscoroutinefunction(self.function)

    def read(self, arguments: str) -> dict[str, Any]:
        """Check the JSON text of a call's arguments; empty text is an empty object.

        Raises:
            BadRequest: Not JSON, or not what the function takes; the message lists what is wrong and what was
                expected.
        """
        if len(arguments) > MAX_ARGUMENT_CHARS:
            raise BadRequest(
                f"the arguments are {len(arguments):,} characters; at most {MAX_ARGUMENT_CHARS:,} are taken"
            )
        try:
            value = msgspec.json.decode(arguments) if arguments.strip() else {}
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise BadRequest(
                f"the arguments are not valid JSON ({clip(str(error), 100)}); {self._expected()}"
            ) from None
        complaints: list[str] = []
        result = self._shape.read(value, "", complaints)
        if complaints:
            left = len(complaints) - MAX_COMPLAINTS
            shown = "; ".join(complaints[:MAX_COMPLAINTS]) + (f"; and {left} more" if left > 0 else "")
            raise BadRequest(f"{shown}; {self._expected()}")
        assert isinstance(result, dict)
        return result

    def _expected(self) -> str:
        if not self.parameters["properties"]:
            return "expected an empty JSON object, {}"
        required = self.parameters["required"]
        names = (name if name in required else f"{name} (optional)" for name in self.parameters["properties"])
        return f"expected one JSON object with: {', '.join(names)}"


AnyTool: TypeAlias = Tool[..., Any]


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *,
    timeout_s: float = 10.0,
    on_interrupt: OnInterrupt = "finish",
    pure: bool = False,
    name: str | None = None,
    description: str | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    timeout_s: float = 10.0,
    on_interrupt: OnInterrupt = "finish",
    pure: bool = False,
    name: str | None = None,
    description: str | None = None,
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a tool of a function: ``@tool``, or ``@tool(timeout_s=30)``.

    The model sees the function's name, the first paragraph of its docstring, and a JSON schema made from the
    types of its parameters; texts for parameters come from ``Annotated[T, "text"]`` or the docstring
    (``Args:`` or ``:param``). A parameter of type :class:`~voice.scope.Scope` or :class:`ToolContext` (or one
    without a type that is named ``scope`` or ``context``) is filled in by us. ``async`` functions run on the
    event loop, others in a thread.

    Args:
        timeout_s: Longest run of one call, in seconds; more than 0.
        on_interrupt: Whether a call goes on (``"finish"``) or stops (``"cancel"``) when the user interrupts.
        pure: The function changes nothing and may run for a guess that is thrown away.
        name: Another name for the model: letters, digits, ``_`` and ``-``, at most 64.
        description: Another description for the model.

    Raises:
        BadRequest: A parameter a model can't fill in, or a wrong option.
    """
    caller = sys._getframe(1).f_locals  # types that are local to the function in which the tool is declared

    def make(function: Callable[P, R]) -> Tool[P, R]:
        return declare_tool(function, caller, timeout_s, on_interrupt, pure, name, description)

    return make if function is None else make(function)


def as_tool(thing: AnyTool | Callable[..., Any]) -> AnyTool:
    """A tool as it is, a function as a tool with default options."""
    if isinstance(thing, Tool):
        return thing
    return declare_tool(thing, {}, 10.0, "finish", False, None, None)


def declare_tool(
    function: Callable[P, R],
    local_names: Mapping[str, Any],
    timeout_s: float,
    on_interrupt: OnInterrupt,
    pure: bool,
    name: str | None,
    description: str | None,
) -> Tool[P, R]:
    """:func:`tool` for those who wrap it; ``local_names``: types local to where the function was written."""
    if not isinstance(function, types.FunctionType | types.MethodType):
        raise BadRequest(f"a tool must be a function or a bound method, not {function!r}; wrap it in a def")
    name = name or function.__name__
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise BadRequest(
            f"tool name {name!r} must be 1 to 64 of a-z, A-Z, 0-9, _ and -; give it one with name=..."
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise BadRequest(f'tool "{name}" is a generator; a tool returns one value')
    if isinstance(timeout_s, bool) or not 0 < timeout_s < math.inf:
        raise BadRequest(
            f'tool "{name}": timeout_s must be more than 0 seconds and finite, not {timeout_s!r}'
        )
    if on_interrupt not in ("finish", "cancel"):
        raise BadRequest(f'tool "{name}": on_interrupt must be "finish" or "cancel", not {on_interrupt!r}')
    doc = docstring_of(function)
    fields, injected = _parameters(function, name, doc, local_names)
    shape = object_shape(fields, dict)
    text = doc.summary if description is None else description
    return Tool(name, text, function, shape.schema, timeout_s, on_interrupt, pure, injected, shape)


def _parameters(
    function: Callable[..., Any], tool_name: str, doc: Docstring, local_names: Mapping[str, Any]
) -> tuple[list[Field], dict[str, str]]:
    """What the model fills in, and what we do."""
    fields: list[Field] = []
    injected: dict[str, str] = {}
    for parameter in inspect.signature(function).parameters.values():
        where = f'parameter "{parameter.name}" of tool "{tool_name}"'
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise BadRequest(
                f"{where} takes any number of arguments; a model needs each one by name and type"
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise BadRequest(f"{where} is positional-only; a model gives arguments by name: remove the '/'")
        if parameter.annotation is parameter.empty:
            if parameter.name not in ("scope", "context"):
                hint = "; make a tool of the bound method instead" if parameter.name == "self" else ""
                raise BadRequest(f"{where} has no type; write one, such as {parameter.name}: str{hint}")
            injected[parameter.name] = parameter.name
            continue
        annotation = _resolved(function, parameter.annotation, where, local_names)
        if (what := _injection(annotation)) is not None:
            injected[parameter.name] = what
            continue
        text = annotated_text(annotation) or doc.parameters.get(parameter.name, "")
        required = parameter.default is parameter.empty
        default = None if required else parameter.default
        fields.append(Field(parameter.name, shape_of(annotation, where), required, text, default))
    return fields, injected


def _resolved(
    function: Callable[..., Any], annotation: object, where: str, local_names: Mapping[str, Any]
) -> object:
    """The annotation with names in it looked up, postponed or not."""
    inner = inspect.unwrap(function)
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    names = getattr(inner, "__globals__", {})
    try:
        return typing.get_type_hints(holder, names, {**names, **local_names}, include_extras=True)["it"]
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise BadRequest(f"the type of {where} can't be resolved: {error}; import it at run time") from None


def _injection(annotation: object) -> str | None:
    if get_origin(annotation) in (typing.Union, types.UnionType):
        members = [_injection(member) for member in get_args(annotation) if member is not type(None)]
        return members[0] if len(members) == 1 else None
    if get_origin(annotation) is typing.Annotated:
        return _injection(get_args(annotation)[0])
    return "scope" if annotation is Scope else "context" if annotation is ToolContext else None


# ---------------------------------------------------------------- running


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came of a call.

    Attributes:
        output: What the model is told; at most 20,000 characters.
        error: One sentence when the call was refused, failed, timed out or was cancelled; ``None`` otherwise.
        images: Pictures the tool returned.
    """

    output: str
    error: str | None = None
    images: tuple[ImagePart, ...] = ()


async def run_tool(
    tools: Mapping[str, AnyTool],
    call: ToolCall,
    scope: Scope,
    *,
    executor: Executor,
    context: SessionHandle | None = None,
) -> ToolResult:
    """Carry out one call. Whatever the model or the tool does wrong is in the result, never raised.

    It ends when the tool does, at the tool's timeout, at the scope's deadline, or when ``scope`` is
    cancelled, whichever is first. It waits for nothing that has been told to stop: a task that ignores its
    cancel is left to the scope's reaper, a thread runs to its own end, and their late results are dropped.

    Args:
        tools: By name.
        call: What the model wrote.
        scope: The call runs under a child of it. Hand in a longer-lived scope for a tool that must finish.
        executor: Where functions that are not ``async`` run.
        context: The conversation, for :class:`ToolContext`.
    """
    found = tools.get(call.name)
    if found is None:
        names = f"the tools are: {', '.join(tools)}" if tools else "there are no tools"
        return _not_done(f'there is no tool "{clip(call.name, 64)}"; {names}', "The call was not made")
    try:
        arguments = found.read(call.arguments)
    except BadRequest as error:
        log.info("a call of tool %s was refused: its arguments don't fit", found.name)
        return _not_done(f"{error}", f'The call of "{found.name}" was not made')
    if scope.cancelled or scope.remaining() == 0.0:
        return _not_done(f"cancelled ({scope.reason or Reason.DEADLINE})", f'"{found.name}" was not started')
    with scope.child("tool", timeout_s=found.timeout_s) as child:
        loop = asyncio.get_running_loop()
        given = ToolContext(child, call.call_id, context, loop)
        for name, what in found.injected.items():
            arguments[name] = child if what == "scope" else given
        ended: asyncio.Future[ToolResult] = loop.create_future()

        def end(result: ToolResult) -> None:
            if not ended.done():
                ended.set_result(result)

        def task_ended(task: asyncio.Task[ToolResult]) -> None:
            end(_failed(found, asyncio.CancelledError()) if task.cancelled() else task.result())

        child.on_cancel(lambda reason: end(_stopped(found, reason, scope.cancelled)))
        child.run(_attempt(found, arguments, child, executor), f"tool {found.name}").add_done_callback(
            task_ended
        )
        return await ended


async def _attempt(found: AnyTool, arguments: dict[str, Any], scope: Scope, executor: Executor) -> ToolResult:
    """Run the function where it belongs. Cancelled only from outside."""
    call = functools.partial(found.function, **arguments)
    try:
        if found.is_async:
            return _returned(found, await call())
        outcome = await executor.run(contextvars.copy_context().run, _in_thread, found, call, scope)
        if isinstance(outcome, ToolResult):
            return outcome
        return _returned(found, await outcome)  # the function was a plain wrapper around an async one
    except asyncio.CancelledError as error:
        if scope.cancelled:
            raise
        return _failed(found, error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool is a stranger's code; _failed logs it
        return _failed(found, error)


def _in_thread(found: AnyTool, call: Callable[[], Any], scope: Scope) -> ToolResult | Awaitable[Any]:
    """The body of a call in a thread. It raises nothing: not every exception can pass through a future."""
    if scope.cancelled:
        return ToolResult("", "cancelled")  # nobody waits for it; the function must not start any more
    try:
        value = call()
        if inspect.isawaitable(value):
            return value
        return _returned(found, value)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool is a stranger's code; _failed logs it
        return _failed(found, error)


def _returned(found: AnyTool, value: object) -> ToolResult:
    try:
        text, images = output_of(value)
    except BadRequest as error:
        log.warning("tool %s ran, but its result can't be told to the model: %s", found.name, error)
        return _not_done(f"unreadable result: {error}", f'"{found.name}" ran, but its result can\'t be shown')
    return ToolResult(text, None, images)


def _failed(found: AnyTool, error: BaseException) -> ToolResult:
    log.warning("tool %s failed", found.name, exc_info=error)
    return _not_done(f"failed: {_message(error)}", f'"{found.name}" did not succeed')


def _stopped(found: AnyTool, reason: Reason, by_scope: bool) -> ToolResult:
    if reason is Reason.DEADLINE and not by_scope:
        what = f"timed out after {found.timeout_s:g} s"
    else:
        what = f"cancelled ({reason})"
    return _not_done(what, f'"{found.name}" did not finish, and may still have had an effect')


def _not_done(error: str, summary: str) -> ToolResult:
    return ToolResult(f"{summary}: {error}", error)


def _message(error: BaseException) -> str:
    """Type and message of an exception, without any traceback text, at most 300 characters."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    try:
        text = str(error)
    except Exception:
        log.exception("the message of a %s can't be read", type(error).__name__)
        text = ""
    text = " ".join(clip(text.partition("Traceback (most recent call last)")[0], 2 * MAX_ERROR_CHARS).split())
    name = "" if isinstance(error, VoiceError) and text else type(error).__name__
    return clip(": ".join(part for part in (name, text) if part), MAX_ERROR_CHARS)
