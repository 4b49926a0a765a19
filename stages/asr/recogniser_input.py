"""Is what a recogniser is given fit to be sent? Audio, language and hints, checked alike for engines that are not
ours."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from voice.errors import BadAudio, BadRequest
from voice.interfaces import ASR_RATE_HZ, Pcm16

PROMPT_CHARS = 600
"""Longest prompt made of hints: Whisper takes 223 tokens of it."""


def check_audio(audio: Pcm16, max_audio_s: float) -> None:
    """Raises :class:`BadAudio` unless ``audio`` is one-dimensional int16 of at most ``max_audio_s`` at 16 kHz."""
    if audio.ndim != 1 or audio.dtype != np.int16:
        raise BadAudio(f"audio must be int16 of shape (n,), not {audio.dtype} of shape {audio.shape}")
    if len(audio) > max_audio_s * ASR_RATE_HZ:
        raise BadAudio(f"{len(audio) / ASR_RATE_HZ:.1f} s of audio are too long; at most {max_audio_s:g} s")


def check_language(language: str | None, known: Collection[str], name: str) -> str | None:
    """``"en-US"`` → ``"en"``.

    Raises:
        BadRequest: ``name`` knows no such language.
    """
    if language is None:
        return None
    code = language.lower().replace("_", "-").split("-")[0]
    if code not in known:
        raise BadRequest(f"{name} does not know the language {language!r}")
    return code


def prompt_of(hints: Sequence[str]) -> str:
    """The first hints that fit into :data:`PROMPT_CHARS`, whole, as a list in words."""
    prompt = ""
    for hint in (" ".join(h.split()) for h in hints):
        longer = f"{prompt}, {hint}" if prompt else hint
        if len(longer) > PROMPT_CHARS:
            break
        prompt = longer
    return prompt
