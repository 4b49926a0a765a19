"""What had the caller's ear heard, and when? A browser's player, worked out from the packets after the call.

Each packet has its place on the player's timeline; one that is not there when its place comes is concealed. Chromium's
own player keeps back 30 to 55 ms, on a quiet line and on one with 30 ms of jitter, and 30 ms before the sound card.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadtest.webrtc_caller import Packet
from transports.rtc.opus import FRAME_S, OPUS_HZ, OpusDecoder
from voice.interfaces import ASR_RATE_HZ, Pcm16

BUFFER_S = 0.06
"""The quickest packets wait so long."""
SOUND_CARD_S = 0.03
_FIRST = 50
"""From so many packets the player learns how quick the quickest are: a second."""
_FRAME = int(OPUS_HZ * FRAME_S)
_SAMPLES = int(ASR_RATE_HZ * FRAME_S)
_AUDIBLE = 1000
_BLOCK = ASR_RATE_HZ // 1000


@dataclass(frozen=True, slots=True)
class Played:
    """What the ear got.

    Attributes:
        pcm: 16 kHz, without gaps, in frames of 20 ms.
        begin_s: Loop time of its first sample at the ear.
        concealed: For each frame, whether it was lost or came too late.
        late: Whether it came too late.
    """

    pcm: Pcm16
    begin_s: float
    concealed: npt.NDArray[np.bool_]
    late: npt.NDArray[np.bool_]

    def between(self, start_s: float, end_s: float) -> Pcm16:
        """What the ear got between two loop times."""
        return self.pcm[self._at(start_s) : self._at(end_s)]

    def audible_s(self, start_s: float, end_s: float) -> float:
        """How much of a steady tone the ear got between two loop times, to the millisecond.

        A concealed frame counts as what it stands for: tone if the frame after it begins with tone.
        """
        first, last = (self._at(at) // _BLOCK for at in (start_s, end_s))
        return float(np.count_nonzero(self._tone()[first:last])) * _BLOCK / ASR_RATE_HZ

    def held_up(self, start_s: float, end_s: float) -> bool:
        """Whether packets came too late between two loop times. No jitter of the relay's delays one so long: a program
        had no processor meanwhile."""
        first, last = (self._at(at) // _SAMPLES for at in (start_s, end_s))
        return bool(self.late[first : last + 1].any())

    def _at(self, loop_time: float) -> int:
        return max(0, round((loop_time - self.begin_s) * ASR_RATE_HZ))

    def _tone(self) -> npt.NDArray[np.bool_]:
        """For each millisecond, whether there is tone."""
        peaks = np.abs(self.pcm.astype(np.int32)).reshape(-1, _SAMPLES // _BLOCK, _BLOCK).max(axis=2)
        tone = peaks > _AUDIBLE
        for frame in range(len(tone) - 2, -1, -1):
            if self.concealed[frame]:
                tone[frame] = tone[frame + 1, 0]
        flat: npt.NDArray[np.bool_] = tone.reshape(-1)
        return flat


def play(packets: Iterable[Packet], buffer_s: float = BUFFER_S, card_s: float = SOUND_CARD_S) -> Played:
    """Play a call's packets (of 20 ms, one source, in the order in which they came; at least one)."""
    placed = _placed(packets)
    quickest_s = min(at - timestamp / OPUS_HZ for at, timestamp, _ in placed[:_FIRST])
    waits = {timestamp: (at, payload) for at, timestamp, payload in placed}
    first, last = min(waits), max(waits)
    decoder, pcm = OpusDecoder(), list[Pcm16]()
    concealed, late = list[bool](), list[bool]()
    for timestamp in range(first, last + 1, _FRAME):
        due_s = quickest_s + timestamp / OPUS_HZ + buffer_s
        at, payload = waits.get(timestamp, (math.inf, b""))
        concealed.append(at > due_s)
        late.append(due_s < at < math.inf)
        pcm.append(decoder.conceal(_FRAME) if at > due_s else decoder.decode(payload)[:_SAMPLES])
    begin_s = quickest_s + first / OPUS_HZ + buffer_s + card_s
    return Played(np.concatenate(pcm), begin_s, np.array(concealed), np.array(late))


def lateness(packets: Iterable[Packet]) -> list[tuple[float, float]]:
    """When each packet came, and how long after its place on the sender's clock, both in seconds; the latter has an
    unknown offset, which is the same for all."""
    return [(at, at - timestamp / OPUS_HZ) for at, timestamp, _ in _placed(packets)]


def _placed(packets: Iterable[Packet]) -> list[tuple[float, int, bytes]]:
    """Arrival, timestamp without wraps, payload."""
    placed: list[tuple[float, int, bytes]] = []
    reference: int | None = None
    for packet in packets:
        if reference is None:
            reference = packet.timestamp
        reference += (packet.timestamp - reference + 2**31) % 2**32 - 2**31
        placed.append((packet.at, reference, packet.payload))
    return placed
