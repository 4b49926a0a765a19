"""How is a peer? Whether it is there, how far away, and how late its ear is behind what we send."""

from __future__ import annotations

from collections import deque

from aiortc import RTCRtpTransceiver, RTCSctpTransport
from aiortc.rtcsctptransport import HeartbeatChunk
from aiortc.stats import RTCRemoteInboundRtpStreamStats, RTCTransportStats

from transports.rtc.opus import FRAME_S, OPUS_HZ

PROBE_AFTER_S = 8.0
"""A peer from which no packet came for so long is asked for a sign of life. A muted one still reports what it
receives, every 5 s or more often."""
GONE_AFTER_S = 13.0
"""And if none came by then it is gone. ICE itself notices after about 30 s."""

PLAYER_S = 0.065
JITTERS = 2.5
"""What a player keeps back on a perfect line, and how much more for each second of the mean jitter that it reports.
Fitted to Chromium 150 behind relays: it kept back 60 to 80 ms without jitter, 66 to 97 where packets take up to 30 ms
longer (a mean jitter of 10), 110 with 100 ms (24) and 150 with 200 ms (33), 30 ms of each before the sound card."""
MOST_PLAYER_S = 0.3

_START_RTT_S = 0.05
_RTTS_KEPT = 10
_HEARTBEAT_INFO = 1  # the parameter of a heartbeat (RFC 9260, 3.3.5)


def player_delay_s(rtt_s: float, jitter_s: float) -> float:
    """From the moment that a frame is taken for sending until the ear has its last sample."""
    return FRAME_S + rtt_s / 2 + min(MOST_PLAYER_S, PLAYER_S + JITTERS * jitter_s)


class Health:
    """What the peer's reports and packets tell. Look at it about once a second.

    Args:
        audio: The audio section.
        events: The transport of data channels; ``None`` if there is none.
        now: Loop time.

    Attributes:
        rtt_s: Round trip, the shortest of the last looks, since a program that is held up looks like a longer way;
            50 ms until the first report.
        jitter_s: Mean jitter of what the peer receives, as it reports it.
        alive_at: When the last packet was seen.
    """

    def __init__(self, audio: RTCRtpTransceiver, events: RTCSctpTransport | None, now: float) -> None:
        self.rtt_s = _START_RTT_S
        self.jitter_s = 0.0
        self.alive_at = now
        self._audio = audio
        self._events = events
        self._rtts: deque[float] = deque(maxlen=_RTTS_KEPT)
        self._packets = 0
        self._probed = False
        self._silent_s = 0.0

    @property
    def delay_s(self) -> float:
        """How far the peer's ear is behind what was sent."""
        return player_delay_s(self.rtt_s, self.jitter_s)

    @property
    def gone(self) -> bool:
        """Whether the peer gave no sign of life, though asked for one."""
        return self._probed and self._silent_s >= GONE_AFTER_S

    async def look(self, now: float) -> bool:
        """Read the counters; ask a silent peer for a sign of life. Returns whether anything came since last time."""
        packets = self._packets
        for entry in (await self._audio.sender.getStats()).values():
            if isinstance(entry, RTCTransportStats):
                packets = entry.packetsReceived
            elif isinstance(entry, RTCRemoteInboundRtpStreamStats):
                self.jitter_s = entry.jitter / OPUS_HZ
                if entry.roundTripTime is not None:
                    self._rtts.append(max(0.0, entry.roundTripTime))
                    self.rtt_s = min(self._rtts)
        came = packets != self._packets
        if came:
            self._packets, self.alive_at, self._probed = packets, now, False
        self._silent_s = now - self.alive_at
        if self._silent_s >= PROBE_AFTER_S:
            await self._probe()
        return came

    async def _probe(self) -> None:
        self._probed = True
        if self._events is None or self._events.state != "connected":
            return
        heartbeat = HeartbeatChunk()
        heartbeat.params.append((_HEARTBEAT_INFO, b"voice"))
        try:
            await self._events._send_chunk(heartbeat)
        except ConnectionError:
            return
