"""A bad network between two UDP peers: loses, delays and reorders datagrams, the same way for the same seed."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, cast

from voice.errors import BadRequest

Address = tuple[str, int]

_CANDIDATE = re.compile(r"a=candidate:\S+ 1 udp (\d+) (\d+\.\d+\.\d+\.\d+) (\d+) typ host", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Network:
    """What happens to each datagram, either way.

    Attributes:
        loss: Share that is lost, 0–1.
        delay_s: Least time it takes.
        jitter_s: It takes up to this much longer, each on its own: those that overlap change places.
    """

    loss: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0


PERFECT = Network()
BAD = Network(loss=0.03, delay_s=0.005, jitter_s=0.03)
"""3 % loss, 30 ms of jitter, reordering."""


class _Socket(asyncio.DatagramProtocol):
    def __init__(self, relay: LossyRelay, peer: Address | None) -> None:
        self.relay = relay
        self.peer = peer  # whose datagrams go out here; None: the front door
        self.transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        address = (addr[0], addr[1])
        if self.peer is None:
            self.relay.forward(data, address)
        else:
            self.relay.backward(data, self.peer)


class LossyRelay:
    """Stands before one UDP address; clients talk to :attr:`address` instead. An async context manager.

    Args:
        target: Where datagrams of clients go.
        network: What happens to them; may be changed at any time.
        seed: Of what is lost and late; printed, so that a failure can be repeated.

    Attributes:
        passed, lost: Datagrams so far, both ways.
    """

    def __init__(self, target: Address, network: Network = PERFECT, seed: int = 1) -> None:
        print(f"lossy relay: seed {seed}")
        self.target, self.network = target, network
        self.address: Address = ("", 0)
        self.passed = self.lost = 0
        self._random = random.Random(seed)
        self._loop = asyncio.get_running_loop()
        self._front: _Socket | None = None
        self._backs: dict[Address, asyncio.Task[_Socket]] = {}
        self._under_way: set[asyncio.TimerHandle] = set()

    async def __aenter__(self) -> LossyRelay:
        self._front = await self._open(None)
        assert self._front.transport is not None
        self.address = self._front.transport.get_extra_info("sockname")[:2]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        # a goodbye may be under way
        await asyncio.sleep(self.network.delay_s + self.network.jitter_s)
        for timer in self._under_way:
            timer.cancel()
        backs = [await task for task in self._backs.values()]
        for socket in [self._front, *backs]:
            if socket is not None and socket.transport is not None:
                socket.transport.close()

    async def _open(self, peer: Address | None) -> _Socket:
        host = self.target[0]
        _, socket = await self._loop.create_datagram_endpoint(
            lambda: _Socket(self, peer), local_addr=(host, 0)
        )
        return socket

    def forward(self, data: bytes, client: Address) -> None:
        """A client's datagram, on its way to the target by a socket of that client's own."""
        back = self._backs.get(client)
        if back is None:
            back = self._backs[client] = self._loop.create_task(self._open(client))
        self._later(lambda: self._send_on(back, data))

    def backward(self, data: bytes, client: Address) -> None:
        """A datagram of the target for ``client``."""
        self._later(lambda: self._send(self._front, data, client))

    def _send_on(self, back: asyncio.Task[_Socket], data: bytes) -> None:
        if back.done():
            self._send(back.result(), data, self.target)
        else:
            back.add_done_callback(lambda _: self._send(back.result(), data, self.target))

    def _send(self, socket: _Socket | None, data: bytes, to: Address) -> None:
        if socket is not None and socket.transport is not None and not socket.transport.is_closing():
            socket.transport.sendto(data, to)

    def _later(self, send: Any) -> None:
        network = self.network
        if self._random.random() < network.loss:
            self.lost += 1
            return
        self.passed += 1
        delay_s = network.delay_s + self._random.random() * network.jitter_s
        if delay_s <= 0:
            send()
            return

        def due() -> None:
            self._under_way.discard(timer)
            send()

        timer = self._loop.call_later(delay_s, due)
        self._under_way.add(timer)


def without_addresses(offer: str) -> str:
    """An offer that tells no address, as of a browser that doesn't wait for them: the other side answers where it is
    called from."""
    lines = offer.splitlines()
    return _joined(line for line in lines if not line.startswith(("a=candidate", "a=end-of-candidates")))


async def relayed(answer: str, seed: int = 1) -> tuple[str, LossyRelay]:
    """An answer that has one address, that of a relay in front of the server's first, and the relay, open.

    The relay is perfect until its ``network`` is set, so that the call can be set up; close it after the call.

    Raises:
        BadRequest: The answer has no IPv4 address.
    """
    found = _CANDIDATE.search(answer)
    if found is None:
        raise BadRequest("the server's answer has no IPv4 address of its own that a relay could stand before")
    relay = await LossyRelay((found[2], int(found[3])), PERFECT, seed).__aenter__()
    host, port = relay.address
    lines: list[str] = []
    for line in answer.splitlines():
        if line.startswith("a=ice-ufrag"):  # one for each section
            lines.append(f"a=candidate:1 1 udp {found[1]} {host} {port} typ host")
        if not line.startswith("a=candidate"):
            lines.append(line)
    return _joined(lines), relay


def _joined(lines: Iterable[str]) -> str:
    return "\r\n".join(lines) + "\r\n"
