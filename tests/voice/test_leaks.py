"""Nothing is left of a conversation, however and whenever it ends: no task, thread, file, scope or timer."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import psutil
import pytest
from talk import ONE_TO_FORTY, Talk, make_agent, talk

from voice.agent import Agent
from voice.events import SessionEnded, SessionEvent
from voice.interfaces import ModelEvent, Prompt, TextDelta, ToolCall
from voice.options import TurnOptions
from voice.scope import Reason, Scope
from voice.session import Session
from voice.testing import (
    PullClient,
    PushClient,
    ScriptedDetector,
    ScriptedModel,
    ScriptedRecogniser,
    ToneSynthesiser,
    run_virtual,
    slow_tool,
    speak,
)
from voice.tool_context import ToolContext
from voice.tools import as_tool, tool

CLOSE_S = 2.0
LENGTH_S = 11.0


@tool
def blocking() -> str:
    """Looks something up in a thread."""
    return "found"


def busy_agent(**options: Any) -> Agent:
    """An agent that greets, is interrupted, calls tools of all kinds, and makes guesses that are thrown away."""
    calls = [ToolCall("", name, "{}") for name in ("slow", "kept", "blocking")]
    model = ScriptedModel([ONE_TO_FORTY, ["Let me look. ", *calls], "Here it is then."])
    slow, kept = as_tool(slow_tool(1.0, name="slow")), as_tool(slow_tool(1.5, name="kept"))
    return make_agent(model, tools=[slow, kept, blocking], greeting="Good morning.", **options)


def script(client: PullClient | PushClient) -> None:
    client.say(speak(0.6), at_s=1.2)
    client.say(speak(0.5), at_s=2.1)  # goes on after a pause: the guess is thrown away
    client.say(speak(0.8), at_s=5.0)  # interrupts
    client.say(speak(0.2), at_s=7.5)


async def conversation(agent: Agent, client: PullClient | PushClient, seconds: float, **options: Any) -> Talk:
    async with talk(agent, client, **options) as it:
        script(client)
        await client.run(seconds)
    return it


class Census:
    """How much of everything there is now."""

    def __init__(self) -> None:
        gc.collect()
        live = gc.get_objects()
        process = psutil.Process()
        self.counts = {
            "scopes": sum(isinstance(o, Scope) for o in live),
            "sessions": sum(isinstance(o, Session) for o in live),
            "tasks": sum(isinstance(o, asyncio.Task) and not o.done() for o in live),
            "threads": threading.active_count(),
            "files": process.num_fds() if hasattr(process, "num_fds") else 0,
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Census) and self.counts == other.counts

    def __repr__(self) -> str:
        return repr(self.counts)


# ---------------------------------------------------------------- back to the start


@pytest.mark.parametrize("client_type", [PullClient, PushClient])
def test_whole_conversations_leave_nothing(client_type: Any) -> None:
    async def some(count: int) -> None:
        process = Scope("process")
        for number in range(count):
            await conversation(busy_agent(), client_type(record_s=1.0), LENGTH_S, scope=process)
            await asyncio.sleep(3.0)
            assert len(asyncio.all_tasks()) == 1, f"after conversation {number}"

    run_virtual(some(1))
    before = Census()
    run_virtual(some(8))
    assert Census() == before


def test_a_conversation_in_real_time_leaves_no_thread_and_no_file() -> None:
    async def hang_up_in_a_tool() -> None:
        model = ScriptedModel([[ToolCall("", "blocking", "{}")]], first_token_s=0.0)
        async with talk(make_agent(model, tools=[blocking])) as it:
            it.session.send_text("look it up")
            await asyncio.sleep(0.05)

    asyncio.run(hang_up_in_a_tool())
    before = Census()
    for _ in range(5):
        asyncio.run(hang_up_in_a_tool())
    after = Census()
    for thread in threading.enumerate():
        if thread.name.startswith("tools-"):
            thread.join(timeout=10)
    after.counts["threads"] = threading.active_count()
    assert after == before


# ---------------------------------------------------------------- hanging up at any time


async def _hung_up(at_s: float, how: str, client: PullClient | PushClient, agent: Agent) -> None:
    loop = asyncio.get_running_loop()
    process = Scope("process")
    task = asyncio.create_task(conversation(agent, client, LENGTH_S, scope=process))
    await asyncio.sleep(at_s)
    session = client._session
    assert isinstance(session, Session)
    began = loop.time()
    if how == "close":
        await session.close()
        client.stop()
    elif how == "hang up":
        session.hang_up("caller hung up")
        client.stop()
    elif how == "process":
        process.cancel(Reason.CLOSED)
        client.stop()
    else:
        task.cancel()
    await asyncio.wait({task})
    assert loop.time() - began <= CLOSE_S + 0.021, "closing took too long"  # one frame of the client's clock
    assert session.ended is not None
    assert session.is_quiet()
    await asyncio.sleep(0)
    left = [t.get_name() for t in asyncio.all_tasks() if t is not asyncio.current_task()]
    assert left == [], "tasks are left"


@pytest.mark.parametrize("how", ["close", "hang up", "process", "task cancelled"])
@pytest.mark.parametrize("seed", range(20))
def test_a_session_that_ends_at_a_random_time_is_gone_within_two_seconds(seed: int, how: str) -> None:
    print(f"seed={seed}")
    chance = random.Random(f"{seed} {how}")
    for _ in range(2):
        at_s = chance.uniform(0.0, LENGTH_S - 0.1)
        client = chance.choice([PullClient, PushClient])(record_s=1.0)
        slow = ScriptedRecogniser(
            ["Hello", "Hello there", "And", "Once more"], delay_s=chance.choice([0.05, 0.4])
        )
        voice = ToneSynthesiser(rtf=chance.choice([0.02, 0.5]), first_byte_s=chance.choice([0.0, 0.3]))
        detector = ScriptedDetector(delay_s=chance.choice([0.0, 0.01]))
        print(f"at_s={at_s!r} {type(client).__name__}")
        agent = busy_agent(recogniser=slow, synthesiser=voice, detector=detector)
        run_virtual(_hung_up(at_s, how, client, agent), seed=seed)
        assert detector.opened == detector.closed == 1
        assert voice.running == slow.running == 0


def event_kinds() -> list[type[Any]]:
    return [kind for kind in SessionEvent.__args__ if kind is not SessionEnded]


@pytest.mark.parametrize("kind", event_kinds(), ids=lambda kind: kind.__name__)
def test_hanging_up_from_within_any_event_ends_the_session_there(kind: type[Any]) -> None:
    """The owner reacts to an event, in the very callback, by hanging up."""

    async def main() -> None:
        agent = busy_agent(turns=TurnOptions(idle_s=0.5))
        client = PullClient(record_s=1.0)
        events: list[SessionEvent] = []

        def react(event: SessionEvent) -> None:
            events.append(event)
            if isinstance(event, kind):
                session.hang_up("enough")

        session = Session(agent, client, session_id="s0", on_event=react)
        async with session:
            client.attach(session)
            script(client)
            await client.run(LENGTH_S + 4.0)
        if any(isinstance(e, kind) for e in events):
            assert session.ended == "enough"
            assert isinstance(events[-1], SessionEnded)
            assert sum(isinstance(e, SessionEnded) for e in events) == 1
        await asyncio.sleep(2.0)

    run_virtual(main())


def test_a_tool_that_hangs_up_never_waits_for_itself() -> None:
    async def main() -> None:
        @tool
        async def goodbye(context: ToolContext) -> str:
            """End the call."""
            context.hang_up()
            await asyncio.sleep(10)
            return "never"

        model = ScriptedModel([["Bye. ", ToolCall("", "goodbye", "{}")]])
        async with talk(make_agent(model, tools=[goodbye])) as it:
            it.client.say(speak(0.5), at_s=0.5)
            await it.client.run(4.0)
            assert it.session.ended is not None
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began <= CLOSE_S

    run_virtual(main())


# ---------------------------------------------------------------- those who will not stop


class Deaf:
    """A model that swallows its cancels for eight seconds."""

    name = "deaf"

    async def generate(self, prompt: Prompt, scope: Scope) -> AsyncIterator[ModelEvent]:
        yield TextDelta("Well. ")
        for _ in range(80):
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue


def test_closing_waits_two_seconds_for_a_stage_that_never_stops_and_names_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with talk(make_agent(Deaf())) as it:
            it.client.say(speak(0.5), at_s=0.5)
            await it.client.run(3.0)
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began == pytest.approx(CLOSE_S)
        assert it.session.scope.reaper.detached == 1
        await asyncio.sleep(10.0)

    run_virtual(main())
    assert "deaf" in caplog.text


def test_a_session_does_not_wait_for_what_another_session_left_unwinding() -> None:
    async def main() -> None:
        process = Scope("process")
        async with (
            talk(make_agent(), PullClient(), session_id="s1", scope=process) as quick,
            talk(make_agent(Deaf()), PullClient(), session_id="s0", scope=process) as deaf,
        ):
            deaf.client.say(speak(0.5), at_s=0.5)
            await deaf.client.run(3.0)
            deaf.session.interrupt()
            began = asyncio.get_running_loop().time()
            await quick.session.close()
            assert asyncio.get_running_loop().time() == began
            assert deaf.session.scope.reaper.pending >= 1
        await asyncio.sleep(10.0)

    run_virtual(main())


def test_an_ended_session_takes_nothing_more_and_tells_nothing_more() -> None:
    async def main() -> None:
        agent = busy_agent()
        async with talk(agent) as it:
            script(it.client)
            await it.client.run(4.0)
            it.session.hang_up("enough")
            count = len(it.events)
            windows = _windows(agent)
            await it.client.run(6.0)
            assert len(it.events) == count
            assert isinstance(it.events[-1][1], SessionEnded)
            assert _windows(agent) == windows
            assert it.session.playout.read(480).size == 0

    run_virtual(main())


def _windows(agent: Agent) -> int:
    detector = agent.stages.detector
    assert isinstance(detector, ScriptedDetector)
    return detector.windows


@pytest.mark.parametrize(
    "start", [lambda s: s.close(), lambda s: s.__aexit__(None, None, None)], ids=["close", "exit"]
)
def test_a_session_may_be_closed_twice_and_before_it_started(start: Callable[[Session], Any]) -> None:
    async def main() -> None:
        session = Session(busy_agent(), PullClient(), session_id="s0")
        await start(session)
        await start(session)
        assert session.ended == "closed"

    run_virtual(main())
