"""How do we talk to a server that speaks the OpenAI chat protocol? One HTTP client for all of them.

Every wait is bounded: by the time to the first token, by the gap between tokens, and by the scope. Cancelling
the task or the scope, or closing the generator, closes the connection at once: that tells such servers to
stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar, cast

import httpx

from stages.llm.chat_chunks import ChunkReader
from stages.llm.chat_format import GENERIC, Dialect, error_sentence, request_body, retryable_status
from stages.llm.sse import SseParser
from voice.errors import BadRequest, DeadlineExceeded, EngineFailed, ProtocolError
from voice.interfaces import ModelEvent, Prompt
from voice.scope import Scope

T = TypeVar("T")

KEEPALIVE_S = 120.0
"""How long an unused connection stays open: longer than most turns, so that the next needs no handshake."""
ERROR_BODY_BYTES = 64 * 1024
"""How much of an error's body is read."""
WHOLE_BODY_BYTES = 4 << 20
"""Longest answer of a server that doesn't stream although it was asked to."""
TAIL_S = 0.25
"""How long to wait, after the model has ended, for the token counts and the end of the body."""
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is.

    Attributes:
        url: Base of all paths, without a slash at its end: ``http://host:port/v1``.
        host: ``host:port``, as errors name it.
        loopback: It is on this machine, so no proxy leads to it.
    """

    url: str
    host: str
    loopback: bool

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Accepts ``http://host:port``, ``…/v1``, ``…/v1/`` and other bases, which are kept as they are.

        Raises:
            BadRequest: Not an http or https URL with a host.
        """
        try:
            url = httpx.URL(text.strip())
            port = url.port or {"http": 80, "https": 443}[url.scheme]
        except (httpx.InvalidURL, KeyError, ValueError):
            raise BadRequest(f"{text!r} is no URL of a model server; expected http://host:port/v1") from None
        if not url.host or url.query or url.fragment:
            raise BadRequest(f"{text!r} is no URL of a model server; expected http://host:port/v1")
        path = url.path.rstrip("/").removesuffix("/chat/completions") or "/v1"
        host = f"[{url.host}]:{port}" if ":" in url.host else f"{url.host}:{port}"
        return cls(str(url.copy_with(path=path)), host, url.host in _LOOPBACK)


class OpenAIChat:
    """A language model behind ``POST …/chat/completions``, streamed.

    May be shared by any number of sessions and used from one event loop after another.

    Args:
        base_url: ``http://host:port``, with or without ``/v1``.
        model: As the server calls it. ``None``: the first one it lists, asked for once.
        api_key: Sent as a bearer token; ``None``: the environment's ``OPENAI_API_KEY``, or none at all. Never
            logged.
        first_token_timeout_s: From the call to the first token, connecting and queueing included.
        gap_timeout_s: Between tokens. Comments and empty chunks don't count as tokens.
        dialect: Which optional fields the server takes.

    Attributes:
        name: The model; before the server was asked, its ``host:port``.

    Raises:
        BadRequest: ``base_url`` is no http or https URL.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        api_key: str | None = None,
        *,
        first_token_timeout_s: float = 10.0,
        gap_timeout_s: float = 5.0,
        dialect: Dialect = GENERIC,
    ) -> None:
        self.endpoint = Endpoint.parse(base_url)
        self.model = model
        self.name = model or self.endpoint.host
        self.first_token_timeout_s = first_token_timeout_s
        self.gap_timeout_s = gap_timeout_s
        self.dialect = dialect
        self._api_key = api_key if api_key is not None else os.environ.get("OPENAI_API_KEY", "")
        self._source = f"the model server at {self.endpoint.host}"
        self._clients: dict[asyncio.AbstractEventLoop, httpx.AsyncClient] = {}

    async def warm_up(self) -> None:
        """Connect and learn the model's name, so that the first turn needn't.

        Raises:
            EngineFailed: The server can't be reached or lists no model.
        """
        with Scope("stage") as scope:
            patience = self._patience(scope)
            with patience.watching():
                await self._list_models(patience)

    async def aclose(self) -> None:
        """Close the connections of the running event loop. A later call opens new ones."""
        if (client := self._clients.pop(asyncio.get_running_loop(), None)) is not None:
            await client.aclose()

    async def generate(self, prompt: Prompt, scope: Scope) -> AsyncIterator[ModelEvent]:
        """Stream an answer; see :class:`~voice.interfaces.LanguageModel`.

        Raises:
            EngineFailed: The server refused, failed, hung or broke off; the sentence names its ``host:port``.
            DeadlineExceeded: The scope's deadline passed.
            ScopeCancelled: The scope was cancelled.
            BadRequest: The prompt contradicts itself (a ``tool_choice`` that isn't offered).
        """
        body = request_body(prompt, self.model, self.dialect)
        patience = self._patience(scope)
        with patience.watching(), self._naming_failures():
            if self.model is None:
                await self._list_models(patience)
                body["model"] = self.model
            async with self._post(body, patience) as response:
                reader = ChunkReader(self._source)
                async with contextlib.aclosing(self._events(response, reader, patience)) as events:
                    async for event in events:
                        with patience.paused():
                            yield event

    async def _events(
        self, response: httpx.Response, reader: ChunkReader, patience: Patience
    ) -> AsyncGenerator[ModelEvent, None]:
        said_done = False
        async with contextlib.aclosing(self._payloads(response, reader, patience)) as payloads:
            async for payload in payloads:
                if payload.strip() == "[DONE]":
                    said_done = True
                    continue  # read to the body's end: only then can the connection be used again
                if said_done:
                    continue
                before = reader.progress
                for event in reader.feed(self._decoded(payload)):
                    yield event
                if reader.progress > before:
                    patience.extend(self.gap_timeout_s, "sent no further token")
        for event in reader.close(said_done=said_done):
            yield event

    async def _payloads(
        self, response: httpx.Response, reader: ChunkReader, patience: Patience
    ) -> AsyncGenerator[str, None]:
        """The data of each event, until the body ends or nothing more comes soon after the answer's end."""
        kind = response.headers.get("content-type", "").partition(";")[0]
        if kind == "text/html":
            raise EngineFailed(f"{self._source} sent a web page; is the URL the API's?", retryable=False)
        if kind == "application/json":
            yield (await self._body(response, WHOLE_BODY_BYTES, patience)).decode("utf-8", "replace")
            return
        parser = SseParser()
        async with contextlib.aclosing(_bytes(response)) as chunks:
            ended = False
            while True:
                if reader.finished and not ended:
                    ended = True
                    patience.extend(TAIL_S, "kept the stream open")
                try:
                    chunk = await patience.wait(anext(chunks, None))
                except (EngineFailed, httpx.TransportError):
                    if not ended:
                        raise
                    return  # the answer is complete: what the server does with its connection doesn't matter
                if chunk is None:
                    break
                for payload in parser.feed(chunk):
                    yield payload
        for payload in parser.close():
            yield payload

    def _decoded(self, payload: str) -> object:
        try:
            return json.loads(payload)
        except ValueError:
            raise EngineFailed(f"{self._source} sent a chunk that is not JSON: {payload[:80]!r}") from None

    @asynccontextmanager
    async def _post(self, body: dict[str, object], patience: Patience) -> AsyncIterator[httpx.Response]:
        """Send a request and give its response once the headers are there and good."""
        client = self._client()
        request = client.build_request("POST", f"{self.endpoint.url}/chat/completions", json=body)
        response = await patience.wait(client.send(request, stream=True))
        try:
            if response.status_code != 200:
                raise await self._refusal(response, patience)
            yield response
        finally:
            await response.aclose()

    async def _list_models(self, patience: Patience) -> None:
        with self._naming_failures():
            client = self._client()
            request = client.build_request("GET", f"{self.endpoint.url}/models")
            response = await patience.wait(client.send(request, stream=True))
            try:
                if response.status_code != 200:
                    raise await self._refusal(response, patience)
                listed = self._decoded((await self._body(response, WHOLE_BODY_BYTES, patience)).decode())
            finally:
                await response.aclose()
        try:
            name = listed["data"][0]["id"]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            raise EngineFailed(f"{self._source} lists no model; name one", retryable=False) from None
        if self.model is None:
            self.model = self.name = str(name)

    async def _body(self, response: httpx.Response, limit: int, patience: Patience) -> bytes:
        body = bytearray()
        async with contextlib.aclosing(_bytes(response)) as chunks:
            while (chunk := await patience.wait(anext(chunks, None))) is not None:
                body += chunk
                if len(body) > limit:
                    break
        return bytes(body[:limit])

    async def _refusal(self, response: httpx.Response, patience: Patience) -> EngineFailed:
        status = response.status_code
        patience.extend(min(2.0, self.gap_timeout_s), "did not finish its error message")
        try:
            body = (await self._body(response, ERROR_BODY_BYTES, patience)).decode("utf-8", "replace")
        except (EngineFailed, httpx.TransportError):
            body = ""
        try:
            words = error_sentence(json.loads(body))
        except ValueError:
            words = error_sentence(re.sub(r"<(style|script).*?</\1>|<[^>]*>", " ", body, flags=re.DOTALL))
        if self._api_key:
            words = words.replace(self._api_key, "***")
        says = f": {words}" if words and words != '""' else ""
        return EngineFailed(f"{self._source} answered {status}{says}", retryable=retryable_status(status))

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            self._clients = {known: c for known, c in self._clients.items() if not known.is_closed()}
            headers = {"Accept": "text/event-stream, application/json"}
            if self._api_key:
                headers["Authorization"] = f"Bearer {self._api_key}"
            client = self._clients[loop] = httpx.AsyncClient(
                headers=headers,
                timeout=None,  # every wait goes through Patience
                limits=httpx.Limits(
                    max_connections=512, max_keepalive_connections=32, keepalive_expiry=KEEPALIVE_S
                ),
                trust_env=not self.endpoint.loopback,
            )
        return client

    def _patience(self, scope: Scope) -> Patience:
        return Patience(scope, self._source, self.first_token_timeout_s, "did not answer")

    @contextlib.contextmanager
    def _naming_failures(self) -> Iterator[None]:
        """Failures of the network and the protocol, in words."""
        try:
            yield
        except ProtocolError as error:
            raise EngineFailed(f"{self._source} broke the protocol: {error}") from error
        except httpx.TransportError as error:
            raise EngineFailed(f"{self._source} {_what_broke(error)}") from error
        except httpx.DecodingError as error:
            raise EngineFailed(f"{self._source} sent a body that can't be decoded: {error}") from error


class Patience:
    """How long one request may go on waiting: the server's own limits, and never past the scope's end."""

    def __init__(self, scope: Scope, source: str, timeout_s: float, failing: str) -> None:
        self.scope = scope
        self._source = source
        self._waiting: asyncio.Timeout | None = None
        self.extend(timeout_s, failing)

    def extend(self, timeout_s: float, failing: str) -> None:
        """From now on ``timeout_s`` are left; ``failing`` says what the server did when they are over."""
        self._ends = asyncio.get_running_loop().time() + timeout_s
        self._failing = f"{failing} within {timeout_s:g} s"

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the server's clock: whoever takes the answer holds it back."""
        began = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._ends += asyncio.get_running_loop().time() - began

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Let a cancel of the scope end the wait under way."""
        forget = self.scope.on_cancel(lambda _: self._stop_waiting())
        try:
            yield
        finally:
            forget()

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """Wait for one thing.

        Raises:
            EngineFailed: The server's time is over.
            DeadlineExceeded: The scope's time is over.
            ScopeCancelled: The scope was cancelled.
        """
        remaining = self.scope.remaining()
        now = asyncio.get_running_loop().time()
        ends = self._ends if remaining is None else min(self._ends, now + remaining)
        if self.scope.cancelled:
            ends = now
        try:
            async with asyncio.timeout_at(ends) as self._waiting:
                return await awaitable
        except TimeoutError:
            self.scope.check()
            if self.scope.remaining() == 0:
                raise DeadlineExceeded(f"the deadline passed while waiting for {self._source}") from None
            raise EngineFailed(f"{self._source} {self._failing}") from None
        finally:
            self._waiting = None


def _bytes(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    return cast(
        AsyncGenerator[bytes, None], response.aiter_bytes()
    )  # declared as an iterator, which has no aclose


def _what_broke(error: httpx.TransportError) -> str:
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, socket.gaierror):
            return "can't be reached: its host name is unknown"
        if isinstance(cause, ssl.SSLError):
            return f"can't be reached securely: {cause.reason or cause}"
        if isinstance(cause, ConnectionRefusedError):
            return "can't be reached: it refused the connection"
        if isinstance(cause, ConnectionResetError | BrokenPipeError):
            return "closed the connection in the middle of its answer"
    if isinstance(error, httpx.ConnectError):
        return f"can't be reached: {error or type(error).__name__}"
    if isinstance(error, httpx.ReadError | httpx.RemoteProtocolError | httpx.WriteError):
        return f"closed the connection in the middle of its answer ({error or type(error).__name__})"
    return f"failed: {error or type(error).__name__}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what led to it, groups taken apart; each once."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        cause = waiting.pop(0)
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        waiting += [cause.__cause__, cause.__context__]
        if isinstance(cause, BaseExceptionGroup):
            waiting += cause.exceptions
