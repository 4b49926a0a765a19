"""The real server with an agent of fakes, on a port of this machine, in a thread of its own; and a voice in a WAV."""

from __future__ import annotations

import asyncio
import threading
import wave
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import uvicorn
from talk import WatchedDetector

from transports.options import ServerOptions
from transports.server import app
from transports.serving import listen, running
from voice.agent import Agent
from voice.interfaces import ASR_RATE_HZ, Pcm16, Prompt, Stages, ToolCall
from voice.testing import ScriptedModel, ScriptedRecogniser, ToneSynthesiser

MICROPHONE_HZ = 48_000
QUESTION = "What are your opening hours?"
"""What the recogniser makes of a short utterance."""
STOP = "Wait, stop there please."
"""What it makes of one of more than ``LONG_S``."""
LONG_S = 2.2
ANSWER = " ".join(f"word{n}" + "." * (n % 5 == 0) for n in range(1, 41))
"""Forty words of 200 ms in sentences of five."""
SHORT_ANSWER = "Okay, I am quiet now."


def opening_hours(day: str) -> str:
    """When the shop is open."""
    return f"{day}: closed"


def agent() -> Agent:
    """Answers a question by a tool call and forty words; says that it is quiet when told to stop."""

    def reply(prompt: Prompt) -> Sequence[ToolCall] | str:
        last = prompt.messages[-1]
        if last.role == "tool":
            return ANSWER
        if "stop" in last.text:
            return SHORT_ANSWER
        return [ToolCall("", "opening_hours", '{"day": "Sunday"}')]

    def text(audio: Pcm16) -> str:
        return STOP if len(audio) > LONG_S * ASR_RATE_HZ else QUESTION

    stages = Stages(
        WatchedDetector(), ScriptedRecogniser(text), ScriptedModel(reply), ToneSynthesiser(word_times=True)
    )
    return Agent("be brief", stages, [opening_hours])


class PageServer:
    """A running server.

    Attributes:
        address: Of the page.
    """

    def __init__(self, options: ServerOptions | None) -> None:
        self._options = options
        self._sockets = listen("127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self._sockets[0].getsockname()[1]}/"
        self._loop: asyncio.AbstractEventLoop
        self._end: asyncio.Event
        self._uvicorn: uvicorn.Server
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="page server")

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        server = app(agent(), options=self._options)
        async with running(server, self._sockets) as self._uvicorn:
            await server.startup()
            self._ready.set()
            await self._end.wait()

    def start(self) -> None:
        """Returns when it answers."""
        self._thread.start()
        assert self._ready.wait(20), "the server did not start"

    def cut(self) -> None:
        """Break every connection, as a failing network does."""
        for connection in list(self._uvicorn.server_state.connections):
            self._loop.call_soon_threadsafe(connection.transport.abort)

    def stop(self) -> None:
        """End it."""
        if self._ready.is_set():
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(20)


@contextmanager
def served(options: ServerOptions | None = None) -> Iterator[PageServer]:
    """A server that runs inside the context."""
    server = PageServer(options)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def write_voice(path: Path, plan: Sequence[tuple[float, bool]]) -> None:
    """A WAV of stretches of ``(seconds, voice?)``.

    The voice is a buzz whose pitch and loudness move as in syllables: a browser's noise suppression takes a steady tone
    for noise and removes it.
    """
    noise = np.random.default_rng(1)
    parts = []
    for seconds, voice in plan:
        t = np.arange(round(seconds * MICROPHONE_HZ)) / MICROPHONE_HZ
        part = noise.normal(0.0, 1e-4, len(t))
        if voice:
            phase = 2 * np.pi * np.cumsum(130 + 15 * np.sin(2 * np.pi * 0.9 * t)) / MICROPHONE_HZ
            buzz = sum((np.sin(k * phase) / k**0.7 for k in range(1, 16)), np.zeros(len(t)))
            syllables = 0.35 + 0.65 * np.abs(np.sin(2 * np.pi * 2.2 * t))
            part += 0.5 * buzz / np.abs(buzz).max() * syllables
        parts.append(part)
    samples = (np.concatenate(parts) * 32767).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(MICROPHONE_HZ)
        file.writeframes(samples.tobytes())
