"""What do the callers of a run share? The server, the scenario, what can be said, and the timer that ticks them all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from loadtest.light_socket import OnText, dial
from loadtest.network import Link, Sips
from loadtest.pacer import Pacer
from loadtest.scenario import Scenario
from loadtest.utterances import Lines


class Connection(Protocol):
    """What a caller needs of a connection: :class:`~loadtest.light_socket.LightSocket` fits."""

    closed: asyncio.Future[str | None]
    link: tuple[Link, Link] | None
    sips: Sips | None

    def send(self, frame: bytes) -> None:
        """See :class:`~loadtest.light_socket.LightSocket`."""

    def hang_up(self, *, rudely: bool = False) -> None:
        """See :class:`~loadtest.light_socket.LightSocket`."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What the callers of a run share.

    Attributes:
        url: Of the server.
        token: Key; ``None``: none is needed.
        scenario: What callers do.
        lines: What they say.
        stub_tones: The server's voice is that of ``loadtest.stubs``: callers can tell whose answer they hear.
        pacer: Ticks them all.
        dial: Makes a connection: to the address, with the key, for a function that takes the messages.
    """

    url: str
    token: str | None
    scenario: Scenario
    lines: Lines
    stub_tones: bool
    pacer: Pacer
    dial: Callable[[str, str | None, OnText], Awaitable[Connection]] = dial
