"""Does a call stay as quick as it began? Markers both ways, with breaks in the network between them.

Every few seconds the caller says a marker, a tone, and the agent answers with one. A marker's delay is the time from
the frame that takes its first sample for sending until the other side's receiver hands that on.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from dataclasses import dataclass

from loadtest.lossy_relay import Network
from loadtest.rtc.markers import Markers
from loadtest.rtc.player import lateness
from loadtest.rtc.server import Watched
from loadtest.webrtc_caller import Packet, WebRtcCaller
from voice.interfaces import Pcm16
from voice.testing import speak

PERIOD_S = 4.0
MARKER_S = 0.3
MARKER_HZ = 220.0
MOST_DELAY_S = 1.5
"""A marker that takes longer is counted as missing."""
BREAK_AT = 0.5
"""A break begins at this part of a period: the answer is over by then. It must end by :data:`BREAK_OVER`."""
BREAK_OVER = 0.85
BREAK_EVERY = 3
"""Markers per break."""
MOST_DRIFT_MS = 20.0
"""Change of the delay from the call's beginning to its end, and after breaks, that is put down to chance: on a line
with 30 ms of jitter single delays spread by 10 ms, medians of ten by 4."""
_ENVELOPE_S = 5.0


@dataclass(frozen=True, slots=True)
class Break:
    """The network is worse for a while."""

    name: str
    network: Network
    lasts_s: float


BREAKS = (
    Break("0.1 s without packets", Network(loss=1.0), 0.1),
    Break("0.4 s without packets", Network(loss=1.0), 0.4),
    Break("1.2 s without packets", Network(loss=1.0), 1.2),
    Break("1 s of 30 % loss", Network(loss=0.3, delay_s=0.005, jitter_s=0.03), 1.0),
    Break("0.3 s more delay for 1 s", Network(delay_s=0.3, jitter_s=0.03), 1.0),
)


@dataclass(frozen=True, slots=True)
class Marker:
    """One marker: when it was sent (seconds into the call), its delay, and whether it is the first after a break."""

    sent_s: float
    delay_ms: float
    after_break: bool


@dataclass(frozen=True, slots=True)
class Way:
    """The markers of one direction that came, and how many did not."""

    name: str
    markers: list[Marker]
    missing: int

    @property
    def thirds_ms(self) -> tuple[float, float, float]:
        """Median delay at the call's beginning, middle and end."""
        n = max(1, len(self.markers) // 3)
        parts = self.markers[:n], self.markers[n:-n] or self.markers, self.markers[-n:]
        first, middle, last = (statistics.median(m.delay_ms for m in part) for part in parts)
        return first, middle, last

    @property
    def slope_ms(self) -> float:
        """Change of the delay in ms a minute: the median of all pairs' slopes (Theil and Sen)."""
        return _slope([(m.sent_s, m.delay_ms) for m in self.markers])

    @property
    def after_breaks_ms(self) -> float:
        """How much more delay the first marker after a break has than the others, by medians."""
        after, others = (
            [m.delay_ms for m in self.markers if m.after_break is which] for which in (True, False)
        )
        return statistics.median(after) - statistics.median(others) if after and others else 0.0

    @property
    def holds(self) -> bool:
        """Whether the delay stayed what it was."""
        first, _, last = self.thirds_ms
        few = self.missing <= 1 + 0.1 * len(self.markers)
        return few and max(abs(last - first), abs(self.after_breaks_ms)) <= MOST_DRIFT_MS

    def __str__(self) -> str:
        first, middle, last = self.thirds_ms
        return (
            f"{self.name}: delay {first:.1f} ms at the start, {middle:.1f} in the middle, {last:.1f} at the end "
            f"(medians), slope {self.slope_ms:+.2f} ms/min; first marker after a break "
            f"{self.after_breaks_ms:+.1f} ms; {len(self.markers)} markers, {self.missing} missing"
        )


@dataclass(frozen=True, slots=True)
class Drift:
    """What a call showed. ``clock_ms``: change of the agent's packet clock against ours over the call, in ms."""

    up: Way
    down: Way
    clock_ms: float

    @property
    def holds(self) -> bool:
        """Whether all bounds hold."""
        return self.up.holds and self.down.holds and abs(self.clock_ms) <= MOST_DRIFT_MS


async def measure(
    server: Watched, network: Network, seconds: float, *, period_s: float = PERIOD_S, seed: int = 1
) -> Drift:
    """Hold a call of so many seconds and look at its markers. A period has room for a marker and its answer: 2 s."""
    markers, came = Markers(), list[float]()

    def listen(pcm: Pcm16, at: float) -> None:
        if (marker := markers.feed(pcm, at)) is not None:
            came.append(marker)

    loop = asyncio.get_running_loop()
    keep = int(seconds * 50) + 1000
    said: list[tuple[float, bool]] = []
    answered_from = len(server.started)
    async with WebRtcCaller(server.url, keep=keep, network=network, seed=seed, on_audio=listen) as caller:
        breaks = itertools.cycle(b for b in BREAKS if b.lasts_s <= (BREAK_OVER - BREAK_AT) * period_s)
        await asyncio.sleep(1.0)
        begin = loop.time()
        broken = False
        for number in range(int(seconds / period_s)):
            await asyncio.sleep(max(0.0, begin + number * period_s - loop.time()))
            said.append((await caller.say(speak(MARKER_S, MARKER_HZ, 24_000)), broken))
            broken = number % BREAK_EVERY == BREAK_EVERY - 1
            if broken:
                await asyncio.sleep(BREAK_AT * period_s)
                await _have(caller, next(breaks), network)
        await asyncio.sleep(period_s)
        packets = list(caller.packets)
    answers = list(server.started.values())[answered_from:]
    after = [(sent, any(b and 0 < sent - at < period_s for at, b in said)) for sent in answers]
    return Drift(
        _way("caller to agent", said, server.markers, begin),
        _way("agent to caller", after, came, begin),
        _clock_ms(packets),
    )


async def _have(caller: WebRtcCaller, trouble: Break, usual: Network) -> None:
    assert caller.relay is not None
    caller.relay.network = trouble.network
    await asyncio.sleep(trouble.lasts_s)
    caller.relay.network = usual


def _way(name: str, sent: list[tuple[float, bool]], came: list[float], begin: float) -> Way:
    """Pair each marker with the first that came after it was sent."""
    markers = []
    for at, after_break in sent:
        arrival = next((c for c in came if -0.02 <= c - at <= MOST_DELAY_S), None)
        if arrival is not None:
            markers.append(Marker(at - begin, (arrival - at) * 1000, after_break))
    return Way(name, markers, len(sent) - len(markers))


def _slope(points: list[tuple[float, float]]) -> float:
    slopes = [
        (y2 - y1) / (x2 - x1) * 60 for (x1, y1), (x2, y2) in itertools.combinations(points, 2) if x2 > x1
    ]
    return statistics.median(slopes) if slopes else 0.0


def _clock_ms(packets: list[Packet]) -> float:
    """By how much the quickest packets of 5 s came later at the end of the call than at its beginning."""
    late = lateness(packets)
    if not late:
        return 0.0
    begin, end = late[0][0], late[-1][0]
    first = min(s for at, s in late if at < begin + _ENVELOPE_S)
    last = min(s for at, s in late if at > end - _ENVELOPE_S)
    return (last - first) * 1000


def report(drift: Drift) -> str:
    """Lines to print."""
    clock = f"agent's packet clock against ours: {drift.clock_ms:+.1f} ms over the call"
    return "\n".join(f"  {line}" for line in (str(drift.up), str(drift.down), clock))
