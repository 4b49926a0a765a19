"""The watchdog names what blocks the event loop, tells waiting from computing and from a machine without time, and
leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from talk import make_agent, talk

from voice.interfaces import ToolCall
from voice.testing import PushClient, ScriptedModel, run_virtual
from voice.tools import tool
from voice.watchdog import Blocked, Place, Watchdog, blame, judge

BLOCK_S = 0.35


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """After thousands of tests a full collection blocks the loop for longer than the blocks that are looked for."""
    gc.disable()
    yield
    gc.enable()


@tool
async def look_up() -> str:
    """Look something up, in a way that blocks everybody."""
    time.sleep(BLOCK_S)  # noqa: ASYNC251 - the fault that is to be found
    return "found"


def compute() -> None:
    end = time.thread_time() + BLOCK_S
    while time.thread_time() < end:
        pass


async def noticed(dog: Watchdog, least_s: float = 0.0) -> Blocked:
    """The worst incident, once the thread has counted one of at least that length."""
    async with asyncio.timeout(20):
        while dog.worst is None or dog.worst.seconds < least_s:  # noqa: ASYNC110 - the thread tells nobody
            await asyncio.sleep(0.01)
    return dog.worst


def watched(block: Callable[[], Any], least_s: float = 0.0, **options: Any) -> Blocked:
    async def main() -> Blocked:
        async with Watchdog(**options) as dog:
            await asyncio.sleep(0.01)
            asyncio.get_running_loop().call_soon(block)
            return await noticed(dog, least_s)

    return asyncio.run(main())


def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "voice.watchdog"]


# ---------------------------------------------------------------- naming


def test_a_tool_that_blocks_the_loop_is_named_once_with_its_file_and_how_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> Blocked:
        model = ScriptedModel([[ToolCall("", "look_up", "{}")], "Done."], first_token_s=0.0)
        async with Watchdog() as dog, talk(make_agent(model, tools=[look_up]), PushClient()) as it:
            it.session.send_text("Look it up.")
            blocked = await noticed(dog, BLOCK_S - 0.1)
            async with asyncio.timeout(20):
                while not told(caplog):  # noqa: ASYNC110 - the thread counts first, then logs
                    await asyncio.sleep(0.01)
            return blocked

    with caplog.at_level(logging.WARNING, "voice.watchdog"):
        blocked = asyncio.run(main())
    assert blocked.place is not None
    assert (blocked.place.function, blocked.place.file) == ("look_up", __file__)
    assert blocked.seconds >= BLOCK_S - 0.1
    assert len(told(caplog)) == 1
    assert f"look_up ({__file__}:" in caplog.text


def test_a_callback_that_computes_is_named_with_the_time_it_took() -> None:
    blocked = watched(compute, BLOCK_S - 0.1)
    assert blocked.place is not None and blocked.place.function == "compute"
    assert blocked.cpu_s >= BLOCK_S
    # the others: on a machine that is busy itself, or beside threads that earlier tests left at work
    assert blocked.cause in ("computes", "starved", "crowded")


def test_a_garbage_collection_is_not_blamed_on_who_runs_into_it() -> None:
    garbage = [[i] for i in range(1_500_000)]
    blocked = watched(gc.collect, limit_s=0.02)
    del garbage
    assert blocked.cause == "collects"


def test_one_that_never_ends_is_told_of_while_it_lasts_and_only_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("voice.watchdog._TOLD_AT_LATEST_S", 0.2)
    told_while_blocked: list[str] = []

    def stuck() -> None:
        for _ in range(200):
            time.sleep(0.02)
            if caplog.records:
                told_while_blocked.append(caplog.records[0].getMessage())
                return

    with caplog.at_level(logging.WARNING, "voice.watchdog"):
        watched(stuck)
    assert "stuck" in told_while_blocked[0] and "has been blocked" in told_while_blocked[0]
    assert len(caplog.records) == 1


def test_a_place_that_blocks_again_and_again_is_counted_each_time_and_not_logged_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> Watchdog:
        async with Watchdog(0.03) as dog:
            for number in range(3):
                await asyncio.sleep(0.15)
                time.sleep(0.2)  # noqa: ASYNC251
                while dog.counts.total() <= number:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        return dog

    with caplog.at_level(logging.WARNING, "voice.watchdog"):
        dog = asyncio.run(asyncio.wait_for(main(), 20))
    assert dog.counts.total() >= 3
    assert dog.blocked_s >= 0.3
    assert 1 <= len(caplog.records) < dog.counts.total()


STOPPED = """
import asyncio, json, sys
from voice.watchdog import Watchdog

async def main():
    async with Watchdog() as dog:
        await asyncio.sleep(0.2)
        print("ready", flush=True)
        while dog.worst is None:
            await asyncio.sleep(0.01)
        print(json.dumps([dog.worst.cause, dog.worst.seconds]))

asyncio.run(asyncio.wait_for(main(), 20))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no way to stop a process here")
def test_a_process_that_gets_no_processor_blames_nobody() -> None:
    with subprocess.Popen([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(child.pid, signal.SIGCONT)
        cause, seconds = json.loads(child.stdout.readline())
    assert cause == "starved"
    assert seconds >= 0.3


# ---------------------------------------------------------------- whose fault it is


def at(module: str, function: str, folder: str = "/app") -> Place:
    return Place(module, f"{folder}/{module.replace('.', '/')}.py", function, 1)


TOOL = (at("voice.tools", "_attempt"), at("bank", "balance"), at("bank.db", "query"), at("sqlite3", "run"))
OURS = (at("voice.session", "hear"), at("numpy.core", "dot", "/lib/site-packages"))
PACKAGE = (at("sold_tools", "ask", "/lib/site-packages"), at("http.client", "read"))


@pytest.mark.parametrize(
    ("stack", "function"),
    [(TOOL, "balance"), (OURS, "hear"), (PACKAGE, "ask"), ((at("json", "loads"),), "loads")],
    ids=["a tool of the user's", "our own code", "a package alone", "only the standard library"],
)
def test_the_users_function_is_blamed_before_ours_and_ours_before_a_packages(
    stack: tuple[Place, ...], function: str
) -> None:
    place = blame(stack)
    assert place is not None and place.function == function


def measured(cause: Any, seconds: float = 0.4) -> Blocked:
    return Blocked(cause, None, seconds, 0.0, 0.0, ())


@pytest.mark.parametrize(
    ("cause", "runs", "ready", "late_s", "expected"),
    [
        ("waits", 1, False, 0.0, "waits"),
        ("waits", 1, True, 0.0, "starved"),
        ("waits", 1, False, 0.3, "starved"),
        ("computes", 1, True, 0.3, "computes"),
        ("computes", 4, True, 0.0, "crowded"),
        ("collects", 4, True, 0.3, "collects"),
    ],
)
def test_the_cause_follows_from_time_taken_and_what_was_seen(
    cause: str, runs: int, ready: bool, late_s: float, expected: str
) -> None:
    found = judge(measured(cause), [TOOL] * 4, runs=runs, ready=ready, late_s=late_s)
    assert found.cause == expected
    assert found.place == TOOL[1]


def test_a_block_that_the_thread_did_not_see_is_counted_without_a_place() -> None:
    found = judge(measured("computes"), [], runs=0, ready=False, late_s=0.0)
    assert (found.cause, found.place) == ("computes", None)


# ---------------------------------------------------------------- what it leaves alone


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "voice-watchdog"]


def gone() -> None:
    for thread in threads():
        thread.join(timeout=10)
    assert threads() == []
    assert not [c for c in gc.callbacks if "Watchdog" in repr(c)]


def test_the_thread_ends_with_the_context() -> None:
    async def main() -> None:
        async with Watchdog() as dog:
            dog.start()  # again: nothing more
            await asyncio.sleep(0.01)
            assert len(threads()) == 1

    asyncio.run(main())
    gone()


def test_the_thread_ends_with_a_loop_that_nobody_unwatched() -> None:
    async def main() -> Watchdog:
        dog = Watchdog()
        dog.start()
        return dog

    dog = asyncio.run(main())
    gone()
    asyncio.run(main())
    assert dog.counts.total() == 0
    gone()


def test_a_watchdog_serves_one_loop_after_another() -> None:
    dog = Watchdog()

    async def main() -> None:
        dog.start()
        await asyncio.sleep(0.2)

    asyncio.run(main())
    asyncio.run(main())
    assert dog.counts.total() == 0, "the time between the loops is nobody's fault"
    gone()


def test_a_loop_that_waits_or_pauses_is_not_blocked() -> None:
    dog = Watchdog()
    loop = asyncio.new_event_loop()
    try:

        async def wait(seconds: float) -> None:
            dog.start()
            await asyncio.sleep(seconds)

        loop.run_until_complete(wait(0.15))
        time.sleep(0.4)  # the owner does other things between two runs
        loop.run_until_complete(wait(0.3))
        assert "waits" not in dog.counts
        assert "computes" not in dog.counts
    finally:
        dog.stop()
        loop.close()
    gone()


def test_in_virtual_time_there_is_nothing_to_watch() -> None:
    async def main() -> None:
        async with Watchdog():
            await asyncio.sleep(1000)
            assert threads() == []

    run_virtual(main())


@pytest.mark.parametrize("limit_s", [0.0, -1.0, float("nan"), 1e9])
def test_a_limit_out_of_range_is_refused(limit_s: float) -> None:
    with pytest.raises(ValueError, match="limit_s"):
        Watchdog(limit_s)
