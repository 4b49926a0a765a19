"""A transcription server on a real socket that answers as its script says, faults included; and audio to send it."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import struct
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeAlias

import numpy as np

from voice.interfaces import Pcm16

RATE_HZ = 16_000


def speech_like(seconds: float, *, mark: int = 0, seed: int = 5) -> Pcm16:
    """Noise in syllables, three a second: loud and changing enough to be sent. ``mark`` is its first sample."""
    noise = np.random.default_rng(seed).standard_normal(round(seconds * RATE_HZ)) * 3_000
    beat = np.sin(2 * np.pi * 3.0 * np.arange(len(noise)) / RATE_HZ) > 0.4
    audio = (noise * (0.01 + beat)).clip(-32768, 32767).astype(np.int16)
    audio[:1] = mark
    return audio


def verbose(*segments: tuple[str, float, float], **scores: Any) -> dict[str, Any]:
    """An answer in ``verbose_json``: segments of (text, start, end), with good scores unless others are given."""
    usual = {"avg_logprob": -0.2, "no_speech_prob": 0.02, "compression_ratio": 1.1, "tokens": [1, 2]} | scores
    parts = [
        {"id": i, "seek": 0, "text": text, "start": start, "end": end, **usual}
        for i, (text, start, end) in enumerate(segments)
    ]
    return {
        "task": "transcribe",
        "language": "english",
        "duration": segments[-1][2] if segments else 0.0,
        "text": "".join(text for text, _, _ in segments).strip(),
        "segments": parts,
    }


@dataclass(frozen=True, slots=True)
class Reply:
    """What the server does with one request.

    Attributes:
        body: JSON, or bytes that are sent as they are.
        delay_s: Before the headers.
        after: The answer waits for this.
        fault: ``"hang"``: no answer; ``"half"``: half of the body, then nothing; ``"close"``: half of the body,
            then the end of the connection; ``"reset"``: a reset before the headers.
    """

    body: Any = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: str = "application/json"
    delay_s: float = 0.0
    after: asyncio.Event | None = None
    fault: Literal["hang", "half", "close", "reset"] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: fields of its form (lists, in order) and its audio."""

    fields: Mapping[str, list[str]]
    pcm: Pcm16
    headers: Mapping[str, str]

    def __getitem__(self, name: str) -> str | None:
        return self.fields.get(name, [None])[0]


Script: TypeAlias = Sequence[Reply] | Callable[[Asked], Reply]


class TranscriptionServer:
    """Serves ``/v1/audio/transcriptions`` and ``/v1/models`` on 127.0.0.1.

    Args:
        script: Replies in order, the last one for all that follow; or a function of the request.
        models: Names it lists; ``None``: it has no such path.
    """

    def __init__(self, script: Script, models: Sequence[str] | None = ("tts-1", "whisper-1")) -> None:
        self._script = script
        self._models = models
        self.asked: list[Asked] = []
        self.listed = self.connections = self.active = self.most_active = self.left = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=1 << 24)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                pairs = [line.partition(":") for line in head[1:] if line]
                headers = {name.lower(): value.strip() for name, _, value in pairs}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                await self._serve(head[0].split(" ")[1], headers, body, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            writer.close()

    async def _serve(
        self,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if path == "/v1/models" and self._models is not None:
            self.listed += 1
            await _send(writer, Reply({"object": "list", "data": [{"id": name} for name in self._models]}))
            return
        if path != "/v1/audio/transcriptions":
            await _send(writer, Reply({"error": {"message": f"no path {path}"}}, status=404))
            return
        asked = _read_form(headers, body)
        number = len(self.asked)
        self.asked.append(asked)
        script = self._script
        reply = script(asked) if callable(script) else script[min(number, len(script) - 1)]
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        self._changed.set()
        answering = asyncio.ensure_future(self._answer(reply, writer))
        leaving = asyncio.ensure_future(reader.read(1))  # clients here send one request at a time
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                self.left += 1
                raise ConnectionResetError("the client left")
            await answering
        finally:
            answering.cancel()
            leaving.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
            self.active -= 1
            self._changed.set()

    async def _answer(self, reply: Reply, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(reply.delay_s)
        if reply.after is not None:
            await reply.after.wait()
        if reply.fault == "hang":
            await asyncio.get_running_loop().create_future()
        if reply.fault == "reset":
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            raise ConnectionResetError("scripted")
        await _send(writer, reply)
        if reply.fault == "half":
            await asyncio.get_running_loop().create_future()
        if reply.fault == "close":
            raise ConnectionResetError("scripted")


async def _send(writer: asyncio.StreamWriter, reply: Reply) -> None:
    body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
    head = {"content-type": reply.kind, "content-length": str(len(body)), **reply.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    writer.write(f"HTTP/1.1 {reply.status} Scripted\r\n{lines}\r\n".encode("latin-1"))
    writer.write(body[: len(body) // 2] if reply.fault else body)
    await writer.drain()


def _read_form(headers: Mapping[str, str], body: bytes) -> Asked:
    """Multipart, taken apart by hand: a form that only one parser understands would go unnoticed otherwise."""
    boundary = headers["content-type"].partition("boundary=")[2].encode()
    fields: dict[str, list[str]] = {}
    pcm = np.zeros(0, np.int16)
    for part in body.split(b"--" + boundary)[1:-1]:
        head, _, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        name = head.partition(b'name="')[2].partition(b'"')[0].decode()
        content = content.removesuffix(b"\r\n")
        if name == "file":
            with wave.open(io.BytesIO(content)) as file:
                assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, RATE_HZ)
                pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        else:
            fields.setdefault(name, []).append(content.decode())
    return Asked(fields, pcm, headers)
