"""May this offer be answered, and what must change in it and in our answer? SDP in, SDP out; no I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from aiortc.sdp import MediaDescription, SessionDescription

from transports.rtc.channel import SAFE_BYTES
from voice.errors import BadRequest

MOST_OFFER_BYTES = 64 * 1024
"""Offers of browsers with audio and data have 2 to 6 KB."""
MOST_OFFER_LINES = 1_000
"""They have 50 to 200 lines; aiortc needs time that grows with the square of some."""
MOST_CANDIDATES = 32
"""Addresses in an offer that we check; more would make us a tool to knock at others' doors."""
MESSAGE_BYTES = 512 * 1024
"""Longest message we take by data channel. aiortc puts a message together in time that grows with the square of its
length: this much takes it about 50 ms."""

_BROADCAST = ipaddress.ip_address("255.255.255.255")


@dataclass(frozen=True, slots=True)
class Offer:
    """An offer that can be answered.

    Attributes:
        sdp: Without the lines that would make us wait for nothing.
        has_events: It has a section for data channels.
        event_bytes: Longest message that the peer takes.
    """

    sdp: str
    has_events: bool
    event_bytes: int


def read_offer(sdp: str) -> Offer:
    """Check a client's offer.

    Raises:
        BadRequest: Not an offer that we can answer; says why.
    """
    if not isinstance(sdp, str) or not sdp.strip():
        raise BadRequest("the offer is empty: send the SDP of an RTCPeerConnection's offer")
    if len(sdp) > MOST_OFFER_BYTES:
        raise BadRequest(f"the offer has {len(sdp)} characters; at most {MOST_OFFER_BYTES} are taken")
    text = _without_vain_candidates(sdp)
    if text.count("\n") > MOST_OFFER_LINES:
        raise BadRequest(f"the offer has more than {MOST_OFFER_LINES} lines")
    try:
        session = SessionDescription.parse(text)
    except (ValueError, LookupError, AssertionError, AttributeError, TypeError, StopIteration) as error:
        raise BadRequest(f"the offer is not valid SDP ({type(error).__name__}: {error})") from error
    kinds = [media.kind for media in session.media]
    if (
        kinds.count("audio") != 1
        or kinds.count("application") > 1
        or len(kinds) > kinds.count("application") + 1
    ):
        raise BadRequest(
            "an offer has one audio section and at most one for data channels, not "
            f"{', '.join(kinds[:8]) or 'none at all'}"
        )
    events = None
    for media in session.media:
        _check_section(media)
        if media.kind == "audio":
            _check_audio(media)
        else:
            events = media
    return Offer(text, events is not None, _longest_message(events))


def finish_answer(sdp: str, advertised_ip: str | None) -> str:
    """Our answer as the client gets it: how long its messages may be, and our address as others see it.

    Args:
        sdp: aiortc's answer.
        advertised_ip: Takes the place of this machine's own addresses of the same family; ``None``: they stay.
    """
    lines = []
    for line in sdp.splitlines():
        if line.startswith("a=max-message-size:"):
            line = f"a=max-message-size:{MESSAGE_BYTES}"
        elif advertised_ip is not None:
            if line.startswith("a=candidate:"):
                line = _advertise(line, advertised_ip)
            elif line.startswith("c=IN "):
                line = f"c=IN IP{ipaddress.ip_address(advertised_ip).version} {advertised_ip}"
        lines.append(line)
    return "\r\n".join(lines) + "\r\n"


def _without_vain_candidates(sdp: str) -> str:
    """The offer without the end of candidates, and without those that are no address of one machine.

    To look a name up (``….local``) we would ask the local network and wait; a browser that hides its address behind
    one calls us from it anyway, and is answered there. For the same reason no list of candidates is ever complete.
    """
    lines, candidates = [], 0
    for line in sdp.splitlines():
        line = line.strip()
        if line == "a=end-of-candidates":
            continue
        if line.startswith("a=candidate:"):
            parts = line.split()
            candidates += 1
            if not _is_place(parts):
                continue
            if candidates > MOST_CANDIDATES:
                continue
        lines.append(line)
    return "\r\n".join(lines) + "\r\n"


def _is_place(candidate: Sequence[str]) -> bool:
    """Whether a candidate's address and port can be sent to, and not to many at once."""
    try:
        address, port = ipaddress.ip_address(candidate[4]), int(candidate[5])
    except (IndexError, ValueError):
        return False
    many = address.is_multicast or address.is_unspecified or address == _BROADCAST
    return 0 < port < 2**16 and not many


def _check_section(media: MediaDescription) -> None:
    if not media.ice or not media.ice.usernameFragment or not media.ice.password:
        raise BadRequest(f"the {media.kind} section has no ice-ufrag and ice-pwd")
    if media.dtls is None or not media.dtls.fingerprints:
        raise BadRequest(f"the {media.kind} section has no fingerprint and setup line")


def _check_audio(media: MediaDescription) -> None:
    if not any(c.mimeType.lower() == "audio/opus" and c.clockRate == 48_000 for c in media.rtp.codecs):
        raise BadRequest("the audio section does not offer Opus (opus/48000/2), the only codec spoken here")
    if not media.rtcp_mux:
        raise BadRequest("the audio section has no rtcp-mux")
    if media.direction not in (None, "sendrecv", "recvonly"):
        raise BadRequest(
            f"the audio section is {media.direction}: the client must receive, to hear the agent"
        )


def _longest_message(media: MediaDescription | None) -> int:
    """What the peer says it takes (0: anything); we never send more than we take ourselves."""
    if media is None or media.sctpCapabilities is None:
        return SAFE_BYTES
    return min(media.sctpCapabilities.maxMessageSize or MESSAGE_BYTES, MESSAGE_BYTES)


def _advertise(line: str, advertised_ip: str) -> str:
    """A host candidate of the same address family gets the advertised address; others stay as they are."""
    parts = line.split(" ")
    if len(parts) < 8 or parts[7] != "host":
        return line
    if ipaddress.ip_address(parts[4]).version != ipaddress.ip_address(advertised_ip).version:
        return line
    parts[4] = advertised_ip
    return " ".join(parts)
