"""The caller's voice on its way to the session: RTP packets in, 16 kHz samples out, within the same loop callback.

aiortc's own receiver keeps four packets back, after a loss sixteen for good, decodes in a thread of its own and queues
frames without bound. :class:`CallerReceiver` takes its place in the transceiver. It uses names that aiortc does
not promise; :func:`check_internals` says so at once if one has moved.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

import aiortc
from aiortc import MediaStreamTrack, RTCDtlsTransport, RTCPeerConnection, RTCRtpTransceiver
from aiortc.rtcrtpparameters import RTCRtpReceiveParameters
from aiortc.rtp import AnyRtcpPacket, RtcpReceiverInfo, RtcpRrPacket, RtcpSrPacket, RtpPacket
from aiortc.stats import RTCStatsReport

from transports.rtc.jitter import Audio, Lost, Piece, ReorderBuffer
from transports.rtc.opus import OPUS_HZ, OpusDecoder, samples_of
from voice.errors import EngineFailed, VoiceError
from voice.interfaces import Pcm16

log = logging.getLogger("voice.webrtc")

NEW_SOURCE_S = 0.5
"""Another source (SSRC) is taken up when the present one has been silent for so long."""
REPORT_S = 1.0
"""Mean time between receiver reports; each is drawn from half to one and a half times that (RFC 3550, 6.3.1)."""

_SLOT = "_RTCRtpTransceiver__receiver"
_TRANSPORT_NAMES = ("_register_rtp_receiver", "_unregister_rtp_receiver", "_send_rtp", "_handle_rtp_data")


def check_internals() -> None:
    """Whether this aiortc is built the way this file expects.

    Raises:
        EngineFailed: It is not; says which version works.
    """
    missing = [name for name in _TRANSPORT_NAMES if not hasattr(RTCDtlsTransport, name)]
    if "_RTCRtpTransceiver__receiver" not in RTCRtpTransceiver.receiver.fget.__code__.co_names:  # type: ignore[attr-defined]
        missing.append("RTCRtpTransceiver.__receiver")
    if missing:
        raise EngineFailed(
            f"aiortc {aiortc.__version__} can't be used: {', '.join(missing)} moved; install 'aiortc>=1.14,<1.17'",
            retryable=False,
        )


def add_audio(
    peer: RTCPeerConnection, track: MediaStreamTrack, on_audio: Callable[[Pcm16], None]
) -> tuple[RTCRtpTransceiver, CallerReceiver]:
    """Give a peer, before its offer is read, the audio section that ``track`` is sent in and ``on_audio`` hears."""
    transceiver = peer.addTransceiver(track, direction="sendrecv")
    stock = transceiver.receiver
    receiver = CallerReceiver(stock.transport, on_audio)
    receiver._set_rtcp_ssrc(transceiver.sender._ssrc)
    setattr(transceiver, _SLOT, receiver)
    known = stock.getCapabilities("audio")
    assert known is not None
    transceiver.setCodecPreferences([codec for codec in known.codecs if codec.mimeType == "audio/opus"])
    return transceiver, receiver


class CallerReceiver:
    """What aiortc takes for the receiver of the audio section.

    Args:
        transport: The section's transport.
        on_audio: Called with mono samples at 16 kHz as they come; must be quick.

    Attributes:
        heard_at: Loop time of the newest audio packet; ``None`` before the first.
        errors: Pieces of audio that the session refused.
    """

    def __init__(self, transport: RTCDtlsTransport, on_audio: Callable[[Pcm16], None]) -> None:
        self.heard_at: float | None = None
        self.errors = 0
        self._on_audio = on_audio
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._types: set[int | None] = set()
        self._ssrc: int | None = None
        self._own_ssrc: int | None = None
        self._buffer = ReorderBuffer(samples_of, OPUS_HZ)
        self._decoder = OpusDecoder()
        self._statistics = Statistics()
        self._timer: asyncio.TimerHandle | None = None
        self._reports: asyncio.Task[None] | None = None
        self._stopped = False
        # what aiortc sets and reads
        self._enabled = True
        self._track: MediaStreamTrack | None = None

    @property
    def buffer(self) -> ReorderBuffer:
        """The present source's packets."""
        return self._buffer

    # ------------------------------------------------------------ what aiortc calls

    @property
    def track(self) -> MediaStreamTrack | None:
        return self._track

    @property
    def transport(self) -> RTCDtlsTransport:
        return self._transport

    def setTransport(self, transport: RTCDtlsTransport) -> None:
        self._transport = transport

    def _set_rtcp_ssrc(self, ssrc: int) -> None:
        self._own_ssrc = ssrc

    async def getStats(self) -> RTCStatsReport:
        return RTCStatsReport()

    async def receive(self, parameters: RTCRtpReceiveParameters) -> None:
        if self._reports is not None or self._stopped:
            return
        self._types = {
            codec.payloadType for codec in parameters.codecs if codec.mimeType.lower() == "audio/opus"
        }
        self._transport._register_rtp_receiver(self, parameters)
        self._reports = asyncio.create_task(self._report(), name="rtcp")

    async def stop(self) -> None:
        self._handle_disconnect()
        if self._reports is None:
            return
        self._transport._unregister_rtp_receiver(self)
        self._reports.cancel()
        await asyncio.wait([self._reports])

    def _handle_disconnect(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _handle_rtcp_packet(self, packet: AnyRtcpPacket) -> None:
        if isinstance(packet, RtcpSrPacket) and packet.ssrc == self._ssrc:
            self._statistics.sender_report(packet.sender_info.ntp_timestamp, self._loop.time())

    async def _handle_rtp_packet(self, packet: RtpPacket, arrival_time_ms: int) -> None:
        if self._stopped or not self._enabled or packet.payload_type not in self._types:
            return
        now = self._loop.time()
        if packet.ssrc != self._ssrc and not self._take_source(packet.ssrc, now):
            return
        self.heard_at = now
        self._statistics.received(packet.sequence_number, packet.timestamp, now)
        self._play(self._buffer.push(packet.sequence_number, packet.timestamp, packet.payload, now))

    # ------------------------------------------------------------ audio

    def _take_source(self, ssrc: int, now: float) -> bool:
        if self._ssrc is not None:
            if self.heard_at is not None and now - self.heard_at < NEW_SOURCE_S:
                return False
            self._buffer = ReorderBuffer(samples_of, OPUS_HZ)
            self._decoder = OpusDecoder()
            self._statistics = Statistics()
        self._ssrc = ssrc
        return True

    def _poll(self) -> None:
        self._timer = None
        self._play(self._buffer.poll(self._loop.time()))

    def _play(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, Audio):
                pcm = self._decoder.decode(piece.payload)
            elif isinstance(piece, Lost):
                pcm = self._decoder.conceal(piece.samples)
            else:
                pcm = self._decoder.silence(piece.samples)
            try:
                self._on_audio(pcm)
            except VoiceError:
                if not self.errors:  # once: there are fifty a second
                    log.exception("a caller's audio was refused")
                self.errors += 1
        at = self._buffer.deadline
        if self._timer is not None and (at is None or abs(at - self._timer.when()) > 1e-3):
            self._timer.cancel()
            self._timer = None
        if at is not None and self._timer is None and not self._stopped:
            self._timer = self._loop.call_at(at, self._poll)

    # ------------------------------------------------------------ reports

    async def _report(self) -> None:
        """Tell the sender now and then what arrives: it adapts, and learns the round trip."""
        while True:
            await asyncio.sleep(REPORT_S * (0.5 + random.random()))
            if self._own_ssrc is None or self._ssrc is None:
                continue
            report = self._statistics.report(self._ssrc, self._loop.time())
            try:
                await self._transport._send_rtp(bytes(RtcpRrPacket(ssrc=self._own_ssrc, reports=[report])))
            except ConnectionError:
                return


class Statistics:
    """What a receiver report tells (RFC 3550, 6.4.1 and appendix A)."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._highest = 0
        self._count = 0
        self._before = (0, 0)  # expected and received at the last report
        self._transit: float | None = None
        self._jitter = 0.0
        self._sender_report = (0, 0.0)

    def received(self, sequence: int, timestamp: int, now: float) -> None:
        """A packet came at ``now`` (seconds)."""
        self._count += 1
        if self._first is None:
            self._first = self._highest = sequence
        step = (sequence - self._highest + 32768) % 65536 - 32768
        if step > 0:
            self._highest += step
        transit = now * OPUS_HZ - timestamp
        if self._transit is not None:
            change = abs(transit - self._transit)
            if change < OPUS_HZ:  # else the timestamps wrapped or began anew
                self._jitter += (change - self._jitter) / 16
        self._transit = transit

    def sender_report(self, ntp: int, now: float) -> None:
        """The sender's own report came."""
        self._sender_report = (ntp >> 16) & 0xFFFFFFFF, now

    def report(self, ssrc: int, now: float) -> RtcpReceiverInfo:
        """The report block as of ``now``."""
        expected = self._highest - (self._first or 0) + 1
        since = expected - self._before[0], self._count - self._before[1]
        self._before = expected, self._count
        lost = max(0, since[0] - since[1])
        middle, at = self._sender_report
        return RtcpReceiverInfo(
            ssrc=ssrc,
            fraction_lost=min(255, (lost << 8) // since[0]) if since[0] > 0 else 0,
            packets_lost=max(-(1 << 23), min((1 << 23) - 1, expected - self._count)),
            highest_sequence=self._highest & 0xFFFFFFFF,
            jitter=int(self._jitter),
            lsr=middle,
            dlsr=min(0xFFFFFFFF, int((now - at) * 65536)) if middle else 0,
        )
