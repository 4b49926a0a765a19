"""Does LiveKit's OpenAI realtime model converse with our server? Its session is driven as their agents do."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from clients import contract
from clients.contract import Microphone, Stage, check
from clients.sdk_types import misfits
from livekit import rtc
from livekit.agents import NOT_GIVEN, llm
from livekit.plugins.openai.realtime import RealtimeModel
from livekit.plugins.openai.realtime.realtime_model import RealtimeSession
from openai.types.realtime.realtime_audio_input_turn_detection import ServerVad

SERVER_VAD = ServerVad(
    type="server_vad", silence_duration_ms=300, create_response=True, interrupt_response=True
)


@llm.function_tool(name=contract.TOOL_NAME)
async def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: Name of the city
    """
    return contract.TOOL_RESULT


class Complaints(logging.Handler):
    """What the client logs at warning or above: it handles events that it can't use by a line in the log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.getMessage()} {record.exc_info[1] if record.exc_info else ''}".strip())


class Caller:
    """One session of LiveKit's, and the answers it made of what came."""

    def __init__(self, stage: Stage, session: RealtimeSession) -> None:
        self.stage, self.session = stage, session
        self.errors: list[str] = []
        self.words: list[str] = []
        self.speech_started = 0
        self.answers: list[Answer] = []
        self._tasks: set[asyncio.Task[None]] = set()
        session.on("openai_server_event_received", self._event)
        session.on("generation_created", self._generation)
        session.on("error", lambda error: self.errors.append(str(error.error)))
        session.on("input_speech_started", self._started)
        session.on("input_audio_transcription_completed", self._transcribed)

    def _event(self, event: dict[str, Any]) -> None:
        self.stage.took(copy.deepcopy(event))

    def _started(self, _: object) -> None:
        self.speech_started += 1

    def _transcribed(self, event: Any) -> None:
        if event.is_final:
            self.words.append(event.transcript)

    def _generation(self, event: llm.GenerationCreatedEvent) -> None:
        answer = Answer(event)
        self.answers.append(answer)
        task = asyncio.create_task(answer.take())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def push(self, pcm: bytes) -> None:
        """A frame of the microphone."""
        self.session.push_audio(rtc.AudioFrame(pcm, contract.RATE_HZ, 1, len(pcm) // 2))

    async def reply(self, number: int, text: str) -> Answer:
        """Wait for the end of answer ``number`` (from 1) and check what it said."""
        await self.stage.until(
            f"answer {number}", lambda: len(self.answers) >= number and self.answers[number - 1].done
        )
        answer = self.answers[number - 1]
        check(answer.text.strip() == text, f"the agent said {answer.text!r}, expected {text!r}")
        return answer

    async def add(self, item: llm.ChatItem) -> None:
        """Put an item at the end of the conversation."""
        chat = self.session.chat_ctx.copy()
        chat.items.append(item)
        await self.session.update_chat_ctx(chat)


class Answer:
    """What one generation of the client's yields."""

    def __init__(self, event: llm.GenerationCreatedEvent) -> None:
        self.event = event
        self.text, self.audio_s, self.done = "", 0.0, False
        self.message_id = ""
        self.calls: list[llm.FunctionCall] = []

    async def take(self) -> None:
        """Read all its streams to their end."""
        await asyncio.gather(self._messages(), self._functions())
        self.done = True

    async def _messages(self) -> None:
        async for message in self.event.message_stream:
            self.message_id = message.message_id
            await asyncio.gather(self._text(message), self._audio(message))

    async def _text(self, message: llm.MessageGeneration) -> None:
        async for piece in message.text_stream:
            self.text += piece

    async def _audio(self, message: llm.MessageGeneration) -> None:
        async for frame in message.audio_stream:
            self.audio_s += frame.duration

    async def _functions(self) -> None:
        async for call in self.event.function_stream:
            self.calls.append(call)


@asynccontextmanager
async def calling(stage: Stage, turn_detection: Any = SERVER_VAD) -> AsyncIterator[Caller]:
    """Connect, and check at the end that the client had nothing to complain of."""
    complaints = Complaints()
    for name in ("livekit.agents", "livekit.plugins.openai"):
        logging.getLogger(name).addHandler(complaints)
    async with aiohttp.ClientSession() as http:
        model = RealtimeModel(
            base_url=stage.url, api_key="unused", turn_detection=turn_detection, http_session=http
        )
        session = model.session()
        caller = Caller(stage, session)
        try:
            await session.update_instructions("Answer briefly.")
            await stage.until_events("session.updated", 2)
            yield caller
        finally:
            await session.aclose()
            await model.aclose()
    check(not caller.errors, f"the client reported {caller.errors}")
    check(not complaints.lines, f"the client logged {complaints.lines}")
    found = misfits(stage.events)
    check(not found, f"its types do not fit: {found[:5]}")


async def spoken(stage: Stage) -> None:
    async with calling(stage, NOT_GIVEN) as caller, Microphone(caller.push) as microphone:
        microphone.say(stage.sound("hello"))
        answer = await caller.reply(1, contract.HELLO_ANSWER)
        check(answer.audio_s >= 0.8, f"the answer had {answer.audio_s:.2f} s of sound")
        await stage.until("transcript", lambda: caller.words)
        check(caller.words == ["Hello there."], f"the words were taken for {caller.words}")


async def tool(stage: Stage) -> None:
    await _tool(stage, "weather", "")


async def tool_aloud(stage: Stage) -> None:
    await _tool(stage, "forecast", contract.ALOUD_ANSWER)


async def _tool(stage: Stage, sound: str, first: str) -> None:
    async with calling(stage) as caller, Microphone(caller.push) as microphone:
        await caller.session.update_tools([get_weather])
        await stage.until_events("session.updated", 3)
        microphone.say(stage.sound(sound))
        await caller.reply(1, first)
        calls = caller.answers[0].calls
        check(len(calls) == 1 and calls[0].name == contract.TOOL_NAME, f"it called {calls}")
        output = await get_weather(**json.loads(calls[0].arguments))
        await caller.add(
            llm.FunctionCallOutput(
                call_id=calls[0].call_id, name=calls[0].name, output=output, is_error=False
            )
        )
        await caller.session.generate_reply()
        await caller.reply(2, contract.TOOL_ANSWER)


async def barge_in(stage: Stage) -> None:
    async with calling(stage) as caller, Microphone(caller.push) as microphone:
        microphone.say(stage.sound("story"))
        await stage.until("sound", lambda: caller.answers and caller.answers[0].audio_s > 0)
        await asyncio.sleep(1.5)
        microphone.say(stage.sound("stop"))
        await stage.until("second speech_started", lambda: caller.speech_started == 2)
        story = caller.answers[0]
        caller.session.truncate(message_id=story.message_id, modalities=["audio", "text"], audio_end_ms=1500)
        await stage.until_events("conversation.item.truncated")
        await caller.reply(2, contract.STOP_ANSWER)
        check(story.done and story.audio_s < 6, f"{story.audio_s:.1f} s of sound came: the story went on")


async def push_to_talk(stage: Stage) -> None:
    async with calling(stage, turn_detection=None) as caller:
        caller.session.clear_audio()
        for piece in contract.frames(stage.sound("pushed")):
            await caller.push(piece)
        caller.session.commit_audio()
        await stage.until_events("input_audio_buffer.committed")
        await asyncio.sleep(0.3)
        check(not caller.answers, "a commit alone started a response")
        await caller.session.generate_reply()
        await caller.reply(1, contract.PUSHED_ANSWER)


async def text(stage: Stage) -> None:
    async with calling(stage) as caller:
        await caller.add(llm.ChatMessage(role="user", content=[contract.TEXT_QUESTION]))
        generation = await caller.session.generate_reply()
        check(generation.user_initiated, "the client did not know the answer as its own")
        await caller.reply(1, contract.TEXT_ANSWER)


if __name__ == "__main__":
    sys.exit(contract.main([spoken, tool, tool_aloud, barge_in, push_to_talk, text]))
