"""How does a client behave when its model server does not? A scripted OpenAI-compatible server, on a socket.

::

    async with ScriptedOpenAIServer(["Hello there.", Reply(status=503)]) as server:
        model = OpenAIChat(server.url)
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

from voice.interfaces import ToolCall, Usage

log = logging.getLogger("voice")

_USAGE = Usage(prompt_tokens=10, completion_tokens=5)

MAX_BODY_BYTES = 64 << 20
"""Longest request body that is read."""

Fault: TypeAlias = Literal["hang_before_headers", "comments", "hang", "reset", "end", "garbage"]


@dataclass(frozen=True, slots=True)
class Reply:
    """What the server does with one request. All times are seconds of the event loop.

    Attributes:
        text: The answer: pieces, one chunk each; a string is cut into words.
        tool_calls: Calls that follow the text; their arguments go out in pieces of ``argument_chars``.
        status: Anything but 200 answers with ``body`` (or an error in JSON) and does not stream.
        body: Sent as it is: the error's body or, with status 200, instead of the event stream's bytes.
        content_type: Of ``body``.
        finish: The finish reason; ``None`` leaves it out.
        usage: Goes out in a chunk without choices, when the client asked for it.
        done: Whether ``[DONE]`` is sent.
        reasoning: Thoughts that come before the text, in ``reasoning_content``.
        delay_s: Before the headers.
        gap_s: Before each chunk.
        chunk_bytes: Cut the stream into pieces of this many bytes, each sent by itself.
        line_end: Of the event stream.
        fault: ``"hang_before_headers"``: no answer at all. After ``fault_after`` chunks: ``"comments"``:
            nothing but keep-alive comments, 20 a second; ``"hang"``: nothing more; ``"reset"``: the
            connection is reset; ``"end"``: the body ends; ``"garbage"``: bytes that are no chunk, then the
            body ends.
        fault_after: Chunks (the first one holds only the role) that are sent before the fault.
    """

    text: str | Sequence[str] = ""
    tool_calls: tuple[ToolCall, ...] = ()
    status: int = 200
    body: bytes | None = None
    content_type: str = "application/json"
    finish: str | None = "stop"
    usage: Usage = _USAGE
    done: bool = True
    reasoning: str = ""
    delay_s: float = 0.0
    gap_s: float = 0.0
    chunk_bytes: int | None = None
    argument_chars: int = 3
    line_end: str = "\n"
    fault: Fault | None = None
    fault_after: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """What a client sent. ``json`` is empty for requests without a body."""

    method: str
    path: str
    headers: Mapping[str, str]
    json: Mapping[str, Any]


Script: TypeAlias = Sequence[Reply | str] | Callable[[Mapping[str, Any]], Reply | str]


class ScriptedOpenAIServer:
    """An async context manager that serves ``/v1/models`` and ``/v1/chat/completions`` on 127.0.0.1.

    Args:
        replies: One per chat request, the last one for all that follow; or a function of the request's JSON.
        port: ``0`` takes a free one.
        model: The only model it lists.
        keep: How many of the last requests :attr:`requests` holds.

    Attributes:
        url: ``http://127.0.0.1:PORT/v1``.
        requests: What clients sent, oldest first.
        disconnects: Replies whose client left before they were complete.
        connections: Connections taken so far.
        active: Chat requests being answered now.
    """

    def __init__(
        self, replies: Script, *, port: int = 0, model: str = "scripted-model", keep: int = 1000
    ) -> None:
        self._replies = replies
        self._port = port
        self.model = model
        self.requests: deque[Request] = deque(maxlen=keep)
        self.disconnects = 0
        self.connections = 0
        self.active = 0
        self._served = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def chats(self) -> list[Mapping[str, Any]]:
        """The bodies of the chat requests, oldest first."""
        return [r.json for r in self.requests if r.path.endswith("/chat/completions")]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port, limit=1 << 20)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # aborted sockets are closed in the loop's next round

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Wait until ``condition()`` holds; it is asked whenever a request comes, ends or is left.

        Raises:
            TimeoutError: It does not hold within ``timeout_s``.
        """
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        ahead = b""  # the first byte of the next request, taken while watching for the client's end
        try:
            while ahead := ahead or await reader.read(1):
                if not ahead.isalpha():  # TLS, for one
                    await _send_whole(writer, 400, "text/plain", b"not HTTP")
                    return
                request = await _read_request(reader, ahead)
                self.requests.append(request)
                self._changed.set()
                ahead = await self._answer(request, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left
        except asyncio.CancelledError:
            writer.transport.abort()  # the server ends
        finally:
            writer.close()  # what is written still goes out; a reset has been made before

    async def _answer(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes:
        """Answer while watching for the client's end; returns what it sent meanwhile."""
        chat = request.method == "POST" and request.path.endswith("/chat/completions")
        self.active += chat
        answering = asyncio.ensure_future(
            self._reply(request, writer) if chat else self._plain(request, writer)
        )
        watching = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({answering, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and not _result_of(watching):
                self.disconnects += 1
                raise ConnectionResetError("the client left")
            await answering
            if not watching.done():
                watching.cancel()
                await asyncio.wait({watching})
            return b"" if watching.cancelled() else _result_of(watching)
        finally:
            answering.cancel()
            watching.cancel()
            self.active -= chat
            self._changed.set()

    async def _plain(self, request: Request, writer: asyncio.StreamWriter) -> None:
        if request.path.endswith("/models"):
            body = {"object": "list", "data": [{"id": self.model, "object": "model"}]}
            await _send_whole(writer, 200, "application/json", json.dumps(body).encode())
        else:
            error = {"error": {"message": f"no such path: {request.path}", "type": "not_found", "code": 404}}
            await _send_whole(writer, 404, "application/json", json.dumps(error).encode())

    def _next_reply(self, request: Mapping[str, Any]) -> Reply:
        if callable(self._replies):
            reply = self._replies(request)
        else:
            reply = self._replies[min(self._served, len(self._replies) - 1)]
        self._served += 1
        return Reply(reply) if isinstance(reply, str) else reply

    async def _reply(self, request: Request, writer: asyncio.StreamWriter) -> None:
        reply = self._next_reply(request.json)
        await asyncio.sleep(reply.delay_s)
        if reply.fault == "hang_before_headers":
            await _forever()
        if reply.status != 200 or (reply.body is not None and not request.json.get("stream")):
            default = json.dumps(
                {"error": {"message": f"scripted {reply.status}", "type": "scripted"}}
            ).encode()
            await _send_whole(
                writer, reply.status, reply.content_type, default if reply.body is None else reply.body
            )
            return
        kind = "text/event-stream" if reply.body is None else reply.content_type
        writer.write(
            f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode("ascii")
        )
        async for data in self._stream(reply, request.json, writer):
            for piece in _cut(data, reply.chunk_bytes):
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
                if reply.chunk_bytes is not None:
                    await asyncio.sleep(0)  # let the piece go out by itself
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _stream(
        self, reply: Reply, request: Mapping[str, Any], writer: asyncio.StreamWriter
    ) -> AsyncIterator[bytes]:
        if reply.body is not None:
            yield reply.body
            return
        for number, chunk in enumerate(_chunks(reply, request, self.model)):
            if reply.fault is not None and number == reply.fault_after:
                break
            await asyncio.sleep(reply.gap_s)
            yield _event(json.dumps(chunk, ensure_ascii=False), reply.line_end)
        match reply.fault:
            case "hang":
                await _forever()
            case "comments":
                while True:
                    yield f": keep-alive{reply.line_end * 2}".encode()
                    await asyncio.sleep(0.05)
            case "reset":
                _reset(writer)
                raise ConnectionResetError("scripted")
            case "garbage":
                yield _event("\x00 this is no chunk {", reply.line_end)
            case None if reply.done:
                yield _event("[DONE]", reply.line_end)


def _chunks(reply: Reply, request: Mapping[str, Any], model: str) -> Iterator[dict[str, Any]]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": model, "choices": [choice]}

    yield chunk({"role": "assistant", "content": None})
    if reply.reasoning:
        yield chunk({"reasoning_content": reply.reasoning})
    for piece in _words(reply.text) if isinstance(reply.text, str) else reply.text:
        yield chunk({"content": piece})
    for index, call in enumerate(reply.tool_calls):
        head = {"name": call.name, "arguments": ""}
        yield chunk(
            {"tool_calls": [{"index": index, "id": call.call_id, "type": "function", "function": head}]}
        )
        for at in range(0, len(call.arguments), reply.argument_chars):
            fragment = {"arguments": call.arguments[at : at + reply.argument_chars]}
            yield chunk({"tool_calls": [{"index": index, "function": fragment}]})
    if reply.finish is not None:
        finish = "tool_calls" if reply.tool_calls and reply.finish == "stop" else reply.finish
        yield chunk({}, finish)
    if (request.get("stream_options") or {}).get("include_usage"):
        counts = {
            "prompt_tokens": reply.usage.prompt_tokens,
            "completion_tokens": reply.usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": reply.usage.cached_tokens},
        }
        yield {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": counts}


def _words(text: str) -> list[str]:
    """Words with the space before them, as most tokenisers cut."""
    first, *others = text.split(" ")
    return [w for w in (first, *(f" {word}" for word in others)) if w]


def _event(data: str, line_end: str) -> bytes:
    return f"data: {data}{line_end}{line_end}".encode()


def _cut(data: bytes, size: int | None) -> Iterator[bytes]:
    step = len(data) if size is None else size
    return (data[at : at + step] for at in range(0, len(data), max(1, step)))


def _result_of(watching: asyncio.Future[bytes]) -> bytes:
    return b"" if watching.exception() is not None else watching.result()


async def _forever() -> None:
    await asyncio.get_running_loop().create_future()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close so that the peer gets a reset, not an orderly end."""
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _read_request(reader: asyncio.StreamReader, ahead: bytes) -> Request:
    """The next request of a connection, whose first byte has been read."""
    head = ahead + await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines) if k}
    length = int(headers.get("content-length", "0"))
    if length > MAX_BODY_BYTES:
        raise ConnectionError(f"a request of {length} bytes is too long")
    body = await reader.readexactly(length)
    return Request(method, path, headers, json.loads(body) if body else {})


async def _send_whole(writer: asyncio.StreamWriter, status: int, kind: str, body: bytes) -> None:
    head = f"HTTP/1.1 {status} Scripted\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode("ascii") + body)
    await writer.drain()
