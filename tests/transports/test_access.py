"""Who may come in: keys, client secrets and origins, at the level where each is decided."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from transports import client_secrets
from transports.access import Access, Grant, Refused
from transports.options import ServerOptions
from voice.errors import BadRequest
from voice.testing import run_virtual

TOKEN = "correct-horse-battery"


def access(**options: Any) -> Access:
    return Access(ServerOptions(**options))


def refusal(call: Any, *args: Any, **keywords: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        call(*args, **keywords)
    return caught.value


# ---------------------------------------------------------------- tokens


def test_without_tokens_any_program_may_come() -> None:
    assert access().check({}, (), "192.0.2.7") == Grant("address 192.0.2.7")
    assert access().check({"authorization": "Bearer whatever"}, (), "192.0.2.7").client == "address 192.0.2.7"


@pytest.mark.parametrize(
    ("headers", "subprotocols"),
    [
        ({"authorization": f"Bearer {TOKEN}"}, ()),
        ({"authorization": f"bearer  {TOKEN} "}, ()),
        ({"api-key": TOKEN}, ()),
        ({}, ("realtime", f"openai-insecure-api-key.{TOKEN}", "openai-agents-sdk.1")),
    ],
)
def test_a_token_is_taken_from_where_clients_put_it(
    headers: dict[str, str], subprotocols: tuple[str, ...]
) -> None:
    grant = access(tokens=("other", TOKEN)).check(headers, subprotocols, "192.0.2.7")
    assert grant.client.startswith("token ")
    assert TOKEN not in repr(grant)


@pytest.mark.parametrize(
    ("headers", "subprotocols"),
    [
        ({}, ()),
        ({"authorization": TOKEN}, ()),
        ({"authorization": f"Basic {TOKEN}"}, ()),
        ({"authorization": "Bearer "}, ()),
        ({"authorization": f"Bearer {TOKEN}x"}, ()),
        ({"authorization": f"Bearer {TOKEN[:-1]}"}, ()),
        ({"authorization": "Bearer \udcff\xe9"}, ()),
        ({"api-key": "wrong"}, ()),
        ({}, ("realtime",)),
        ({}, ("openai-insecure-api-key.",)),
    ],
)
def test_what_is_not_the_token_is_refused(headers: dict[str, str], subprotocols: tuple[str, ...]) -> None:
    error = refusal(access(tokens=(TOKEN,)).check, headers, subprotocols, "192.0.2.7")
    assert (error.status, error.code) == (401, "invalid_api_key")
    assert error.headers["WWW-Authenticate"] == "Bearer"
    assert TOKEN not in str(error)


def test_each_token_is_a_client_of_its_own_wherever_it_comes_from() -> None:
    gate = access(tokens=("one", "two"))
    ones = {gate.check({"api-key": "one"}, (), f"192.0.2.{n}").client for n in range(3)}
    assert len(ones) == 1
    assert gate.check({"api-key": "two"}, (), "192.0.2.0").client not in ones


@pytest.mark.parametrize("tokens", [("",), ("with blank",), ("ek_like-a-secret",), ("umlaut-ä",)])
def test_tokens_that_could_not_be_sent_are_refused_at_the_start(tokens: tuple[str, ...]) -> None:
    with pytest.raises(BadRequest, match="token"):
        ServerOptions(tokens=tokens)


@pytest.mark.parametrize("value", ["realtime=v1", "assistants=v2, realtime=v1"])
def test_a_client_of_the_beta_is_told_so(value: str) -> None:
    error = refusal(access().check, {"openai-beta": value})
    assert (error.status, error.code) == (400, "beta_api_shape_disabled")
    assert error.error["type"] == "invalid_request_error"


# ---------------------------------------------------------------- origins


@pytest.mark.parametrize(
    ("origin", "host", "options"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1:8080", {}),
        ("http://localhost:8080", "localhost:8080", {}),
        ("http://[::1]:8080", "[::1]:8080", {}),
        ("http://192.0.2.1", "192.0.2.1:80", {}),
        ("https://192.0.2.1", "192.0.2.1", {}),
        ("https://voice.example.org", "voice.example.org", {"tokens": (TOKEN,)}),
        ("https://VOICE.example.org", "voice.example.org:443", {"tokens": (TOKEN,)}),
        ("https://voice.example.org", "10.0.0.3:8080", {"public_url": "https://voice.example.org/base"}),
        ("https://app.example.org", "voice.example.org", {"allowed_origins": ("https://app.example.org",)}),
        ("https://any.example.org", "voice.example.org", {"allowed_origins": ("*",)}),
        ("null", "voice.example.org", {"allowed_origins": ("*",)}),
    ],
)
def test_pages_of_ours_and_allowed_ones_may_call(origin: str, host: str, options: Mapping[str, Any]) -> None:
    gate = access(**options)
    gate.check_origin({"origin": origin, "host": host})


@pytest.mark.parametrize(
    ("origin", "host", "options"),
    [
        ("https://evil.example", "127.0.0.1:8080", {}),
        ("http://127.0.0.1:9999", "127.0.0.1:8080", {}),
        ("http://127.0.0.1:8080.evil.example", "127.0.0.1:8080", {}),
        ("null", "127.0.0.1:8080", {}),
        ("file://", "127.0.0.1:8080", {}),
        ("", "127.0.0.1:8080", {}),
        ("http://[::1", "127.0.0.1:8080", {}),
        ("http://a:b", "a:b", {}),
        ("http://127.0.0.1:8080", "", {}),
        ("https://evil.example", "voice.example.org", {"tokens": (TOKEN,)}),
        ("https://sub.app.example.org", "x", {"allowed_origins": ("https://app.example.org",)}),
        ("http://voice.example.org", "x", {"public_url": "https://voice.example.org"}),
    ],
)
def test_pages_of_others_may_not(origin: str, host: str, options: Mapping[str, Any]) -> None:
    error = refusal(access(**options).check_origin, {"origin": origin, "host": host})
    assert (error.status, error.code) == (403, "origin_not_allowed")


def test_a_name_that_was_made_to_lead_here_is_not_ours_without_a_token() -> None:
    """DNS rebinding: the page's own name resolves to this machine, so origin and host agree."""
    headers = {"origin": "http://evil.example:8080", "host": "evil.example:8080"}
    assert refusal(access().check, headers).status == 403
    assert refusal(access(tokens=(TOKEN,)).check, headers).status == 401, "with tokens the key is the defence"


def test_origins_are_checked_even_with_the_right_token() -> None:
    headers = {"origin": "https://evil.example", "host": "127.0.0.1:8080", "api-key": TOKEN}
    assert refusal(access(tokens=(TOKEN,)).check, headers).status == 403


@pytest.mark.parametrize(
    "origin", ["app.example.org", "https://app.example.org/", "https://", "*.example.org"]
)
def test_allowed_origins_that_no_browser_sends_are_refused_at_the_start(origin: str) -> None:
    with pytest.raises(BadRequest, match="origin"):
        ServerOptions(allowed_origins=(origin,))


# ---------------------------------------------------------------- client secrets


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_a_secret_opens_one_conversation_with_its_settings() -> None:
    async def run() -> None:
        gate = access(tokens=(TOKEN,))
        maker = gate.check_token(bearer(TOKEN))
        config = {"type": "realtime", "instructions": "Answer for a bicycle shop."}
        value, expires_at = gate.make_secret(maker, config, 60, locked=True)
        config["instructions"] = "changed later"
        assert value.startswith("ek_")
        assert len(value) == 35
        assert expires_at > 1_700_000_000
        grant = gate.check({}, ("realtime", f"openai-insecure-api-key.{value}"), "192.0.2.7")
        assert grant.config == {"type": "realtime", "instructions": "Answer for a bicycle shop."}
        assert grant.locked
        assert grant.client == "address 192.0.2.7", "each browser counts for itself"
        assert value not in repr(grant)
        replay = refusal(gate.check, bearer(value))
        assert replay.status == 401
        assert "used already" in str(replay)

    run_virtual(run())


def test_a_secret_that_found_no_place_can_be_used_again_but_not_longer() -> None:
    async def run() -> None:
        gate = access(tokens=(TOKEN,))
        value, _ = gate.make_secret("token x", {"type": "realtime"}, 60)
        for _ in range(3):
            grant = gate.check(bearer(value))
            gate.give_back(grant)
            gate.give_back(grant)
        assert gate.check(bearer(value)).config == {"type": "realtime"}
        assert refusal(gate.check, bearer(value)).status == 401
        gate.give_back(grant)
        await asyncio.sleep(61)
        assert "expired" in str(refusal(gate.check, bearer(value)))

    run_virtual(run())


def test_who_comes_back_to_its_conversation_may_show_the_secret_that_opened_it() -> None:
    async def run() -> None:
        gate = access(tokens=(TOKEN,))
        value, _ = gate.make_secret("token x", None, 10)
        assert refusal(gate.check, bearer(value), resuming=True).status == 401
        gate.check(bearer(value))
        await asyncio.sleep(1000)
        assert gate.check(bearer(value), (), "192.0.2.7", resuming=True) == Grant("address 192.0.2.7")
        assert refusal(gate.check, bearer(value)).status == 401
        assert refusal(gate.check, {}, resuming=True).status == 401

    run_virtual(run())


def test_a_secret_expires() -> None:
    async def run() -> None:
        gate = access(tokens=(TOKEN,))
        kept, _ = gate.make_secret("token x", None, 10)
        lost, _ = gate.make_secret("token x", None, 10)
        await asyncio.sleep(9.9)
        assert gate.check(bearer(kept)).config is None
        await asyncio.sleep(0.2)
        assert "expired" in str(refusal(gate.check, bearer(lost)))

    run_virtual(run())


@pytest.mark.parametrize("seconds", [9.9, 7200.1, -1, 0, float("nan"), float("inf")])
def test_the_life_of_a_secret_has_bounds(seconds: float) -> None:
    async def run() -> None:
        error = refusal(access().make_secret, "token x", None, seconds)
        assert (error.status, error.param) == (400, "expires_after.seconds")

    run_virtual(run())


def test_secrets_open_conversations_and_nothing_else() -> None:
    async def run() -> None:
        gate = access(tokens=(TOKEN,))
        value, _ = gate.make_secret("token x")
        assert refusal(gate.check_token, bearer(value)).status == 401
        assert gate.check(bearer(value)), "and asking in vain does not spend it"

    run_virtual(run())


@pytest.mark.parametrize("key", ["ek_", "ek_" + "a" * 32, "ek_ä", "ek_\udcff"])
def test_made_up_secrets_are_refused_with_and_without_tokens(key: str) -> None:
    async def run() -> None:
        for gate in (access(), access(tokens=(TOKEN,))):
            assert refusal(gate.check, bearer(key)).status == 401

    run_virtual(run())


def test_secrets_are_bounded_in_number_and_expired_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_secrets, "MAX_SECRETS", 5)

    async def run() -> None:
        gate = access(tokens=(TOKEN,))
        old = [gate.make_secret("token x", None, 10)[0] for _ in range(3)]
        await asyncio.sleep(5)
        new = [gate.make_secret("token x", None, 10)[0] for _ in range(2)]
        full = refusal(gate.make_secret, "token x", None, 10)
        assert (full.status, full.code) == (503, "too_many_secrets")
        await asyncio.sleep(6)
        for _ in range(3):
            gate.make_secret("token x", None, 10)
        assert refusal(gate.make_secret, "token x", None, 10).status == 503
        assert all(gate.check(bearer(value)) for value in new), "who waits is not pushed out"
        assert all(refusal(gate.check, bearer(value)).status == 401 for value in old)

    run_virtual(run())


def test_settings_of_all_secrets_together_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_secrets, "MAX_SECRETS_BYTES", 10_000)

    async def run() -> None:
        gate = access(tokens=(TOKEN,))
        first, _ = gate.make_secret("token x", {"instructions": "a" * 6_000})
        assert refusal(gate.make_secret, "token x", {"instructions": "b" * 6_000}).status == 503
        gate.check(bearer(first))
        gate.make_secret("token x", {"instructions": "b" * 6_000})

    run_virtual(run())


def test_one_address_without_token_can_not_use_up_all_secrets() -> None:
    async def run() -> None:
        gate = access()
        for _ in range(client_secrets.MAX_SECRETS_OF_ADDRESS):
            gate.make_secret("address 192.0.2.7")
        assert refusal(gate.make_secret, "address 192.0.2.7").status == 503
        gate.make_secret("address 192.0.2.8")

    run_virtual(run())
