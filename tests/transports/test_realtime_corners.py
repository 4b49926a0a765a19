"""Corners of the Realtime protocol that a random client found: each was wrong once."""

from __future__ import annotations

import asyncio
import base64
import itertools
from typing import Any

from realtime_talk import RATE_HZ, Client, call
from talk import ONE_TO_FORTY, make_agent
from test_realtime_protocol import WEATHER

from voice.interfaces import Prompt, ToolCall, ToolCallDelta
from voice.testing import Fail, ScriptedModel, ScriptedRecogniser, run_virtual, slow_tool, speak

STOCKS = {**WEATHER, "name": "stocks"}


def text(words: str, role: str = "user", **more: Any) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": words}], **more}


def function_call(call_id: str, **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "weather", "arguments": "{}", **more}


def output(call_id: str, result: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": result}


async def push_to_talk(client: Client) -> None:
    await client.update(audio={"input": {"turn_detection": None}})


def about_input(client: Client) -> list[str]:
    kinds = client.kinds(of=lambda kind: kind.startswith("input_audio_buffer."))
    return [kind.removeprefix("input_audio_buffer.") for kind in kinds]


# ---------------------------------------------------------------- the user's audio


def test_a_commit_in_mid_speech_tells_that_the_speech_stopped_before_it_is_committed() -> None:
    async def main() -> None:
        async with call(make_agent(["Fine."])) as client:
            await client.say(1.0)
            await client.send("input_audio_buffer.commit")
            await client.until("response.done")
            assert about_input(client) == ["speech_started", "speech_stopped", "committed"]
            assert 900 <= client.of("input_audio_buffer.speech_stopped")[0]["audio_end_ms"] <= 1100

    run_virtual(main())


def test_a_commit_of_a_sound_over_the_answer_interrupts_it() -> None:
    async def main() -> None:
        recogniser = ScriptedRecogniser(["Hello there.", "Stop!"], delay_s=0.5)
        async with call(make_agent([ONE_TO_FORTY], recogniser=recogniser)) as client:
            detection = {"type": "server_vad", "create_response": False}
            await client.update(audio={"input": {"turn_detection": detection}})
            await client.say(1.0)
            await client.until("input_audio_buffer.committed")
            await client.send("response.create")
            await client.until("response.output_audio.delta", 10)
            await client.say(0.1)
            await client.send("input_audio_buffer.commit")
            assert about_input(client) == ["speech_started", "speech_stopped", "committed"] * 2
            details = client.of("response.done")[0]["response"]["status_details"]
            assert details == {"type": "cancelled", "reason": "turn_detected"}

    run_virtual(main())


def test_what_was_committed_is_not_cleared() -> None:
    async def main() -> None:
        async with call(make_agent(["Fine."])) as client:
            await push_to_talk(client)
            await client.say(1.0)
            await client.send("input_audio_buffer.commit")
            await client.hear(speak(0.02, rate=RATE_HZ))
            await client.send("input_audio_buffer.clear")
            await client.quiet(1.0)
            (done,) = client.of("conversation.item.input_audio_transcription.completed")
            assert done["transcript"] == "Hello there."
            assert 0.9 < done["usage"]["seconds"] < 1.1

    run_virtual(main())


def test_a_clear_also_forgets_a_short_sound_over_the_answer() -> None:
    async def main() -> None:
        recogniser = ScriptedRecogniser(["Hello there.", "Stop!"], delay_s=0.5)
        async with call(make_agent([ONE_TO_FORTY], recogniser=recogniser)) as client:
            await client.say(1.0)
            await client.until("response.output_audio.delta", 10)
            await client.say(0.1)
            await client.quiet(0.4)
            await client.send("input_audio_buffer.clear")
            await client.until("response.done")
            assert client.of("response.done")[0]["response"]["status"] == "completed"

    run_virtual(main())


def test_a_second_commit_while_the_first_is_recognised_is_refused_and_loses_nothing() -> None:
    async def main() -> None:
        recogniser = ScriptedRecogniser({220: "One.", 250: "Two."}, delay_s=3.5)
        async with call(make_agent(["Fine."], recogniser=recogniser)) as client:
            await push_to_talk(client)
            await client.say(0.6, 220)
            await client.send("input_audio_buffer.commit")
            await client.send("input_audio_buffer.commit")
            await client.say(3.0, 250)
            await client.send("input_audio_buffer.commit")
            codes = [event["error"]["code"] for event in client.of("error")]
            assert codes == ["input_audio_buffer_commit_empty", "input_audio_buffer_commit_pending"]
            await client.quiet(1.0)
            await client.send("input_audio_buffer.commit")
            await asyncio.sleep(4.0)
            said = client.of("conversation.item.input_audio_transcription.completed")
            assert [event["transcript"] for event in said] == ["One.", "Two."]
            assert said[1]["usage"]["seconds"] > 3.9

    run_virtual(main())


def test_an_item_that_is_deleted_before_its_words_are_known_stays_deleted() -> None:
    async def main() -> None:
        agent = make_agent(["Fine."])
        async with call(agent) as client:
            await push_to_talk(client)
            await client.say(1.0)
            await client.send("input_audio_buffer.commit")
            audio = base64.b64encode(speak(1.0, rate=RATE_HZ).astype("<i2").tobytes()).decode()
            whole = {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": audio}]}
            await client.send("conversation.item.create", item={**whole, "id": "whole"})
            for item_id in (client.of("input_audio_buffer.committed")[0]["item_id"], "whole"):
                await client.send("conversation.item.delete", item_id=item_id)
            await client.quiet(1.0)
            assert len(client.of("conversation.item.added")) == 2
            assert not client.of("conversation.item.input_audio_transcription.completed")
            await client.send("conversation.item.create", item=text("Well?"))
            await client.send("response.create")
            await client.until("response.done")
            assert isinstance(agent.stages.model, ScriptedModel)
            assert [m.text for m in agent.stages.model.prompts[0].messages][1:] == ["Well?"]

    run_virtual(main())


def test_a_sound_that_is_being_judged_when_interruptions_are_switched_off_becomes_a_turn_of_its_own() -> None:
    async def main() -> None:
        detection = {"type": "server_vad", "interrupt_response": False}
        async with call(make_agent([ONE_TO_FORTY, "Yes."]), "webrtc") as client:
            await client.say(1.0)
            await client.until("output_audio_buffer.started")
            await client.quiet(0.5)
            await client.say(0.2)
            await client.update(audio={"input": {"turn_detection": detection}})
            await client.say(1.0)
            await client.until("response.done", 2)
            assert [e["response"]["status"] for e in client.of("response.done")] == ["completed"] * 2
            kinds = client.kinds()
            second = len(kinds) - 1 - kinds[::-1].index("input_audio_buffer.speech_started")
            assert kinds[second - 1] == "session.updated", "the client knows that this does not interrupt"

    run_virtual(main())


def test_speech_goes_on_beside_the_answer_when_interruptions_are_switched_on_in_the_middle_of_it() -> None:
    async def main() -> None:
        detection = {"type": "server_vad", "interrupt_response": False}
        async with call(make_agent([ONE_TO_FORTY, "Yes."])) as client:
            await client.update(audio={"input": {"turn_detection": detection}})
            await client.say(1.0)
            await client.until("response.output_audio.delta", 10)
            await client.say(0.4)
            await client.quiet(0.3)
            await client.update(
                audio={"input": {"turn_detection": {**detection, "interrupt_response": True}}}
            )
            await client.say(0.4)
            await client.until("response.done", 2)
            assert about_input(client) == ["speech_started", "speech_stopped", "committed"] * 2
            assert [e["response"]["status"] for e in client.of("response.done")] == ["completed"] * 2

    run_virtual(main())


# ---------------------------------------------------------------- answers


def test_a_transcription_session_is_not_greeted() -> None:
    async def main() -> None:
        agent = make_agent(["Fine."], greeting="Hello!")
        async with call(agent, bound={"type": "transcription"}) as client:
            await client.quiet(2.0)
            assert client.kinds() == ["session.created"]
            assert not client.session.chat.entries

    run_virtual(main())


def test_a_spoken_answer_beside_the_conversation_is_not_the_answer_to_the_users_turn() -> None:
    async def main() -> None:
        def reply(prompt: Prompt) -> str:
            return "An advertisement." if prompt.messages[-1].text == "Advertise." else "Fine."

        async with call(make_agent(ScriptedModel(reply))) as client:
            saying = asyncio.create_task(client.say(1.0))
            await asyncio.sleep(0.5)
            aside = {"conversation": "none", "input": [text("Advertise.")]}
            await client.send("response.create", response=aside)
            await saying
            await client.until("response.done", 2)
            said = [e["response"]["output"][0]["content"][0] for e in client.of("response.done")]
            assert [part["transcript"] for part in said] == ["Fine.", "An advertisement."]

    run_virtual(main())


def test_a_late_result_that_is_not_to_be_answered_by_itself_leaves_the_session_quiet() -> None:
    async def main() -> None:
        calls = [[ToolCall("c1", "slow_tool", "{}")], "Done."]
        async with call(make_agent(calls, tools=[slow_tool(2.0)])) as client:
            await push_to_talk(client)
            await client.send("response.create")
            await asyncio.sleep(0.5)
            await client.send("response.cancel")
            await asyncio.sleep(3.0)
            assert len(client.of("response.done")) == 1
            assert client.session.is_quiet(), "a server that drains would wait for it"

    run_virtual(main())


def test_what_the_owner_says_is_spoken_although_answers_are_written_by_now() -> None:
    async def main() -> None:
        async with call(make_agent(["Fine."])) as client:
            saying = asyncio.create_task(client.say(1.0))
            await asyncio.sleep(0.5)
            client.session.say("By the way.")
            await client.update(output_modalities=["text"])
            await saying
            await client.until("response.done", 2)
            parts = [e["response"]["output"][0]["content"][0] for e in client.of("response.done")]
            assert [part["type"] for part in parts] == ["output_text", "output_audio"]
            assert client.audio_s() > 0.3

    run_virtual(main())


def test_calls_of_one_answer_are_shown_one_after_the_other() -> None:
    async def main() -> None:
        calls = [
            ToolCallDelta("a", "weather", '{"city":'),
            ToolCallDelta("a", "weather", '"Rome"}'),
            ToolCallDelta("b", "stocks", "{}"),
            ToolCall("a", "weather", '{"city":"Rome"}'),
            ToolCall("b", "stocks", "{}"),
        ]
        async with call(make_agent([calls])) as client:
            await client.update(tools=[WEATHER, STOCKS])
            await client.say(1.0)
            await client.until("response.done")
            one = [
                "response.output_item.added",
                "response.function_call_arguments.delta",
                "response.function_call_arguments.done",
                "response.output_item.done",
            ]
            kinds = client.kinds(of=lambda kind: kind.startswith("response."))
            assert kinds == ["response.created", *one, *one, "response.done"]
            done = client.of("response.function_call_arguments.done")
            assert [event["arguments"] for event in done] == ['{"city":"Rome"}', "{}"]

    run_virtual(main())


def test_a_call_that_the_model_gives_up_is_incomplete_and_the_next_one_is_not_held_up() -> None:
    async def main() -> None:
        given_up = [ToolCallDelta("a", "weather", '{"ci'), Fail()]
        async with call(make_agent([given_up, [ToolCall("b", "stocks", "{}")]])) as client:
            await client.update(tools=[WEATHER, STOCKS])
            await client.say(1.0)
            await client.until("response.done")
            items = client.of("response.done")[0]["response"]["output"]
            assert [(item["name"], item["status"]) for item in items] == [
                ("weather", "incomplete"),
                ("stocks", "completed"),
            ]

    run_virtual(main())


def test_by_webrtc_what_is_not_in_the_conversation_is_not_truncated() -> None:
    async def main() -> None:
        async with call(make_agent([ONE_TO_FORTY, "Yes."]), "webrtc") as client:
            await client.send("response.create", response={"conversation": "none"})
            await client.until("output_audio_buffer.started")
            await client.quiet(1.0)
            await client.say(1.0)
            await client.until("output_audio_buffer.started", 2)
            assert len(client.of("output_audio_buffer.cleared")) == 1
            assert not client.of("conversation.item.truncated")

    run_virtual(main())


# ---------------------------------------------------------------- the history


def test_an_item_placed_after_the_agents_words_is_after_them_in_the_history() -> None:
    async def main() -> None:
        agent = make_agent(["Fine.", "Good."])
        async with call(agent) as client:
            await client.send("conversation.item.create", item=text("How are you?"))
            await client.send("response.create")
            await client.until("response.done")
            item_id = client.of("response.done")[0]["response"]["output"][0]["id"]
            await client.send("conversation.item.create", item=text("And you?"), previous_item_id=item_id)
            await client.quiet(1.0)
            await client.send("response.create")
            await client.until("response.done", 2)
            assert isinstance(agent.stages.model, ScriptedModel)
            texts = [m.text for m in agent.stages.model.prompts[1].messages]
            assert texts[1:] == ["How are you?", "Fine.", "And you?"]

    run_virtual(main())


def test_two_calls_can_not_have_one_id() -> None:
    async def main() -> None:
        async with call(make_agent(["Fine."])) as client:
            await client.send("conversation.item.create", item=function_call("c1", id="first"))
            await client.send("conversation.item.create", item=function_call("c1"))
            asked = {"input": [function_call("c2"), function_call("c2")]}
            await client.send("response.create", response=asked)
            asked = {"input": [{"type": "item_reference", "id": "first"}, function_call("c1")]}
            await client.send("response.create", response=asked)
            assert [e["error"]["param"] for e in client.of("error")] == ["item.call_id"] * 3

    run_virtual(main())


def test_an_output_in_the_input_of_one_response_does_not_answer_the_conversations_call() -> None:
    async def main() -> None:
        agent = make_agent(["Sunny.", "Rainy."])
        async with call(agent) as client:
            await client.send("conversation.item.create", item=text("The weather?"))
            await client.send("conversation.item.create", item=function_call("c1", id="call"))
            seen = [text("If it were sunny?"), {"type": "item_reference", "id": "call"}, output("c1", "sun")]
            await client.send(
                "response.create",
                response={"conversation": "none", "input": seen, "output_modalities": ["text"]},
            )
            await client.until("response.done")
            await client.send("conversation.item.create", item=output("c1", "rain"))
            await client.send("response.create")
            await client.until("response.done", 2)
            assert not client.of("error")
            assert isinstance(agent.stages.model, ScriptedModel)
            shown = [[m.text for m in p.messages if m.role == "tool"] for p in agent.stages.model.prompts]
            assert shown == [["sun"], ["rain"]]
            await client.send("response.create", response={"input": [output("nowhere", "x")]})
            assert client.of("error")[0]["error"]["param"] == "response.input"

    run_virtual(main())


def test_the_ids_of_calls_are_unique_whatever_each_answer_was_shown() -> None:
    async def main() -> None:
        numbers = itertools.count()
        model = ScriptedModel(lambda _: [ToolCall("c1", "weather", "{}")] if next(numbers) < 2 else "Done.")
        agent = make_agent(model)
        async with call(agent) as client:
            await client.update(tools=[WEATHER])
            for count in (1, 2, 3):
                await client.send("response.create", response={"input": [text("The weather?")]})
                await client.until("response.done", count)
                await client.quiet(0.5)
            ids = [e["call_id"] for e in client.of("response.function_call_arguments.done")]
            assert len(set(ids)) == 2

    run_virtual(main())
