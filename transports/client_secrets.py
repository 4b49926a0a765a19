"""Which keys may browsers have? Client secrets: each opens one conversation, expires soon, and brings its settings."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from transports.options import SECRET_MAX_S, SECRET_MIN_S
from transports.refusal import Refused, unauthorised

SECRET_PREFIX = "ek_"

MAX_SECRETS = 10_000
MAX_SECRETS_BYTES = 32 * 2**20
"""Bounds of all unused secrets together, settings included."""

MAX_SECRETS_OF_ADDRESS = 100
"""Unused secrets of one client that shows no token."""

_SPENT = 10_000  # used secrets that are remembered, to say what is wrong with a replay


@dataclass(frozen=True, slots=True)
class Opened:
    """What a secret brings to its conversation: session settings, and whether the client may change them."""

    config: Mapping[str, object] | None = None
    locked: bool = False


@dataclass(frozen=True, slots=True)
class _Secret:
    expires_at: float  # loop time
    maker: str
    packed: bytes  # JSON of the settings: small, and nobody can change it


class Secrets(Protocol):
    """What :class:`ClientSecrets` and :class:`~transports.shared_secrets.SharedSecrets` offer.

    A secret that is handed out passes ``make``, then ``keep``; one that is shown, ``spend``, then ``claim``.
    """

    def make(self, maker: str, brings: Opened, seconds: float | None = None) -> tuple[str, int]: ...
    def spend(self, value: str) -> Opened: ...
    def check_spent(self, value: str) -> None: ...
    def give_back(self, value: str, brought: Opened) -> None: ...
    async def keep(self, value: str) -> None: ...
    async def claim(self, value: str, opened: Opened) -> Opened: ...


class ClientSecrets:
    """The secrets of one server that wait to be used. Used on one event loop.

    Args:
        life_s: Life of a secret whose maker does not say.
        share: Unused secrets that one maker may have.
    """

    def __init__(self, life_s: float, share: int = MAX_SECRETS) -> None:
        self._life_s, self._share = life_s, share
        self._waiting: dict[str, _Secret] = {}  # by digest
        self._held: Counter[str] = Counter()  # by maker
        self._bytes = 0
        self._spent: dict[str, tuple[float, str]] = {}  # expiry and maker, by digest, oldest first

    def __len__(self) -> int:
        return len(self._waiting)

    def make(self, maker: str, brings: Opened, seconds: float | None = None) -> tuple[str, int]:
        """A new secret and when it expires, in Unix time; see :meth:`transports.access.Access.make_secret`."""
        life_s = checked_life_s(self._life_s if seconds is None else seconds)
        now = asyncio.get_running_loop().time()
        secret = _Secret(now + life_s, maker, pack(brings))
        self._make_room(maker, len(secret.packed), now)
        value = SECRET_PREFIX + secrets.token_urlsafe(24)  # 32 characters
        self._put(_digest(value), secret)
        return value, int(datetime.now(UTC).timestamp() + life_s)

    def spend(self, value: str) -> Opened:
        """Use a secret; it can't be used again.

        Raises:
            Refused: 401: unknown, expired or used.
        """
        digest = _digest(value)
        found = self._waiting.get(digest)
        if found is None and digest in self._spent:
            raise unauthorised("the client secret was used already: it opens one conversation")
        if found is None:
            raise unauthorised("the client secret is wrong or has expired")
        self._drop(digest)
        if found.expires_at <= asyncio.get_running_loop().time():
            raise unauthorised("the client secret has expired")
        self._spent[digest] = (found.expires_at, found.maker)
        if len(self._spent) > _SPENT:
            del self._spent[next(iter(self._spent))]
        return unpack(found.packed)

    def check_spent(self, value: str) -> None:
        """Whether a secret opened a conversation, however long ago.

        Raises:
            Refused: 401: it did not, or that is too many secrets ago.
        """
        if _digest(value) not in self._spent:
            raise unauthorised("the client secret is wrong or has not been used")

    def give_back(self, value: str, brought: Opened) -> None:
        """Make a spent secret usable again; it expires when it would have."""
        spent = self._spent.pop(_digest(value), None)
        if spent is not None:
            self._put(_digest(value), _Secret(*spent, pack(brought)))

    async def keep(self, value: str) -> None:
        """Nothing is left to do: the secret is known here, and nowhere else."""

    async def claim(self, value: str, opened: Opened) -> Opened:
        """Nobody else could have used it."""
        return opened

    def _make_room(self, maker: str, size: int, now: float) -> None:
        for digest in [d for d, s in self._waiting.items() if s.expires_at <= now]:
            self._drop(digest)
        full = len(self._waiting) >= MAX_SECRETS or self._bytes + size > MAX_SECRETS_BYTES
        if full or self._held[maker] >= self._share:
            message = "too many client secrets wait to be used; use some, or let them expire"
            raise Refused(503, "too_many_secrets", message, headers={"Retry-After": "10"})

    def _put(self, digest: str, secret: _Secret) -> None:
        self._waiting[digest] = secret
        self._held[secret.maker] += 1
        self._bytes += len(secret.packed)

    def _drop(self, digest: str) -> None:
        secret = self._waiting.pop(digest)
        self._bytes -= len(secret.packed)
        self._held[secret.maker] -= 1
        if self._held[secret.maker] <= 0:
            del self._held[secret.maker]


def checked_life_s(seconds: float) -> float:
    """The life of a secret, if it may have that.

    Raises:
        Refused: 400.
    """
    if not SECRET_MIN_S <= seconds <= SECRET_MAX_S:
        limits = f"{SECRET_MIN_S:g} to {SECRET_MAX_S:g}"
        raise Refused(400, "invalid_value", f"a secret lives {limits} seconds", param="expires_after.seconds")
    return seconds


def pack(brings: Opened) -> bytes:
    """What a secret brings, as bytes."""
    return json.dumps([brings.config, brings.locked], separators=(",", ":")).encode()


def unpack(packed: bytes) -> Opened:
    """The inverse of :func:`pack`."""
    config, locked = json.loads(packed)
    return Opened(config, locked)


def _digest(value: str) -> str:
    # looked up by digest: how long a dictionary takes then says nothing about the secrets themselves
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()
