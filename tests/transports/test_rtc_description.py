"""Offers and answers: what is refused and why, and what is changed before a client gets our answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiortc import RTCConfiguration, RTCPeerConnection
from aiortc.sdp import SessionDescription

from transports.rtc.channel import SAFE_BYTES
from transports.rtc.description import MESSAGE_BYTES, MOST_CANDIDATES, finish_answer, read_offer
from voice.errors import BadRequest


@pytest.fixture(scope="module")
def offer() -> str:
    """What a client of aiortc offers: audio and a data channel, with its addresses."""

    async def make() -> str:
        peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        peer.addTransceiver("audio")
        peer.createDataChannel("oai-events")
        await peer.setLocalDescription(await peer.createOffer())
        sdp = peer.localDescription.sdp
        await peer.close()
        return sdp

    return asyncio.run(make())


def test_a_good_offer_is_taken(offer: str) -> None:
    read = read_offer(offer)
    assert read.has_events
    assert read.event_bytes == 262_144


def test_a_peer_that_states_no_limit_gets_short_events(offer: str) -> None:
    silent = "\n".join(line for line in offer.splitlines() if "max-message-size" not in line)
    assert read_offer(silent).event_bytes == SAFE_BYTES


def test_names_that_only_the_local_network_knows_are_left_out(offer: str) -> None:
    name = "a=candidate:9 1 udp 2113937151 0a-1b.local 5000 typ host"
    read = read_offer(offer.replace("a=end-of-candidates", f"{name}\r\na=end-of-candidates"))
    assert ".local" not in read.sdp
    assert "end-of-candidates" not in read.sdp


def test_more_addresses_than_anyone_has_are_left_out(offer: str) -> None:
    many = "\r\n".join(f"a=candidate:{n} 1 udp 1 192.0.2.9 {5000 + n} typ host" for n in range(500))
    read = read_offer(offer.replace("a=end-of-candidates", many))
    assert read.sdp.count("a=candidate:") <= MOST_CANDIDATES


def section(kind: str, offer: str) -> str:
    _, *sections = offer.split("m=")
    return "m=" + next(s for s in sections if s.startswith(kind))


Change = Callable[[str], str]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda sdp: "", "empty"),
        (lambda sdp: "   \n", "empty"),
        (lambda sdp: "hello", "one audio section"),
        (lambda sdp: sdp + "a=x\r\n" * 40_000, "characters"),
        (lambda sdp: sdp.split("m=")[0], "one audio section"),
        (lambda sdp: sdp.replace(section("audio", sdp), ""), "one audio section"),
        (lambda sdp: sdp + section("audio", sdp), "one audio section"),
        (lambda sdp: sdp + section("application", sdp), "one audio section"),
        (lambda sdp: sdp + section("audio", sdp).replace("m=audio", "m=video"), "one audio section"),
        (lambda sdp: sdp.replace("opus/48000", "isac/16000"), "Opus"),
        (lambda sdp: sdp.replace("a=rtcp-mux", "a=x"), "rtcp-mux"),
        (lambda sdp: sdp.replace("a=ice-pwd", "a=x-pwd"), "ice-ufrag and ice-pwd"),
        (lambda sdp: sdp.replace("a=fingerprint", "a=x"), "fingerprint"),
        (lambda sdp: sdp.replace("a=setup:actpass", "a=x:y"), "fingerprint and setup"),
        (lambda sdp: sdp.replace("a=sendrecv", "a=sendonly"), "must receive"),
        (lambda sdp: sdp.replace("a=setup:actpass", "a=setup:whatever"), "not valid SDP"),
        (lambda sdp: sdp.replace("a=mid:0", "a=mid:0\r\na=fmtp:77 x=1"), "not valid SDP"),
        (lambda sdp: sdp.replace("m=audio ", "m=audio nine "), "not valid SDP"),
    ],
)
def test_what_can_not_be_answered_is_refused_with_a_reason(
    offer: str, change: Change, complaint: str
) -> None:
    with pytest.raises(BadRequest, match=complaint):
        read_offer(change(offer))


def test_every_damaged_offer_is_refused_or_taken_but_breaks_nothing(offer: str) -> None:
    lines = offer.splitlines()
    for n, line in enumerate(lines):
        for damaged in (line[: len(line) // 2], line + " 99999999999999999999", line.upper(), line[::-1]):
            try:
                read_offer("\r\n".join([*lines[:n], damaged, *lines[n + 1 :]]))
            except BadRequest:
                continue


# ---------------------------------------------------------------- answers


def test_an_answer_says_how_long_messages_may_be_and_is_otherwise_as_it_was(offer: str) -> None:
    answer = finish_answer(offer, None)
    assert f"a=max-message-size:{MESSAGE_BYTES}" in answer
    before, after = SessionDescription.parse(offer), SessionDescription.parse(answer)
    assert [m.ice_candidates for m in before.media] == [m.ice_candidates for m in after.media]


def test_an_advertised_address_takes_the_place_of_our_own() -> None:
    answer = finish_answer(
        "v=0\r\nm=audio 4000 UDP/TLS/RTP/SAVPF 96\r\nc=IN IP4 10.0.0.7\r\n"
        "a=candidate:1 1 udp 2130706431 10.0.0.7 4000 typ host\r\n"
        "a=candidate:2 1 udp 2130706431 fd00::7 4001 typ host\r\n"
        "a=candidate:3 1 udp 1694498815 198.51.100.4 4000 typ srflx raddr 10.0.0.7 rport 4000\r\n",
        "203.0.113.5",
    )
    lines = answer.splitlines()
    assert "c=IN IP4 203.0.113.5" in lines
    assert "a=candidate:1 1 udp 2130706431 203.0.113.5 4000 typ host" in lines
    assert "a=candidate:2 1 udp 2130706431 fd00::7 4001 typ host" in lines
    assert "a=candidate:3 1 udp 1694498815 198.51.100.4 4000 typ srflx raddr 10.0.0.7 rport 4000" in lines
