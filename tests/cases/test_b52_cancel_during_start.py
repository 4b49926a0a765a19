"""B52: a session that is cancelled before its stages have started never finishes; its worker stays busy.

The kind of fault: the end waits for a start that never happens. It is made impossible in ``voice/session.py`` and
``voice/scope.py``: a session starts without waiting for any engine, engines are first waited for in tasks of a
scope, and ``Scope.cancel`` ends those whatever they wait for; nothing is awaited on the way out but the reaper, for
2 s at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from talk import make_agent, talk

from voice.agent import Agent
from voice.errors import EngineFailed
from voice.interfaces import DetectorStream, Speech
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
    speak,
)

DELAYS_S = [0.0, 0.001, 0.005, 0.05, 0.5]
TIMES = 40
"""Sessions for each delay: 200 in all."""
FINISHED_S = 1.0


class NotStarting(ToneSynthesiser):
    """A voice whose start raises."""

    async def synthesise(self, text: str, scope: Scope, *, voice: str | None = None) -> AsyncIterator[Speech]:
        raise EngineFailed("the voice can't start")
        yield


def starting(how: str) -> Agent:
    """An agent that greets, so that its stages are needed at once."""
    if how == "raises":
        return make_agent(synthesiser=NotStarting(), greeting="Good morning.")
    return make_agent(
        ScriptedModel(["Okay."], first_token_s=2.0),
        recogniser=ScriptedRecogniser(["Hello"], delay_s=2.0),
        synthesiser=ToneSynthesiser(first_byte_s=2.0),
        greeting="Good morning.",
    )


@pytest.mark.parametrize("how", ["takes two seconds", "raises"])
@pytest.mark.parametrize("end", ["hangs up", "is cancelled", "its process ends"])
@pytest.mark.parametrize("delay_s", DELAYS_S)
def test_a_session_that_ends_while_its_stages_start_is_finished_within_a_second(
    delay_s: float, end: str, how: str
) -> None:
    async def serve(client: PullClient | PushClient, scope: Scope, agent: Agent, seen: list[Session]) -> None:
        async with talk(agent, client, scope=scope) as it:
            seen.append(it.session)
            client.say(speak(0.1), at_s=0.0)
            await client.run()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        agent = starting(how)
        for number in range(TIMES):
            process = Scope("process")
            client: Any = (PullClient if number % 2 else PushClient)(record_s=1.0)
            seen: list[Session] = []
            task = asyncio.create_task(serve(client, process, agent, seen))
            await asyncio.sleep(delay_s)
            began = loop.time()
            if end == "is cancelled":
                task.cancel()
            elif end == "its process ends":
                process.cancel(Reason.CLOSED)
                client.stop()
            else:
                client.stop()
            await asyncio.wait({task})
            assert loop.time() - began <= FINISHED_S
            assert all(session.ended is not None for session in seen)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"tasks left after session {number}: {left}"

    run_virtual(main())


def test_a_session_whose_start_raises_is_over_and_leaves_its_process_nothing() -> None:
    class Broken(ScriptedDetector):
        def open(self) -> DetectorStream:  # type: ignore[override]
            raise EngineFailed("the detector can't start")

    async def main() -> None:
        process = Scope("process")
        session = Session(make_agent(detector=Broken()), PushClient(), session_id="s0", scope=process)
        with pytest.raises(EngineFailed, match="can't start"):
            await session.start()
        await session.close()
        assert session.ended is not None
        assert asyncio.all_tasks() == {asyncio.current_task()}
        process.close()
        assert not process.cancelled, (
            "a scope is left in the process"
        )  # close() cancels only what still holds something

    run_virtual(main())


def test_a_stage_that_fails_to_start_does_not_take_the_session_with_it() -> None:
    async def main() -> None:
        async with talk(starting("raises")) as it:
            it.client.say(speak(0.5), at_s=0.5)
            await it.client.run(8.0)
            assert it.session.ended is None
            assert it.session.is_quiet()
            assert it.ended.status == "failed"

    run_virtual(main())
