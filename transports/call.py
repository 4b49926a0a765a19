"""What a transport with a local ear and mouth needs of a session: somewhere to hear, something to play."""

from __future__ import annotations

from typing import Protocol

from voice.interfaces import Pcm16


class Ear(Protocol):
    """The session's playout, from which audio is pulled at the ear's pace."""

    def read(self, samples: int) -> Pcm16:
        """The next samples, at most so many; fewer or none while there is nothing to play."""


class Call(Protocol):
    """The part of a :class:`voice.session.Session` that the file and microphone transports use."""

    @property
    def playout(self) -> Ear: ...

    def hear(self, pcm: Pcm16) -> None:
        """The next samples of the user's microphone, 16 kHz."""

    def is_quiet(self) -> bool:
        """Whether nobody speaks, nothing is pending and nothing is left to play."""
