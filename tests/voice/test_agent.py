"""Agents: put together, given tools and model functions, and loaded from files."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from voice.agent import Agent, CallableModel, ChatView, load_agent
from voice.errors import BadRequest, EngineFailed
from voice.interfaces import (
    Finished,
    ImagePart,
    LanguageModel,
    Message,
    ModelEvent,
    ModelOptions,
    Prompt,
    Stages,
    TextDelta,
    TextPart,
    ToolCall,
    ToolSpec,
    Usage,
)
from voice.options import TurnOptions
from voice.scope import Reason, Scope
from voice.testing import run_virtual
from voice.tools import tool


class Engine:
    """Any engine: an agent only keeps it."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def generate(self, prompt: Prompt, scope: Scope) -> AsyncIterator[ModelEvent]:
        yield Finished("stop")


def stages() -> Stages:
    return Stages(*(cast(Any, Engine(name)) for name in ("detector", "recogniser", "model", "synthesiser")))


def text(role: Any, words: str) -> Message:
    return Message(role, (TextPart(words),))


PROMPT = Prompt(
    (
        text("system", "Be kind."),
        text("system", "Be brief."),
        text("user", "Hello."),
        text("assistant", "Hi!"),
        Message("user", (TextPart("What is "), ImagePart(b"x", "image/png"), TextPart("this?"))),
    ),
    tools=(ToolSpec("look", "Look.", {}),),
    options=ModelOptions(max_tokens=5),
)


async def all_of(model: LanguageModel, prompt: Prompt = PROMPT) -> list[ModelEvent]:
    return [event async for event in model.generate(prompt, Scope("turn"))]


async def hello(chat: ChatView, scope: Scope) -> AsyncIterator[str]:
    yield "Hello "
    yield "there."


# ---------------------------------------------------------------- the agent


def test_an_agent_has_sensible_defaults() -> None:
    made = stages()
    agent = Agent("Be kind.", made)
    assert agent.stages == made
    assert agent.tools == []
    assert (agent.name, agent.greeting, agent.voice, agent.language) == ("agent", None, None, "en")
    assert agent.turns == TurnOptions()


def test_engines_given_by_name_replace_those_of_the_stages() -> None:
    made = stages()
    mine: Any = Engine("mine")
    agent = Agent("", made, model=mine, recogniser=mine, synthesiser=mine, detector=mine)
    assert agent.stages == Stages(mine, mine, mine, mine)
    assert made.model.name == "model", "stages are shared: they must not change"


def test_a_generator_function_becomes_the_model() -> None:
    agent = Agent("", stages(), model=hello)
    assert isinstance(agent.stages.model, CallableModel)
    assert agent.stages.model.name == "hello"
    assert run_virtual(all_of(agent.stages.model)) == [
        TextDelta("Hello "),
        TextDelta("there."),
        Finished("stop"),
    ]


def test_a_copy_with_another_model_keeps_the_rest() -> None:
    agent = Agent("Be kind.", stages(), tools=[_look], greeting="Hi.")
    copy = dataclasses.replace(agent, model=hello)
    assert copy.stages.model.name == "hello"
    assert (copy.greeting, list(copy.tool_table())) == ("Hi.", ["_look"])
    copy.tools.clear()
    assert list(agent.tool_table()) == ["_look"]


def _look(at: str) -> str:
    """Look at something."""
    return at


def test_functions_become_tools_in_order() -> None:
    agent = Agent("", stages(), tools=[_look, tool(name="peek")(_look)])
    assert list(agent.tool_table()) == ["_look", "peek"]
    assert agent.tool_table()["_look"].description == "Look at something."


def test_tools_are_added_by_decorator_and_by_appending() -> None:
    agent = Agent("", stages())

    class Where:  # local names are found here too
        pass

    @dataclasses.dataclass
    class Place:
        name: str

    @agent.tool
    def find(place: Place) -> str:
        """Find it."""
        return place.name

    @agent.tool(timeout_s=2, name="find-2", pure=True, on_interrupt="cancel", description="Again.")
    async def again() -> None: ...

    agent.tools.append(_look)
    assert find(Place("x")) == "x"
    table = agent.tool_table()
    assert list(table) == ["find", "find-2", "_look"]
    assert (table["find-2"].timeout_s, table["find-2"].pure, table["find-2"].description) == (
        2,
        True,
        "Again.",
    )


def test_two_tools_of_one_name_are_refused_whenever_they_meet() -> None:
    with pytest.raises(BadRequest, match='two tools named "_look"'):
        Agent("", stages(), tools=[_look, _look])
    agent = Agent("", stages(), tools=[_look])
    with pytest.raises(BadRequest, match='already has a tool named "_look"'):
        agent.tool(_look)
    agent.tools.append(_look)
    with pytest.raises(BadRequest, match='two tools named "_look"'):
        agent.tool_table()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"instructions": None}, "Agent(instructions=...) must be str, not NoneType"),
        ({"stages": "local"}, "Agent(stages=...) must be Stages, not str"),
        ({"tools": "look"}, "Agent(tools=...) must be list or tuple, not str"),
        ({"greeting": 7}, "Agent(greeting=...) must be str or None, not int"),
        ({"turns": {}}, "Agent(turns=...) must be TurnOptions, not dict"),
        ({"tools": [7]}, "a tool must be a function"),
    ],
)
def test_a_wrong_type_is_told_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        Agent(**{"instructions": "", "stages": stages(), **options})
    assert words in str(caught.value)


# ---------------------------------------------------------------- a function as the model


def test_the_function_sees_the_conversation() -> None:
    seen: list[ChatView] = []

    async def model(chat: ChatView, scope: Scope) -> AsyncIterator[str]:
        seen.append(chat)
        yield scope.kind

    assert run_virtual(all_of(CallableModel(model)))[0] == TextDelta("turn")
    (chat,) = seen
    assert chat.instructions == "Be kind.\n\nBe brief."
    assert [message.role for message in chat.messages] == ["user", "assistant", "user"]
    assert chat.last_user_text == "What is this?"
    assert [spec.name for spec in chat.tools] == ["look"]
    assert chat.options.max_tokens == 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        chat.messages = ()  # type: ignore[misc]


def test_a_chat_without_messages_has_no_last_text() -> None:
    assert ChatView.of(Prompt(())).last_user_text == ""
    assert ChatView.of(Prompt((text("system", "Hi"),))) == ChatView("Hi", ())


def test_model_events_pass_and_the_end_is_added_once() -> None:
    a_call = ToolCall("1", "look", "{}")

    async def events(chat: ChatView, scope: Scope) -> AsyncIterator[object]:
        yield ""
        yield "a"
        yield TextDelta("b")
        yield a_call
        yield Usage(1, 2)

    async def ended(chat: ChatView, scope: Scope) -> AsyncIterator[object]:
        yield Finished("length")
        yield "never"

    async def silent(chat: ChatView, scope: Scope) -> AsyncIterator[str]:
        return
        yield ""

    expected = [TextDelta("a"), TextDelta("b"), a_call, Usage(1, 2), Finished("tool_calls")]
    assert run_virtual(all_of(CallableModel(events))) == expected
    assert run_virtual(all_of(CallableModel(ended))) == [Finished("length")]
    assert run_virtual(all_of(CallableModel(silent))) == [Finished("stop")]


class Streaming:
    """An app whose object is called, as many frameworks have it."""

    async def __call__(self, chat: ChatView, scope: Scope) -> AsyncIterator[str]:
        yield chat.last_user_text

    async def stream(self, chat: ChatView, scope: Scope) -> AsyncIterator[str]:
        yield "method"

    async def configured(self, prefix: str, chat: ChatView, scope: Scope) -> AsyncIterator[str]:
        yield prefix


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Streaming(), "What is this?"),
        (Streaming().stream, "method"),
        (functools.partial(Streaming().configured, "partial"), "partial"),
        (lambda chat, scope: Streaming().stream(chat, scope), "method"),
    ],
    ids=["object", "method", "partial", "lambda"],
)
def test_anything_that_makes_an_async_generator_can_be_the_model(model: Any, said: str) -> None:
    assert run_virtual(all_of(CallableModel(model))) == [TextDelta(said), Finished("stop")]
    assert CallableModel(model).name


def _plain_generator(chat: ChatView, scope: Scope) -> Iterator[str]:
    yield "x"


async def _coroutine(chat: ChatView, scope: Scope) -> str:
    return "x"


async def _one_argument(chat: ChatView) -> AsyncIterator[str]:
    yield "x"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (_plain_generator, "a plain generator that would block the event loop"),
        (_coroutine, "an async function that returns once (use yield instead of return)"),
        (_one_argument, "does not take the two arguments (chat, scope)"),
        (Engine, "the class Engine, not an object of it"),
        ("gpt", "of type str"),
        (hello(ChatView("", ()), Scope("turn")), "of type async_generator"),
    ],
)
def test_what_cannot_be_a_model_is_refused_with_what_is_expected(model: Any, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        Agent("", stages(), model=model)
    assert words in str(caught.value)
    assert "async def model(chat, scope): yield 'text'" in str(caught.value)


@pytest.mark.parametrize("wrong", [b"bytes", None, 7, {"content": "x"}])
def test_a_wrong_yield_fails_clearly_and_closes_the_function(wrong: object) -> None:
    closed: list[bool] = []

    async def model(chat: ChatView, scope: Scope) -> AsyncIterator[object]:
        try:
            yield "first"
            yield wrong
        finally:
            closed.append(True)

    with pytest.raises(
        EngineFailed, match=f"yielded something of type {type(wrong).__name__}; it must yield str"
    ) as caught:
        run_virtual(all_of(CallableModel(model)))
    assert not caught.value.retryable
    assert closed == [True]


@pytest.mark.parametrize("returned", ["text", ["a", "b"], None, _coroutine])
def test_a_function_that_returns_no_stream_fails_clearly(returned: Any) -> None:
    def model(chat: ChatView, scope: Scope) -> Any:
        return returned(chat, scope) if callable(returned) else returned

    with pytest.raises(EngineFailed, match="expected an async generator function"):
        run_virtual(all_of(CallableModel(model)))


def test_an_error_of_the_function_becomes_an_engine_failure_with_its_cause() -> None:
    async def model(chat: ChatView, scope: Scope) -> AsyncIterator[str]:
        yield "some"
        raise KeyError("api")

    with pytest.raises(EngineFailed, match="the model function \"model\" failed: KeyError: 'api'") as caught:
        run_virtual(all_of(CallableModel(model)))
    assert isinstance(caught.value.__cause__, KeyError)


def test_our_own_errors_pass_unchanged() -> None:
    async def model(chat: ChatView, scope: Scope) -> AsyncIterator[str]:
        raise EngineFailed("the server is down", retryable=False)
        yield ""

    with pytest.raises(EngineFailed) as caught:
        run_virtual(all_of(CallableModel(model)))
    assert str(caught.value) == "the server is down"


def test_closing_the_answer_closes_the_function_once_at_that_moment() -> None:
    closed: list[float] = []

    async def model(chat: ChatView, scope: Scope) -> AsyncIterator[str]:
        try:
            for _ in range(100):
                await asyncio.sleep(0.1)
                yield "word "
        finally:
            closed.append(asyncio.get_running_loop().time())

    async def main() -> None:
        answer = cast(Any, CallableModel(model).generate(PROMPT, Scope("turn")))
        async for _ in answer:
            await answer.aclose()
            break
        assert closed == pytest.approx([0.1])

    run_virtual(main())


@pytest.mark.parametrize("when_s", [0.0, 0.05, 0.25])
def test_a_cancelled_scope_closes_the_function(when_s: float) -> None:
    begun: list[bool] = []
    closed: list[float] = []

    async def model(chat: ChatView, scope: Scope) -> AsyncIterator[str]:
        begun.append(True)
        try:
            while True:
                await asyncio.sleep(0.1)
                yield "word "
        finally:
            closed.append(asyncio.get_running_loop().time())

    async def main() -> None:
        scope = Scope("turn")
        scope.run(all_of(CallableModel(model)), "answer")
        await asyncio.sleep(when_s)
        scope.cancel(Reason.BARGE_IN)
        assert await scope.reaper.drain(1) == 0

    run_virtual(main())
    assert len(closed) == len(begun)
    assert closed in ([], pytest.approx([when_s]))


def test_a_function_that_refuses_to_close_does_not_hide_the_end(caplog: pytest.LogCaptureFixture) -> None:
    async def model(chat: ChatView, scope: Scope) -> AsyncIterator[object]:
        try:
            yield Finished("stop")
        finally:
            raise OSError("while closing")

    assert run_virtual(all_of(CallableModel(model))) == [Finished("stop")]
    assert "failed while it was closed" in caplog.text


# ---------------------------------------------------------------- from a file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


HEADER = """
from __future__ import annotations
from dataclasses import dataclass
from voice.agent import Agent
from voice.interfaces import Stages
from voice.tools import tool
engines = Stages(1, 2, 3, 4)
"""


def write(folder: Path, body: str, name: str = "bot.py") -> str:
    (folder / name).write_text(HEADER + textwrap.dedent(body))
    return str(folder / name)


def test_an_agent_is_loaded_from_a_file(folder: Path) -> None:
    (folder / "words.py").write_text("GREETING = 'Hello.'\n")
    file = write(
        folder,
        """
        import words

        @dataclass
        class Place:
            name: str

        @tool
        def find(place: Place) -> str:
            return place.name

        async def my_model(chat, scope):
            yield "x"

        agent = Agent("Be kind.", engines, tools=[find], greeting=words.GREETING)

        def make() -> Agent:
            return Agent("From a function.", engines, model=my_model)
        """,
    )
    agent = load_agent(f"{file}:agent")
    assert (agent.instructions, agent.greeting) == ("Be kind.", "Hello.")
    assert agent.tool_table()["find"].parameters["properties"]["place"]["required"] == ["name"]
    assert load_agent(f"{file}:make").stages.model.name == "my_model"


def test_each_way_to_get_it_wrong_has_its_sentence(folder: Path) -> None:
    file = write(
        folder,
        """
        async def stream(chat, scope):
            yield "x"
        async def later() -> Agent:
            return agent
        def needs(url: str) -> Agent:
            return agent
        def nothing():
            pass
        agent = Agent("Be kind.", engines)
        number = 7
        """,
    )
    (folder / "notes.txt").write_text("x")
    for spec, words in {
        "bot.py": "must be given as FILE.py:NAME",
        f"{file}:not a name": "must be given as FILE.py:NAME",
        ":agent": "must be given as FILE.py:NAME",
        f"{folder}/none.py:agent": "does not exist",
        f"{folder}:agent": "is not a file",
        f"{folder}/notes.txt:agent": "must be Python source",
        f"{file}:agnet": 'defines nothing named "agnet"; it has: agent',
        f"{file}:number": "is of type int; expected an Agent, or a function that returns one",
        f"{file}:Agent": "is of type type; expected an Agent",
        f"{file}:stream": "make one with Agent(..., model=stream)",
        f"{file}:later": "is an async function",
        f"{file}:needs": "must take no arguments",
        f"{file}:nothing": "returned something of type NoneType; expected an Agent",
    }.items():
        with pytest.raises(BadRequest) as caught:
            load_agent(spec)
        assert words in str(caught.value), spec
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("x = 1\ny = x / 0\n", "bot.py, line 9: ZeroDivisionError: division by zero"),
        ("def f(:\n", "bot.py, line 8: syntax error"),
        ("import sys\nsys.exit(3)\n", "bot.py, line 9: SystemExit: 3"),
        ("import no_such_module_here\n", "bot.py, line 8: ModuleNotFoundError"),
        ("@tool\ndef f(x): ...\n", 'bot.py, line 8: parameter "x" of tool "f" has no type'),
        ("agent = Agent('', engines, greeting=7)", "bot.py, line 8: Agent(greeting=...) must be str or None"),
        ("def agent():\n    raise ValueError('a\\nb')\n", "bot.py, line 9: ValueError: a b"),
    ],
)
def test_an_error_in_the_file_is_told_with_its_line(folder: Path, body: str, words: str) -> None:
    file = write(folder, "")
    Path(file).write_text(HEADER + body)
    with pytest.raises(BadRequest) as caught:
        load_agent(f"{file}:agent")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_failed_can_be_mended_and_loaded_again(folder: Path) -> None:
    file = write(folder, "1 / 0")
    with pytest.raises(BadRequest):
        load_agent(f"{file}:agent")
    write(folder, "agent = Agent('Mended.', engines)  # a file of another length")
    assert load_agent(f"{file}:agent").instructions == "Mended."
