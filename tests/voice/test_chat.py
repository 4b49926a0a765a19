"""Chat: a prompt is always valid for a strict provider, holds what was heard, and stays bounded."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from voice.chat import CANCELLED_OUTPUT, PENDING_OUTPUT, AgentEntry, Chat, ToolEntry, UserEntry
from voice.interfaces import ImagePart, Message, Prompt, ToolCall
from voice.options import Limits
from voice.testing import check_prompt

PNG = ImagePart(b"png", "image/png")


def roles(prompt: Prompt) -> list[str]:
    return [m.role for m in prompt.messages]


def texts(prompt: Prompt) -> list[str]:
    return [m.text for m in prompt.messages]


def pictures(prompt: Prompt) -> list[ImagePart]:
    return [p for m in prompt.messages for p in m.content if isinstance(p, ImagePart)]


def said(chat: Chat, text: str, heard: str | None = None, response_id: str = "r1") -> AgentEntry:
    entry = chat.add_agent(response_id)
    entry.generated, entry.heard = text, text if heard is None else heard
    entry.interrupted = heard is not None
    return entry


def call(number: int, name: str = "book") -> ToolCall:
    return ToolCall(f"call_{number}", name, "{}")


# ---------------------------------------------------------------- what the model is shown


def test_the_prompt_holds_instructions_and_turns_in_order() -> None:
    chat = Chat("Be brief.")
    chat.add_user("Hello.")
    said(chat, "Hi.")
    chat.add_user("Bye.")
    prompt = chat.prompt()
    assert roles(prompt) == ["system", "user", "assistant", "user"]
    assert texts(prompt) == ["Be brief.", "Hello.", "Hi.", "Bye."]


def test_the_agents_words_are_what_was_heard_not_what_was_generated() -> None:
    chat = Chat()
    chat.add_user("Count.")
    said(chat, "one two three four", heard="one two")
    assert texts(chat.prompt()) == ["Count.", "one two"]


def test_an_answer_of_which_nothing_was_heard_leaves_no_message_and_the_questions_become_one() -> None:
    chat = Chat()
    chat.add_user("I want to go")
    said(chat, "Where to?", heard="")
    chat.add_user("to Paris.")
    prompt = chat.prompt()
    assert roles(prompt) == ["user"]
    assert texts(prompt) == ["I want to go to Paris."]


def test_a_guess_adds_the_words_to_the_prompt_and_nothing_to_the_history() -> None:
    chat = Chat()
    chat.add_user("Hello.")
    said(chat, "Hi.")
    before = list(chat.entries)
    assert texts(chat.prompt(saying="How are you?")) == ["Hello.", "Hi.", "How are you?"]
    assert chat.entries == before


def test_a_call_and_its_result_follow_the_words_said_with_it() -> None:
    chat = Chat()
    chat.add_user("Book it.")
    said(chat, "One moment.")
    chat.add_tool(call(1), "r1", 0).fill("booked")
    chat.add_tool(call(2), "r1", 0).fill("also booked")
    said(chat, "Done.")
    prompt = chat.prompt()
    check_prompt(prompt)
    assert roles(prompt) == ["user", "assistant", "tool", "tool", "assistant"]
    assert prompt.messages[1].text == "One moment."
    assert [c.call_id for c in prompt.messages[1].tool_calls] == ["call_1", "call_2"]
    assert [m.tool_call_id for m in prompt.messages[2:4]] == ["call_1", "call_2"]


def test_calls_of_two_rounds_are_two_groups() -> None:
    chat = Chat()
    chat.add_user("Book it.")
    chat.add_tool(call(1), "r1", 0).fill("a")
    chat.add_tool(call(2), "r1", 1).fill("b")
    prompt = chat.prompt()
    check_prompt(prompt)
    assert roles(prompt) == ["user", "assistant", "tool", "assistant", "tool"]


def test_a_call_that_still_runs_has_a_stand_in_and_later_its_result() -> None:
    chat = Chat()
    chat.add_user("Book it.")
    entry = chat.add_tool(call(1), "r1", 0)
    chat.add_user("So?")
    check_prompt(chat.prompt())
    assert texts(chat.prompt())[2] == PENDING_OUTPUT
    assert chat.pending_tools == [entry]
    entry.fill("booked")
    assert texts(chat.prompt())[2] == "booked"
    assert chat.pending_tools == []


def test_a_tools_pictures_come_right_after_the_results() -> None:
    chat = Chat()
    chat.add_user("Draw.")
    chat.add_tool(call(1), "r1", 0).fill("drawn", (PNG,))
    chat.add_tool(call(2), "r1", 0).fill("drawn too")
    prompt = chat.prompt()
    check_prompt(prompt)
    assert roles(prompt) == ["user", "assistant", "tool", "tool", "user"]
    assert pictures(prompt) == [PNG]


def test_a_message_of_the_owner_keeps_its_place() -> None:
    chat = Chat("Be brief.")
    chat.add_user("Hello.")
    chat.add_system("The user is a pilot.")
    chat.add_user("Hi?")
    assert roles(chat.prompt()) == ["system", "user", "system", "user"]


def test_earlier_messages_do_not_change_when_the_conversation_goes_on() -> None:
    chat = Chat("Be brief.")
    earlier: tuple[Message, ...] = ()
    for number in range(10):
        chat.add_user(f"Question {number}?")
        messages = chat.prompt().messages
        assert messages[: len(earlier)] == earlier
        said(chat, f"Answer {number}.", response_id=f"r{number}")
        earlier = messages


def test_entries_are_found_by_the_id_they_were_given() -> None:
    chat = Chat()
    user = chat.add_user("Hello.", item_id="mine")
    agent = chat.add_agent("r1")
    chat.add_tool(call(1), "r1", 0)
    assert chat.find("mine") is user
    assert chat.find(agent.item_id) is agent
    assert chat.find("call_1") is None


# ---------------------------------------------------------------- bounds


def test_a_long_conversation_keeps_its_newest_part_within_the_bounds() -> None:
    chat = Chat("Be brief.", Limits(history_chars=2000, history_entries=50))
    for number in range(500):
        chat.add_user(f"Question {number}? " + "x" * 40)
        said(chat, "y" * 40, response_id=f"r{number}")
    assert len(chat.entries) <= 51
    assert sum(len(t) for t in texts(chat.prompt())) <= 2500
    assert texts(chat.prompt())[0] == "Be brief."
    assert texts(chat.prompt())[-2].startswith("Question 499?")


def test_trimming_leaves_room_so_that_the_prompts_start_stays_for_many_turns() -> None:
    chat = Chat("", Limits(history_chars=12_000, history_entries=100))
    starts = set()
    for number in range(300):
        chat.add_user(f"Question {number}?")
        said(chat, "Yes.", response_id=f"r{number}")
        starts.add(texts(chat.prompt())[0])
    assert len(starts) <= 600 / 30 + 1


def test_the_newest_question_stays_however_long_it_is() -> None:
    chat = Chat("", Limits(history_chars=200))
    chat.add_user("Hello.")
    chat.add_user("x" * 5000)
    said(chat, "Well.")
    assert texts(chat.prompt()) == ["x" * 5000, "Well."]


def test_old_pictures_leave_a_note_in_their_place() -> None:
    chat = Chat("", Limits(images=2))
    for number in range(5):
        chat.add_user(f"Picture {number}", [ImagePart(bytes([number]), "image/png")])
        said(chat, "Nice.", response_id=f"r{number}")
    assert [p.data for p in pictures(chat.prompt())] == [b"\x03", b"\x04"]
    assert all(e.images == () for e in chat.entries[:6] if isinstance(e, UserEntry))
    assert texts(chat.prompt())[0] == "[a picture shown earlier] Picture 0"
    assert texts(chat.prompt())[-2] == "Picture 4"


def test_pictures_of_one_entry_count_one_by_one() -> None:
    chat = Chat("", Limits(images=2))
    chat.add_user("Draw.")
    chat.add_tool(call(1), "r1", 0).fill("drawn", (PNG, PNG, PNG))
    said(chat, "Done.")
    chat.add_user("Two of mine.", [PNG, PNG])
    assert len(pictures(chat.prompt())) <= 2
    assert len(pictures(chat.prompt())) == 2


def test_pictures_that_a_tool_returns_count_at_once() -> None:
    chat = Chat("", Limits(images=2))
    chat.add_user("Draw.")
    for number in range(4):
        chat.add_tool(call(number), "r1", 0)
    for entry in chat.entries:
        if isinstance(entry, ToolEntry):
            entry.fill("drawn", (PNG,))
    assert len(pictures(chat.prompt())) == 2


# ---------------------------------------------------------------- properties

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["user", "picture", "agent", "cut", "tools", "result", "cancel", "system", "next"]),
        st.integers(0, 300),
    ),
    max_size=80,
)


@settings(max_examples=200, deadline=None)
@given(ACTIONS, st.sampled_from([200, 600, 5000]), st.sampled_from([4, 9, 100]))
def test_whatever_happened_the_prompt_is_valid_and_no_call_lost_its_result(
    actions: list[tuple[str, int]], history_chars: int, history_entries: int
) -> None:
    chat = Chat("Be brief.", Limits(history_chars=history_chars, history_entries=history_entries))
    response, step, calls = 0, 0, 0
    results: dict[str, str] = {}
    for action, size in actions:
        match action:
            case "user":
                chat.add_user("x" * (size + 1))
            case "picture":
                chat.add_user("", [PNG])
            case "agent" | "cut":
                said(chat, "y" * size, heard=None if action == "agent" else "", response_id=f"r{response}")
            case "tools":
                for _ in range(size % 4 + 1):
                    calls += 1
                    chat.add_tool(ToolCall(f"c{calls}", "book", "{}" + " " * size), f"r{response}", step)
                step += 1
            case "result" | "cancel":
                for entry in chat.pending_tools[:1]:
                    entry.fill(CANCELLED_OUTPUT if action == "cancel" else f"result of {entry.call.call_id}")
                    results[entry.call.call_id] = entry.output or ""
            case "system":
                chat.add_system("Note.")
            case _:
                response, step = response + 1, 0
        prompt = chat.prompt(saying="And now?")
        check_prompt(prompt)
        assert len(pictures(prompt)) <= chat.limits.images
        for message in prompt.messages:
            if message.role == "tool":
                assert message.text == results.get(message.tool_call_id or "", PENDING_OUTPUT)
