"""B54: the caller hangs up while audio is being sent; the send error hides the disconnect and the session lives on.

The kind of fault: an end that one of several parties must notice and tell the others. It is made impossible in
``voice/session.py``: ``_end`` is the one way out, whoever comes first (a failed send in ``voice/sender.py``, the
transport's ``close``, the owner) takes it, and the scope ends everything below at once; later calls do nothing.

A peer that went away without a word is found by the transport's ping; here it is found because it takes no more audio.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import pytest
from talk import Talk, make_agent, talk

from voice.agent import Agent
from voice.events import SessionEnded
from voice.interfaces import ToolCall
from voice.options import Limits
from voice.scope import Scope
from voice.testing import PushClient, ScriptedModel, ScriptedRecogniser, run_virtual, slow_tool, speak
from voice.tools import as_tool

REPLY = "word word word word word. " * 20
PHASES = {
    "mid reply": (2.5, 5.0),
    "mid tool call": (2.0, 4.0),
    "mid utterance": (0.6, 1.4),
    "any time": (0.0, 6.0),
}
GONE_S = 2.0
TIMES = 13
"""Resets in each phase, for each that is first: 104 in all."""


def agent_for(phase: str) -> Agent:
    tool = as_tool(slow_tool(3.0, name="look"))
    reply: Any = ["Let me look. ", ToolCall("", "look", "{}")] if phase == "mid tool call" else REPLY
    recogniser = ScriptedRecogniser(lambda audio: "Hello there.")
    return make_agent(ScriptedModel([reply]), tools=[tool], recogniser=recogniser)


async def reset_at(phase: str, at_s: float, first: str) -> Talk:
    """A conversation whose connection is reset; sending and the transport notice it in either order."""
    loop = asyncio.get_running_loop()
    client = PushClient(record_s=1.0)
    async with talk(agent_for(phase), client, scope=Scope("process")) as it:
        client.say(speak(1.0), at_s=0.5)
        run = asyncio.create_task(client.run())
        await asyncio.sleep(at_s)
        client.reset()
        began = loop.time()
        if first == "sending":
            await asyncio.sleep(0.2)  # the transport's reader notices later
        await it.session.close("disconnected")
        await run
    assert loop.time() - began <= GONE_S + 0.2
    return it


@pytest.mark.parametrize("first", ["sending", "the transport"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_reset_is_seen_once_and_everything_is_gone_within_two_seconds(
    phase: str, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    seed = sorted(PHASES).index(phase)
    print(f"seed={seed}")
    chance = random.Random(seed)

    async def main() -> None:
        for _ in range(TIMES):
            caplog.clear()
            it = await reset_at(phase, chance.uniform(*PHASES[phase]), first)
            assert it.session.ended == "disconnected"
            assert len(it.of(SessionEnded)) == 1
            assert isinstance(it.events[-1][1], SessionEnded)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left
            assert len([r for r in caplog.records if "client" in r.getMessage()]) <= 1, (
                "one line, not hundreds"
            )
            assert not [r for r in caplog.records if r.levelno >= logging.ERROR]

    with caplog.at_level(logging.INFO):
        run_virtual(main())


def test_a_failed_send_alone_ends_the_session() -> None:
    async def main() -> None:
        client = PushClient()
        async with talk(agent_for("mid reply"), client) as it:
            client.say(speak(1.0), at_s=0.5)
            await client.run(3.0)
            client.reset()
            await asyncio.sleep(0.5)
            assert it.session.ended == "disconnected"
            assert len(asyncio.all_tasks()) == 1
        assert len(it.of(SessionEnded)) == 1

    run_virtual(main())


def test_a_half_open_peer_that_just_goes_away_is_given_up_when_it_takes_no_more_audio() -> None:
    async def main() -> None:
        client = PushClient()
        async with talk(agent_for("mid reply"), client) as it:
            client.say(speak(1.0), at_s=0.5)
            await client.run(3.0)
            client.stop_reading()  # and its microphone is silent too: nobody calls run() any more
            await asyncio.sleep(Limits().send_stall_s + 0.5)
            assert it.session.ended == "slow_client"
            assert len(asyncio.all_tasks()) == 1

    run_virtual(main())


def test_the_others_are_served_on() -> None:
    async def main() -> None:
        process = Scope("process")
        agent = agent_for("mid reply")
        lost, kept = PushClient(), PushClient()
        async with (
            talk(agent, lost, session_id="s0", scope=process) as bad,
            talk(agent, kept, session_id="s1", scope=process) as good,
        ):
            for client in (lost, kept):
                client.say(speak(1.0), at_s=0.5)
            runs = [asyncio.create_task(client.run(26.0)) for client in (lost, kept)]
            await asyncio.sleep(4.0)
            lost.reset()
            await asyncio.gather(*runs)
            assert bad.session.ended == "disconnected"
            assert good.session.ended is None
            assert good.words == [(1, 100)]

    run_virtual(main())
