"""B08: an interrupted tool call leaves a history that the provider refuses; the agent is mute from then on.

The kind of fault: a call and its result are two records, and something happens between the two. It is made impossible
in ``voice/chat.py``: both are one ``ToolEntry``, rendered as a pair with a stand-in while there is no result; trimming
drops entries, so it can't part them; a cancelled call's entry is filled in ``Scope.cancel`` itself.
"""

from __future__ import annotations

import pytest
from conversation import KINDS, Conversation, Kind

from voice.chat import CANCELLED_OUTPUT, PENDING_OUTPUT
from voice.events import ResponseEnded, ToolStarted
from voice.interfaces import Prompt, ToolCall
from voice.options import Limits
from voice.testing import ScriptedModel, check_prompt, run_virtual, slow_tool
from voice.tools import OnInterrupt, tool

TEXTS = {220: "Book it.", 250: "No, book the other one.", 280: "What now?"}


def reply(prompt: Prompt) -> list[str | ToolCall]:
    """Two calls and some words at each request to book; words alone otherwise."""
    if prompt.messages[-1].role == "user" and prompt.messages[-1].text.lower().endswith(("book it.", "one.")):
        return ["Let", " me", " see.", ToolCall("same", "book", "{}"), ToolCall("same", "book", "{}")]
    return ["Here", " you", " are."]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on_interrupt", ["finish", "cancel"])
def test_two_tool_turns_interrupted_shortly_after_each_other_leave_a_valid_history(
    kind: Kind, on_interrupt: OnInterrupt
) -> None:
    async def main() -> None:
        slow = slow_tool(4.0, "booked")

        @tool(on_interrupt=on_interrupt)
        async def book() -> str:
            """Book it."""
            return str(await slow())

        talk = Conversation(kind, texts=TEXTS, model=ScriptedModel(reply), tools=[book])
        async with talk:
            talk.say(1.0, 0.6)
            called_s = await talk.until(ToolStarted)
            talk.say(round(called_s + 0.1, 2), 0.6, 250)
            called_s = await talk.until(ToolStarted, 3)
            talk.say(round(called_s + 0.1, 2), 0.6, 280)
            await talk.until(ResponseEnded, 3)
            await talk.to(round(called_s + 12.0, 2))

            assert slow.runs == 4
            assert (slow.cancelled, slow.finished) == ((4, 0) if on_interrupt == "cancel" else (0, 4))
            for prompt in talk.model.prompts:
                check_prompt(prompt)
            assert talk.problems == []
            outputs = [m.text for m in talk.session.chat.prompt().messages if m.role == "tool"]
            assert outputs == [CANCELLED_OUTPUT if on_interrupt == "cancel" else "booked"] * 4
            assert talk.of(ResponseEnded)[-1].heard == "Here you are."
            assert talk.user_texts[-1] == "What now?"

    run_virtual(main())


@pytest.mark.parametrize("kind", KINDS)
def test_both_answers_interrupted_within_300_ms_leave_a_valid_history(kind: Kind) -> None:
    async def main() -> None:
        book = slow_tool(1.0, "booked", "book")
        talk = Conversation(kind, model=ScriptedModel(reply), tools=[book])
        async with talk:
            await talk.to(1.0)
            talk.session.send_text("Book it.")
            await talk.until(ToolStarted)
            talk.session.interrupt()
            talk.session.send_text("No, book the other one.")
            await talk.to(round(talk.client.now_s + 0.28, 2))
            talk.session.interrupt()
            talk.session.send_text("What now?")
            await talk.to(8.0)

            for prompt in talk.model.prompts:
                check_prompt(prompt)
            assert talk.problems == []
            assert PENDING_OUTPUT not in [m.text for m in talk.session.chat.prompt().messages]
            assert talk.of(ResponseEnded)[-1].heard == "Here you are."

    run_virtual(main())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limits", [Limits(history_chars=200), Limits(history_entries=5)])
def test_trimming_takes_pairs_whole_and_the_agent_goes_on_answering(kind: Kind, limits: Limits) -> None:
    async def main() -> None:
        book = slow_tool(0.2, "booked " + "x" * 30, "book")
        talk = Conversation(kind, model=ScriptedModel(reply), tools=[book], limits=limits)
        async with talk:
            for number in range(12):
                await talk.to(1.0 + 3.0 * number)
                talk.session.send_text("Book it." if number % 3 else "What now?")
            await talk.to(45.0)

            assert len(talk.session.chat.entries) < 20
            for prompt in talk.model.prompts:
                check_prompt(prompt)
            assert talk.problems == []
            assert [e.status for e in talk.of(ResponseEnded)] == ["completed"] * 12

    run_virtual(main())
