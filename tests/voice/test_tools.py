"""Tools: declared from a signature, called with checked arguments, and never a danger to the session."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import datetime
import enum
import functools
import json
import logging
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voice.errors import BadRequest, EngineFailed
from voice.executor import ThreadExecutor
from voice.interfaces import ImagePart, TextPart, ToolCall
from voice.scope import Reaper, Reason, Scope
from voice.testing import run_virtual
from voice.tools import MAX_ARGUMENT_CHARS, AnyTool, ToolContext, ToolResult, as_tool, run_tool, tool

PNG = ImagePart(b"\x89PNG", "image/png")


@pytest.fixture
def executor() -> Iterator[ThreadExecutor]:
    made = ThreadExecutor("test-tools", threads=2)
    yield made
    made.close()


class Session:
    """Stands in for what a tool may ask of a session, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def say(self, text: str) -> None:
        self.asked.append(("say", text, threading.current_thread().name))

    def interrupt(self) -> None:
        self.asked.append(("interrupt",))

    def hang_up(self) -> None:
        self.asked.append(("hang_up",))


def call(name: str, arguments: object = "{}") -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall("call_1", name, text)


async def once(
    function: AnyTool | Callable[..., Any],
    arguments: object = "{}",
    *,
    executor: ThreadExecutor,
    scope: Scope | None = None,
    session: Session | None = None,
) -> ToolResult:
    made = as_tool(function)
    scope = scope or Scope("turn")
    return await run_tool(
        {made.name: made}, call(made.name, arguments), scope, executor=executor, context=session
    )


@tool
async def book(seats: int, when: Literal["lunch", "dinner"] = "dinner", note: str | None = None) -> str:
    """Book a table.

    The restaurant answers at once.

    Args:
        seats: How many people.
        when: Which meal.
    """
    return f"{seats} for {when}"


# ---------------------------------------------------------------- declaring


def test_a_tool_is_described_by_its_signature_and_docstring() -> None:
    assert book.name == "book"
    assert book.description == "Book a table."
    assert book.spec.parameters == {
        "type": "object",
        "properties": {
            "seats": {"type": "integer", "description": "How many people."},
            "when": {
                "type": "string",
                "enum": ["lunch", "dinner"],
                "description": "Which meal.",
                "default": "dinner",
            },
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["seats"],
        "additionalProperties": False,
    }
    json.dumps(book.spec.parameters)


def test_a_tool_is_still_the_function() -> None:
    @tool
    def double(n: int) -> int:
        return 2 * n

    assert double(4) == 8
    assert run_virtual(_await(book(3))) == "3 for dinner"


async def _await(awaitable: Any) -> Any:
    return await awaitable


def test_options_are_kept_and_override_the_docstring() -> None:
    @tool(timeout_s=3, on_interrupt="cancel", pure=True, name="look-up", description="Find it.")
    def f(x: str) -> str:
        """Not this."""
        return x

    assert (f.name, f.description, f.timeout_s, f.on_interrupt, f.pure) == (
        "look-up",
        "Find it.",
        3,
        "cancel",
        True,
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        f.name = "other"  # type: ignore[misc]
    assert len({f, book}) == 2, "tools can be members of a set"


def test_an_annotated_text_wins_over_the_docstring() -> None:
    @tool
    def f(x: Annotated[int, "From the type."]) -> None:
        """F.

        Args:
            x: From the docstring.
        """

    assert f.parameters["properties"]["x"]["description"] == "From the type."


def test_scope_and_context_are_filled_in_and_not_shown(executor: ThreadExecutor) -> None:
    @tool
    async def f(x: int, s: Scope, context, c: ToolContext | None = None, scope=None) -> str:  # type: ignore[no-untyped-def]
        assert c is not None
        return f"{x} {s.kind} {c.call_id} {context is c} {scope is s}"

    assert list(f.parameters["properties"]) == ["x"]
    assert run_virtual(once(f, {"x": 1}, executor=executor)).output == "1 tool call_1 True True"
    assert "unknown" in run_virtual(once(f, {"x": 1, "s": 2}, executor=executor)).output


def test_types_local_to_a_function_are_found() -> None:
    @dataclass
    class Here:
        n: int

    @tool
    def f(here: Here) -> None: ...

    @tool(pure=True)
    def g(here: Here) -> Missing: ...  # type: ignore[name-defined]  # noqa: F821

    assert f.parameters["properties"]["here"]["required"] == ["n"]
    assert g.parameters["properties"]["here"]["required"] == ["n"], "the return type does not matter"


def test_a_bound_method_is_a_tool(executor: ThreadExecutor) -> None:
    class Desk:
        def __init__(self) -> None:
            self.n = 7

        async def number(self, plus: int) -> int:
            """The number."""
            return self.n + plus

    assert run_virtual(once(Desk().number, {"plus": 1}, executor=executor)).output == "8"


def _untyped(x): ...  # type: ignore[no-untyped-def]
def _self(self): ...  # type: ignore[no-untyped-def]
def _many(*names: str) -> None: ...
def _named(**names: str) -> None: ...
def _positional(x: int, /) -> None: ...
def _bytes(x: bytes) -> None: ...
def _unknown(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def _generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (_untyped, 'parameter "x" of tool "_untyped" has no type'),
        (_self, "bound method"),
        (_many, 'parameter "names" of tool "_many" takes any number'),
        (_named, "takes any number"),
        (_positional, "positional-only"),
        (_bytes, "the type bytes, which a model can't fill in"),
        (_unknown, "can't be resolved: name 'Nowhere' is not defined"),
        (_generator, "a generator"),
        (lambda: None, "'<lambda>' must be 1 to 64"),
        (functools.partial(_bytes, b""), "must be a function"),
        (str, "must be a function"),
        (7, "must be a function"),
    ],
)
def test_what_a_model_cannot_call_is_refused_when_it_is_declared(function: Any, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        tool(function)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"timeout_s": float("inf")},
        {"on_interrupt": "explode"},
        {"name": "no spaces"},
    ],
)
def test_a_wrong_option_is_refused(options: Any) -> None:
    with pytest.raises(BadRequest):
        tool(**options)(lambda: None)

    def f() -> None: ...

    with pytest.raises(BadRequest):
        tool(**options)(f)


# ---------------------------------------------------------------- arguments


def test_a_good_call_runs(executor: ThreadExecutor) -> None:
    result = run_virtual(once(book, {"seats": 4, "when": "lunch"}, executor=executor))
    assert result == ToolResult("4 for lunch")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"seats": ', "not valid JSON"),
        ('{"seats": NaN}', "not valid JSON"),
        ("[" * 50_000, "not valid JSON"),
        ('{"seats": "\ud800"}', "not valid JSON"),
        ("[4]", "expected an object with seats, when, note, got a list of 1"),
        ("null", "got null"),
        ("", '"seats": missing; expected a whole number'),
        ("{}", "expected one JSON object with: seats, when (optional), note (optional)"),
        ('{"seats": "four"}', '"seats": expected a whole number, got the string "four"'),
        ('{"seats": 4, "when": "tea"}', 'expected one of "lunch", "dinner", got the string "tea"'),
        ('{"seats": 4, "chairs": 4}', '"chairs": unknown; the names are: seats, when, note'),
        (" " * (MAX_ARGUMENT_CHARS + 1), "at most 100,000"),
    ],
)
def test_a_bad_call_is_told_to_the_model_and_does_not_run(
    executor: ThreadExecutor, arguments: str, words: str
) -> None:
    runs: list[int] = []

    @tool(name="book")
    def counted(seats: int, when: Literal["lunch", "dinner"] = "dinner", note: str | None = None) -> None:
        runs.append(seats)

    result = run_virtual(once(counted, arguments, executor=executor))
    assert result.error is not None
    assert words in result.error
    assert result.output == f'The call of "book" was not made: {result.error}'
    assert runs == []


def test_many_mistakes_are_told_within_bounds(executor: ThreadExecutor) -> None:
    @tool
    def f(names: list[str]) -> None: ...

    result = run_virtual(once(f, {"names": list(range(1000)), "y" * 5000: 1}, executor=executor))
    assert "and 993 more" in result.output
    assert len(result.output) < 1500


def test_an_empty_text_is_a_call_without_arguments(executor: ThreadExecutor) -> None:
    async def now() -> str:
        return "noon"

    assert run_virtual(once(now, "", executor=executor)).output == "noon"
    assert "expected an empty JSON object" in run_virtual(once(now, '{"zone": 1}', executor=executor)).output


def test_an_unknown_tool_is_answered_with_the_names_there_are(executor: ThreadExecutor) -> None:
    async def main() -> tuple[ToolResult, ToolResult]:
        scope = Scope("turn")
        known = await run_tool({"book": book}, call("bok"), scope, executor=executor)
        none = await run_tool({}, call("bok" * 100), scope, executor=executor)
        return known, none

    known, none = run_virtual(main())
    assert known.error == 'there is no tool "bok"; the tools are: book'
    assert "there are no tools" in none.output
    assert len(none.output) < 150


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_no_text_of_arguments_raises(text: str) -> None:
    try:
        book.read(text)
    except BadRequest as error:
        assert len(str(error)) < 2000


# ---------------------------------------------------------------- where it runs


def test_a_plain_function_runs_in_a_thread_and_an_async_one_on_the_loop(executor: ThreadExecutor) -> None:
    def where() -> str:
        return threading.current_thread().name

    async def where_async() -> str:
        return threading.current_thread().name

    assert run_virtual(once(where, executor=executor)).output.startswith("test-tools")
    assert run_virtual(once(where_async, executor=executor)).output == threading.current_thread().name


def test_a_wrapped_async_function_is_awaited(executor: ThreadExecutor) -> None:
    async def real(n: int) -> int:
        await asyncio.sleep(1)
        return n + 1

    @functools.wraps(real)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return real(*args, **kwargs)

    assert run_virtual(once(tool(wrapper), {"n": 1}, executor=executor)).output == "2"


def test_context_variables_reach_the_thread(executor: ThreadExecutor) -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    def look() -> str:
        return variable.get()

    async def main() -> ToolResult:
        variable.set("set")
        return await once(look, executor=executor)

    assert run_virtual(main()).output == "set"


def test_a_tool_speaks_and_hangs_up_through_the_session_without_waiting(executor: ThreadExecutor) -> None:
    session = Session()

    def goodbye(context: ToolContext) -> str:
        context.say("Goodbye.")
        context.interrupt()
        context.hang_up()
        return "said"

    async def main() -> None:
        result = await once(goodbye, executor=executor, session=session)
        assert result.output == "said"
        await asyncio.sleep(0)

    asyncio.run(main())
    loop_thread = threading.current_thread().name
    assert session.asked == [("say", "Goodbye.", loop_thread), ("interrupt",), ("hang_up",)]


def test_a_tool_that_interrupts_its_own_turn_does_not_wait_for_itself(executor: ThreadExecutor) -> None:
    turn: list[Scope] = []

    class Cutting(Session):
        def interrupt(self) -> None:
            turn[0].cancel(Reason.BARGE_IN)

    async def cut(context: ToolContext) -> None:
        context.interrupt()
        await asyncio.sleep(5)
        context.say("never heard")

    async def main() -> tuple[ToolResult, float]:
        turn.append(Scope("turn"))
        result = await once(cut, executor=executor, scope=turn[0], session=session)
        return result, asyncio.get_running_loop().time()

    session = Cutting()
    result, took_s = run_virtual(main())
    assert result.error == "cancelled (barge_in)"
    assert took_s == 0.0
    assert session.asked == []


def test_what_the_session_refuses_is_logged_and_harms_nothing(
    executor: ThreadExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    class Strict(Session):
        def say(self, text: str) -> None:
            raise BadRequest("there is nothing to say")

    async def f(context: ToolContext) -> None:
        context.say("")
        await asyncio.sleep(1)

    assert run_virtual(once(f, executor=executor, session=Strict())).output == "done"
    assert "was refused: there is nothing to say" in caplog.text


def test_asking_the_session_without_one_is_an_error_of_the_tool(executor: ThreadExecutor) -> None:
    async def f(context: ToolContext) -> None:
        context.say("hello")

    assert "outside of one" in run_virtual(once(f, executor=executor)).output


# ---------------------------------------------------------------- failures


class Rude(Exception):
    def __str__(self) -> str:
        raise ValueError("no message for you")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no such table"), "failed: ValueError: no such table"),
        (KeyError("k"), "failed: KeyError: 'k'"),
        (EngineFailed("the server is down"), "failed: the server is down"),
        (ExceptionGroup("group", [OSError("inner")]), "failed: OSError: inner"),
        (StopIteration(3), "failed: StopIteration: 3"),
        (SystemExit(3), "failed: SystemExit: 3"),
        (asyncio.CancelledError(), "failed: CancelledError"),
        (TimeoutError(), "failed: TimeoutError"),
        (Rude(), "failed: Rude"),
        (
            RuntimeError('worker died\nTraceback (most recent call last):\n  File "x", line 1, KEY=abc'),
            "failed: RuntimeError: worker died",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["async", "thread"])
def test_an_exception_is_told_in_one_line_and_logged_with_its_traceback(
    executor: ThreadExecutor, caplog: pytest.LogCaptureFixture, error: BaseException, told: str, kind: str
) -> None:
    def plain() -> None:
        raise error

    async def on_loop() -> None:
        raise error

    if kind == "async" and isinstance(error, StopIteration):
        told = "failed: RuntimeError: coroutine raised StopIteration"
    with caplog.at_level(logging.WARNING, "voice"):
        result = run_virtual(once(on_loop if kind == "async" else plain, executor=executor))
    assert result.error == told
    assert "Traceback" not in result.output
    assert any(record.exc_info and record.levelno == logging.WARNING for record in caplog.records)


def test_a_long_message_is_cut_at_300_characters(executor: ThreadExecutor) -> None:
    async def f() -> None:
        raise ValueError("x" * 1_000_000)

    result = run_virtual(once(f, executor=executor))
    assert result.error is not None
    assert len(result.error) == len("failed: ") + 300


def test_a_closed_executor_is_a_failed_call() -> None:
    executor = ThreadExecutor("closed")
    executor.close()

    def f() -> None: ...

    assert "failed" in (run_virtual(once(f, executor=executor)).error or "")


# ---------------------------------------------------------------- time and cancellation


async def _timed(function: AnyTool, executor: ThreadExecutor, scope: Scope) -> tuple[ToolResult, float]:
    result = await once(function, executor=executor, scope=scope)
    return result, asyncio.get_running_loop().time()


def test_a_tool_ends_at_its_own_timeout(executor: ThreadExecutor) -> None:
    stopped: list[str] = []

    @tool(timeout_s=3)
    async def slow() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            stopped.append("yes")

    async def main() -> tuple[ToolResult, float]:
        return await _timed(slow, executor, Scope("turn"))

    result, took_s = run_virtual(main())
    assert took_s == 3.0
    assert result.error == "timed out after 3 s"
    assert "may still have had an effect" in result.output
    assert stopped == ["yes"]


def test_the_deadline_of_the_scope_comes_first_when_it_is_sooner(executor: ThreadExecutor) -> None:
    @tool(timeout_s=30)
    async def slow() -> None:
        await asyncio.sleep(100)

    async def main() -> tuple[ToolResult, float]:
        return await _timed(slow, executor, Scope("turn", deadline=2.0))

    result, took_s = run_virtual(main())
    assert took_s == 2.0
    assert result.error == "cancelled (deadline)"


@pytest.mark.parametrize("at_s", [0.0, 0.5, 0.999])
def test_a_cancelled_scope_cancels_the_tool_at_once(executor: ThreadExecutor, at_s: float) -> None:
    seen: list[object] = []

    @tool
    async def slow(context: ToolContext) -> str:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            seen.append(context.cancelled)
            await asyncio.sleep(1)  # unwinding slowly is nobody else's wait
            seen.append("unwound")
            raise
        return "late"

    async def main() -> tuple[ToolResult, float, Scope]:
        scope = Scope("turn")
        asyncio.get_running_loop().call_later(at_s, scope.cancel, Reason.BARGE_IN)
        result, took_s = await _timed(slow, executor, scope)
        await scope.reaper.drain(5)
        return result, took_s, scope

    result, took_s, scope = run_virtual(main())
    assert result.error == "cancelled (barge_in)"
    assert took_s == at_s
    assert seen in ([True, "unwound"], [])  # cancelled before its first step, it never began
    assert scope.reaper.pending == 0


@pytest.mark.parametrize("reason", list(Reason))
def test_a_scope_that_is_over_starts_nothing(executor: ThreadExecutor, reason: Reason) -> None:
    runs: list[int] = []

    async def f() -> None:
        runs.append(1)

    async def main() -> ToolResult:
        scope = Scope("turn")
        scope.cancel(reason)
        return await once(f, executor=executor, scope=scope)

    result = run_virtual(main())
    assert result.error == f"cancelled ({reason})"
    assert "was not started" in result.output
    assert runs == []


def test_a_tool_that_swallows_its_cancel_delays_nobody_and_is_named(
    executor: ThreadExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(timeout_s=1, name="stubborn")
    async def stubborn() -> str:
        for _ in range(10):
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                continue
        return "far too late"

    async def main() -> tuple[ToolResult, float, int]:
        scope = Scope("turn", reaper=Reaper())
        result, took_s = await _timed(stubborn, executor, scope)
        await asyncio.sleep(100)
        return result, took_s, scope.reaper.ignored_cancels

    with caplog.at_level(logging.WARNING, "voice"):
        result, took_s, ignored = run_virtual(main())
    assert took_s == 1.0
    assert result.error == "timed out after 1 s"
    assert ignored == 1
    assert "tool stubborn ignores its cancel" in caplog.text


def test_a_cancelled_caller_cancels_the_tool(executor: ThreadExecutor) -> None:
    stopped: list[bool] = []

    @tool
    async def slow(context: ToolContext) -> None:
        try:
            await asyncio.sleep(5)
        finally:
            stopped.append(context.cancelled)

    async def main() -> None:
        scope = Scope("turn")
        task = asyncio.create_task(once(slow, executor=executor, scope=scope))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        assert stopped == [True]
        assert not scope._children

    run_virtual(main())


def test_a_finished_call_leaves_nothing_in_the_scope(executor: ThreadExecutor) -> None:
    async def main() -> None:
        scope = Scope("turn")
        for _ in range(100):
            assert (await once(book, {"seats": 1}, executor=executor, scope=scope)).error is None
        await asyncio.sleep(0)
        assert not scope._children
        assert not scope._tasks
        assert not scope._callbacks
        assert scope.reaper.pending == 0

    run_virtual(main())


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_a_blocking_tool_sees_that_it_is_cancelled_and_its_late_result_is_dropped(how: str) -> None:
    ended = threading.Event()
    started = threading.Event()
    session = Session()

    @tool(timeout_s=0.05 if how == "timeout" else 60)
    def steps(context: ToolContext) -> str:
        started.set()
        for _ in range(20_000):
            if context.cancelled:
                break
            ended.wait(0.001)
        context.say("stale")
        ended.set()
        return "late"

    async def main() -> tuple[ToolResult, bool]:
        executor = ThreadExecutor("steps")
        scope = Scope("turn")
        running = asyncio.create_task(once(steps, executor=executor, scope=scope, session=session))
        assert await asyncio.to_thread(started.wait, 30)
        if how == "cancel":
            scope.cancel(Reason.BARGE_IN)
        result = await running
        seen = await asyncio.to_thread(ended.wait, 30)
        executor.close()
        return result, seen

    result, seen = asyncio.run(main())
    assert result.error == ("timed out after 0.05 s" if how == "timeout" else "cancelled (barge_in)")
    assert seen, "the tool stopped at its next step"
    assert session.asked == [], "a cancelled tool can't make the agent speak"


def test_a_blocking_tool_that_waits_for_a_thread_never_starts_once_cancelled() -> None:
    release = threading.Event()
    runs: list[int] = []

    def hold() -> None:
        release.wait(30)

    @tool
    def queued() -> None:
        runs.append(1)

    async def main() -> ToolResult:
        executor = ThreadExecutor("one", threads=1)
        busy = executor.run(hold)
        scope = Scope("turn")
        running = asyncio.create_task(once(queued, executor=executor, scope=scope))
        await asyncio.sleep(0.01)
        scope.cancel(Reason.BARGE_IN)
        result = await running
        release.set()
        await busy
        await executor.run(int)
        executor.close()
        return result

    assert asyncio.run(main()).error == "cancelled (barge_in)"
    assert runs == []


def test_calls_run_side_by_side(executor: ThreadExecutor) -> None:
    @tool
    async def slow(n: int) -> int:
        await asyncio.sleep(1)
        return n

    async def main() -> tuple[list[str], float]:
        scope = Scope("turn")
        results = await asyncio.gather(
            *(once(slow, {"n": n}, executor=executor, scope=scope) for n in range(8))
        )
        return [result.output for result in results], asyncio.get_running_loop().time()

    assert run_virtual(main()) == ([str(n) for n in range(8)], 1.0)


# ---------------------------------------------------------------- outputs


@dataclass
class Weather:
    city: str
    degrees: float


class Sky(enum.Enum):
    CLEAR = "clear"


@pytest.mark.parametrize(
    ("value", "output"),
    [
        ("as it is\n", "as it is\n"),
        ("", ""),
        (None, "done"),
        (3, "3"),
        (True, "true"),
        (float("nan"), '"nan"'),
        (Sky.CLEAR, '"clear"'),
        (Weather("Köln", 3.5), '{"city": "Köln", "degrees": 3.5}'),
        ({"a": [1, None], 2: (Sky.CLEAR,)}, '{"a": [1, null], "2": ["clear"]}'),
        ({1}, "[1]"),
        ([], "[]"),
        (datetime.date(2026, 1, 2), '"2026-01-02"'),
        (TextPart("text"), "text"),
        ("lone \ud800", "lone ?"),
        (["a", TextPart("b")], '["a", "b"]'),
    ],
)
def test_a_value_becomes_text(executor: ThreadExecutor, value: object, output: str) -> None:
    async def f() -> object:
        return value

    assert run_virtual(once(f, executor=executor)) == ToolResult(output)


def test_pictures_are_taken_out(executor: ThreadExecutor) -> None:
    def result_of(value: object) -> ToolResult:
        async def f() -> object:
            return value

        return run_virtual(once(f, executor=executor))

    assert result_of(PNG) == ToolResult("1 image", None, (PNG,))
    assert result_of([PNG, PNG]) == ToolResult("2 images", None, (PNG, PNG))
    assert result_of(("a cat", PNG)) == ToolResult("a cat", None, (PNG,))
    assert result_of([{"n": 1}, PNG]) == ToolResult('[{"n": 1}]', None, (PNG,))
    many = result_of([PNG] * 20)
    assert len(many.images) == 8
    assert "first 8 of 20" in many.output


@pytest.mark.parametrize("value", [object(), b"bytes", {"k": object()}, {(1, 2): 3}, iter([1])])
def test_a_value_without_text_form_is_told_clearly(executor: ThreadExecutor, value: object) -> None:
    async def f() -> object:
        return value

    result = run_virtual(once(f, executor=executor))
    assert result.error is not None
    assert "has no JSON form" in result.error
    assert result.output.startswith('"f" ran, but')


def test_a_value_that_contains_itself_is_told_clearly(executor: ThreadExecutor) -> None:
    async def f() -> object:
        loop: list[object] = []
        loop.append(loop)
        return loop

    assert "contains itself" in run_virtual(once(f, executor=executor)).output


@pytest.mark.parametrize(
    "huge",
    ["x" * 50_000_000, {"k": "x" * 50_000_000}, [["row"] * 10] * 5_000_000],
    ids=["text", "text in a dict", "rows"],
)
def test_a_huge_result_is_cut_without_a_second_copy(executor: ThreadExecutor, huge: object) -> None:
    async def f() -> object:
        return huge

    tracemalloc.start()
    try:
        result = run_virtual(once(f, executor=executor))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.error is None
    assert len(result.output) == 20_000
    assert "[cut here: the first 20,000 characters of " in result.output
    assert peak < 3_000_000


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
).filter(lambda value: not isinstance(value, str) and value is not None)


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_plain_values_are_written_as_json(value: object) -> None:
    async def f() -> object:
        return value

    output = run_virtual(once(f, executor=ThreadExecutor("unused"))).output
    assert json.loads(output) == value
