"""Everything that can go wrong, as a small tree. Each error says what was wrong, what was expected and what to do."""

from __future__ import annotations


class VoiceError(Exception):
    """The parent of all errors raised by this library."""


class BadAudio(VoiceError):
    """Audio that can't be used: wrong rate, channels, byte count, NaN samples, not audio at all."""


class BadRequest(VoiceError):
    """A caller's mistake: an unknown option, a wrong type, a call in the wrong state."""


class ModelMissing(VoiceError):
    """Model files are absent, incomplete or don't match their sha256."""


class Overloaded(VoiceError):
    """The work was refused before it began because it could not be served in time.

    Attributes:
        retry_after_s: When to try again, in seconds; ``None`` when that is unknown.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(VoiceError):
    """The work's deadline passed before it was done."""


class EngineFailed(VoiceError):
    """An engine or a remote server failed.

    Attributes:
        retryable: Whether the same request may succeed if it is sent again.
    """

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class ProtocolError(VoiceError):
    """A peer broke the protocol: wrong order, wrong type, too large."""


class ScopeCancelled(VoiceError):
    """The scope of the work was cancelled; its result would be dropped."""


def kind_of(error: VoiceError) -> str:
    """The name of the error's public class, for events and metrics."""
    return next(kind.__name__ for kind in type(error).__mro__ if not kind.__name__.startswith("_"))
