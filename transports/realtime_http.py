"""How does a client ask over HTTP for a WebRTC call or a client secret? The Realtime API beside its WebSocket.

``POST /v1/realtime/calls`` (an SDP offer, alone or with session settings), ``POST /v1/realtime/calls/{id}/hangup``
and ``POST /v1/realtime/client_secrets``. Errors are as in the OpenAI API: ``{"error": {type, code, message, param}}``.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from starlette.datastructures import UploadFile
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive

from transports.access import Access
from transports.hosting import Host
from transports.realtime.config import SessionConfig
from transports.refusal import Refused, json_response
from transports.webrtc import Calls
from voice.errors import Overloaded

MAX_BODY_BYTES = 2**20
"""Longest body of a request: an offer has a few kB, session settings seldom more than 100."""

BODY_S = 10.0
"""A body must have arrived this long after its request."""


class RealtimeHttp:
    """The routes, for one server.

    Args:
        host: Where conversations are held.
        access: Who may come in.
        ready: Waits until conversations can begin; raises :class:`Refused` if that takes too long.
        worker: The number of this process, if it is one of several.
    """

    def __init__(
        self, host: Host, access: Access, ready: Callable[[], Awaitable[None]], worker: int | None = None
    ) -> None:
        self.host, self.access, self._ready = host, access, ready
        self.calls = Calls(host, worker)

    def routes(self) -> list[Route]:
        """The routes, answering pages of allowed origins, too (CORS)."""
        cors = Middleware(
            CORSMiddleware,
            allow_origins=self.host.options.allowed_origins,
            allow_methods=["POST"],
            allow_headers=["*"],
            expose_headers=["Location"],
            max_age=600,
        )
        ice = Route("/v1/realtime/ice_servers", self._ice_servers)
        return [ice] + [
            Route(f"{base}{path}", endpoint, methods=["POST", "OPTIONS"], middleware=[cors])
            for base in ("/v1/realtime", "/openai/v1/realtime")
            for path, endpoint in (
                ("", self._beta),  # the beta's WebRTC offer
                ("/sessions", self._beta),
                ("/calls", self._call),
                ("/calls/{call_id}/hangup", self._hang_up),
                ("/client_secrets", self._client_secret),
            )
        ]

    async def _ice_servers(self, request: Request) -> Response:
        """For our own page: how its browser finds a path to us."""
        self.access.check_token(request.headers, remote_address(request))
        servers = [
            {"urls": list(s.urls), "username": s.username, "credential": s.credential}
            for s in self.host.options.ice_servers
        ]
        shown = [{key: value for key, value in server.items() if value is not None} for server in servers]
        return json_response({"ice_servers": shown})

    async def _call(self, request: Request) -> Response:
        """An SDP offer becomes a call: 201 with the answer, and its address in ``Location``."""
        _only_post(request)
        grant = await self.access.claim(self.access.check(request.headers, (), remote_address(request)))
        try:
            await self._ready()
            sdp, config = await _offer(bounded(request))
            call_id, answer = await self.calls.offer(
                sdp,
                grant,
                client=grant.client,
                model=request.query_params.get("model"),
                config=config,
                extensions=request.query_params.get("extensions") == "1",
            )
        except (Overloaded, Refused):
            self.access.give_back(grant)
            raise
        base = f"{request.scope.get('root_path', '')}/v1/realtime/calls"
        headers = {"Location": f"{base}/{call_id}"}
        return Response(answer, 201, headers, media_type="application/sdp")

    async def _hang_up(self, request: Request) -> Response:
        _only_post(request)
        self.access.check_token(request.headers, remote_address(request))
        if not self.calls.hang_up(request.path_params["call_id"]):
            raise Refused(404, "call_not_found", "there is no such call, or it is over")
        return Response(status_code=200)

    async def _client_secret(self, request: Request) -> Response:
        """A key for one conversation, with the session settings bound to it."""
        _only_post(request)
        client = self.access.check_token(request.headers, remote_address(request))
        body = _json_object(await bounded(request).body(), "the body")
        patch = body.get("session", {})
        if not isinstance(patch, dict):
            raise Refused(400, "invalid_type", "session must be an object", param="session")
        patch = {"type": "realtime", **patch}
        life_s = _life_s(body.get("expires_after"))
        # read once here, so that what can't be used is refused now and not when the conversation begins
        agent, session_id = self.host.agent, f"sess_{secrets.token_hex(16)}"
        model = agent.stages.model.name
        shown = SessionConfig.of(agent, session_id=session_id, model=model, expires_at=0)
        shown = shown.updated(patch, first=True)
        value, expires_at = self.access.make_secret(client, patch, life_s, locked=body.get("locked") is True)
        await self.access.keep_secret(value)
        session = replace(shown, expires_at=expires_at).wire()
        return json_response(
            {"value": value, "expires_at": expires_at, "session": session},
            headers={"Cache-Control": "no-store"},
        )

    async def _beta(self, request: Request) -> Response:
        _only_post(request)
        self.access.check_origin(request.headers)
        raise Refused(
            400,
            "beta_api_shape_disabled",
            "the beta of the Realtime API is not served: send offers to /v1/realtime/calls and get keys from "
            "/v1/realtime/client_secrets",
        )


# ---------------------------------------------------------------- requests and answers


def remote_address(connection: HTTPConnection) -> str | None:
    """The address of the client, or of the last proxy that is not trusted."""
    return connection.client.host if connection.client else None


def bounded(request: Request) -> Request:
    """The same request; reading more than ``MAX_BODY_BYTES`` of it, or for longer than ``BODY_S``, is refused."""
    return Request(request.scope, _bounded(request.receive, MAX_BODY_BYTES, BODY_S))


def _bounded(receive: Receive, limit: int, within_s: float) -> Receive:
    ends_at = asyncio.get_running_loop().time() + within_s
    size = 0

    async def read() -> Message:
        nonlocal size
        try:
            async with asyncio.timeout_at(ends_at):
                message = await receive()
        except TimeoutError:
            raise Refused(408, "timeout", f"the body did not arrive within {within_s:g} s") from None
        if message["type"] == "http.disconnect":
            raise Refused(400, "disconnected", "the body did not arrive in full")
        size += len(message.get("body", b""))
        if size > limit:
            raise Refused(413, "request_too_large", f"a body has at most {limit} bytes")
        return message

    return read


def _only_post(request: Request) -> None:
    if request.method != "POST":  # OPTIONS that is no preflight
        raise Refused(405, None, "use POST", headers={"Allow": "POST"})


async def _offer(request: Request) -> tuple[str, Mapping[str, object] | None]:
    """The SDP and, if they came along, the session settings."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/sdp":
        return _text(await request.body(), "the offer"), None
    if kind != "multipart/form-data":
        raise Refused(
            415,
            "unsupported_content_type",
            "send the offer as application/sdp, or as multipart/form-data with the parts sdp and session",
        )
    async with request.form(max_files=4, max_fields=4, max_part_size=MAX_BODY_BYTES) as form:
        sdp, session = [await _part(form.get(name)) for name in ("sdp", "session")]
    if sdp is None:
        raise Refused(400, "missing_required_parameter", "the part sdp is missing", param="sdp")
    return _text(sdp, "the offer"), None if session is None else _json_object(session, "session")


async def _part(value: str | UploadFile | None) -> bytes | None:
    if isinstance(value, UploadFile):
        return await value.read()
    return None if value is None else value.encode()


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Refused(400, "invalid_value", f"{what} is not UTF-8 text") from None


def _json_object(data: bytes, what: str) -> dict[str, object]:
    if not data.strip():
        return {}
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise Refused(400, "invalid_json", f"{what} is not JSON") from None
    if not isinstance(found, dict):
        raise Refused(400, "invalid_type", f"{what} must be a JSON object")
    return found


def _life_s(expires_after: object) -> float | None:
    if expires_after is None:
        return None
    name = "expires_after"
    if not isinstance(expires_after, dict):
        raise Refused(400, "invalid_type", f"{name} must be an object", param=name)
    if expires_after.get("anchor", "created_at") != "created_at":
        raise Refused(400, "invalid_value", "the anchor must be created_at", param=f"{name}.anchor")
    seconds = expires_after.get("seconds")
    if seconds is not None and (not isinstance(seconds, int | float) or isinstance(seconds, bool)):
        raise Refused(400, "invalid_type", "seconds must be a number", param=f"{name}.seconds")
    return seconds
