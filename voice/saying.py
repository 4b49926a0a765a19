"""Saying: what the owner made the agent say: wait for it, or stop it, and learn what was heard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Said:
    """How it went.

    Attributes:
        status: ``"played"``: heard to its end; ``"interrupted"``: cut in the middle; ``"cancelled"``: nothing of it
            was heard; ``"failed"``: not all of it could be spoken.
        heard: The written text up to where the ear got; the history holds the same.
        heard_s: Seconds of its audio that the ear got.
        reason: Why it was cut, as in :class:`~voice.events.ResponseEnded`.
        error: Why it failed, in a sentence.
    """

    status: Literal["played", "interrupted", "cancelled", "failed"]
    heard: str = ""
    heard_s: float = 0.0
    reason: str | None = None
    error: str | None = None

    @property
    def played(self) -> bool:
        """Whether all of it was heard."""
        return self.status == "played"

    @property
    def interrupted(self) -> bool:
        """Whether it was cut, before or after something of it was heard."""
        return self.status in ("interrupted", "cancelled")


class Saying:
    """A handle on something that is said, or waits to be. ``said = await handle`` waits for its end.

    Waiting may be cancelled and repeated, and any number of tasks may wait. A tool must not wait for what it says:
    it comes after the answer that the tool is a part of.

    Attributes:
        response_id: Names it in events, and for ``session.cancel()``.
        item_id: Names it in the history.
    """

    def __init__(
        self, response_id: str, item_id: str, ended: asyncio.Future[Said], stop: Callable[[], None]
    ) -> None:
        self.response_id, self.item_id = response_id, item_id
        self._ended, self._stop = ended, stop

    def __await__(self) -> Generator[Any, None, Said]:
        return asyncio.shield(self._ended).__await__()

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self._ended.done()

    @property
    def said(self) -> Said | None:
        """How it went; ``None`` until it is over."""
        return self._ended.result() if self._ended.done() else None

    def interrupt(self) -> None:
        """Stop it, or take it back if it waits. Does nothing when it is over."""
        if not self._ended.done():
            self._stop()
