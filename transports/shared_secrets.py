"""How do several servers take each other's client secrets? A secret carries what it brings, sealed with a key that they
share; that it was used is noted in one place.

A seal (AES-GCM) signs and hides: settings that are bound to a secret may hold what its user must not read. Settings
that are too long for a header stay behind and are fetched by the secret's id.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
import struct
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from transports.client_secrets import (
    MAX_SECRETS,
    MAX_SECRETS_BYTES,
    SECRET_PREFIX,
    Opened,
    checked_life_s,
    pack,
    unpack,
)
from transports.refusal import Refused, unauthorised

INLINE_BYTES = 2048
"""Longest settings, compressed, that travel in a secret: as base64 they fit the 8 kB that servers and proxies take as
one line of a request's head."""

KEPT_BYTES = 128 * 1024
"""Longest settings, compressed, that are kept for a secret."""

MAX_USED = 200_000
"""Used secrets that have not expired, of all servers that share the key; beyond it none can be used."""

_MOST_REMEMBERED = 10_000
"""Secrets that opened a conversation here: who comes back to it may show its secret again."""

_HEAD = struct.Struct(">dB")
_NOTHING, _INLINE, _KEPT = range(3)
_ID_BYTES = 12
_SWEEP_S = 1.0


def unix_s() -> float:
    """Unix time in seconds: several machines must agree on when a secret expires."""
    return datetime.now(UTC).timestamp()


@dataclass(frozen=True, slots=True)
class _Seen:
    id: str
    expires_at: float
    kind: int
    packed: bytes


class SecretNotes:
    """Which secrets were used, and the settings of those that do not carry them: kept once for all servers of a key.

    Times are Unix times, as in the secrets themselves.
    """

    def __init__(self, clock: Callable[[], float] = unix_s) -> None:
        self._clock = clock
        self._used: dict[str, float] = {}  # expiry by id
        self._kept: dict[str, tuple[float, str, bytes]] = {}  # expiry, maker and settings by id
        self._held: Counter[str] = Counter()  # by maker
        self._bytes = 0
        self._swept_at = 0.0

    def keep(self, id: str, packed: bytes, expires_at: float, maker: str, share: int) -> None:
        """Keep settings until the secret is used or expires.

        Raises:
            Refused: 503: there are too many, or ``maker`` has its ``share``.
        """
        self._sweep()
        full = len(self._kept) >= MAX_SECRETS or self._bytes + len(packed) > MAX_SECRETS_BYTES
        if full or self._held[maker] >= share:
            raise too_many()
        self._kept[id] = (expires_at, maker, packed)
        self._held[maker] += 1
        self._bytes += len(packed)

    def claim(self, id: str, expires_at: float) -> bytes | None:
        """Note that a secret is used; returns the settings that were kept for it.

        Raises:
            Refused: 401: it was used before. 503: too many are in use.
        """
        if id in self._used:
            raise used_already()
        self._sweep()
        if len(self._used) >= MAX_USED:
            raise too_many()
        self._used[id] = expires_at
        kept = self._kept.get(id)
        return None if kept is None else kept[2]

    def release(self, id: str) -> None:
        """The conversation was refused after all: the secret can be used again."""
        self._used.pop(id, None)

    def _sweep(self) -> None:
        now = self._clock()
        if 0 <= now - self._swept_at < _SWEEP_S:
            return
        self._swept_at = now
        for id in [id for id, expires_at in self._used.items() if expires_at <= now]:
            del self._used[id]
        for id in [id for id, (expires_at, _, _) in self._kept.items() if expires_at <= now]:
            _, maker, packed = self._kept.pop(id)
            self._bytes -= len(packed)
            self._held[maker] -= 1
            if self._held[maker] <= 0:
                del self._held[maker]


class Desk(Protocol):
    """Where the :class:`SecretNotes` are: here, or in another process."""

    async def keep(self, id: str, packed: bytes, expires_at: float, maker: str, share: int) -> None: ...
    async def claim(self, id: str, expires_at: float) -> bytes | None: ...
    def release(self, id: str) -> None: ...


class OwnDesk:
    """The notes of a server that shares its key with nobody on this machine."""

    def __init__(self, notes: SecretNotes) -> None:
        self._notes = notes

    async def keep(self, id: str, packed: bytes, expires_at: float, maker: str, share: int) -> None:
        """See :meth:`SecretNotes.keep`."""
        self._notes.keep(id, packed, expires_at, maker, share)

    async def claim(self, id: str, expires_at: float) -> bytes | None:
        """See :meth:`SecretNotes.claim`."""
        return self._notes.claim(id, expires_at)

    def release(self, id: str) -> None:
        """See :meth:`SecretNotes.release`."""
        self._notes.release(id)


class SharedSecrets:
    """Client secrets that any server with the same key takes. Used on one event loop.

    Args:
        key: Shared by the servers; any text that can't be guessed.
        life_s: Life of a secret whose maker does not say.
        share: Unused secrets with long settings that one maker may have.
        desk: Where it is noted that a secret was used.
        clock: Tells Unix time.
    """

    def __init__(
        self,
        key: str,
        life_s: float,
        share: int = MAX_SECRETS,
        *,
        desk: Desk | None = None,
        clock: Callable[[], float] = unix_s,
    ) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # comes with aiortc

        self._seal = AESGCM(hashlib.sha256(b"voice client secret " + key.encode()).digest())
        self._life_s, self._share, self._clock = life_s, share, clock
        self._desk = desk or OwnDesk(SecretNotes(clock))
        self._unkept: dict[str, tuple[str, bytes, float, str]] = {}  # between make and keep; by secret
        self._spent: dict[str, None] = {}  # ids, oldest first

    def make(self, maker: str, brings: Opened, seconds: float | None = None) -> tuple[str, int]:
        """A new secret and when it expires, in Unix time; hand it out after :meth:`keep`.

        Raises:
            Refused: 400: its life is out of range. 413: its settings are too long.
        """
        expires_at = self._clock() + checked_life_s(self._life_s if seconds is None else seconds)
        packed = b"" if brings == Opened() else zlib.compress(pack(brings))
        if len(packed) > KEPT_BYTES:
            raise Refused(413, "request_too_large", "these session settings are too long for a secret")
        kind = _NOTHING if not packed else _INLINE if len(packed) <= INLINE_BYTES else _KEPT
        nonce = secrets.token_bytes(_ID_BYTES)
        plain = _HEAD.pack(expires_at, kind) + (packed if kind == _INLINE else b"")
        sealed = nonce + self._seal.encrypt(nonce, plain, None)
        value = SECRET_PREFIX + base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()
        if kind == _KEPT:
            self._unkept[value] = (nonce.hex(), packed, expires_at, maker)
        return value, int(expires_at)

    async def keep(self, value: str) -> None:
        """Have what a new secret does not carry be there for all servers.

        Raises:
            Refused: 503: there is no room.
        """
        unkept = self._unkept.pop(value, None)
        if unkept is not None:
            await self._desk.keep(*unkept, self._share)

    def spend(self, value: str) -> Opened:
        """Look at a secret; :meth:`claim` it before the conversation begins.

        Raises:
            Refused: 401: not made with our key, or expired.
        """
        seen = self._open(value)
        if seen.expires_at <= self._clock():
            raise unauthorised("the client secret has expired")
        return unpack(zlib.decompress(seen.packed)) if seen.kind == _INLINE else Opened()

    async def claim(self, value: str, opened: Opened) -> Opened:
        """Use a secret; no server takes it again. Returns what it brings.

        Raises:
            Refused: 401: it was used before, or its settings are not there any more. 503: that can't be told now.
        """
        seen = self._open(value)
        kept = await self._desk.claim(seen.id, seen.expires_at)
        if seen.kind == _KEPT:
            if kept is None:
                raise unauthorised("the client secret is not known here any more")
            opened = unpack(zlib.decompress(kept))
        self._spent[seen.id] = None
        if len(self._spent) > _MOST_REMEMBERED:
            del self._spent[next(iter(self._spent))]
        return opened

    def check_spent(self, value: str) -> None:
        """Whether a secret opened a conversation here, however long ago.

        Raises:
            Refused: 401: it did not, or that is too many secrets ago.
        """
        if self._open(value).id not in self._spent:
            raise unauthorised("the client secret is wrong or has not been used")

    def give_back(self, value: str, brought: Opened) -> None:
        """Make a claimed secret usable again; it expires when it would have."""
        id = self._open(value).id
        if id in self._spent:
            del self._spent[id]
            self._desk.release(id)

    def _open(self, value: str) -> _Seen:
        from cryptography.exceptions import InvalidTag

        text = value.removeprefix(SECRET_PREFIX).encode("utf-8", "surrogateescape")
        try:
            sealed = base64.b64decode(text + b"=" * (-len(text) % 4), b"-_", validate=True)
            nonce = sealed[:_ID_BYTES]
            plain = self._seal.decrypt(nonce, sealed[_ID_BYTES:], None)  # compares in constant time
        except (binascii.Error, ValueError, InvalidTag):
            raise unauthorised("the client secret is wrong or has expired") from None
        expires_at, kind = _HEAD.unpack_from(plain)
        return _Seen(nonce.hex(), expires_at, kind, plain[_HEAD.size :])


def used_already() -> Refused:
    """A secret is shown for the second time."""
    return unauthorised("the client secret was used already: it opens one conversation")


def too_many() -> Refused:
    """No more secrets can wait."""
    message = "too many client secrets wait to be used; use some, or let them expire"
    return Refused(503, "too_many_secrets", message, headers={"Retry-After": "10"})
