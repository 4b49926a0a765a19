"""How a turn's audio becomes words: which recogniser is asked, in which language, for how long, and what if it fails;
bugs contained."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from types import NoneType

import numpy as np

from voice.batching import BatcherStats
from voice.degradation import Rung
from voice.errors import DeadlineExceeded, EngineFailed, Overloaded, VoiceError
from voice.interfaces import ASR_RATE_HZ, Pcm16, Recogniser, Stages, Transcript
from voice.language import Finding, SpokenLanguage
from voice.scope import Scope
from voice.service import Service

log = logging.getLogger("voice")

_LIMIT_S = 8.0
"""Longest wait for a transcript, on top of the audio's own length…"""
_HEDGED_LIMIT_S = 5.0
"""…and where another recogniser can be asked instead."""


class _NoAnswer(EngineFailed, DeadlineExceeded):
    """It took too long: a failure to who asks, and for which the engine is to blame."""


async def recognise(
    stages: Stages,
    audio: Pcm16,
    scope: Scope,
    *,
    language: str | None = None,
    hints: Sequence[str] = (),
) -> Transcript:
    """Recognise ``audio`` (16 kHz) with the recogniser that is best now; after a failure ask the other one.

    The small recogniser is asked first while the load is too high or the usual one is taken for dead. Without another
    one the same is asked once more after a failure that may pass, if the stage's retry budget allows it.

    Raises:
        EngineFailed: The recognisers failed, or gave no answer in time.
        VoiceError: As the recogniser says.
    """
    service, now = stages.service, asyncio.get_running_loop().time
    first, second = _order(stages, audio, language, now())
    hedged = second is not first
    limit_s = _HEDGED_LIMIT_S if hedged else _LIMIT_S
    try:
        return await _watched(service, first, audio, scope, language, hints, limit_s)
    except (EngineFailed, Overloaded) as error:
        retryable = isinstance(error, EngineFailed) and error.retryable
        if scope.cancelled or not (hedged or (retryable and service.retries["recogniser"].spend(now()))):
            raise
        log.warning("%s failed, asking %s: %s", first.name, "once more" if not hedged else second.name, error)
    return await _watched(service, second, audio, scope, language, hints, _LIMIT_S)


async def recognise_spoken(
    stages: Stages,
    audio: Pcm16,
    scope: Scope,
    spoken: SpokenLanguage,
    speech_s: float,
    *,
    pending: str | None = None,
    hints: Sequence[str] = (),
) -> tuple[Transcript, str | None]:
    """Recognise what a user said whose language may be one or another; see :func:`recognise`.

    Args:
        speech_s: How much of the audio is speech.
        pending: The language that the turn's earlier audio changes to.

    Returns:
        The words, and the language that the session's changes to with them; ``None``: it stays.
    """
    expected = spoken.expected(speech_s)
    transcript = await recognise(stages, audio, scope, language=expected, hints=hints)
    if expected is not None:
        return transcript, None
    finding = spoken.judge(transcript, speech_s, pending)
    if finding is Finding.DOUBTFUL and transcript.text.strip():
        current = pending or spoken.current
        return await recognise(stages, audio, scope, language=current, hints=hints), None
    return transcript, transcript.language if finding is Finding.CHANGES else None


async def recognise_partial(
    stages: Stages,
    audio: Pcm16,
    scope: Scope,
    spoken: SpokenLanguage,
    speech_s: float,
    *,
    pending: str | None = None,
    hints: Sequence[str] = (),
) -> str | None:
    """The words of speech in progress; ``None``: nothing to be believed.

    Nobody is asked twice, and what goes wrong is not held against the recogniser: a partial may come to nothing.

    Raises:
        VoiceError: As the recogniser says.
    """
    expected = spoken.expected(speech_s)
    first, _ = _order(stages, audio, expected, asyncio.get_running_loop().time())
    transcript = await _once(first, audio, scope, expected, hints)
    doubtful = expected is None and spoken.judge(transcript, speech_s, pending) is Finding.DOUBTFUL
    return None if doubtful or transcript.rejected is not None else transcript.text.strip() or None


def has_room(stages: Stages, language: str | None, now: float) -> bool:
    """Whether the recogniser has time for a partial: it works, and nobody waits for it."""
    first, _ = _order(stages, np.zeros(0, np.int16), language, now)
    stats = getattr(first, "stats", None)
    waiting = stats.depth if isinstance(stats, BatcherStats) else 0
    return waiting == 0 and stages.service.engine("recogniser", first).usable(now)


def _order(stages: Stages, audio: Pcm16, language: str | None, now: float) -> tuple[Recogniser, Recogniser]:
    """Who is asked first, and who if that fails."""
    usual, small, service = stages.recogniser, stages.small_recogniser, stages.service
    if small is None or small is usual or not _serves(small, usual, audio, language):
        return usual, usual
    usable = [one for one in (usual, small) if service.engine("recogniser", one).usable(now)]
    if len(usable) == 1:
        return usable[0], usable[0]
    return (small, usual) if service.rung >= Rung.SMALL_RECOGNISER else (usual, small)


def _serves(small: Recogniser, usual: Recogniser, audio: Pcm16, language: str | None) -> bool:
    """Whether it knows the language, or where that is not known all that the usual one knows; and takes the length."""
    known = small.capabilities.languages
    speaks = set(usual.capabilities.languages) <= set(known) if language is None else language in known
    return speaks and audio.size <= small.capabilities.max_audio_s * ASR_RATE_HZ


async def _watched(
    service: Service,
    recogniser: Recogniser,
    audio: Pcm16,
    scope: Scope,
    language: str | None,
    hints: Sequence[str],
    limit_s: float,
) -> Transcript:
    """One call, so that all sessions learn from it."""
    with service.engine("recogniser", recogniser).calling(scope, asyncio.get_running_loop().time):
        return await _once(recogniser, audio, scope, language, hints, limit_s)


async def _once(
    recogniser: Recogniser,
    audio: Pcm16,
    scope: Scope,
    language: str | None,
    hints: Sequence[str],
    limit_s: float = _LIMIT_S,
) -> Transcript:
    limit_s += audio.size / ASR_RATE_HZ
    try:
        async with asyncio.timeout(limit_s):
            transcript = await recogniser.transcribe(audio, scope, language=language, hints=hints)
        if not isinstance(transcript.text, str):
            raise TypeError(f"a transcript's text is {type(transcript.text).__name__}")
        if not isinstance(transcript.language, str | NoneType):
            raise TypeError(f"a transcript's language is {type(transcript.language).__name__}")
        if not isinstance(transcript.language_probability, int | float | NoneType):
            raise TypeError(f"a language's probability is {type(transcript.language_probability).__name__}")
        return transcript
    except TimeoutError:
        message = f"{recogniser.name} gave no answer within {limit_s:.0f} s"
        raise _NoAnswer(message, retryable=False) from None
    except VoiceError:
        raise
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) is None or task.cancelling():
            raise
        raise EngineFailed(f"{recogniser.name} was cancelled from within") from error
    except Exception as error:
        log.warning("the recogniser %s failed", recogniser.name, exc_info=error)
        raise EngineFailed(f"{recogniser.name} failed: {type(error).__name__}: {error}"[:300]) from error
