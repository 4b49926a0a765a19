"""Does the official ``openai`` package for Python converse with our server? Spoken, by text, by hand, with a tool.

The steps are also taken by ``tests/transports/test_openai_sdk.py``, all in one conversation.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from clients import contract
from clients.contract import Microphone, Stage, check
from clients.sdk_types import misfits
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection

TOOL: dict[str, Any] = {
    "type": "function",
    "name": contract.TOOL_NAME,
    "description": "The weather in a city.",
    "parameters": contract.TOOL_PARAMETERS,
}
TRANSCRIBED = {"model": "gpt-4o-mini-transcribe"}


class Caller:
    """One connection of the SDK, its microphone, and what came."""

    def __init__(self, stage: Stage, connection: AsyncRealtimeConnection) -> None:
        self.stage, self.connection = stage, connection
        self.microphone = Microphone(self._append)
        self.audio: dict[str, int] = {}
        """Response → milliseconds of sound received."""
        self._plays_until = 0.0  # loop time at which a loudspeaker would have played it all

    async def _append(self, pcm: bytes) -> None:
        await self.connection.input_audio_buffer.append(audio=base64.b64encode(pcm).decode())

    async def receive(self) -> None:
        """Take what comes until the connection ends."""
        while True:
            raw = await self.connection.recv_bytes()
            event: Any = self.connection.parse_event(raw)
            if event.type == "response.output_audio.delta":
                length_ms = len(base64.b64decode(event.delta)) * 1000 // (2 * contract.RATE_HZ)
                self.audio[event.response_id] = self.audio.get(event.response_id, 0) + length_ms
                now = asyncio.get_running_loop().time()
                self._plays_until = max(self._plays_until, now) + length_ms / 1000
            elif event.type == "input_audio_buffer.speech_started":
                self._plays_until = 0.0  # what is left is dropped
            self.stage.took(json.loads(raw))

    async def update(self, **session: Any) -> None:
        """Change settings and wait for the confirmation."""
        number = len(self.stage.of("session.updated")) + 1
        settings: Any = {"type": "realtime", **session}
        await self.connection.session.update(session=settings)
        await self.stage.until_events("session.updated", number)

    async def reply(self, number: int, text: str) -> dict[str, Any]:
        """Listen to the answer number ``number`` to its end, and check its text; returns the response."""
        done = await self.stage.until_events("response.done", number)
        said = " ".join(_texts(done["response"]))
        check(said == text, f"the agent said {said!r}, expected {text!r}")
        response: dict[str, Any] = done["response"]
        await asyncio.sleep(max(0.0, self._plays_until - asyncio.get_running_loop().time()) + 0.3)
        return response

    @property
    def answered(self) -> int:
        """How many responses are over."""
        return len(self.stage.of("response.done"))


def _texts(response: dict[str, Any]) -> list[str]:
    parts = [part for item in response["output"] for part in item.get("content", ())]
    return [part.get("transcript", part.get("text", "")).strip() for part in parts]


@asynccontextmanager
async def calling(stage: Stage) -> AsyncIterator[Caller]:
    """Connect, set the session up for speech, and check at the end that every event was one of the SDK's types."""
    client = AsyncOpenAI(api_key="unused", websocket_base_url=stage.url.removesuffix("/realtime"))
    async with client.realtime.connect(model="gpt-realtime") as connection:
        caller = Caller(stage, connection)
        receiving = asyncio.create_task(caller.receive())
        try:
            await stage.until_events("session.created")
            detection = {"type": "server_vad", "silence_duration_ms": 300}
            await caller.update(audio={"input": {"turn_detection": detection, "transcription": TRANSCRIBED}})
            async with caller.microphone:
                yield caller
        finally:
            receiving.cancel()
    found = misfits(stage.events)
    check(not found, f"the SDK's types do not fit: {found[:5]}")


# ---------------------------------------------------------------- the steps


async def spoken(caller: Caller) -> None:
    """A question is asked aloud and answered aloud; both sides are written down."""
    number = caller.answered + 1
    caller.microphone.say(caller.stage.sound("hello"))
    response = await caller.reply(number, contract.HELLO_ANSWER)
    check(caller.audio.get(response["id"], 0) >= 800, "the answer had less than 800 ms of sound")
    heard = caller.stage.of("conversation.item.input_audio_transcription.completed")
    check(heard and heard[-1]["transcript"] == "Hello there.", f"the words were taken for {heard}")


async def tool(caller: Caller) -> None:
    """The agent calls a function of the client's, and speaks its result."""
    await _tool(caller, "weather", "")


async def tool_aloud(caller: Caller) -> None:
    """The agent says something and calls the function in one response."""
    await _tool(caller, "forecast", contract.ALOUD_ANSWER)


async def _tool(caller: Caller, sound: str, first: str) -> None:
    number = caller.answered + 1
    await caller.update(tools=[TOOL], tool_choice="auto")
    caller.microphone.say(caller.stage.sound(sound))
    response = await caller.reply(number, first)
    call = response["output"][-1]
    check(call["name"] == contract.TOOL_NAME, f"it called {call['name']}")
    check(json.loads(call["arguments"]) == {"city": "Paris"}, f"with {call['arguments']}")
    output: Any = {
        "type": "function_call_output",
        "call_id": call["call_id"],
        "output": json.dumps({"weather": contract.TOOL_RESULT}),
    }
    await caller.connection.conversation.item.create(item=output)
    await caller.connection.response.create()
    await caller.reply(number + 1, contract.TOOL_ANSWER)


async def barge_in(caller: Caller) -> None:
    """The agent tells a story, is interrupted, and keeps in mind only what was heard of it."""
    number, stage = caller.answered + 1, caller.stage
    begun, turns = (
        len(stage.of("response.output_audio.delta")),
        len(stage.of("input_audio_buffer.speech_started")),
    )
    caller.microphone.say(stage.sound("story"))
    first = await stage.until_events("response.output_audio.delta", begun + 1)
    await asyncio.sleep(1.5)
    caller.microphone.say(stage.sound("stop"))
    await stage.until_events("input_audio_buffer.speech_started", turns + 2)
    item_id, heard_ms = first["item_id"], 1500
    await caller.connection.conversation.item.truncate(
        item_id=item_id, content_index=first["content_index"], audio_end_ms=heard_ms
    )
    cut = await stage.until_events("response.done", number)
    status = cut["response"]["status"]
    check(status == "cancelled", f"the interrupted response is {status}")
    await stage.until("truncated", lambda: stage.of("conversation.item.truncated"))
    await caller.reply(number + 1, contract.STOP_ANSWER)
    await caller.connection.conversation.item.retrieve(item_id=item_id)
    kept = (await stage.until_events("conversation.item.retrieved"))["item"]["content"][0].get(
        "transcript", ""
    )
    words = len(kept.split())
    check(4 <= words <= 9, f"1500 ms are seven words and a half; the history holds {words}: {kept!r}")


async def push_to_talk(caller: Caller) -> None:
    """Without turn detection the client ends the turn and asks for the answer; nothing comes by itself."""
    number, stage = caller.answered + 1, caller.stage
    await caller.update(audio={"input": {"turn_detection": None}})
    await caller.connection.input_audio_buffer.clear()
    await stage.until_events("input_audio_buffer.cleared")
    created = len(stage.of("response.created"))
    caller.microphone.say(stage.sound("pushed"))
    await stage.until("silence", lambda: not caller.microphone.speaking)
    await asyncio.sleep(0.1)
    commits = len(stage.of("input_audio_buffer.committed"))
    await caller.connection.input_audio_buffer.commit()
    await stage.until_events("input_audio_buffer.committed", commits + 1)
    await asyncio.sleep(0.3)
    check(len(stage.of("response.created")) == created, "a commit alone started a response")
    await caller.connection.response.create()
    await caller.reply(number, contract.PUSHED_ANSWER)


async def text(caller: Caller) -> None:
    """A written question is answered, aloud and then in writing."""
    number = caller.answered + 1
    await _write(caller)
    await caller.connection.response.create()
    await caller.reply(number, contract.TEXT_ANSWER)
    await _write(caller)
    await caller.connection.response.create(response={"output_modalities": ["text"], "metadata": {"n": "2"}})
    response = await caller.reply(number + 1, contract.TEXT_ANSWER)
    check(response["metadata"] == {"n": "2"}, f"metadata came back as {response['metadata']}")
    check(response["id"] not in caller.audio, "a written answer was spoken")


async def _write(caller: Caller) -> None:
    item: Any = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": contract.TEXT_QUESTION}],
    }
    await caller.connection.conversation.item.create(item=item)


Step = Callable[[Caller], Awaitable[None]]
STEPS: dict[str, Step] = {
    "spoken": spoken,
    "tool": tool,
    "tool_aloud": tool_aloud,
    "barge_in": barge_in,
    "push_to_talk": push_to_talk,
    "text": text,
}


def _alone(step: Step) -> contract.Scenario:
    async def scenario(stage: Stage) -> None:
        async with calling(stage) as caller:
            await step(caller)

    return scenario


if __name__ == "__main__":
    sys.exit(contract.main({name: _alone(step) for name, step in STEPS.items()}))
