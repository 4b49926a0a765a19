"""The Realtime protocol over a real session of fakes: the documented order of events, turn by turn."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from typing import Any

import numpy as np
import pytest
from realtime_talk import RATE_HZ, Client, call
from talk import ONE_TO_FORTY, make_agent

from voice.interfaces import ToolCall, ToolCallDelta
from voice.options import TurnOptions
from voice.testing import ScriptedRecogniser, run_virtual, speak
from voice.tools import tool

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "tells the weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = [
    ToolCallDelta("c1", "weather", '{"city":'),
    ToolCallDelta("c1", "weather", '"Rome"}'),
    ToolCall("c1", "weather", '{"city":"Rome"}'),
]
DELTAS = ("response.output_audio_transcript.delta", "response.output_audio.delta")


def squeezed(kinds: list[str]) -> list[str]:
    """Audio and transcript deltas may mix in any way: both as one."""
    kinds = ["deltas" if kind in DELTAS else kind for kind in kinds]
    return [kind for kind, _ in itertools.groupby(kinds)]


def errors(client: Client) -> list[str]:
    return [event["error"]["code"] for event in client.of("error")]


SPOKEN_ANSWER = [
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
    "deltas",
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "conversation.item.done",
    "response.output_item.done",
    "response.done",
    "rate_limits.updated",
]
SPOKEN_TURN = [
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "input_audio_buffer.committed",
    "conversation.item.added",
    "conversation.item.done",
    "conversation.item.input_audio_transcription.delta",
    "conversation.item.input_audio_transcription.completed",
]


def test_a_spoken_turn_runs_in_the_recorded_order() -> None:
    async def main() -> None:
        async with call(make_agent(["Fine, thanks."])) as client:
            await client.say(1.0)
            await client.until("rate_limits.updated")
            assert squeezed(client.kinds()) == ["session.created", *SPOKEN_TURN, *SPOKEN_ANSWER]
            started, committed = client.of("input_audio_buffer.speech_started")[0], client.events[3]
            user = client.of("conversation.item.added")[0]
            agent = client.of("conversation.item.added")[1]
            assert started["item_id"] == committed["item_id"] == user["item"]["id"]
            assert user["previous_item_id"] is None and agent["previous_item_id"] == user["item"]["id"]
            assert user["item"]["content"] == [{"type": "input_audio", "transcript": None}]
            done = client.of("response.done")[0]["response"]
            assert done["status"] == "completed"
            assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": "Fine, thanks."}]
            assert client.audio_s() == pytest.approx(0.4, abs=0.1)

    run_virtual(main())


@pytest.mark.parametrize("spoken", [True, False])
def test_a_barge_in_says_speech_started_before_it_closes_the_answer(spoken: bool) -> None:
    async def main() -> None:
        async with call(make_agent([ONE_TO_FORTY, "Sorry."])) as client:
            await client.say(1.0)
            await client.until("response.output_audio.delta", 20)
            if not spoken:
                await client.update(output_modalities=["audio"])
            await client.say(1.0)
            await client.until("response.done", 2)
            kinds = squeezed(client.kinds())
            second = len(kinds) - 1 - kinds[::-1].index("input_audio_buffer.speech_started")
            assert kinds[second : second + 8] == [
                "input_audio_buffer.speech_started",
                "response.output_audio.done",
                "response.output_audio_transcript.done",
                "response.content_part.done",
                "conversation.item.done",
                "response.output_item.done",
                "response.done",
                "rate_limits.updated",
            ]
            first = client.of("response.done")[0]["response"]
            assert first["status"] == "cancelled"
            assert first["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
            assert first["output"][0]["status"] == "incomplete"
            assert client.cleared == 1
            cut = client.events.index(client.of("input_audio_buffer.speech_started")[1])
            later = [e for e in client.events[cut:] if e.get("response_id") == first["id"]]
            assert not [e for e in later if e["type"].endswith(".delta")]

    run_virtual(main())


def test_a_clients_truncate_puts_the_history_and_the_item_right() -> None:
    async def main() -> None:
        agent = make_agent([ONE_TO_FORTY, "Sorry."])
        async with call(agent) as client:
            await client.say(1.0)
            await client.until("response.output_audio.delta", 50)
            item_id = client.of("response.output_audio.delta")[0]["item_id"]
            await client.say(0.6)
            await client.send(
                "conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=1000
            )
            assert client.of("conversation.item.truncated")[0]["audio_end_ms"] == 1000
            await client.send("conversation.item.retrieve", item_id=item_id)
            (part,) = client.of("conversation.item.retrieved")[0]["item"]["content"]
            assert part["transcript"] == "word1 word2 word3 word4 word5."
            await client.until("response.done", 2)
            assert agent.stages.model.prompts[-1].messages[-2].text == "word1 word2 word3 word4 word5."
            await client.send(
                "conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=90_000
            )
            assert "already shorter than" in client.of("error")[0]["error"]["message"]

    run_virtual(main())


def test_webrtc_tells_what_was_played_and_truncates_by_itself() -> None:
    async def main() -> None:
        async with call(make_agent([ONE_TO_FORTY, "Sorry."]), "webrtc") as client:
            await client.say(1.0)
            await client.until("output_audio_buffer.started")
            await client.until("response.done")
            assert not client.of("output_audio_buffer.stopped"), "the ear is behind the last event"
            await client.quiet(1.0)
            await client.say(0.6)
            await client.until("output_audio_buffer.started", 2)
            assert not client.of("response.output_audio.delta")
            kinds = client.kinds()
            cut = kinds.index("output_audio_buffer.cleared")
            assert kinds[cut - 1] == "input_audio_buffer.speech_started"
            assert kinds[cut + 1] == "conversation.item.truncated"
            truncated = client.of("conversation.item.truncated")[0]
            assert 1000 < truncated["audio_end_ms"] < 4000
            await client.until("output_audio_buffer.stopped")
            assert len(client.of("output_audio_buffer.cleared")) == 1

    run_virtual(main())


def test_a_function_call_streams_its_arguments_and_the_client_answers_it() -> None:
    async def main() -> None:
        agent = make_agent([CALL, "It is sunny."])
        async with call(agent) as client:
            await client.update(tools=[WEATHER])
            await client.say(1.0)
            await client.until("response.done")
            assert client.kinds(of=lambda k: k.startswith(("response", "conversation.item.a")))[-7:] == [
                "response.created",
                "response.output_item.added",
                "conversation.item.added",
                "response.function_call_arguments.delta",
                "response.function_call_arguments.done",
                "response.output_item.done",
                "response.done",
            ]
            added = client.of("response.output_item.added")[0]["item"]
            assert (added["status"], added["name"], added["call_id"]) == ("in_progress", "weather", "c1")
            assert added["arguments"] == ""
            assert len(client.of("response.function_call_arguments.delta")) == 2
            output = {"type": "function_call_output", "call_id": "c1", "output": "sun"}
            await client.send("conversation.item.create", item=output)
            await client.send("response.create")
            await client.until("response.done", 2)
            assert client.of("response.done")[1]["response"]["output"][0]["content"][0]["transcript"] == (
                "It is sunny."
            )
            assert [m.text for m in agent.stages.model.prompts[-1].messages if m.role == "tool"] == ["sun"]
            assert errors(client) == []

    run_virtual(main())


def test_a_tool_call_and_the_end_reach_a_text_client_at_once_while_audio_is_paced() -> None:
    async def main() -> None:
        long = [ONE_TO_FORTY, *CALL]
        async with call(make_agent([long, *CALL])) as client:
            await client.update(tools=[WEATHER])
            await client.say(1.0)
            await client.until("response.function_call_arguments.done")
            at = client.events.index(client.of("response.function_call_arguments.done")[0])
            created = client.events.index(client.of("response.created")[0])
            assert client.times[at] - client.times[created] < 1.0, "the call waited behind the audio"
            assert client.audio_s() < 4.0
            await client.until("response.done")
            await client.update(output_modalities=["text"], tools=[])

    run_virtual(main())


def test_the_agents_own_tools_run_here_and_are_not_shown() -> None:
    @tool
    async def now() -> str:
        """Tells the time."""
        return "noon"

    async def main() -> None:
        agent = make_agent([[ToolCall("c9", "now", "{}")], "It is noon."], tools=[now])
        async with call(agent, extensions=True) as client:
            await client.say(1.0)
            await client.until("response.done")
            assert not client.of("response.function_call_arguments.done")
            assert client.of("voice.tool_started")[0]["name"] == "now"
            assert client.of("voice.tool_ended")[0]["error"] is None
            await client.until("voice.turn_times")
            assert client.of("voice.turn_times")[0]["times"]["voice_to_voice_ms"] > 0
            await client.update(tools=[{**WEATHER, "name": "now"}])
            assert client.of("error")[0]["error"]["param"] == "session.tools[0].name"

    run_virtual(main())


def test_push_to_talk_commits_at_once_and_answers_when_asked() -> None:
    async def main() -> None:
        agent = make_agent(["Fine."])
        async with call(agent) as client:
            await client.update(audio={"input": {"turn_detection": None}})
            await client.send("input_audio_buffer.commit")
            assert errors(client) == ["input_audio_buffer_commit_empty"]
            await client.say(1.0)
            await client.quiet(2.0)
            assert squeezed(client.kinds())[3:] == [], "nothing happens by itself"
            await client.send("input_audio_buffer.commit")
            assert client.kinds()[-3:] == [
                "input_audio_buffer.committed",
                "conversation.item.added",
                "conversation.item.done",
            ]
            await client.send("response.create")
            await client.send("response.create", event_id="again")
            assert client.of("error")[1]["error"]["code"] == "conversation_already_has_active_response"
            assert client.of("error")[1]["error"]["event_id"] == "again"
            await client.until("response.done")
            assert (
                client.of("conversation.item.input_audio_transcription.completed")[0]["transcript"]
                == "Hello there."
            )
            assert agent.stages.model.prompts[0].messages[-1].text == "Hello there."
            await client.say(0.5)
            await client.send("input_audio_buffer.clear")
            assert client.kinds()[-1] == "input_audio_buffer.cleared"
            await client.send("input_audio_buffer.commit")
            assert errors(client)[-1] == "input_audio_buffer_commit_empty"

    run_virtual(main())


def test_text_in_and_text_out() -> None:
    async def main() -> None:
        agent = make_agent(["Written."])
        async with call(agent) as client:
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Write!"}]}
            await client.send("conversation.item.create", item={**item, "id": "mine"})
            await client.send("conversation.item.create", item={**item, "id": "mine"})
            assert errors(client) == ["item_create_duplicate_item_id"]
            await client.send(
                "response.create", response={"output_modalities": ["text"], "metadata": {"a": "b"}}
            )
            await asyncio.sleep(1.0)
            assert client.kinds()[1:] == [
                "conversation.item.added",
                "conversation.item.done",
                "error",
                "response.created",
                "response.output_item.added",
                "conversation.item.added",
                "response.content_part.added",
                "response.output_text.delta",
                "response.output_text.done",
                "response.content_part.done",
                "conversation.item.done",
                "response.output_item.done",
                "response.done",
                "rate_limits.updated",
            ]
            assert client.of("response.created")[0]["response"]["metadata"] == {"a": "b"}
            assert client.of("conversation.item.added")[1]["previous_item_id"] == "mine"
            assert client.audio_s() == 0

    run_virtual(main())


def test_an_out_of_band_response_leaves_the_conversation_alone() -> None:
    async def main() -> None:
        agent = make_agent([ONE_TO_FORTY, "positive"])
        async with call(agent) as client:
            await client.say(1.0)
            await client.until("response.output_audio.delta", 3)
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "I win"}]}
            await client.send(
                "response.create",
                response={
                    "conversation": "none",
                    "input": [item],
                    "output_modalities": ["text"],
                    "metadata": {"topic": "mood"},
                },
            )
            await client.until("response.done")
            done = client.of("response.done")[0]["response"]
            assert done["metadata"] == {"topic": "mood"} and "conversation_id" not in done
            assert done["output"][0]["content"][0]["text"] == "positive"
            assert [m.text for m in agent.stages.model.prompts[-1].messages][1:] == ["I win"]
            await client.until("response.done", 2)
            assert len(client.of("conversation.item.added")) == 2

    run_virtual(main())


def test_a_cancel_closes_the_answer_and_needs_one() -> None:
    async def main() -> None:
        async with call(make_agent([ONE_TO_FORTY] * 2)) as client:
            await client.send("response.cancel")
            assert errors(client) == ["response_cancel_not_active"]
            assert client.of("error")[0]["error"]["message"].startswith(
                "Cancellation failed: no active response"
            )
            await client.send("response.create")
            await client.until("response.output_audio.delta", 5)
            await client.send("response.cancel")
            done = client.of("response.done")[0]["response"]
            assert done["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
            assert client.cleared == 1

    run_virtual(main())


def test_without_create_response_a_turn_waits_for_the_client() -> None:
    async def main() -> None:
        async with call(make_agent(["Yes."])) as client:
            await client.update(
                audio={"input": {"turn_detection": {"type": "server_vad", "create_response": False}}}
            )
            await client.say(1.0)
            await client.until("conversation.item.input_audio_transcription.completed")
            await client.quiet(2.0)
            assert not client.of("response.created")
            await client.send("response.create")
            await client.until("response.done")

    run_virtual(main())


def test_without_interrupt_response_the_client_decides() -> None:
    async def main() -> None:
        async with call(make_agent([ONE_TO_FORTY, "Yes."])) as client:
            await client.update(
                audio={
                    "input": {
                        "turn_detection": {
                            "type": "server_vad",
                            "interrupt_response": False,
                            "create_response": True,
                        }
                    }
                }
            )
            await client.say(1.0)
            await client.until("response.output_audio.delta", 10)
            await client.say(1.0)
            await client.quiet(2.0)
            assert len(client.of("input_audio_buffer.speech_started")) == 2
            assert not client.of("response.done")
            await client.until("response.done", 2)
            assert [e["response"]["status"] for e in client.of("response.done")] == ["completed"] * 2

    run_virtual(main())


def test_an_idle_user_is_spoken_to() -> None:
    async def main() -> None:
        agent = make_agent(["Are you there?"])
        async with call(agent) as client:
            await client.update(
                audio={"input": {"turn_detection": {"type": "server_vad", "idle_timeout_ms": 5000}}}
            )
            await client.until("response.done")
            assert client.kinds()[2:9] == [
                "input_audio_buffer.timeout_triggered",
                "input_audio_buffer.committed",
                "conversation.item.added",
                "conversation.item.done",
                "conversation.item.input_audio_transcription.completed",
                "response.created",
                "response.output_item.added",
            ]

    run_virtual(main())


def test_speech_without_words_leaves_an_item_and_no_answer() -> None:
    async def main() -> None:
        agent = make_agent(["Yes."], recogniser=ScriptedRecogniser([""]))
        async with call(agent) as client:
            await client.say(0.5)
            await client.until("conversation.item.input_audio_transcription.completed")
            await client.quiet(2.0)
            assert client.kinds()[1:] == [k for k in SPOKEN_TURN if not k.endswith(".delta")]

    run_virtual(main())


@pytest.mark.parametrize("kind", ["audio/pcmu", "audio/pcma"])
def test_g711_goes_both_ways(kind: str) -> None:
    from voice import g711

    law: Any = kind.removeprefix("audio/")

    async def main() -> None:
        agent = make_agent(["Fine, thanks."])
        async with call(agent) as client:
            wanted = {"type": kind}
            await client.update(audio={"input": {"format": wanted}, "output": {"format": wanted}})
            sound = speak(1.0, rate=8000)
            for piece in np.array_split(np.concatenate([sound, np.zeros(16_000, np.int16)]), 150):
                data = base64.b64encode(g711.encode(piece, law)).decode()
                await client.send("input_audio_buffer.append", audio=data)
                await asyncio.sleep(0.02)
            assert client.of("response.done")
            heard = b"".join(base64.b64decode(e["delta"]) for e in client.of("response.output_audio.delta"))
            pcm = g711.decode(heard, law).astype(float)
            assert 0.3 < len(pcm) / 8000 < 0.5
            peak = np.abs(np.fft.rfft(pcm)).argmax() * 8000 / len(pcm)
            assert peak > 350, "the tone of the agent's voice"

    run_virtual(main())


def test_history_is_replayed_by_a_client_that_reconnects() -> None:
    async def main() -> None:
        agent = make_agent(["Yes."])
        async with call(agent) as client:
            said: list[dict[str, Any]] = [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "two"}]},
                {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "rain"},
            ]
            for number, item in enumerate(said):
                await client.send("conversation.item.create", item={**item, "id": f"i{number}"})
            system = {
                "type": "message",
                "role": "system",
                "content": [{"type": "input_text", "text": "zero"}],
            }
            await client.send("conversation.item.create", item=system, previous_item_id="root")
            await client.send("conversation.item.create", item=said[0], previous_item_id="nowhere")
            assert errors(client) == ["item_create_invalid_previous_item_id"]
            await client.send("conversation.item.delete", item_id="i0")
            await client.send("conversation.item.delete", item_id="i0")
            assert errors(client)[1:] == ["item_delete_invalid_item_id"]
            await client.send("response.create")
            await client.until("response.done")
            roles = [(m.role, m.text) for m in agent.stages.model.prompts[0].messages]
            assert roles == [
                ("system", "be brief"),
                ("system", "zero"),
                ("assistant", "two"),
                ("assistant", ""),
                ("tool", "rain"),
            ] or roles[1:2] == [("system", "zero")]

    run_virtual(main())


def test_audio_in_an_item_is_recognised_and_answers_wait_for_it() -> None:
    async def main() -> None:
        agent = make_agent(["Yes."])
        async with call(agent) as client:
            audio = base64.b64encode(speak(1.0, rate=RATE_HZ).astype("<i2").tobytes()).decode()
            item = {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": audio}]}
            await client.send("conversation.item.create", item=item)
            await client.send("response.create")
            await client.until("response.done")
            assert agent.stages.model.prompts[0].messages[-1].text == "Hello there."
            assert client.of("conversation.item.input_audio_transcription.completed")

    run_virtual(main())


def test_a_transcription_session_only_writes_down() -> None:
    async def main() -> None:
        async with call(make_agent(["Yes."])) as client:
            await client.send("session.update", session={"type": "transcription"})
            await client.say(1.0)
            await client.until("conversation.item.input_audio_transcription.completed")
            await client.quiet(2.0)
            delta = "conversation.item.input_audio_transcription.delta"
            others = [kind for kind in SPOKEN_TURN if kind != delta]
            kinds = client.kinds()[2:]
            # the first words are there before the pause is certain, the last one when it is
            assert kinds == [others[0], delta, *others[1:-1], delta, others[-1]]
            await client.send("response.create")
            assert len(client.of("error")) == 1

    run_virtual(main())


def test_settings_bound_to_a_secret_win_and_stay_hidden() -> None:
    async def main() -> None:
        agent = make_agent(["Yes."])
        async with call(agent, bound={"instructions": "secret"}) as client:
            await client.update(instructions="mine")
            assert "secret" not in json.dumps(client.events)
            await client.send("response.create")
            await client.until("response.done")
            assert agent.stages.model.prompts[0].messages[0].text == "secret"

    run_virtual(main())


def test_nonsense_is_answered_and_the_conversation_goes_on() -> None:
    async def main() -> None:
        async with call(make_agent(["Fine."], turns=TurnOptions(idle_s=None))) as client:
            for message in (
                "",
                "[",
                "{}",
                '{"type":"x"}',
                '{"type":"response.create","response":3}',
                b"\x00",
            ):
                await client.protocol.receive(message)
            await client.send("input_audio_buffer.append", audio="???")
            await client.send("conversation.item.truncate", item_id="x", content_index=0, audio_end_ms=0)
            await client.send("output_audio_buffer.clear")
            assert len(client.of("error")) == 9
            await client.say(1.0)
            await client.until("response.done")

    run_virtual(main())


def test_a_large_append_is_heard_whole() -> None:
    async def main() -> None:
        async with call(make_agent(["Fine."])) as client:
            await client.update(audio={"input": {"turn_detection": None}})
            await client.send(
                "input_audio_buffer.append", audio=base64.b64encode(bytes(2 * 24_000 * 30)).decode()
            )
            assert client.session.pending_s == pytest.approx(30.0, abs=0.01)

    run_virtual(main())


def test_a_locked_page_learns_that_a_tool_runs_and_not_what_it_says() -> None:
    @tool
    async def lookup(name: str) -> str:
        """Looks something up."""
        return f"the secret of {name}"

    async def main() -> None:
        agent = make_agent([[ToolCall("c9", "lookup", '{"name": "private"}')], "Done."], tools=[lookup])
        async with call(agent, extensions=True, bound={"instructions": "hidden"}) as client:
            await client.send("response.create")
            await client.until("voice.tool_ended")
            assert client.of("voice.tool_started")[0]["name"] == "lookup"
            assert "private" not in json.dumps(client.events) and "secret" not in json.dumps(client.events)

    run_virtual(main())
