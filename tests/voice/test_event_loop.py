"""Nothing blocks the event loop: no callback of a conversation computes for longer than 5 ms."""

from __future__ import annotations

import asyncio
import math
import time

from talk import ONE_TO_FORTY, make_agent, talk
from watchdog import LIMIT_MS, Watchdog, watch_callbacks

from voice.interfaces import ToolCall
from voice.testing import PullClient, PushClient, ScriptedModel, run_virtual, slow_tool, speak
from voice.tools import as_tool


async def conversation(client: PullClient | PushClient) -> None:
    """Three turns: one is interrupted, one calls a tool, and a picture is shown."""
    model = ScriptedModel(
        [ONE_TO_FORTY, ["Let me look. ", ToolCall("", "look", "{}")], "Here it is: $49.95."]
    )
    tool = as_tool(slow_tool(0.5, {"price": 49.95}, name="look"))
    agent = make_agent(model, tools=[tool], greeting="Good morning.")
    async with talk(agent, client) as it:
        client.say(speak(0.6), at_s=1.0)
        client.say(speak(0.8), at_s=4.0)
        await client.run(12.0)
        it.session.send_image(b"\x89PNG" + bytes(100_000), "image/png", "What is this?", answer=True)
        await client.run(5.0)
        assert it.session.counters.barge_ins == 1
        assert len(it.agent_entries) >= 4


def burn(cpu_s: float) -> None:
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        math.sqrt(2.0)


def watched(client: PullClient | PushClient) -> Watchdog:
    run_virtual(conversation(PullClient(record_s=30.0)))  # what is made once in a process is made here
    with watch_callbacks() as seen:
        run_virtual(conversation(client))
    return seen


def test_no_callback_of_a_pulled_conversation_computes_for_longer_than_5_ms() -> None:
    seen = watched(PullClient(record_s=30.0))
    assert seen.calls > 1000
    assert seen.worst_ms <= LIMIT_MS, seen.report()


def test_no_callback_of_a_pushed_conversation_computes_for_longer_than_5_ms() -> None:
    seen = watched(PushClient(record_s=30.0))
    assert seen.calls > 1000
    assert seen.worst_ms <= LIMIT_MS, seen.report()


def test_the_watchdog_names_what_computes_for_long_and_not_what_waits() -> None:
    async def blocker() -> None:
        await asyncio.sleep(0)
        burn(0.02)
        await asyncio.sleep(0)

    async def main() -> None:
        task = asyncio.create_task(blocker(), name="the blocker")
        asyncio.get_running_loop().call_later(0.01, time.sleep, 0.01)  # waits, doesn't compute
        await task
        await asyncio.sleep(0.05)

    with watch_callbacks() as seen:
        asyncio.run(main())
    assert seen.worst_ms >= 20.0
    assert "the blocker" in seen.slowest[0].what
    assert "test_event_loop.py" in seen.slowest[0].what
    assert all("sleep" not in call.what for call in seen.slowest if call.cpu_ms > LIMIT_MS)
