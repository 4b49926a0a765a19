"""Does ``openai-agents`` for Python converse with our server? Its session runs tools and cuts what was unheard."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agents import function_tool, set_tracing_disabled
from agents.realtime import RealtimeAgent, RealtimeRunner, RealtimeSession
from agents.realtime.model_inputs import RealtimeModelSendRawMessage
from clients import contract
from clients.contract import Microphone, Stage, check
from clients.sdk_types import misfits

SERVER_VAD: dict[str, Any] = {
    "type": "server_vad",
    "silence_duration_ms": 300,
    "create_response": True,
    "interrupt_response": True,
}

DEFAULT: Any = object()
"""As the SDK has it when nothing is said: semantic detection."""


@function_tool
async def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: Name of the city
    """
    return contract.TOOL_RESULT


class Caller:
    """One session of the SDK, and what it told."""

    def __init__(self, stage: Stage, session: RealtimeSession) -> None:
        self.stage, self.session = stage, session
        self.errors: list[str] = []
        self.tools: list[Any] = []
        self.history: dict[str, Any] = {}
        self.audio_bytes = self.interrupted = 0

    async def listen(self) -> None:
        """Take the session's events until it is closed."""
        async for event in self.session:
            match event.type:
                case "raw_model_event" if event.data.type == "raw_server_event":
                    self.stage.took(event.data.data)
                case "raw_model_event" if event.data.type == "exception":
                    self.errors.append(f"{event.data.context}: {event.data.exception}")
                case "error":
                    self.errors.append(str(event.error))
                case "audio":
                    self.audio_bytes += len(event.audio.data)
                case "audio_interrupted":
                    self.interrupted += 1
                case "tool_end":
                    self.tools.append(event.output)
                case "history_added":
                    self.history[event.item.item_id] = event.item
                case "history_updated":
                    self.history = {item.item_id: item for item in event.history}

    async def reply(self, number: int, text: str) -> None:
        """Wait for the answer with that number (from 1) and check its words."""
        await self.stage.until(f"answer {number}", lambda: len(self.stage.replies()) >= number)
        said = self.stage.replies()[number - 1]
        check(said == text, f"the agent said {said!r}, expected {text!r}")
        await self.stage.until_events("response.done", number)

    def texts(self, role: str) -> list[str]:
        """What the SDK's own history holds of one side."""
        said = [item for item in self.history.values() if item.type == "message" and item.role == role]
        parts = [part.model_dump() for item in said for part in item.content]
        return [part.get("transcript") or part.get("text") or "" for part in parts]


@asynccontextmanager
async def calling(
    stage: Stage, turn_detection: Any = SERVER_VAD, tools: list[Any] | None = None
) -> AsyncIterator[Caller]:
    """Connect; check at the end that the SDK reported no error and every event was of its types."""
    set_tracing_disabled(True)
    agent = RealtimeAgent(name="caller", instructions="Answer briefly.", tools=tools or [])
    settings: Any = {"model_name": "gpt-realtime"}
    if turn_detection is not DEFAULT:
        settings["turn_detection"] = turn_detection
    runner = RealtimeRunner(agent, config={"model_settings": settings, "tracing_disabled": True})
    session = await runner.run(model_config={"url": f"{stage.url}?model=gpt-realtime", "api_key": "unused"})
    async with session:
        caller = Caller(stage, session)
        listening = asyncio.create_task(caller.listen())
        await stage.until_events("session.updated")
        try:
            yield caller
        finally:
            listening.cancel()
    check(not caller.errors, f"the SDK reported {caller.errors[:3]}")
    found = misfits(stage.events)
    check(not found, f"its types do not fit: {found[:5]}")


async def spoken(stage: Stage) -> None:
    async with calling(stage, DEFAULT) as caller, Microphone(caller.session.send_audio) as microphone:
        microphone.say(stage.sound("hello"))
        await caller.reply(1, contract.HELLO_ANSWER)
        check(caller.audio_bytes >= 0.8 * 48_000, f"the answer had {caller.audio_bytes} bytes of sound")
        await stage.until("words in the history", lambda: "Hello there." in caller.texts("user"))
        check(contract.HELLO_ANSWER in caller.texts("assistant"), f"the history holds {caller.history}")


async def tool(stage: Stage) -> None:
    await _tool(stage, "weather", [])


async def tool_aloud(stage: Stage) -> None:
    await _tool(stage, "forecast", [contract.ALOUD_ANSWER])


async def _tool(stage: Stage, sound: str, first: list[str]) -> None:
    async with (
        calling(stage, tools=[get_weather]) as caller,
        Microphone(caller.session.send_audio) as microphone,
    ):
        microphone.say(stage.sound(sound))
        await stage.until("tool", lambda: caller.tools)
        await stage.until("spoken result", lambda: len(stage.replies()) > len(first))
        check(stage.replies() == [*first, contract.TOOL_ANSWER], f"the agent said {stage.replies()}")
        await stage.until_events("response.done", 2)
        check(caller.tools == [contract.TOOL_RESULT], f"the tool ran as {caller.tools}")


async def barge_in(stage: Stage) -> None:
    async with calling(stage) as caller, Microphone(caller.session.send_audio) as microphone:
        microphone.say(stage.sound("story"))
        await stage.until("sound", lambda: caller.audio_bytes)
        await asyncio.sleep(1.5)
        microphone.say(stage.sound("stop"))
        await stage.until("interruption", lambda: caller.interrupted)
        await stage.until_events("conversation.item.truncated")
        await stage.until_events("response.done", 2)
        statuses = [event["response"]["status"] for event in stage.of("response.done")]
        check(statuses == ["cancelled", "completed"], f"the responses ended {statuses}")
        check(stage.replies()[-1] == contract.STOP_ANSWER, f"the agent said {stage.replies()[-1]!r}")
        check(caller.audio_bytes < 8 * 48_000, f"{caller.audio_bytes} bytes of sound came: the story went on")


async def push_to_talk(stage: Stage) -> None:
    async with calling(stage, turn_detection=None) as caller:
        pieces = list(contract.frames(stage.sound("pushed")))
        for piece in pieces:
            await caller.session.send_audio(piece, commit=piece is pieces[-1])
        await stage.until_events("input_audio_buffer.committed")
        await asyncio.sleep(0.3)
        check(not stage.of("response.created"), "a commit alone started a response")
        await caller.session.model.send_event(
            RealtimeModelSendRawMessage(message={"type": "response.create"})
        )
        await caller.reply(1, contract.PUSHED_ANSWER)


async def text(stage: Stage) -> None:
    async with calling(stage) as caller:
        await caller.session.send_message(contract.TEXT_QUESTION)
        await caller.reply(1, contract.TEXT_ANSWER)
        await stage.until("words in the history", lambda: contract.TEXT_QUESTION in caller.texts("user"))


if __name__ == "__main__":
    sys.exit(contract.main([spoken, tool, tool_aloud, barge_in, push_to_talk, text]))
