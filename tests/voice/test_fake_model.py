"""The scripted model and the slow tool: what they say and when, how they end, what is refused."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from voice.errors import EngineFailed
from voice.interfaces import (
    Finished,
    Message,
    ModelOptions,
    Prompt,
    TextDelta,
    TextPart,
    ToolCall,
    Usage,
)
from voice.scope import Identity, Scope
from voice.testing import (
    Fail,
    Hang,
    Pause,
    ScriptedModel,
    check_prompt,
    run_virtual,
    slow_tool,
)


def now() -> float:
    return asyncio.get_running_loop().time()


def scope(session: str = "s0", turn: int = 0) -> Scope:
    return Scope("turn", identity=Identity(session, turn, 0))


def user(text: str) -> Message:
    return Message("user", (TextPart(text),))


async def play(model: ScriptedModel, *messages: Message, **options: Any) -> list[Any]:
    prompt = Prompt(messages or (user("hello"),), options=ModelOptions(**options))
    async with aclosing(model.generate(prompt, scope())) as events:  # type: ignore[type-var]
        return [(now(), event) async for event in events]


def test_the_model_says_its_reply_word_by_word_at_its_pace() -> None:
    model = ScriptedModel(["Hello there, you. "], first_token_s=0.5, token_s=0.25)
    events = run_virtual(play(model))
    assert events == [
        (0.5, TextDelta("Hello")),
        (0.75, TextDelta(" there,")),
        (1.0, TextDelta(" you. ")),
        (1.0, Usage(1, 3)),
        (1.0, Finished("stop")),
    ]
    assert (model.opened, model.finished, model.failed, model.closed_early) == (1, 1, 0, 0)
    assert model.prompts[0].messages[0].text == "hello"


def test_the_model_plays_steps_pauses_and_tool_calls() -> None:
    model = ScriptedModel(
        [["**bo", Pause(2.0), "ld**", ToolCall("", "book", '{"a":'), ToolCall("mine", "look", "{}")]],
        first_token_s=0.0,
        token_s=0.0,
    )
    events = run_virtual(play(model))
    assert events[:4] == [
        (0.0, TextDelta("**bo")),
        (2.0, TextDelta("ld**")),
        (2.0, ToolCall("call_1", "book", '{"a":')),
        (2.0, ToolCall("mine", "look", "{}")),
    ]
    assert events[-1][1] == Finished("tool_calls")


def test_the_model_can_fail_or_hang_at_any_token() -> None:
    async def main() -> None:
        model = ScriptedModel([["a", Fail("out of memory", retryable=False)], ["b", Hang()]])
        heard: list[Any] = []
        with pytest.raises(EngineFailed, match="out of memory") as caught:
            async with aclosing(model.generate(Prompt((user("x"),)), scope())) as events:  # type: ignore[type-var]
                async for event in events:
                    heard.append(event)
        assert heard == [TextDelta("a")]
        assert not caught.value.retryable
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(play(model), 60)
        assert (model.opened, model.failed, model.closed_early, model.running) == (2, 1, 1, 0)

    run_virtual(main())


def test_a_generation_closed_before_its_end_is_counted_once() -> None:
    async def main() -> None:
        model = ScriptedModel(["one two three"])
        async with aclosing(model.generate(Prompt((user("x"),)), scope())) as events:  # type: ignore[type-var]
            async for _ in events:
                assert model.running == 1
                break
        assert (model.finished, model.closed_early, model.running) == (0, 1, 0)
        assert asyncio.get_running_loop().dropped_generators == []  # type: ignore[attr-defined]

    run_virtual(main())


def test_replies_come_by_order_by_what_was_asked_or_from_a_function() -> None:
    def said(model: ScriptedModel, *asked: str) -> list[str]:
        async def main() -> list[str]:
            return [
                "".join(e.text for _, e in await play(model, user(a)) if isinstance(e, TextDelta))
                for a in asked
            ]

        return run_virtual(main())

    assert said(ScriptedModel(["1", "2"]), "a", "b", "c") == ["1", "2", "2"]
    assert said(ScriptedModel({"hi": "Hello.", "*": "What?"}), "hi", "x", "hi") == [
        "Hello.",
        "What?",
        "Hello.",
    ]
    assert said(ScriptedModel(lambda prompt: prompt.messages[-1].text.upper()), "abc") == ["ABC"]
    with pytest.raises(EngineFailed, match="no reply to 'x'"):
        said(ScriptedModel({"hi": "Hello."}), "x")
    with pytest.raises(TypeError, match="in a list"):
        ScriptedModel("Hello.")


def test_the_model_stops_at_max_tokens() -> None:
    events = run_virtual(play(ScriptedModel(["one two three"]), max_tokens=2))
    assert [e for _, e in events] == [TextDelta("one"), TextDelta(" two"), Usage(1, 2), Finished("length")]


CALLS = Message("assistant", tool_calls=(ToolCall("1", "a", "{}"), ToolCall("2", "b", "{}")))
RESULT = Message("tool", (TextPart("ok"),), tool_call_id="1")
OTHER = replace(RESULT, tool_call_id="2")


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ((), "no messages"),
        ((user(" "),), "message 0 (user) is empty"),
        ((user("x"), Message("assistant")), "message 1 (assistant) is empty"),
        ((user("x"), CALLS, RESULT), "results of ['2'] are missing"),
        ((user("x"), CALLS, RESULT, user("so?"), OTHER), "comes before the results of ['2']"),
        ((user("x"), RESULT), "answers '1', open are []"),
        ((user("x"), CALLS, RESULT, RESULT, OTHER), "answers '1', open are ['2']"),
        ((user("x"), CALLS, RESULT, OTHER, CALLS), "used before"),
        ((replace(user("x"), tool_calls=CALLS.tool_calls),), "has tool calls"),
    ],
)
def test_a_strict_model_refuses_a_prompt_that_a_provider_would(
    messages: tuple[Message, ...], complaint: str
) -> None:
    prompt = Prompt(messages)
    with pytest.raises(EngineFailed) as caught:
        check_prompt(prompt)
    assert complaint in str(caught.value)
    assert not caught.value.retryable

    async def main(model: ScriptedModel) -> int:
        async with aclosing(model.generate(prompt, scope())) as events:  # type: ignore[type-var]
            return len([e async for e in events])

    with pytest.raises(EngineFailed, match="invalid"):
        run_virtual(main(ScriptedModel()))
    assert run_virtual(main(ScriptedModel(strict=False))) > 0


def test_a_valid_prompt_with_tool_results_in_any_order_passes() -> None:
    check_prompt(
        Prompt((Message("system", (TextPart("Be brief."),)), user("x"), CALLS, OTHER, RESULT, user("y")))
    )


def test_a_slow_tool_counts_its_runs_and_how_they_ended() -> None:
    async def main() -> None:
        book = slow_tool(0.5, {"booked": True}, "book")
        assert book.__name__ == "book"
        assert await book() == {"booked": True}
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(book(), 0.1)
        assert (book.runs, book.finished, book.cancelled, book.times) == (2, 1, 1, [0.0, 0.5])
        with pytest.raises(ValueError, match="full"):
            await slow_tool(0.1, ValueError("full"))()

    run_virtual(main())
