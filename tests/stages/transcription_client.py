"""A recogniser in front of a scripted transcription server, and what it makes of an utterance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from transcription_server import Reply, Script, TranscriptionServer, speech_like, verbose

from stages.asr.openai import OpenAITranscriber
from voice.errors import (
    EngineFailed,
    VoiceError,
)
from voice.interfaces import Pcm16, Transcript
from voice.scope import Scope

HELLO = Reply(verbose((" Hello there, how are you?", 0.0, 2.0)))
PLAIN = Reply({"text": "Hello there, how are you?"})
TWO_S = speech_like(2.0)


@asynccontextmanager
async def serving(
    script: Script, models: Sequence[str] | None = ("whisper-1",), **options: Any
) -> AsyncIterator[tuple[OpenAITranscriber, TranscriptionServer]]:
    async with TranscriptionServer(script, models) as server:
        options = {"model": "whisper-1", "api_key": ""} | options
        recogniser = OpenAITranscriber(server.url, **options)
        try:
            yield recogniser, server
        finally:
            await recogniser.aclose()
            recogniser.close()


def run(work: Any) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(30):
            return await work

    return asyncio.run(bounded())


def heard(
    script: Script, audio: Pcm16 = TWO_S, scope: Scope | None = None, **options: Any
) -> tuple[Transcript, TranscriptionServer, OpenAITranscriber]:
    asked = {k: options.pop(k) for k in ("language", "hints") if k in options}

    async def work() -> Any:
        async with serving(script, **options) as (recogniser, server):
            return await recogniser.transcribe(audio, scope or Scope("turn"), **asked), server, recogniser

    return run(work())


def error_of(script: Script, kind: type[VoiceError] = EngineFailed, **options: Any) -> Any:
    with pytest.raises(kind) as caught:
        heard(script, **options)
    assert "\n" not in str(caught.value)
    return caught.value
