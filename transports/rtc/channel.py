"""The data channel of a call: events as text, both ways, each way with a bound.

aiortc queues without bound what a peer does not take, and hands over whatever comes; both ends are watched here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable

from aiortc import RTCDataChannel

log = logging.getLogger("voice.webrtc")

LABEL = "oai-events"
SAFE_BYTES = 60 * 1024
"""Longest event to a peer that states no limit of its own (it counts as 64 KiB, RFC 8841, 6.1)."""
MOST_UNSENT_BYTES = 2**20
"""A peer that leaves this much of its events unread is too slow."""
MOST_UNREAD = 256
MOST_UNREAD_BYTES = 4 * 2**20
"""What a peer may have sent and we not yet handled; more is a flood."""


class EventChannel:
    """One open data channel.

    Args:
        channel: aiortc's end of it.
        most_bytes: Longest message that the peer takes.
        on_message: Called for each message that comes, before it is queued.
        on_overflow: Called with ``"slow_client"`` or ``"flood"`` when a bound is passed; the call should end.

    Attributes:
        oversized: Events that were too long for the peer and were not sent.
    """

    def __init__(
        self,
        channel: RTCDataChannel,
        most_bytes: int,
        on_message: Callable[[], None],
        on_overflow: Callable[[str], None],
    ) -> None:
        self.oversized = 0
        self._channel = channel
        self._most_bytes = most_bytes
        self._on_message, self._on_overflow = on_message, on_overflow
        self._unread: asyncio.Queue[str | bytes] = asyncio.Queue(MOST_UNREAD)
        self._unread_bytes = 0
        channel.on("message", self._came)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of events that the peer has not taken yet."""
        return self._channel.bufferedAmount

    def send(self, event: str) -> None:
        """Send an event, at once; never waits. Nothing happens when the channel is closed."""
        if self._channel.readyState != "open":
            return
        size = len(event.encode())
        if size > self._most_bytes:
            self.oversized += 1
            log.warning(
                "an event of %d bytes is too long for the peer, which takes %d", size, self._most_bytes
            )
            event = _too_long(size, self._most_bytes)
        if self.unsent_bytes + size > MOST_UNSENT_BYTES:
            self._on_overflow("slow_client")
            return
        self._channel.send(event)

    async def receive(self) -> str | bytes:
        """The next message."""
        message = await self._unread.get()
        self._unread_bytes -= len(message)
        return message

    async def flush(self, within_s: float) -> None:
        """Wait until the peer has taken all events, at most ``within_s``."""
        if not self.unsent_bytes or self._channel.readyState != "open":
            return
        taken = asyncio.Event()
        self._channel.once("bufferedamountlow", taken.set)
        self._channel.once("close", taken.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await taken.wait()

    def close(self) -> None:
        """Hear nothing more."""
        self._channel.remove_all_listeners()

    def _came(self, message: str | bytes) -> None:
        self._on_message()
        if self._unread.full() or self._unread_bytes + len(message) > MOST_UNREAD_BYTES:
            self._on_overflow("flood")
            return
        self._unread_bytes += len(message)
        self._unread.put_nowait(message)


def _too_long(size: int, most: int) -> str:
    """An error in place of an event that can't be sent."""
    error = {
        "type": "server_error",
        "code": "event_too_large",
        "message": f"an event of {size} bytes could not be sent: this data channel takes {most}",
    }
    return json.dumps({"type": "error", "error": error})
