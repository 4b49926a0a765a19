"""B07: the user speaks while a tool's result is on its way; the result is lost and the tool runs a second time.

The kind of fault: a call and its result belong to an answer that may be cut between the two. It is made impossible in
``voice/chat.py`` and ``Response._run_tools``: the call is a ``ToolEntry`` of the history from the moment it begins, its
result is written into that entry by a task of the session (``tool_scope``), not of the answer, and a result that comes
after its answer was cut is reported to the session (``late_result``), which shows it to the model once.
"""

from __future__ import annotations

import pytest
from conversation import KINDS, Conversation, Kind

from voice.events import ResponseEnded, ToolEnded, ToolStarted
from voice.interfaces import Prompt, ToolCall
from voice.testing import ScriptedModel, run_virtual, slow_tool

TEXTS = {220: "Book a table.", 250: "Hold on please.", 280: "So?", 310: ""}
BOOKED = "booked for seven"


def reply(prompt: Prompt) -> list[str | ToolCall]:
    """A model that books whenever it does not see that it has booked."""
    results = [m.text for m in prompt.messages if m.role == "tool"]
    if not results:
        return [ToolCall("", "book", "{}")]
    if BOOKED in results:
        return ["It", " is", " booked", " for", " seven."]
    return ["I", " am", " still", " at", " it."]


def pairs(prompt: Prompt) -> list[tuple[str, str]]:
    """Calls with the result that follows them."""
    found = []
    for index, message in enumerate(prompt.messages):
        for number, call in enumerate(message.tool_calls):
            result = prompt.messages[index + 1 + number]
            assert (result.role, result.tool_call_id) == ("tool", call.call_id)
            found.append((call.name, result.text))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after_s", [0.1, 0.4, 0.6, 0.9])
def test_a_tool_runs_once_whenever_the_user_speaks(kind: Kind, after_s: float) -> None:
    async def main() -> None:
        book = slow_tool(0.5, BOOKED, "book")
        talk = Conversation(kind, texts=TEXTS, model=ScriptedModel(reply), tools=[book])
        async with talk:
            talk.say(1.0, 1.0)
            called_s = await talk.until(ToolStarted)
            talk.say(round(called_s + after_s, 2), 0.8, 250)
            await talk.to(round(called_s + after_s + 6.0, 2))
            answers = len(talk.of(ResponseEnded))
            talk.say(talk.client.now_s, 0.6, 280)
            await talk.until(ResponseEnded, answers + 1)

            assert book.runs == book.finished == 1
            assert len(talk.of(ToolStarted)) == len(talk.of(ToolEnded)) == 1
            assert pairs(talk.model.prompts[-1]) == [("book", BOOKED)]
            assert talk.user_texts == ["Book a table.", "Hold on please.", "So?"]
            assert talk.of(ResponseEnded)[-1].heard == "It is booked for seven."
            assert talk.problems == []

    run_virtual(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_that_comes_while_the_user_speaks_is_shown_once_when_the_turn_ends(kind: Kind) -> None:
    async def main() -> None:
        book = slow_tool(0.5, BOOKED, "book")
        talk = Conversation(kind, texts=TEXTS, model=ScriptedModel(reply), tools=[book])
        async with talk:
            talk.say(1.0, 1.0)
            called_s = await talk.until(ToolStarted)
            talk.say(round(called_s + 0.1, 2), 1.5, 250)
            before = talk.model.opened
            await talk.to(round(called_s + 8.0, 2))

            assert book.runs == 1
            assert talk.model.opened == before + 1
            assert pairs(talk.model.prompts[-1]) == [("book", BOOKED)]
            assert [e.heard for e in talk.of(ResponseEnded)] == ["", "It is booked for seven."]

    run_virtual(main())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tool_s", [0.3, 3.0])
def test_a_sound_without_words_while_a_tool_runs_costs_neither_the_result_nor_the_answer(
    kind: Kind, tool_s: float
) -> None:
    async def main() -> None:
        book = slow_tool(tool_s, BOOKED, "book")
        talk = Conversation(kind, texts=TEXTS, model=ScriptedModel(reply), tools=[book])
        async with talk:
            talk.say(1.0, 1.0)
            called_s = await talk.until(ToolStarted)
            talk.say(round(called_s + 0.1, 2), 0.3, 310)
            await talk.to(round(called_s + 12.0, 2))

            assert book.runs == book.finished == 1
            heard = [e.heard for e in talk.of(ResponseEnded) if e.heard]
            assert heard[-1] == "It is booked for seven."
            assert heard.count("It is booked for seven.") == 1
            assert talk.user_texts == ["Book a table."]
            assert talk.problems == []

    run_virtual(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_that_comes_when_nobody_speaks_any_more_is_told_by_itself(kind: Kind) -> None:
    async def main() -> None:
        book = slow_tool(6.0, BOOKED, "book")
        talk = Conversation(kind, texts=TEXTS, model=ScriptedModel(reply), tools=[book])
        async with talk:
            talk.say(1.0, 1.0)
            called_s = await talk.until(ToolStarted)
            talk.say(round(called_s + 0.5, 2), 0.8, 250)
            await talk.to(round(called_s + 12.0, 2))

            assert book.runs == 1
            assert [e.heard for e in talk.of(ResponseEnded)] == [
                "",
                "I am still at it.",
                "It is booked for seven.",
            ]

    run_virtual(main())
