"""What answers at the server's port? One ASGI app: conversations, the page, health and metrics.

``app(agent)`` runs alone under any ASGI server, or mounted in a FastAPI or Starlette app. Mounted apps are told of no
start and no end, so it starts with its first request; call :meth:`Server.drain` and :meth:`Server.shutdown` yourself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal, TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketState

from transports.access import Access, Grant
from transports.hosting import Host
from transports.options import ServerOptions
from transports.realtime_http import RealtimeHttp, bounded, remote_address
from transports.realtime_socket import Connections
from transports.refusal import RETRY_S, Refused, error_response, json_response, refusal
from transports.site import Site
from transports.twilio import AgentFor, serve_twilio, voice_twiml
from transports.worker_process import Seat
from voice.agent import Agent
from voice.errors import EngineFailed, VoiceError
from voice.interfaces import Stages

log = logging.getLogger("voice.server")

State: TypeAlias = Literal["loading", "ready", "failed", "draining"]
WarmUp: TypeAlias = Callable[[Stages], Awaitable[None]]

LOAD_WAIT_S = 30.0
"""How long a client that comes while the engines load waits for them."""

RELOAD_S = 10.0
"""After a failure to load, the next try begins this much later, with the request that then comes."""

POLICY_VIOLATION, MESSAGE_TOO_BIG, TRY_AGAIN_LATER = 1008, 1009, 1013
"""WebSocket close codes (RFC 6455 §7.4.1 and the IANA registry)."""


def app(
    agent: Agent,
    *,
    options: ServerOptions | None = None,
    warm_up: WarmUp | None = None,
    agent_for_call: AgentFor | None = None,
    seat: Seat | None = None,
) -> Server:
    """The ASGI app that serves ``agent``.

    Args:
        agent: Who callers talk to.
        options: Limits, keys and addresses; ``None``: the defaults.
        warm_up: Loads the engines, such as ``stages.presets.warm_up``; until it is done ``/readyz`` says 503 and
            clients wait a while. ``None``: the engines load with their first use.
        agent_for_call: Chooses another agent for a telephone call, by its parameters; ``None``: ``agent`` takes all.
        seat: This process is one of several workers; ``None``: it is the only one.
    """
    return Server(agent, options, warm_up, agent_for_call, seat)


class Server:
    """An ASGI app for one event loop. Installs no signal handlers and leaves logging alone.

    Attributes:
        host: The conversations.
        access: Keys and origins.
    """

    def __init__(
        self,
        agent: Agent,
        options: ServerOptions | None = None,
        warm_up: WarmUp | None = None,
        agent_for_call: AgentFor | None = None,
        seat: Seat | None = None,
    ) -> None:
        self._agent_for_call, self._seat = agent_for_call, seat
        self.options = options or ServerOptions()
        self.host = Host(agent, self.options)
        self.access = Access(self.options, seat)
        self._warm_up = warm_up
        self._loading: asyncio.Task[VoiceError | None] | None = None
        self._failed_at = 0.0
        self._waiting = 0  # clients that wait for the engines
        worker = None if seat is None else seat.number
        self._realtime_http = RealtimeHttp(self.host, self.access, self._ready, worker)
        self._connections = Connections(self.host, self._realtime_http.calls, worker)
        self._asgi = Starlette(
            routes=self._routes(),
            exception_handlers={
                VoiceError: self._refuse,
                HTTPException: self._refuse_http,
                Exception: self._fail,
            },
            lifespan=self._lifespan,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            self._begin()
        if scope["type"] == "websocket":
            receive, send = limited(receive, send, self.options.max_message_bytes)
        await self._asgi(scope, receive, send)

    # ------------------------------------------------------------ life

    async def startup(self) -> None:
        """Load the engines; returns when conversations can begin. Later calls wait for the same.

        Raises:
            VoiceError: The engines can't be loaded. The next call tries again after ``RELOAD_S``.
        """
        error = await asyncio.shield(self._begin())
        if error is not None:
            raise error

    async def drain(self) -> None:
        """Refuse new conversations and let those under way finish their sentences; see :meth:`Host.drain`."""
        log.info("draining", extra={"sessions": self.host.sessions})
        await self.host.drain()

    async def shutdown(self) -> None:
        """End everything now. After :meth:`drain` there is nothing left to end."""
        if self._loading is not None and not self._loading.done():
            self._loading.cancel()
        await self.host.close()
        await asyncio.gather(self._connections.close(), self._realtime_http.calls.close())

    @property
    def state(self) -> State:
        """Whether conversations can begin, and if not, why."""
        if self.host.draining:
            return "draining"
        if self._loading is None or not self._loading.done():
            return "loading"
        return "failed" if self._loading.cancelled() or self._loading.result() is not None else "ready"

    @property
    def calls(self) -> int:
        """WebRTC calls under way: conversations that have no connection of their own."""
        return len(self._realtime_http.calls)

    def _begin(self) -> asyncio.Task[VoiceError | None]:
        """The loading of the engines, begun now if it was not."""
        loop = asyncio.get_running_loop()
        if self._loading is None or (self.state == "failed" and loop.time() >= self._failed_at + RELOAD_S):
            self._loading = loop.create_task(self._load(), name="voice server start")
        return self._loading

    async def _load(self) -> VoiceError | None:
        if self._warm_up is None:
            return None
        try:
            await self._warm_up(self.host.agent.stages)
        except VoiceError as error:
            failure = error
        except Exception as error:  # the owner's function may raise anything
            log.error("the engines could not be loaded", exc_info=error)
            failure = EngineFailed(f"the engines could not be loaded: {error}")
        else:
            return None
        log.error("not ready: %s", failure)
        self._failed_at = asyncio.get_running_loop().time()
        return failure

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        await self.startup()
        try:
            yield
        finally:
            await self.shutdown()

    async def _ready(self) -> None:
        """Wait until conversations can begin.

        Raises:
            Refused: They can't: 503.
        """
        if self.state == "ready":
            return
        wait = {"Retry-After": f"{RETRY_S:g}"}
        if self.state == "draining":
            self.host.metrics.refuse("draining")
            raise Refused(503, "draining", "the server is about to stop; connect again", headers=wait)
        if self._waiting >= self.options.max_sessions:
            self.host.metrics.refuse("loading")
            raise Refused(503, "loading", "the server loads its engines, and many wait for it", headers=wait)
        self._waiting += 1
        try:
            async with asyncio.timeout(LOAD_WAIT_S):
                await self.startup()
        except TimeoutError:
            self.host.metrics.refuse("loading")
            raise Refused(503, "loading", "the server is still loading its engines", headers=wait) from None
        except VoiceError:
            self.host.metrics.refuse("loading")
            raise Refused(
                503, "unavailable", "the server's engines could not be loaded", headers=wait
            ) from None
        finally:
            self._waiting -= 1

    # ------------------------------------------------------------ routes

    def _routes(self) -> list[BaseRoute]:
        routes: list[BaseRoute] = [
            Route("/healthz", self._health),
            Route("/readyz", self._readiness),
            Route("/metrics", self._metrics),
            WebSocketRoute("/v1/realtime", self._realtime),
            WebSocketRoute("/openai/v1/realtime", self._realtime),
            *self._realtime_http.routes(),
            WebSocketRoute("/twilio", self._twilio),
            Route("/twilio/voice", self._twilio_voice, methods=["GET", "POST"]),
            WebSocketRoute("/{path:path}", self._nowhere),
        ]
        return [*routes, *Site().routes()] if self.options.page else routes

    async def _health(self, _: Request) -> Response:
        return json_response({"status": "ok"})

    async def _readiness(self, _: Request) -> Response:
        return json_response({"status": self.state}, 200 if self.state == "ready" else 503)

    async def _metrics(self, _: Request) -> Response:
        text = self.host.render_metrics(self.state)
        if self._seat is not None:
            text = await self._seat.all_metrics(text)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _realtime(self, websocket: WebSocket) -> None:
        grant: Grant | None = None
        resuming = websocket.query_params.get("resume", "0") not in ("0", "1")
        try:
            offered = websocket.scope.get("subprotocols", ())
            shown = self.access.check(
                websocket.headers, offered, remote_address(websocket), resuming=resuming
            )
            grant = await self.access.claim(shown)
            await self._ready()
            await self._connections.serve(websocket, grant)
        except VoiceError as error:
            if grant is not None and websocket.application_state is WebSocketState.CONNECTING:
                self.access.give_back(grant)
            await self._deny(websocket, error)

    async def _twilio(self, websocket: WebSocket) -> None:
        try:
            self.access.check_origin(websocket.headers)
            await self._ready()
            await serve_twilio(websocket, self.host, agent_for=self._agent_for_call)
        except VoiceError as error:
            await self._deny(websocket, error)

    async def _twilio_voice(self, request: Request) -> Response:
        self.access.check_origin(request.headers)
        return await voice_twiml(bounded(request), self.options)

    async def _nowhere(self, websocket: WebSocket) -> None:
        await self._deny(
            websocket, Refused(404, "not_found", f"there is nothing at {websocket.url.path[:200]}")
        )

    # ------------------------------------------------------------ refusals

    async def _deny(self, websocket: WebSocket, error: Exception) -> None:
        """Refuse a WebSocket: with an HTTP answer where that can still be given, else with an event and a close."""
        refused = refusal(error)
        self._count(refused, error)
        if websocket.application_state is WebSocketState.CONNECTING:
            if "websocket.http.response" in websocket.scope.get("extensions", {}):
                await websocket.send_denial_response(error_response(refused))
                return
            offered = websocket.scope.get("subprotocols", ())
            await websocket.accept("realtime" if "realtime" in offered else None)
        if websocket.application_state is not WebSocketState.CONNECTED:
            return
        event = {"type": "error", "event_id": f"event_{uuid.uuid4().hex[:20]}", "error": refused.error}
        await websocket.send_text(json.dumps(event))
        await websocket.close(TRY_AGAIN_LATER if refused.status == 503 else POLICY_VIOLATION)

    async def _refuse(self, _: Request, error: Exception) -> Response:
        refused = refusal(error)
        self._count(refused, error)
        return error_response(refused)

    async def _refuse_http(self, _: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        return error_response(Refused(error.status_code, code, error.detail, headers=error.headers))

    async def _fail(self, _: Request, error: Exception) -> Response:
        return error_response(refusal(error))  # Starlette raises it again for the server's log

    def _count(self, refused: Refused, error: Exception) -> None:
        """Overload is counted where it arises; here the rest."""
        if refused.status == 500:
            log.error("a request failed", exc_info=error)
        if refused.status < 500 and refused.status != 404:
            names = {401: "unauthorised", 403: "forbidden", 413: "too_large"}
            self.host.metrics.refuse(names.get(refused.status, "bad_request"))
        log.debug(
            "refused", extra={"status": refused.status, "code": refused.code, "why": type(error).__name__}
        )


def limited(receive: Receive, send: Send, longest: int) -> tuple[Receive, Send]:
    """The same WebSocket; a longer message closes it (1009), and nothing is sent from then on.

    The server below has a limit of its own, but a mounted app can't know which.
    """
    closed = False

    async def receive_limited() -> Message:
        nonlocal closed
        message = await receive()
        if len(message.get("text") or message.get("bytes") or b"") <= longest:
            return message
        closed = True
        reason = f"a message has at most {longest} bytes"
        await send({"type": "websocket.close", "code": MESSAGE_TOO_BIG, "reason": reason})
        return {"type": "websocket.disconnect", "code": MESSAGE_TOO_BIG, "reason": reason}

    async def send_open(message: Message) -> None:
        if not closed:
            await send(message)

    return receive_limited, send_open
