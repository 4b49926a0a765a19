"""The agent's voice on its way to the peer: ready Opus packets, one every 20 ms of an absolute grid.

aiortc asks for the next packet as soon as it has sent one, so the pace is made here: packet n is due at start +
n · 20 ms, whatever happened before, and its timestamp is n · 960. Nothing is ahead of the grid, so the session's
silence at an interruption is silence on the wire 20 ms later.
"""

from __future__ import annotations

import asyncio
from fractions import Fraction
from typing import Any

import numpy as np
from aiortc import MediaStreamTrack
from aiortc.mediastreams import MediaStreamError
from av import Packet

from transports.call import Ear
from transports.rtc.opus import FRAME_S, OPUS_HZ, SPEAK_SAMPLES, OpusEncoder
from voice.interfaces import Pcm16

MOST_LATE_S = 2 * FRAME_S
"""A loop that was held up catches up this much at once; beyond that, frames of the grid are left out. The audio of a
frame that is left out is not lost: it goes with the next one."""

_TIME_BASE = Fraction(1, OPUS_HZ)
_TICKS = int(OPUS_HZ * FRAME_S)
_NOTHING: Pcm16 = np.zeros(0, np.int16)


class AgentTrack(MediaStreamTrack):
    """What one peer hears: the session's playout when there is something to hear, silence otherwise.

    Attributes:
        ear: Where the voice comes from; ``None`` until the session has started.
        sent: Packets so far.
        skipped: Frames of the grid for which the event loop came too late.
    """

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self.ear: Ear | None = None
        self.sent = 0
        self.skipped = 0
        self._encoder = OpusEncoder()
        self._now = asyncio.get_running_loop().time
        self._start_at: float | None = None
        self._tick = 0

    async def recv(self) -> Packet[Any]:
        """The next packet, when it is due.

        Raises:
            MediaStreamError: The track was stopped.
        """
        await self._due()
        if self.readyState != "live":
            raise MediaStreamError("the call is over")
        pcm = _NOTHING if self.ear is None else self.ear.read(SPEAK_SAMPLES)
        packet: Packet[Any] = Packet(self._encoder.encode(pcm))
        packet.pts = self._tick * _TICKS
        packet.time_base = _TIME_BASE
        self.sent += 1
        return packet

    async def _due(self) -> None:
        now = self._now()
        if self._start_at is None:
            self._start_at = now
            return
        self._tick += 1
        wait_s = self._start_at + self._tick * FRAME_S - now
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        elif wait_s < -MOST_LATE_S:
            skipped = int((-wait_s) / FRAME_S)
            self.skipped += skipped
            self._tick += skipped
