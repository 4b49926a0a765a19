"""Client secrets that several servers share: sealed, so that any of them knows another's, and used once."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Coroutine
from typing import Any

import pytest

from transports import shared_secrets
from transports.access import Access, Grant
from transports.client_secrets import Opened
from transports.options import ServerOptions
from transports.refusal import Refused
from transports.shared_secrets import OwnDesk, SecretNotes, SharedSecrets
from voice.errors import BadRequest

KEY = "k" * 32
CONFIG = {"type": "realtime", "instructions": "Sell bicycles."}
LONG = {"type": "realtime", "instructions": os.urandom(10_000).hex()}


class Clock:
    """Unix time that a test sets."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def servers(count: int, clock: Clock, *, share: int = 100) -> list[SharedSecrets]:
    """Servers that share a key and their notes."""
    desk = OwnDesk(SecretNotes(clock))
    return [SharedSecrets(KEY, 600, share, desk=desk, clock=clock) for _ in range(count)]


async def made(
    secrets: SharedSecrets, brings: Opened, seconds: float | None = None, maker: str = "token x"
) -> str:
    value, _ = secrets.make(maker, brings, seconds)
    await secrets.keep(value)
    return value


async def used(secrets: SharedSecrets, value: str) -> Opened:
    return await secrets.claim(value, secrets.spend(value))


async def refused(work: Coroutine[Any, Any, object]) -> Refused:
    with pytest.raises(Refused) as caught:
        await work
    return caught.value


@pytest.mark.parametrize("brings", [Opened(), Opened(CONFIG), Opened(CONFIG, True), Opened(LONG, True)])
def test_a_secret_of_one_server_opens_one_conversation_with_any(brings: Opened) -> None:
    async def run() -> None:
        one, other = servers(2, Clock())
        value = await made(one, brings)
        assert value.startswith("ek_")
        assert len(value) < 4000, "it fits a header"
        assert await used(other, value) == brings
        for each in (one, other):
            error = await refused(used(each, value))
            assert (error.status, "used already" in str(error)) == (401, True)

    asyncio.run(run())


def test_a_secret_does_not_show_what_it_brings() -> None:
    async def run() -> None:
        (one,) = servers(1, Clock())
        value = await made(one, Opened(CONFIG, locked=True))
        sealed = base64.urlsafe_b64decode(value[3:] + "==")
        assert b"bicycles" not in sealed

    asyncio.run(run())


def test_a_secret_expires_by_the_clock_of_all() -> None:
    async def run() -> None:
        clock = Clock()
        one, other = servers(2, clock)
        value, expires_at = one.make("token x", Opened(CONFIG), 10)
        assert expires_at == clock.now + 10
        clock.now += 9
        other.spend(value)
        clock.now += 1
        assert "expired" in str(await refused(used(other, value)))

    asyncio.run(run())


@pytest.mark.parametrize("seconds", [9.9, 7200.1, float("nan")])
def test_the_life_of_a_shared_secret_has_the_same_bounds(seconds: float) -> None:
    (one,) = servers(1, Clock())
    with pytest.raises(Refused) as caught:
        one.make("token x", Opened(), seconds)
    assert (caught.value.status, caught.value.param) == (400, "expires_after.seconds")


def test_whatever_was_not_made_with_the_key_is_refused() -> None:
    async def run() -> None:
        (one,) = servers(1, Clock())
        value = await made(one, Opened(CONFIG))
        sealed = base64.urlsafe_b64decode(value[3:] + "=" * (-len(value[3:]) % 4))
        changed = [sealed[:n] + bytes([sealed[n] ^ 1]) + sealed[n + 1 :] for n in range(len(sealed))]
        texts = [base64.urlsafe_b64encode(each).rstrip(b"=").decode() for each in changed]
        stranger = await made(SharedSecrets("x" * 32, 600), Opened(CONFIG))
        for bad in [
            *("ek_" + text for text in texts),
            stranger,
            "ek_",
            "ek_a",
            "ek_ä",
            "ek_\udcff",
            value[:-2],
        ]:
            assert (await refused(used(one, bad))).status == 401

    asyncio.run(run())


def test_a_shared_secret_that_found_no_place_can_be_used_again_anywhere() -> None:
    async def run() -> None:
        one, other = servers(2, Clock())
        for brings in (Opened(CONFIG), Opened(LONG)):
            value = await made(one, brings)
            assert await used(one, value) == brings
            one.give_back(value, brings)
            one.give_back(value, brings)
            assert await used(other, value) == brings
            one.give_back(value, brings)
            assert (await refused(used(one, value))).status == 401, (
                "it was not this server's to give back any more"
            )

    asyncio.run(run())


def test_long_settings_are_bounded_for_each_maker_and_their_room_comes_back() -> None:
    async def run() -> None:
        clock = Clock()
        (one,) = servers(1, clock, share=2)
        for _ in range(2):
            await made(one, Opened(LONG), 10)
        full = await refused(made(one, Opened(LONG), 10))
        assert (full.status, full.code) == (503, "too_many_secrets")
        await made(one, Opened(LONG), 10, maker="token y")
        await made(one, Opened(CONFIG), 10)
        clock.now += 11
        await made(one, Opened(LONG), 10)
        with pytest.raises(Refused) as caught:
            one.make("token x", Opened({"instructions": os.urandom(150_000).hex()}))
        assert caught.value.status == 413

    asyncio.run(run())


def test_used_secrets_are_bounded_and_expired_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_secrets, "MAX_USED", 3)

    async def run() -> None:
        clock = Clock()
        (one,) = servers(1, clock)
        for _ in range(3):
            await used(one, await made(one, Opened(), 10))
        value = await made(one, Opened(), 60)
        assert (await refused(used(one, value))).status == 503, "rather than let one be used twice"
        clock.now += 11
        await used(one, value)

    asyncio.run(run())


def test_a_server_with_a_key_lets_conversations_in_by_shared_secrets() -> None:
    async def run() -> None:
        options = ServerOptions(tokens=("correct-horse-battery",), secret_key=KEY)
        maker, taker = Access(options), Access(options)
        value, _ = maker.make_secret("token x", CONFIG, locked=True)
        await maker.keep_secret(value)
        headers = {"authorization": f"Bearer {value}"}
        grant = await taker.claim(taker.check(headers, (), "192.0.2.7"))
        assert (grant.config, grant.locked, grant.client) == (CONFIG, True, "address 192.0.2.7")
        assert taker.check(headers, (), "192.0.2.7", resuming=True) == Grant("address 192.0.2.7")
        assert (await refused(taker.claim(taker.check(headers)))).status == 401
        taker.give_back(grant)
        await taker.claim(taker.check(headers))

    asyncio.run(run())


def test_a_key_that_could_be_guessed_is_refused_at_the_start() -> None:
    with pytest.raises(BadRequest, match="secret_key must have at least 32 characters"):
        ServerOptions(secret_key="short")
