"""Does the server know what the caller has heard? Answers are cut at moments drawn by chance, and what the server then
takes for heard is compared with what the caller's player had played at that very moment."""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.lossy_relay import Network
from loadtest.rtc.player import Played, play
from loadtest.rtc.server import LONG, Ended, Watched
from loadtest.webrtc_caller import WebRtcCaller
from voice.testing import speak

BOUND_MS = 60.0
HOWS = ("clear", "voice", "hang up")
"""How an answer is cut: by the client's event, by speech over it, by hanging up."""
EARLIEST_S, LATEST_S = 0.3, 4.0
"""An answer is cut so long after it became audible."""
LEARN_S = 2.5
"""A call's first answer comes so late: the player has learnt the line then, and the server the round trip."""
VOICE_S = 1.0
_WAIT_S = 10.0
_LOOK_S = 0.02
_SETTLE_S = 3.0
"""Speech over an answer is a turn, which is answered: by then that is over, too."""
_MOST_PACKETS = 3000


@dataclass(frozen=True, slots=True)
class Cut:
    """One answer.

    Attributes:
        how: See :data:`HOWS`.
        server_ms: What the server takes for heard.
        player_ms: What the caller's player had played then.
        told_ms: What the client was told (``conversation.item.truncated``); ``None``: nothing.
        held_up: A program had no processor meanwhile, so that packets came later than the network made them: the player
            was elsewhere than it would have been, and nobody could know.
    """

    how: str
    server_ms: float
    player_ms: float
    told_ms: float | None
    held_up: bool

    @property
    def off_ms(self) -> float:
        """Server less player."""
        return self.server_ms - self.player_ms


async def measure(server: Watched, network: Network, cuts: int, *, seed: int) -> list[Cut]:
    """Cut so many answers, in turn in each of the ways."""
    draw = random.Random(seed)
    found: list[Cut] = []
    while len(found) < cuts:
        found += await _call(server, network, draw, HOWS[-min(cuts - len(found), len(HOWS)) :])
    return found


def holds(cuts: Sequence[Cut]) -> bool:
    """Whether server and player agree, and the client was told the same. At most a third may have been held up."""
    sound = [cut for cut in cuts if not cut.held_up]
    told = all(cut.told_ms is None or abs(cut.told_ms - cut.server_ms) <= 1.0 for cut in cuts)
    return told and 3 * len(sound) >= 2 * len(cuts) > 0 and all(abs(cut.off_ms) <= BOUND_MS for cut in sound)


def report(cuts: Sequence[Cut]) -> str:
    """Lines to print."""
    lines = []
    for how in ("all", *HOWS):
        off = [cut.off_ms for cut in cuts if how in ("all", cut.how) and not cut.held_up]
        if off:
            lines.append(
                f"  {how}: {len(off)} answers cut, server less player {statistics.median(off):+.0f} ms (median), "
                f"{max(off, key=abs):+.0f} ms (worst), within {BOUND_MS:.0f} ms {sum(abs(o) <= BOUND_MS for o in off)}"
            )
    held_up = [f"{cut.off_ms:+.0f}" for cut in cuts if cut.held_up]
    if held_up:
        lines.append(
            f"  left out, since a program had no processor meanwhile: {len(held_up)} ({', '.join(held_up)} ms)"
        )
    return "\n".join(lines)


async def _call(server: Watched, network: Network, draw: random.Random, hows: Sequence[str]) -> list[Cut]:
    """One call, whose last answer is cut by hanging up."""
    known = set(server.ended)
    ended: list[Ended] = []
    told: list[float | None] = []
    seed = draw.randrange(1_000_000)
    async with WebRtcCaller(server.url, keep=_MOST_PACKETS, network=network, seed=seed) as caller:
        await asyncio.sleep(LEARN_S)
        for how in hows:
            caller.events.clear()
            caller.ask(LONG)
            await caller.until(lambda: bool(_of(caller, "output_audio_buffer.started")), _WAIT_S)
            await asyncio.sleep(draw.uniform(EARLIEST_S, LATEST_S))
            if how == "hang up":
                break
            if how == "clear":
                caller.send("output_audio_buffer.clear")
            else:
                caller.say(speak(VOICE_S, rate=24_000))
            ended.append(await _next_cut(server, known))
            await asyncio.sleep(_SETTLE_S)
            told.append(next((e["audio_end_ms"] for e in _of(caller, "conversation.item.truncated")), None))
    with contextlib.suppress(TimeoutError):  # the goodbye was lost: the server can't know
        ended.append(await _next_cut(server, known))
        told.append(None)
    player = play(caller.packets)
    return [
        _cut(how, end, ms, server.started[end.response_id], player)
        for how, end, ms in zip(hows, ended, told, strict=False)
    ]


def _of(caller: WebRtcCaller, kind: str) -> list[dict[str, Any]]:
    return [event for event in caller.events if event["type"] == kind]


def _cut(how: str, end: Ended, told_ms: float | None, began: float, player: Played) -> Cut:
    played_s = player.audible_s(began, end.at)
    return Cut(how, end.heard_s * 1000, played_s * 1000, told_ms, player.held_up(began, end.at))


async def _next_cut(server: Watched, known: set[str]) -> Ended:
    """The next answer that was cut."""
    async with asyncio.timeout(_WAIT_S):
        while True:
            for end in list(server.ended.values()):
                if end.response_id not in known and end.reason is not None:
                    known.add(end.response_id)
                    return end
            await asyncio.sleep(_LOOK_S)
