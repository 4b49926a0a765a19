"""How does an engine talk to a server of the OpenAI family? Connections, waits that end, and failures in words.

Every wait is bounded: by what the engine grants the server, and by the scope. Cancelling the task or the scope
closes the connection at once: that tells such servers to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, cast

import httpx

from stages.llm.chat_format import error_sentence, retryable_status
from stages.patience import Patience
from voice.errors import BadRequest, EngineFailed, ProtocolError
from voice.scope import Scope

KEEPALIVE_S = 120.0
"""How long an unused connection stays open: longer than most turns, so that the next needs no handshake."""
ERROR_BODY_BYTES = 64 * 1024
"""How much of an error's body is read."""
ERROR_BODY_S = 2.0
"""How long an error's body may take."""
LIST_BYTES = 4 << 20
"""Longest list of models."""
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_ADVICE = {
    401: "check the API key",
    403: "check what the API key allows",
    404: "check the URL and the model's name",
}


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
    def parse(cls, text: str, path: str = "/chat/completions") -> Endpoint:
        """Accepts ``http://host:port``, ``…/v1``, ``…/v1/``, the same with ``path``, and other bases, which are
        kept as they are.

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
        base = url.path.rstrip("/").removesuffix(path) or "/v1"
        host = f"[{url.host}]:{port}" if ":" in url.host else f"{url.host}:{port}"
        return cls(str(url.copy_with(path=base)), host, url.host in _LOOPBACK)


class ModelServer:
    """One server: its connections and its failures. May be used from one event loop after another.

    Args:
        endpoint: Where it is.
        api_key: Sent as a bearer token; ``None``: the environment's ``OPENAI_API_KEY``, or none at all. Never logged.
        accept: Media types of answers.

    Attributes:
        source: How errors name it.
    """

    def __init__(self, endpoint: Endpoint, api_key: str | None, *, accept: str = "application/json") -> None:
        self.endpoint = endpoint
        self.source = f"the model server at {endpoint.host}"
        self._api_key = api_key if api_key is not None else os.environ.get("OPENAI_API_KEY", "")
        self._accept = accept
        self._clients: dict[asyncio.AbstractEventLoop, httpx.AsyncClient] = {}

    async def aclose(self) -> None:
        """Close the connections of the running event loop. A later call opens new ones."""
        if (client := self._clients.pop(asyncio.get_running_loop(), None)) is not None:
            await client.aclose()

    @asynccontextmanager
    async def request(
        self, method: str, path: str, patience: Patience, **content: Any
    ) -> AsyncIterator[httpx.Response]:
        """Send a request and give its response, of whatever status, once its headers are there.

        Args:
            method: Of HTTP.
            path: Below the endpoint's base, with a slash.
            patience: How long to wait.
            content: As :meth:`httpx.AsyncClient.build_request` takes it.
        """
        client = self._client()
        request = client.build_request(method, f"{self.endpoint.url}{path}", **content)
        response = await patience.wait(client.send(request, stream=True))
        try:
            yield response
        finally:
            await response.aclose()

    async def models(self, patience: Patience) -> list[dict[str, Any]]:
        """The models it lists, each with a name in ``id``.

        Raises:
            EngineFailed: It lists none.
        """
        with self.naming_failures():
            async with self.request("GET", "/models", patience) as response:
                if response.status_code != 200:
                    raise await self.refusal(response, patience.scope)
                listed = self.decoded(await self.body(response, LIST_BYTES, patience))
        found = listed.get("data") if isinstance(listed, dict) else None
        models = [m for m in found if isinstance(m, dict) and m.get("id")] if isinstance(found, list) else []
        if not models:
            raise EngineFailed(f"{self.source} lists no model; name one", retryable=False)
        return models

    async def body(self, response: httpx.Response, limit: int, patience: Patience) -> bytes:
        """The body's bytes; of a longer one the first ``limit`` + 1."""
        body = bytearray()
        async with contextlib.aclosing(body_chunks(response)) as chunks:
            while (chunk := await patience.wait(anext(chunks, None))) is not None:
                body += chunk
                if len(body) > limit:
                    break
        return bytes(body[: limit + 1])

    def decoded(self, body: str | bytes, what: str = "an answer") -> object:
        """The JSON in ``body``.

        Raises:
            EngineFailed: It is none.
        """
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise EngineFailed(f"{self.source} sent {what} that is not JSON: {body[:80]!r}") from None

    def check_kind(self, response: httpx.Response) -> str:
        """The media type of an answer.

        Raises:
            EngineFailed: It is a web page.
        """
        kind: str = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/html":
            raise EngineFailed(f"{self.source} sent a web page; is the URL the API's?", retryable=False)
        return kind

    async def refusal(self, response: httpx.Response, scope: Scope) -> EngineFailed:
        """What a response that is not good says, as an error."""
        status = response.status_code
        patience = self.patience(scope, ERROR_BODY_S, "did not finish its error message")
        try:
            with patience.watching():
                body = (await self.body(response, ERROR_BODY_BYTES, patience)).decode("utf-8", "replace")
        except (EngineFailed, httpx.TransportError):
            body = ""
        try:
            words = error_sentence(json.loads(body))
        except (ValueError, RecursionError):
            words = error_sentence(re.sub(r"<(style|script).*?</\1>|<[^>]*>", " ", body, flags=re.DOTALL))
        if self._api_key:
            words = words.replace(self._api_key, "***")
        says = f": {words}" if words and words != '""' else ""
        advice = f" ({_ADVICE[status]})" if status in _ADVICE else ""
        message = f"{self.source} answered {status}{says}{advice}"
        return EngineFailed(message, retryable=retryable_status(status))

    def patience(self, scope: Scope, timeout_s: float, failing: str = "did not answer") -> Patience:
        """The patience for one request; see :meth:`Patience.extend`."""
        return Patience(scope, self.source, timeout_s, failing)

    @contextlib.contextmanager
    def naming_failures(self) -> Iterator[None]:
        """Failures of the network and the protocol become :class:`EngineFailed`, in words."""
        try:
            yield
        except ProtocolError as error:
            raise EngineFailed(f"{self.source} broke the protocol: {error}") from error
        except httpx.TransportError as error:
            raise EngineFailed(f"{self.source} {_what_broke(error)}") from error
        except httpx.DecodingError as error:
            raise EngineFailed(f"{self.source} sent a body that can't be decoded: {error}") from error

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            self._clients = {known: c for known, c in self._clients.items() if not known.is_closed()}
            headers = {"Accept": self._accept}
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


def retry_after_s(headers: httpx.Headers) -> float | None:
    """When a server wants to be asked again, in seconds: a number, or a date measured by the server's own clock."""
    told = headers.get("retry-after", "").strip()
    try:
        wait_s = float(told)
    except ValueError:
        try:
            then, now = parsedate_to_datetime(told), parsedate_to_datetime(headers.get("date", ""))
            wait_s = (then - now).total_seconds()
        except (ValueError, TypeError):
            return None
    return wait_s if math.isfinite(wait_s) and wait_s >= 0.0 else None


def body_chunks(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The body as it comes; close it (``aclosing``)."""
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
