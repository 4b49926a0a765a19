"""What a session's owner can ask for: answers on request, of another kind, with its own tools, or beside the talk."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from talk import ONE_TO_FORTY, Talk, make_agent, talk

from voice.errors import BadRequest
from voice.events import (
    AudioSent,
    AudioStopped,
    KeysPressed,
    ResponseEnded,
    ResponseMade,
    ResponseStarted,
    ResponseText,
    SessionEnded,
    SpeechStarted,
    ToolArguments,
    ToolStarted,
    UserSaid,
)
from voice.interfaces import ToolCall, ToolCallDelta, ToolSpec
from voice.options import AnswerOptions, TurnOptions
from voice.session import Session
from voice.testing import PullClient, PushClient, ScriptedModel, run_virtual, speak
from voice.turns import State

WEATHER = ToolSpec("weather", "tells the weather", {"type": "object", "properties": {}})


async def until_ended(it: Talk, count: int = 1, within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while len(it.of(ResponseEnded)) < count:
            await it.client.run(0.02)


def test_a_turn_that_is_not_to_be_answered_only_enters_the_history() -> None:
    async def main() -> None:
        agent = make_agent(["Yes."], turns=TurnOptions(respond=False))
        async with talk(agent) as it:
            it.client.say(speak(1.0))
            await it.client.run(5.0)
            assert [said.text for said in it.of(UserSaid)] == ["Hello there."]
            assert not it.of(ResponseStarted) and it.session.state is State.LISTENING
            it.session.respond()
            await until_ended(it)
            assert it.ended.heard == "Yes."
            assert [m.role for m in agent.stages.model.prompts[0].messages] == ["system", "user"]

    run_virtual(main())


def test_in_manual_mode_an_answer_can_be_asked_for_before_the_words_are_known() -> None:
    async def main() -> None:
        agent = make_agent(["Yes."], turns=TurnOptions(mode="manual", respond=False))
        async with talk(agent) as it:
            it.client.say(speak(1.0))
            await it.client.run(1.2)
            assert it.session.pending_s > 1.0
            item_id = it.session.commit()
            assert item_id is not None
            it.session.respond()
            assert not it.of(ResponseStarted)
            await until_ended(it)
            assert [(said.item_id, said.text) for said in it.of(UserSaid)] == [(item_id, "Hello there.")]
            assert len(it.of(ResponseStarted)) == 1 and it.ended.heard == "Yes."
            assert agent.stages.model.prompts[0].messages[-1].text == "Hello there."

    run_virtual(main())


def test_an_answer_asked_for_while_the_user_speaks_is_the_answer_to_that_turn() -> None:
    async def main() -> None:
        agent = make_agent(["One.", "Two.", "Three."])
        async with talk(agent) as it:
            it.client.say(speak(1.5))
            await it.client.run(1.0)
            asked = it.session.respond(AnswerOptions(instructions="Sing."))
            await it.client.run(8.0)
            assert [started.response_id for started in it.of(ResponseStarted)] == [asked.response_id]
            assert agent.stages.model.prompts[-1].messages[0].text == "Sing."
            assert it.session.counters.guesses_kept == 0

    run_virtual(main())


def test_speech_that_may_not_interrupt_is_answered_when_the_agent_has_finished() -> None:
    async def main() -> None:
        agent = make_agent([ONE_TO_FORTY, "Second."], turns=TurnOptions(interrupt=False))
        async with talk(agent) as it:
            it.client.say(speak(0.5))
            await it.client.run(4.0)
            assert it.session.state is State.SPEAKING
            it.client.say(speak(1.0))
            await it.client.run(3.0)
            assert len(it.of(SpeechStarted)) == 2
            assert [said.text for said in it.of(UserSaid)] == ["Hello there.", "And one more?"]
            assert len(it.of(ResponseStarted)) == 1 and it.session.state is State.SPEAKING
            await until_ended(it, 2)
            assert [e.status for e in it.of(ResponseEnded)] == ["completed", "completed"]
            assert [words for _, words in it.words] == [40, 1]

    run_virtual(main())


def test_without_interruption_an_owner_that_cancels_gives_the_waiting_turn_the_floor() -> None:
    async def main() -> None:
        agent = make_agent([ONE_TO_FORTY, "Second."], turns=TurnOptions(interrupt=False))
        async with talk(agent) as it:
            it.client.say(speak(0.5))
            await it.client.run(4.0)
            it.client.say(speak(1.0))
            await it.client.run(3.0)
            it.session.interrupt()
            await until_ended(it, 2)
            assert [(e.status, e.reason) for e in it.of(ResponseEnded)] == [
                ("interrupted", "client"),
                ("completed", None),
            ]

    run_virtual(main())


def test_a_tool_of_the_owners_ends_the_answer_and_its_result_is_handed_in() -> None:
    async def main() -> None:
        calls = [
            "Let me see.",
            ToolCallDelta("c1", "weather", '{"ci'),
            ToolCallDelta("c1", "weather", 'ty": 1}'),
            ToolCall("c1", "weather", '{"city": 1}'),
        ]
        agent = make_agent([calls, "It is sunny."])
        async with talk(agent) as it:
            it.session.configure_answers(AnswerOptions(tools=(WEATHER,)))
            it.client.say(speak(1.0))
            await until_ended(it)
            assert [a.delta for a in it.of(ToolArguments)] == ['{"ci', 'ty": 1}']
            (started,) = it.of(ToolStarted)
            assert started.by_client and started.call.call_id == "c1"
            assert it.ended.heard == "Let me see." and len(agent.stages.model.prompts) == 1
            with pytest.raises(BadRequest):
                it.session.tool_result("c2", "rain")
            it.session.tool_result("c1", "sun")
            with pytest.raises(BadRequest):
                it.session.tool_result("c1", "sun")
            await it.client.run(1.0)
            assert len(it.of(ResponseStarted)) == 1
            it.session.respond()
            await until_ended(it, 2)
            assert it.ended.heard == "It is sunny."
            assert [m.text for m in agent.stages.model.prompts[-1].messages if m.role == "tool"] == ["sun"]

    run_virtual(main())


def test_an_answer_may_be_text_only_and_an_interruption_leaves_what_was_read() -> None:
    async def main() -> None:
        model = ScriptedModel(["Short text.", ONE_TO_FORTY])
        async with talk(make_agent(model)) as it:
            it.session.configure_answers(AnswerOptions(speak=False))
            it.session.send_text("Write.")
            await until_ended(it)
            assert it.ended.status == "completed" and it.ended.heard == "Short text."
            assert it.sounds == [] and len(it.of(ResponseMade)) == len(it.of(AudioSent)) == 1

    run_virtual(main())


def test_an_answer_beside_the_conversation_leaves_it_alone() -> None:
    async def main() -> None:
        agent = make_agent([ONE_TO_FORTY, "positive"])
        async with talk(agent) as it:
            it.client.say(speak(0.5))
            await it.client.run(3.0)
            before = len(it.session.chat.entries)
            aside = it.session.respond(
                AnswerOptions(instructions="Classify.", speak=False), entries=[], recorded=False
            )
            await it.client.run(1.0)
            ended = next(e for e in it.of(ResponseEnded) if e.response_id == aside.response_id)
            assert (ended.status, ended.generated) == ("completed", "positive")
            assert it.session.state is State.SPEAKING and len(it.session.chat.entries) == before
            assert [m.text for m in agent.stages.model.prompts[-1].messages] == ["Classify."]
            await until_ended(it, 2)
            assert it.ended.heard == ONE_TO_FORTY

    run_virtual(main())


@pytest.mark.parametrize("when", ["waiting", "live", "aside"])
def test_one_answer_can_be_cancelled_wherever_it_is(when: str) -> None:
    async def main() -> None:
        agent = make_agent([ONE_TO_FORTY] * 3)
        async with talk(agent) as it:
            first = it.session.respond()
            await it.client.run(2.0)
            one = first
            if when == "waiting":
                one = it.session.respond()
            elif when == "aside":
                one = it.session.respond(AnswerOptions(speak=False), recorded=False)
            it.session.cancel(one.response_id)
            with pytest.raises(BadRequest):
                it.session.cancel(one.response_id)
            await until_ended(it)
            await it.client.run(20.0)
            states = {e.response_id: e.status for e in it.of(ResponseEnded)}
            assert (
                states
                == {
                    "waiting": {first.response_id: "completed"},
                    "live": {first.response_id: "interrupted"},
                    "aside": {first.response_id: "completed", one.response_id: "cancelled"},
                }[when]
            )

    run_virtual(main())


def test_the_last_answer_is_told_of_when_the_session_ends_in_the_middle_of_it() -> None:
    async def main() -> None:
        async with talk(make_agent([ONE_TO_FORTY])) as it:
            it.session.respond()
            await it.client.run(2.0)
            await it.session.close()
            assert (it.ended.status, it.ended.reason) == ("interrupted", "closed")
            assert isinstance(it.events[-1][1], SessionEnded)

    run_virtual(main())


@pytest.mark.parametrize("does", ["says", "types", "asks"])
def test_what_the_owner_does_when_told_of_the_end_begins_no_answer(does: str) -> None:
    async def main() -> None:
        events: list[object] = []

        def tell(event: object) -> None:
            events.append(event)
            if isinstance(event, AudioStopped):
                if does == "says":
                    live.say("Bye!")
                elif does == "types":
                    live.send_text("One more thing.")
                else:
                    live.respond()

        client = PullClient()
        live = Session(make_agent([ONE_TO_FORTY] * 3), client, on_event=tell)
        async with live:
            client.attach(live)
            live.respond()
            await client.run(2.0)
        assert [type(event) for event in events[-3:]] == [AudioStopped, ResponseEnded, SessionEnded]

    run_virtual(main())


def test_keys_silence_the_agent_and_arrive_as_one_message() -> None:
    async def main() -> None:
        agent = make_agent([ONE_TO_FORTY, "Thanks."])
        async with talk(agent) as it:
            it.session.respond()
            await it.client.run(2.0)
            for key in "12#":
                it.session.press(key)
                await it.client.run(0.3)
            await until_ended(it, 2)
            assert [k.keys for k in it.of(KeysPressed)] == ["12"]
            assert agent.stages.model.prompts[-1].messages[-1].text == "[keys pressed: 12]"

    run_virtual(main())


def test_where_the_text_went_is_told_before_the_audio_that_speaks_it_has_left() -> None:
    async def main() -> None:
        async with talk(make_agent([ONE_TO_FORTY]), PushClient(ahead_s=1.0, burst_s=1.0)) as it:
            it.session.respond()
            await until_ended(it)
            kinds = [type(e) for _, e in it.events]
            assert kinds.index(ResponseMade) < kinds.index(AudioSent) < kinds.index(ResponseEnded)
            sent, ended = it.times_of(AudioSent)[0], it.times_of(ResponseEnded)[0]
            assert 0.5 < ended - sent < 1.2
            assert "".join(t.text for t in it.of(ResponseText)) == ONE_TO_FORTY
            assert it.ended.heard_s == pytest.approx(8.0, abs=0.3)

    run_virtual(main())


def test_changed_options_reach_a_turn_in_progress() -> None:
    async def main() -> None:
        agent = make_agent(["Yes."])
        async with talk(agent) as it:
            it.client.say(speak(1.0))
            await it.client.run(0.5)
            it.session.configure(replace(agent.turns, respond=False))
            await it.client.run(4.0)
            assert it.of(UserSaid) and not it.of(ResponseStarted)

    run_virtual(main())
