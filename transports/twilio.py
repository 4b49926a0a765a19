"""Telephone calls through Twilio Media Streams: the WebSocket that carries the sound, and the TwiML that connects it.

The protocol is :class:`transports.telephony.call.TwilioCall`; here are its socket, its clock and its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import quoteattr

from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from transports.hosting import Host, Slot
from transports.options import ServerOptions
from transports.outgoing import Outgoing
from transports.telephony import messages
from transports.telephony.call import RATE_HZ, START_S, TwilioCall
from transports.telephony.messages import Connected, Start, StreamError, Unknown
from transports.telephony.signature import Parameters, is_signed
from voice.agent import Agent
from voice.audio import AudioFormat
from voice.errors import Overloaded, ProtocolError, VoiceError
from voice.events import SessionEnded, SessionEvent
from voice.session import Session

log = logging.getLogger("voice.server")

_CHECK_S = 1.0
_CLOSE_S = 2.0
"""How long a peer may take to close its side."""
_AT_ONCE = 64
"""Messages read before others on the event loop get their turn."""
_FORM_BYTES = 64 * 1024
_PARAMETER_CHARS = 500
"""What Twilio takes as name and value of a ``<Parameter>``."""

_CODES = {"draining": 1001, "events_overflow": 1011, "failed": 1011, "slow_client": 1008}

AgentFor = Callable[[Start], Agent]
"""Who answers a call: gets its sids and parameters; called on the event loop, must be quick."""


async def serve_twilio(websocket: WebSocket, host: Host, *, agent_for: AgentFor | None = None) -> None:
    """One call, from the WebSocket's upgrade to its end.

    Who may call: with ``twilio_auth_token``, requests that it signed. Without, anyone but web pages; and nobody if
    clients need tokens, which a telephone can't show. Refusals are HTTP 403 before the socket opens; a full server
    closes it with 1013, a peer that breaks the protocol with what the error says (1002, 1003, 1008, 1009).

    Args:
        websocket: Not accepted yet.
        host: Admits the call and gives the agent.
        agent_for: Chooses another agent by the call's parameters (the caller's number, say); ``None``: the host's.
    """
    refusal = _refusal(websocket, host.options)
    if refusal is not None:
        log.warning("a telephone stream was refused: %s", refusal)
        await websocket.close()
        return
    await websocket.accept()
    code, reason = 1011, "internal error"
    try:
        code, reason = await _converse(websocket, host, agent_for)
    except WebSocketDisconnect:
        return
    except Overloaded as error:
        code, reason = 1013, str(error)
    except StreamError as error:
        log.warning("a telephone stream was closed: %s", error)
        code, reason = error.code, str(error)
    except VoiceError as error:
        log.warning("a telephone call could not be taken: %s", error)
        code, reason = 1011, "the call could not be taken"
    finally:
        await _close(websocket, code, reason)


async def _converse(websocket: WebSocket, host: Host, agent_for: AgentFor | None) -> tuple[int, str]:
    """The call once its socket is open. Returns the close code and reason."""
    try:
        async with asyncio.timeout(min(START_S, host.options.first_message_s)):
            start = await _read_start(websocket)
    except TimeoutError:
        raise StreamError("no start came: who calls?", 1008) from None
    remote = websocket.client.host if websocket.client else "unknown"
    loop = asyncio.get_running_loop()
    call = TwilioCall(start, loop.time())
    ended: asyncio.Future[str] = loop.create_future()

    def end(reason: str) -> None:
        if not ended.done():
            ended.set_result(reason)

    def on_event(event: SessionEvent) -> None:
        host.observe(event)
        call.on_event(event)
        if isinstance(event, SessionEnded):
            end(event.reason)

    # calls count one by one where they are certainly Twilio's; else the caller could invent as many as fit
    signed = host.options.twilio_auth_token is not None
    client = f"twilio:{start.call_sid}" if signed else f"address {remote}"
    with await host.enter(client, "twilio") as slot:
        session = Session(
            host.agent if agent_for is None else agent_for(start),
            call,
            audio_format=AudioFormat("pcm16", RATE_HZ),
            session_id=slot.id,
            on_event=on_event,
            scope=host.scope,
            executor=host.executor,
        )
        log.info("telephone call", extra={"session": slot.id, "call": start.call_sid})
        reason = "failed"
        try:
            await session.start()
            call.attach(session)
            slot.bind(session, end)
            reason = await _run(websocket, call, slot, ended)
        except StreamError as error:
            reason = error.reason
            raise
        except asyncio.CancelledError:
            reason = "closed"
            raise
        finally:
            call.outgoing.close()
            await session.close(reason)
            counted = {name: getattr(call.counters, name) for name in call.counters.__slots__}
            log.info("telephone call ended", extra={"session": slot.id, "reason": session.ended, **counted})
    return _CODES.get(reason, 1000), reason


async def _read_start(websocket: WebSocket) -> Start:
    for _ in range(16):
        try:
            message = messages.parse(await _receive(websocket))
        except StreamError:
            raise
        except ProtocolError as error:
            raise StreamError(str(error)) from error
        match message:
            case Start():
                return message
            case Connected() | Unknown():
                pass
            case _:
                raise StreamError(f"{type(message).__name__.lower()} came before start")
    raise StreamError("no start among the first messages")


async def _run(websocket: WebSocket, call: TwilioCall, slot: Slot, ended: asyncio.Future[str]) -> str:
    """Read and write until one side has enough. Returns why."""
    reading = asyncio.ensure_future(_read(websocket, call, slot))
    writing = asyncio.ensure_future(_write(websocket, call.outgoing))
    either: set[asyncio.Future[Any]] = {reading, writing, ended}
    try:
        while not ended.done():
            await asyncio.wait(either, timeout=_CHECK_S, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                return reading.result()
            if writing.done() and not ended.done():
                writing.result()
                return "disconnected"
            call.check(asyncio.get_running_loop().time())
        return ended.result()
    finally:
        for task in (reading, writing):
            task.cancel()
        await asyncio.wait({reading, writing}, timeout=_CLOSE_S)
        for task in (reading, writing):
            if task.done() and not task.cancelled():
                task.exception()  # seen: it was raised above, or came after the end


async def _read(websocket: WebSocket, call: TwilioCall, slot: Slot) -> str:
    now = asyncio.get_running_loop().time
    count = 0
    try:
        while not call.stopped:
            text = await _receive(websocket)
            slot.touch()
            call.receive(text, now())
            count += 1
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)
    except WebSocketDisconnect:
        return "disconnected"
    return "hung_up"


async def _write(websocket: WebSocket, outgoing: Outgoing) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # gone, or closing: the reader says so too
        await outgoing.write(websocket.send_text)


async def _receive(websocket: WebSocket) -> str | bytes:
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1006))
    text: str | None = message.get("text")
    data: bytes = message.get("bytes") or b""
    return data if text is None else text


async def _close(websocket: WebSocket, code: int, reason: str) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError, TimeoutError):
        async with asyncio.timeout(_CLOSE_S):
            await websocket.close(code, reason.encode()[:120].decode("utf-8", "ignore"))


# ---------------------------------------------------------------- who may call


def _refusal(
    connection: HTTPConnection, options: ServerOptions, form: Parameters | None = None
) -> str | None:
    """Why a request is not Twilio's; ``None`` if it may come in."""
    if options.twilio_auth_token is None:
        if options.tokens:
            return "tokens are needed here, and a telephone has none: set twilio_auth_token"
        return "it comes from a web page" if "origin" in connection.headers else None
    url = f"{_base(connection, options)}{_path(connection)}"
    if connection.url.query:
        url += f"?{connection.url.query}"
    given = connection.headers.get("x-twilio-signature", "")
    if is_signed(options.twilio_auth_token, given, url, form):
        return None
    return f"X-Twilio-Signature is {'missing' if not given else f'not that of {url}: see public_url'}"


def _base(connection: HTTPConnection, options: ServerOptions) -> str:
    """Where this app is as Twilio sees it, without the last slash."""
    scheme = "wss" if connection.scope["type"] == "websocket" else "https"
    if options.public_url is not None:
        given = options.public_url.rstrip("/")
        return given if scheme == "https" else "ws" + given.removeprefix("http")
    return f"{scheme}://{connection.headers.get('host', '')}{connection.scope.get('root_path', '')}"


def _path(connection: HTTPConnection) -> str:
    """The path within this app."""
    path: str = connection.scope["path"]
    return path.removeprefix(connection.scope.get("root_path", ""))


async def voice_twiml(request: Request, options: ServerOptions) -> Response:
    """The answer to Twilio's voice webhook (GET or POST ``…/voice``): connect the call to the stream at ``…``.

    The stream's address is made from ``public_url``, or else from the request's own ``Host``. The numbers of caller
    and callee go along as parameters ``From`` and ``To``.
    """
    form: Parameters | None = None
    if request.method == "POST":
        try:
            form = await _form(request)
        except ProtocolError as error:
            return PlainTextResponse(str(error), 413)
    refusal = _refusal(request, options, form)
    if refusal is not None:
        log.warning("a voice webhook was refused: %s", refusal)
        return PlainTextResponse("not signed by Twilio for this server", 403)
    base = _base(request, options)
    url = f"ws{base.removeprefix('http')}{_path(request).removesuffix('/voice')}"
    said = form if form is not None else parse_qs(request.url.query)
    lines = [
        f"<Parameter name={quoteattr(name)} value={quoteattr(said[name][0])}/>"
        for name in ("From", "To")
        if name in said and len(name) + len(said[name][0]) < _PARAMETER_CHARS
    ]
    return Response(
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Response><Connect><Stream url={quoteattr(url)}>{''.join(lines)}</Stream></Connect></Response>\n",
        media_type="text/xml",
    )


async def _form(request: Request) -> Parameters:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _FORM_BYTES:
            raise ProtocolError(f"a form has at most {_FORM_BYTES} bytes")
    try:
        return parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=200)
    except ValueError as error:
        raise ProtocolError(str(error)) from error
