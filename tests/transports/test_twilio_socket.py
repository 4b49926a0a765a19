"""Telephone calls over real sockets: the server, a scripted carrier, and requests that are not the carrier's."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from talk import ONE_TO_FORTY
from talk import make_agent as an_agent
from twilio_peer import ACCOUNT, CALL, RATE_HZ, STREAM, TwilioPeer
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect as connect_blocking

from transports.hosting import Host
from transports.options import ServerOptions
from transports.server import Server, app
from transports.serving import listen, running
from transports.telephony.messages import Start
from transports.telephony.signature import is_signed, sign
from transports.twilio import serve_twilio
from voice.agent import Agent
from voice.options import TurnOptions
from voice.session import Session
from voice.testing import ToneSynthesiser, speak, words_heard

TOKEN = "12345"


def make_agent(replies: Sequence[str] = ("Okay.",), **agent: Any) -> Agent:
    """An agent of fakes whose voice is the same in all sessions."""
    return an_agent(replies, synthesiser=ToneSynthesiser(session_number=lambda _: 0), **agent)


@asynccontextmanager
async def serving(served: Server) -> AsyncIterator[str]:
    """The server at a free port of this machine; yields ``127.0.0.1:PORT``."""
    sockets = listen("127.0.0.1", 0)
    async with running(served, sockets):
        yield f"127.0.0.1:{sockets[0].getsockname()[1]}"


def over_sockets(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(40):
            await main()

    asyncio.run(limited())


async def fetch(url: str, data: bytes | None = None, **headers: str) -> tuple[int, str]:
    def get() -> tuple[int, str]:
        request = urllib.request.Request(url, data, {k.replace("_", "-"): v for k, v in headers.items()})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.to_thread(get)


@asynccontextmanager
async def dialled(url: str, peer: TwilioPeer, **headers: str) -> AsyncIterator[ClientConnection]:
    """The carrier's socket, with its first two messages sent and what the server sends taken."""
    async with connect(url, additional_headers=headers) as socket:

        async def take() -> None:
            async for text in socket:
                assert isinstance(text, str)
                peer.take(text)

        for text in peer.opening():
            await socket.send(text)
        taking = asyncio.create_task(take())
        try:
            yield socket
        finally:
            await socket.close()
            await asyncio.gather(taking, return_exceptions=True)


async def until(happened: Callable[[], bool]) -> None:
    while not happened():  # noqa: ASYNC110 -- what is waited for belongs to the server
        await asyncio.sleep(0.01)


async def talk_until(peer: TwilioPeer, socket: ClientConnection, happened: Callable[[], bool]) -> None:
    """The call goes on until something has happened; how fast this machine is does not matter."""
    while not happened():
        await peer.run(0.2, socket.send)


def only_session(served: Server) -> Session:
    (slot,) = served.host._slots.values()
    assert slot.session is not None
    return slot.session


def words(peer: TwilioPeer) -> list[int]:
    return [run.words for run in words_heard(peer.heard, RATE_HZ)]


# ---------------------------------------------------------------- a call


def test_a_call_is_answered_interrupted_takes_keys_and_is_hung_up() -> None:
    async def main() -> None:
        # the scripted detector takes any loud window for speech, and 12 ms of a key's tone pass before it is known
        patient = TurnOptions(start_s=0.12)
        served = app(make_agent([ONE_TO_FORTY, "One moment please.", "Got it."], turns=patient))
        async with serving(served) as host:
            peer = TwilioPeer({"From": "+15551234"})
            peer.say(speak(0.5, rate=RATE_HZ), 0.2)
            async with dialled(f"ws://{host}/twilio", peer) as socket:
                await talk_until(peer, socket, lambda: words(peer) > [4])
                assert not peer.cleared_s
                session = only_session(served)
                entries = session.chat.entries
                peer.say(speak(0.8, rate=RATE_HZ), peer.now_s + 0.1)
                await talk_until(
                    peer, socket, lambda: getattr(entries[-1], "heard", "") == "One moment please."
                )
                assert len(peer.cleared_s) == 1
                assert abs(len(entries[1].heard.split()) - words(peer)[0]) <= 1
                peer.press("12#", peer.now_s + 0.6, every_s=0.2, in_band=True)
                await talk_until(peer, socket, lambda: getattr(entries[-1], "heard", "") == "Got it.")
                await peer.run(0.5, socket.send)
                texts = [getattr(entry, "text", None) or getattr(entry, "heard", "") for entry in entries]
                assert texts[2:] == ["And one more?", "One moment please.", "[keys pressed: 12]", "Got it."]
                assert sum(words(peer)[1:]) == 5
                await socket.send(peer.stop())
                await socket.wait_closed()
                assert socket.close_code == 1000
            assert all(size % 160 == 0 for size in peer.sizes)
            await until(lambda: served.host.sessions == 0)
            assert session.ended == "hung_up"

    over_sockets(main)


def test_every_way_a_call_can_end_ends_its_session_and_frees_its_place() -> None:
    async def main() -> None:
        served = app(make_agent())
        async with serving(served) as host:

            async def ended(act: Callable[[ClientConnection, Session], Any]) -> tuple[str | None, int | None]:
                peer = TwilioPeer()
                async with dialled(f"ws://{host}/twilio", peer) as socket:
                    await until(lambda: served.host.sessions == 1 and bool(peer.opening()))
                    await until(lambda: next(iter(served.host._slots.values())).session is not None)
                    session = only_session(served)
                    await peer.run(0.2, socket.send)
                    result = act(socket, session)
                    if asyncio.iscoroutine(result):
                        await result
                    await socket.wait_closed()
                    await until(lambda: served.host.sessions == 0)
                    return session.ended, socket.close_code

            def cut(socket: ClientConnection, _: Session) -> None:
                socket.transport.abort()

            assert await ended(lambda socket, _: socket.send(TwilioPeer().stop())) == ("hung_up", 1000)
            assert await ended(lambda socket, _: socket.close()) == ("disconnected", 1000)
            assert (await ended(cut))[0] == "disconnected"
            assert await ended(lambda _, session: session.hang_up()) == ("closed", 1000)
            assert await ended(lambda socket, _: socket.send(TwilioPeer().opening()[1])) == (
                "protocol_error",
                1002,
            )
            assert await ended(lambda socket, _: socket.send("x" * 70_000)) == ("protocol_error", 1009)
            assert await ended(lambda _, __: served.drain()) == ("draining", 1001)

    over_sockets(main)


@pytest.mark.parametrize(
    ("texts", "code", "says"),
    [
        ([TwilioPeer().stop()], 1002, "stop came before start"),
        (['{"event":"media","media":{"payload":"////"}}'], 1002, "media came before start"),
        (["not json"], 1002, "can't be read"),
        ([b"\0\1"], 1002, "binary"),
        (['{"event":"x"}'] * 16, 1002, "no start among"),
        (["y" * 70_000], 1009, "70000 bytes"),
        ([], 1008, "no start came"),
    ],
)
def test_a_stream_that_does_not_begin_as_it_should_is_closed_in_words(
    texts: list[str | bytes], code: int, says: str
) -> None:
    async def main() -> None:
        served = app(make_agent(), options=ServerOptions(first_message_s=0.3))
        async with serving(served) as host, connect(f"ws://{host}/twilio") as socket:
            for text in texts:
                await socket.send(text)
            with pytest.raises(ConnectionClosed):
                await socket.recv()
            assert socket.close_code == code
            assert says in (socket.close_reason or "")
            assert served.host.sessions == 0

    over_sockets(main)


def test_a_full_server_says_try_again_later_and_calls_under_way_go_on() -> None:
    async def main() -> None:
        served = app(make_agent(), options=ServerOptions(max_sessions=1))
        async with serving(served) as host, dialled(f"ws://{host}/twilio", TwilioPeer()) as first:
            await until(lambda: served.host.sessions == 1)
            async with dialled(f"ws://{host}/twilio", TwilioPeer()) as second:
                await second.wait_closed()
                assert second.close_code == 1013 and "full" in (second.close_reason or "")
            await first.ping()
            assert only_session(served).ended is None

    over_sockets(main)


def pour(url: str) -> int | None:
    """Send what no caller can say, until the server has enough; its close code. Blocks."""
    with connect_blocking(url) as flood:
        for text in TwilioPeer().opening():
            flood.send(text)
        try:
            for _ in range(200_000):
                flood.send('{"event":"media","media":{"payload":"////"}}')
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd is not None else None
    return None


def test_others_notice_nothing_of_a_flood() -> None:
    async def main() -> None:
        served = app(make_agent(["One two three."]))
        async with serving(served) as host:
            peer = TwilioPeer()
            peer.say(speak(0.5, rate=RATE_HZ), 0.2)
            async with dialled(f"ws://{host}/twilio", peer) as socket:
                flood = asyncio.to_thread(pour, f"ws://{host}/twilio")
                _, code = await asyncio.gather(talk_until(peer, socket, lambda: words(peer) == [3]), flood)
                assert code == 1008
                assert only_session(served).ended is None

    over_sockets(main)


# ---------------------------------------------------------------- who may call


def test_signatures_are_those_of_twilios_documentation() -> None:
    form = {
        "CallSid": ["CA1234567890ABCDE"],
        "Caller": ["+14158675309"],
        "Digits": ["1234"],
        "From": ["+14158675309"],
        "To": ["+18005551212"],
    }
    url = "https://mycompany.com/myapp.php?foo=1&bar=2"
    signature = "RSOYDt4T1cUTdK1PDd93/VVr8B8="
    assert sign(TOKEN, url, form) == signature
    assert is_signed(TOKEN, signature, url, form)
    assert not is_signed(TOKEN, signature, url, {**form, "Digits": ["1235"]})
    assert not is_signed(TOKEN, signature, url.replace("mycompany", "yourcompany"), form)
    assert not is_signed("12346", signature, url, form)
    for wrong in ("", "é", signature.lower()):
        assert not is_signed(TOKEN, wrong, url, form)


@pytest.mark.parametrize(
    ("signed", "seen", "same"),
    [
        ("wss://a.example/twilio", "wss://a.example/twilio", True),
        ("https://a.example/twilio", "wss://a.example/twilio", True),
        ("wss://a.example/twilio/", "wss://a.example/twilio", True),
        ("wss://a.example:443/twilio", "wss://a.example/twilio", True),
        ("wss://a.example/twilio", "wss://a.example:443/twilio", True),
        ("wss://a.example:8443/twilio", "wss://a.example:8443/twilio", True),
        ("https://a.example/twilio/voice", "http://a.example/twilio/voice", True),
        ("wss://a.example:8443/twilio", "wss://a.example/twilio", False),
        ("wss://b.example/twilio", "wss://a.example/twilio", False),
        ("wss://a.example/other", "wss://a.example/twilio", False),
    ],
)
def test_an_address_may_be_written_in_more_than_one_way(signed: str, seen: str, same: bool) -> None:
    assert is_signed(TOKEN, sign(TOKEN, signed), seen) is same


def test_with_an_auth_token_only_what_twilio_signed_gets_in() -> None:
    async def main() -> None:
        options = ServerOptions(twilio_auth_token=TOKEN, public_url="https://voice.example.org/base")
        served = app(make_agent(), options=options)
        public = "voice.example.org/base"
        async with serving(served) as host:
            for signature in (None, "", "x", sign("other", f"wss://{public}/twilio")):
                headers = {} if signature is None else {"X-Twilio-Signature": signature}
                with pytest.raises(InvalidStatus) as error:
                    await connect(f"ws://{host}/twilio", additional_headers=headers)
                assert error.value.response.status_code == 403
            good = {"X-Twilio-Signature": sign(TOKEN, f"wss://{public}/twilio")}
            async with dialled(f"ws://{host}/twilio", TwilioPeer(), **good):
                await until(lambda: served.host.sessions == 1)

            form = {"From": ["+15551234"], "To": ["+1800"], "CallSid": [CALL]}
            body = urlencode(form, doseq=True).encode()
            url = f"https://{public}/twilio/voice"
            assert (await fetch(f"http://{host}/twilio/voice", body))[0] == 403
            wrong = sign(TOKEN, url, {**form, "From": ["+1666"]})
            assert (await fetch(f"http://{host}/twilio/voice", body, X_Twilio_Signature=wrong))[0] == 403
            signature = sign(TOKEN, url, form)
            status, text = await fetch(f"http://{host}/twilio/voice", body, X_Twilio_Signature=signature)
            assert status == 200
            stream = ElementTree.fromstring(text).find("Connect/Stream")
            assert stream is not None and stream.get("url") == f"wss://{public}/twilio"
            said = {p.get("name"): p.get("value") for p in stream.findall("Parameter")}
            assert said == {"From": "+15551234", "To": "+1800"}

    over_sockets(main)


def test_a_server_that_needs_tokens_has_no_open_door_for_telephones_and_pages_never_do() -> None:
    async def main() -> None:
        async with serving(app(make_agent(), options=ServerOptions(tokens=("secret",)))) as host:
            with pytest.raises(InvalidStatus):
                await connect(f"ws://{host}/twilio")
            assert (await fetch(f"http://{host}/twilio/voice"))[0] == 403
        async with serving(app(make_agent())) as host:
            for origin in ("https://evil.example", f"http://{host}"):
                with pytest.raises(InvalidStatus):
                    await connect(f"ws://{host}/twilio", origin=origin)  # type: ignore[arg-type]

    over_sockets(main)


# ---------------------------------------------------------------- TwiML


def test_the_twiml_is_made_from_the_requests_own_host_and_escaped() -> None:
    async def main() -> None:
        async with serving(app(make_agent())) as host:
            query = urlencode({"From": '"><Hangup/>&', "To": "x" * 600})
            status, text = await fetch(f"http://{host}/twilio/voice?{query}", Host="a.example")
            assert status == 200
            root = ElementTree.fromstring(text)
            assert [element.tag for element in root.iter()] == ["Response", "Connect", "Stream", "Parameter"]
            stream = root.find("Connect/Stream")
            assert stream is not None and stream.get("url") == "wss://a.example/twilio"
            assert stream[0].get("value") == '"><Hangup/>&'
            status, _ = await fetch(f"http://{host}/twilio/voice", b"x" * 70_000)
            assert status == 413
            status, _ = await fetch(f"http://{host}/twilio/voice", b"\xff\xfe=%ff&&=&From")
            assert status == 200

    over_sockets(main)


def test_mounted_in_another_app_the_addresses_have_its_path() -> None:
    async def main() -> None:
        served = app(make_agent())
        inner = app(make_agent(), options=ServerOptions(twilio_auth_token=TOKEN))
        served._asgi = Starlette(routes=[Mount("/agents/one", inner)])
        async with serving(served) as host:
            signature = sign(TOKEN, f"https://{host}/agents/one/twilio/voice")
            url = f"http://{host}/agents/one/twilio/voice"
            status, text = await fetch(url, X_Twilio_Signature=signature)
            assert status == 200 and f'"wss://{host}/agents/one/twilio"' in text

    over_sockets(main)


# ---------------------------------------------------------------- the owner's side


def test_the_owner_chooses_the_agent_by_the_calls_parameters() -> None:
    async def main() -> None:
        calls: list[Start] = []
        gold = make_agent(greeting="Welcome back dear friend.")

        def choose(start: Start) -> Agent:
            calls.append(start)
            return gold

        class Chosen(Server):
            async def _twilio(self, websocket: Any) -> None:
                await serve_twilio(websocket, self.host, agent_for=choose)

        async with serving(Chosen(make_agent())) as host:
            peer = TwilioPeer({"plan": "gold"})
            async with dialled(f"ws://{host}/twilio", peer) as socket:
                await talk_until(peer, socket, lambda: words(peer) == [4])
            assert calls == [Start(STREAM, CALL, ACCOUNT, {"plan": "gold"})]

    over_sockets(main)


def example() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "twilio_call.py"
    spec = importlib.util.spec_from_file_location("twilio_call", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_answers_a_call_that_its_own_twiml_connects() -> None:
    async def main() -> None:
        built = example().build(make_agent(["It was sent yesterday."]).stages, ServerOptions(page=False))
        async with serving(built) as host:
            _, text = await fetch(f"http://{host}/twilio/voice", urlencode({"From": "+15551234"}).encode())
            stream = ElementTree.fromstring(text).find("Connect/Stream")
            assert stream is not None
            url = re.sub("^wss:", "ws:", stream.get("url") or "")  # there is no TLS here
            peer = TwilioPeer({str(p.get("name")): str(p.get("value")) for p in stream})
            async with dialled(url, peer) as socket:
                await talk_until(peer, socket, lambda: sum(words(peer)) >= 2)
                peer.press("1234#", peer.now_s + 0.1, every_s=0.15)
                entries = only_session(built).chat.entries
                await talk_until(
                    peer, socket, lambda: getattr(entries[-1], "heard", "") == "It was sent yesterday."
                )
            assert [getattr(entry, "text", "") for entry in entries][1] == "[keys pressed: 1234]"
            assert entries[0].interrupted  # the greeting, by the first key
            assert len(peer.cleared_s) == 1

    over_sockets(main)


def test_a_host_that_is_not_a_server_can_serve_calls_too() -> None:
    async def main() -> None:
        from starlette.routing import WebSocketRoute

        host = Host(make_agent(greeting="Hello."))

        async def endpoint(websocket: Any) -> None:
            await serve_twilio(websocket, host)

        outer = Starlette(routes=[WebSocketRoute("/stream", endpoint)])
        served = app(make_agent())
        served._asgi = outer
        async with serving(served) as address:
            peer = TwilioPeer()
            async with dialled(f"ws://{address}/stream", peer) as socket:
                await talk_until(peer, socket, lambda: words(peer) == [1])
            await until(lambda: host.sessions == 0)
        await host.close()

    over_sockets(main)
