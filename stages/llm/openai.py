"""How do we talk to a server that speaks the OpenAI chat protocol? One HTTP client for all of them.

Every wait is bounded: by the time to the first token, by the gap between tokens, and by the scope. Cancelling
the task or the scope, or closing the generator, closes the connection at once: that tells such servers to
stop.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import httpx

from stages.http_engine import Endpoint, ModelServer, body_chunks
from stages.llm.chat_chunks import ChunkReader
from stages.llm.chat_format import GENERIC, Dialect, request_body
from stages.llm.sse import SseParser
from stages.patience import Patience
from voice.errors import EngineFailed
from voice.interfaces import ModelEvent, Prompt
from voice.scope import Scope

WHOLE_BODY_BYTES = 4 << 20
"""Longest answer of a server that doesn't stream although it was asked to."""
TAIL_S = 0.25
"""How long to wait, after the model has ended, for the token counts and the end of the body."""


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
        self._server = ModelServer(self.endpoint, api_key, accept="text/event-stream, application/json")

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
        await self._server.aclose()

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
        with patience.watching(), self._server.naming_failures():
            if self.model is None:
                await self._list_models(patience)
                body["model"] = self.model
            async with self._post(body, patience) as response:
                reader = ChunkReader(self._server.source)
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
                for event in reader.feed(self._server.decoded(payload, "a chunk")):
                    yield event
                if reader.progress > before:
                    patience.extend(self.gap_timeout_s, "sent no further token")
        for event in reader.close(said_done=said_done):
            yield event

    async def _payloads(
        self, response: httpx.Response, reader: ChunkReader, patience: Patience
    ) -> AsyncGenerator[str, None]:
        """The data of each event, until the body ends or nothing more comes soon after the answer's end."""
        if self._server.check_kind(response) == "application/json":
            body = await self._server.body(response, WHOLE_BODY_BYTES, patience)
            yield body[:WHOLE_BODY_BYTES].decode("utf-8", "replace")
            return
        parser = SseParser()
        async with contextlib.aclosing(body_chunks(response)) as chunks:
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

    @asynccontextmanager
    async def _post(self, body: dict[str, object], patience: Patience) -> AsyncIterator[httpx.Response]:
        """Send a request and give its response once the headers are there and good."""
        async with self._server.request("POST", "/chat/completions", patience, json=body) as response:
            if response.status_code != 200:
                raise await self._server.refusal(response, patience.scope)
            yield response

    async def _list_models(self, patience: Patience) -> None:
        name = str((await self._server.models(patience))[0]["id"])
        if self.model is None:
            self.model = self.name = name

    def _patience(self, scope: Scope) -> Patience:
        return self._server.patience(scope, self.first_token_timeout_s)
