"""How a turn's audio becomes words: one call of the recogniser, bounded, tried again once, its bugs contained."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from voice.errors import EngineFailed, VoiceError
from voice.interfaces import ASR_RATE_HZ, Pcm16, Recogniser, Transcript
from voice.scope import Scope

log = logging.getLogger("voice")

_LIMIT_S = 15.0
"""Longest wait for a transcript, on top of the audio's own length."""


async def transcribe(
    recogniser: Recogniser,
    audio: Pcm16,
    scope: Scope,
    *,
    language: str | None = None,
    hints: Sequence[str] = (),
) -> Transcript:
    """Recognise ``audio`` (16 kHz), once more after a failure that may pass.

    Raises:
        EngineFailed: The recogniser failed, or gave no answer in time.
        VoiceError: As the recogniser says.
    """
    try:
        return await _once(recogniser, audio, scope, language, hints)
    except EngineFailed as error:
        if not error.retryable or scope.cancelled:
            raise
        log.warning("%s failed, asking once more: %s", recogniser.name, error)
        return await _once(recogniser, audio, scope, language, hints)


async def _once(
    recogniser: Recogniser, audio: Pcm16, scope: Scope, language: str | None, hints: Sequence[str]
) -> Transcript:
    limit_s = _LIMIT_S + audio.size / ASR_RATE_HZ
    try:
        async with asyncio.timeout(limit_s):
            transcript = await recogniser.transcribe(audio, scope, language=language, hints=hints)
        if not isinstance(transcript.text, str):
            raise TypeError(f"a transcript's text is {type(transcript.text).__name__}")
        return transcript
    except TimeoutError:
        message = f"{recogniser.name} gave no answer within {limit_s:.0f} s"
        raise EngineFailed(message, retryable=False) from None
    except VoiceError:
        raise
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) is None or task.cancelling():
            raise
        raise EngineFailed(f"{recogniser.name} was cancelled from within") from error
    except Exception as error:
        log.warning("the recogniser %s failed", recogniser.name, exc_info=error)
        raise EngineFailed(f"{recogniser.name} failed: {type(error).__name__}: {error}"[:300]) from error
