"""Which of several recognisers gets the next piece, and what happens to it when one fails?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from voice.errors import BadRequest, EngineFailed, Overloaded
from voice.interfaces import Pcm16, Recogniser, Transcript
from voice.scope import Scope

ATTEMPTS = 4
"""A piece is tried so often before its recording fails."""
PAUSE_S = 0.5
"""Before the second attempt; each further pause is twice as long, unless the engine says how long it wants."""
LONGEST_PAUSE_S = 30.0
_FAILURE_COUNTS_AS = 12  # pieces at hand: one that fails is asked when the others are so much busier


@dataclass(slots=True)
class _Replica:
    recogniser: Recogniser
    at_hand: int = 0
    failures: int = 0  # in a row


class Replicas:
    """Recognisers that are as good as each other: the cores of this machine, or several servers.

    Args:
        recognisers: At least one.

    Raises:
        BadRequest: None at all.
    """

    def __init__(self, recognisers: Sequence[Recogniser]) -> None:
        if not recognisers:
            raise BadRequest("at least one recogniser is needed")
        self._replicas = [_Replica(recogniser) for recogniser in recognisers]

    @property
    def names(self) -> list[str]:
        """What the recognisers are called, without repetition, in order."""
        return sorted({replica.recogniser.name for replica in self._replicas})

    @property
    def multilingual(self) -> bool:
        """Whether there is a language to be found."""
        return any(len(replica.recogniser.capabilities.languages) > 1 for replica in self._replicas)

    async def transcribe(self, audio: Pcm16, scope: Scope, language: str | None) -> Transcript:
        """Recognise a piece on the recogniser that has the least to do; after a failure that may pass, on another.

        Raises:
            BadAudio, BadRequest, DeadlineExceeded, ScopeCancelled: As the recogniser says.
            EngineFailed, Overloaded: What the last attempt failed with.
        """
        for attempt in range(1, ATTEMPTS + 1):
            replica = min(self._replicas, key=lambda r: r.at_hand + _FAILURE_COUNTS_AS * r.failures)
            replica.at_hand += 1
            try:
                transcript = await replica.recogniser.transcribe(audio, scope, language=language)
            except (EngineFailed, Overloaded) as error:
                replica.failures += 1
                if attempt == ATTEMPTS or not _may_pass(error):
                    raise
                await asyncio.sleep(_pause_s(error, attempt))
            else:
                replica.failures = 0
                return transcript
            finally:
                replica.at_hand -= 1
        raise AssertionError("the last attempt returns or raises")


def _may_pass(error: EngineFailed | Overloaded) -> bool:
    return isinstance(error, Overloaded) or error.retryable


def _pause_s(error: EngineFailed | Overloaded, attempt: int) -> float:
    wanted = error.retry_after_s if isinstance(error, Overloaded) else None
    return min(LONGEST_PAUSE_S, PAUSE_S * 2.0 ** (attempt - 1) if wanted is None else max(0.0, wanted))
