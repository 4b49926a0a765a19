"""Does Pipecat's OpenAI realtime service converse with our server? In the pipeline of their example, without a network.

As in their example the conversation begins with a written message; so each scenario's first answer is to that.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from clients import contract
from clients.contract import Microphone, Stage, check
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.frames.frames import (
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMRunFrame,
    OutputAudioRawFrame,
    StartFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
)
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.services.openai.realtime import events as their_events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.turns.user_turn_strategies import ExternalUserTurnStrategies
from pipecat.workers.runner import WorkerRunner

SERVER_VAD = their_events.TurnDetection(silence_duration_ms=300)


class Ear(BaseOutputTransport):
    """Their output transport, played to nobody at the pace of an ear."""

    def __init__(self) -> None:
        super().__init__(TransportParams(audio_out_enabled=True, audio_out_sample_rate=contract.RATE_HZ))
        self.heard_bytes = 0
        self._due = 0.0

    async def start(self, frame: StartFrame) -> None:
        """Their transports say here that they are ready."""
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        """Take one piece, in the time it lasts."""
        now = asyncio.get_running_loop().time()
        self._due = max(self._due, now) + len(frame.audio) / (2 * contract.RATE_HZ)
        self.heard_bytes += len(frame.audio)
        await asyncio.sleep(self._due - now)
        return True


class Errors(BaseObserver):
    """Their pipeline reports trouble in frames."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[int, str] = {}
        self.interruptions: set[int] = set()

    async def on_push_frame(self, data: FramePushed) -> None:
        """Note errors and interruptions, each once."""
        if isinstance(data.frame, ErrorFrame):
            self.errors[data.frame.id] = data.frame.error
        elif isinstance(data.frame, InterruptionFrame):
            self.interruptions.add(data.frame.id)


class Caller:
    """One running pipeline."""

    def __init__(self, stage: Stage, worker: PipelineWorker, ear: Ear, observer: Errors) -> None:
        self.stage, self.worker, self.ear, self.observer = stage, worker, ear, observer
        self.tool_arguments: list[Any] = []

    async def push(self, pcm: bytes) -> None:
        """A frame of the microphone."""
        await self.worker.queue_frame(InputAudioRawFrame(pcm, contract.RATE_HZ, 1))

    async def queue(self, *frames: Frame) -> None:
        """Frames for the head of the pipeline."""
        for frame in frames:
            await self.worker.queue_frame(frame)

    async def reply(self, number: int, text: str) -> None:
        """Wait for the answer with that number (from 1) and check its words."""
        await self.stage.until(f"answer {number}", lambda: len(self.stage.replies()) >= number)
        said = self.stage.replies()[number - 1]
        check(said == text, f"the agent said {said!r}, expected {text!r}")

    async def quiet(self) -> None:
        """Wait until the ear has heard nothing new for 300 ms."""
        before = -1
        while before != self.ear.heard_bytes:
            before = self.ear.heard_bytes
            await asyncio.sleep(0.3)


@asynccontextmanager
async def calling(stage: Stage, turn_detection: Any = SERVER_VAD) -> AsyncIterator[Caller]:
    """Run the pipeline; its first answer has been heard when the scenario begins."""
    problems = _watch(stage)
    weather = FunctionSchema(
        name=contract.TOOL_NAME,
        description="The weather in a city.",
        properties=contract.TOOL_PARAMETERS["properties"],
        required=contract.TOOL_PARAMETERS["required"],
    )
    properties = their_events.SessionProperties(
        audio=their_events.AudioConfiguration(
            input=their_events.AudioInput(
                transcription=their_events.InputAudioTranscription(), turn_detection=turn_detection
            )
        ),
        tools=[weather],
    )
    service = OpenAIRealtimeLLMService(
        api_key="unused",
        base_url=stage.url,
        settings=OpenAIRealtimeLLMService.Settings(
            session_properties=properties, system_instruction="Answer briefly."
        ),
    )
    context = LLMContext([{"role": "user", "content": contract.TEXT_QUESTION}])
    pair = LLMContextAggregatorPair(
        context, user_params=LLMUserAggregatorParams(user_turn_strategies=ExternalUserTurnStrategies())
    )
    ear, observer = Ear(), Errors()
    pipeline = Pipeline([pair.user(), service, ear, pair.assistant()])
    params = PipelineParams(audio_in_sample_rate=contract.RATE_HZ, audio_out_sample_rate=contract.RATE_HZ)
    worker = PipelineWorker(pipeline, cancel_on_idle_timeout=False, observers=[observer], params=params)
    caller = Caller(stage, worker, ear, observer)

    async def get_weather(call: Any) -> None:
        caller.tool_arguments.append(dict(call.arguments))
        await call.result_callback({"weather": contract.TOOL_RESULT})

    service.register_function(contract.TOOL_NAME, get_weather)
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    try:
        await stage.until_events("session.updated")
        await caller.queue(LLMRunFrame())
        await caller.reply(1, contract.TEXT_ANSWER)
        await stage.until_events("response.done")
        await caller.quiet()
        yield caller
    finally:
        await worker.cancel()
        await running
    check(not problems, f"their types do not fit: {problems[:3]}")
    check(not observer.errors, f"the pipeline reported {list(observer.errors.values())[:3]}")


def _watch(stage: Stage) -> list[str]:
    """Look on as they parse; what they can't parse ends their conversation."""
    problems: list[str] = []
    parse = their_events.parse_server_event

    def parse_and_note(message: str) -> Any:
        stage.took(json.loads(message))
        try:
            return parse(message)
        except Exception as error:
            problems.append(str(error)[:500])
            raise

    their_events.parse_server_event = parse_and_note
    return problems


async def spoken(stage: Stage) -> None:
    async with calling(stage) as caller, Microphone(caller.push) as microphone:
        heard = caller.ear.heard_bytes
        microphone.say(stage.sound("hello"))
        await caller.reply(2, contract.HELLO_ANSWER)
        await caller.quiet()
        check(caller.ear.heard_bytes - heard >= 0.8 * 48_000, "the answer had less than 800 ms of sound")


async def tool(stage: Stage) -> None:
    await _tool(stage, "weather", [])


async def tool_aloud(stage: Stage) -> None:
    await _tool(stage, "forecast", [contract.ALOUD_ANSWER])


async def _tool(stage: Stage, sound: str, first: list[str]) -> None:
    async with calling(stage) as caller, Microphone(caller.push) as microphone:
        microphone.say(stage.sound(sound))
        await caller.reply(len(first) + 2, contract.TOOL_ANSWER)
        check(stage.replies()[1:-1] == first, f"before the call it said {stage.replies()[1:-1]}")
        check(caller.tool_arguments == [{"city": "Paris"}], f"the tool was given {caller.tool_arguments}")
        await stage.until_events("response.done", 3)


async def barge_in(stage: Stage) -> None:
    async with calling(stage) as caller, Microphone(caller.push) as microphone:
        heard = caller.ear.heard_bytes
        microphone.say(stage.sound("story"))
        await stage.until("sound", lambda: caller.ear.heard_bytes > heard)
        interruptions = len(caller.observer.interruptions)
        await asyncio.sleep(1.5)
        microphone.say(stage.sound("stop"))
        await stage.until("interruption", lambda: len(caller.observer.interruptions) > interruptions)
        await stage.until_events("conversation.item.truncated")
        first = stage.of("conversation.item.truncated")[0]
        await caller.reply(3, contract.STOP_ANSWER)
        check(
            stage.sound_s(first["item_id"]) < 6, f"{stage.sound_s(first['item_id']):.1f} s of the story came"
        )
        await stage.until_events("response.done", 3)


async def push_to_talk(stage: Stage) -> None:
    async with calling(stage, turn_detection=False) as caller:
        await caller.queue(InterruptionFrame(), UserStartedSpeakingFrame())
        for piece in contract.frames(stage.sound("pushed")):
            await caller.push(piece)
        await caller.queue(UserStoppedSpeakingFrame())
        await stage.until_events("input_audio_buffer.committed")
        await caller.reply(2, contract.PUSHED_ANSWER)
        await stage.until_events("response.done", 2)


async def text(stage: Stage) -> None:
    async with calling(stage) as caller:
        check(caller.ear.heard_bytes >= 0.8 * 48_000, "the answer had less than 800 ms of sound")


if __name__ == "__main__":
    sys.exit(contract.main([spoken, tool, tool_aloud, barge_in, push_to_talk, text]))
