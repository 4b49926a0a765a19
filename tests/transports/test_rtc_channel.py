"""The data channel's two bounds, with a peer that reads when it is told to."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from transports.rtc.channel import MOST_UNREAD, MOST_UNSENT_BYTES, EventChannel
from voice.testing import run_virtual


class _Channel:
    """aiortc's end of a data channel whose peer takes nothing until :meth:`take`."""

    def __init__(self) -> None:
        self.readyState = "open"
        self.bufferedAmount = 0
        self.sent: list[str] = []
        self.heard: dict[str, Any] = {}

    def on(self, event: str, call: Any) -> None:
        self.heard[event] = call

    once = on

    def send(self, text: str) -> None:
        self.sent.append(text)
        self.bufferedAmount += len(text.encode())

    def take(self) -> None:
        self.bufferedAmount = 0
        self.heard["bufferedamountlow"]()


def test_a_peer_that_reads_nothing_is_given_up_once_a_bound_is_passed() -> None:
    async def main() -> None:
        end = _Channel()
        reasons: list[str] = []
        channel = EventChannel(end, 60_000, lambda: None, reasons.append)  # type: ignore[arg-type]
        for _ in range(100):
            channel.send("x" * 50_000)
        assert set(reasons) == {"slow_client"}
        assert end.bufferedAmount <= MOST_UNSENT_BYTES

    run_virtual(main())


def test_an_event_that_is_too_long_for_the_peer_becomes_an_error() -> None:
    async def main() -> None:
        end = _Channel()
        channel = EventChannel(end, 1000, lambda: None, lambda reason: None)  # type: ignore[arg-type]
        channel.send("ü" * 501)
        assert channel.oversized == 1
        assert json.loads(end.sent[0])["error"]["code"] == "event_too_large"
        end.readyState = "closed"
        channel.send("late")
        assert len(end.sent) == 1

    run_virtual(main())


def test_the_last_events_get_a_moment_to_leave_and_no_more() -> None:
    async def main() -> None:
        end = _Channel()
        channel = EventChannel(end, 1000, lambda: None, lambda reason: None)  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()
        await channel.flush(5.0)
        assert loop.time() == 0.0
        channel.send("bye")
        loop.call_later(0.1, end.take)
        await channel.flush(5.0)
        assert loop.time() == pytest.approx(0.1)
        channel.send("bye")
        await channel.flush(0.5)
        assert loop.time() == pytest.approx(0.6)

    run_virtual(main())


def test_messages_wait_in_order_and_no_more_than_a_bound_of_them() -> None:
    async def main() -> None:
        end = _Channel()
        reasons: list[str] = []
        came: list[int] = []
        channel = EventChannel(end, 1000, lambda: came.append(1), reasons.append)  # type: ignore[arg-type]
        for n in range(MOST_UNREAD):
            end.heard["message"](str(n))
        assert not reasons
        assert [await channel.receive() for _ in range(3)] == ["0", "1", "2"]
        for _ in range(4):
            end.heard["message"]("one more")
        assert reasons == ["flood"]
        assert len(came) == MOST_UNREAD + 4

    run_virtual(main())


def test_few_but_huge_messages_are_a_flood_as_well() -> None:
    async def main() -> None:
        end = _Channel()
        reasons: list[str] = []
        EventChannel(end, 1000, lambda: None, reasons.append)  # type: ignore[arg-type]
        for _ in range(12):
            end.heard["message"]("x" * 500_000)
        assert set(reasons) == {"flood"}

    run_virtual(main())
