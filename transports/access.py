"""Who may come in? Bearer tokens, ephemeral client secrets, and the origins that browsers tell.

Without tokens anyone may come who reaches the port, but a web page only from an origin that is ours or allowed: any
page that a user visits could otherwise talk to a server on the user's own machine.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import SplitResult, urlsplit

from transports.client_secrets import (
    MAX_SECRETS,
    MAX_SECRETS_OF_ADDRESS,
    SECRET_PREFIX,
    ClientSecrets,
    Opened,
    Secrets,
)
from transports.options import ServerOptions
from transports.refusal import Refused, unauthorised
from transports.shared_secrets import Desk, SharedSecrets

__all__ = ["Access", "Grant", "Refused"]

KEY_PROTOCOL = "openai-insecure-api-key."
"""WebSocket subprotocol in which browsers, which can't set headers, show their key."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Who was let in, and with which settings.

    Attributes:
        client: Who it counts for: a token (as a fingerprint) or a remote address. Fit for logs.
        config: The session settings bound to the client secret; ``None`` without one.
        locked: The client may not change those settings.
        secret: The client secret that was spent on this, for :meth:`Access.give_back`.
    """

    client: str
    config: Mapping[str, object] | None = None
    locked: bool = False
    secret: str | None = field(default=None, repr=False)


class Access:
    """Checks keys and origins, and makes client secrets. Used on one event loop.

    Args:
        options: Tokens, origins and the like.
        desk: Where it is noted which secrets were used, if other workers use them too; ``None``: here.
    """

    def __init__(self, options: ServerOptions, desk: Desk | None = None) -> None:
        self.options = options
        self._tokens = [token.encode() for token in options.tokens]
        share = MAX_SECRETS if options.tokens else MAX_SECRETS_OF_ADDRESS
        self._secrets: Secrets = (
            ClientSecrets(options.secret_s, share)
            if options.secret_key is None
            else SharedSecrets(options.secret_key, options.secret_s, share, desk=desk)
        )

    # ------------------------------------------------------------ who comes

    def check(
        self,
        headers: Mapping[str, str],
        subprotocols: Sequence[str] = (),
        remote: str | None = None,
        *,
        resuming: bool = False,
    ) -> Grant:
        """Let a conversation in, or not. A client secret opens one conversation: it is spent here.

        Args:
            headers: Of the request; names in lower case, or a mapping that ignores case.
            subprotocols: What a WebSocket client offers.
            remote: The client's address.
            resuming: The client comes back to its conversation, and to no other: a secret that opened one will do.

        Raises:
            Refused: 400, 401 or 403.
        """
        self.check_origin(headers)
        _check_shape(headers)
        key = _key(headers, subprotocols)
        if key is not None and key.startswith(SECRET_PREFIX):
            if resuming:
                self._secrets.check_spent(key)
                return Grant(_address(remote))
            opened = self._secrets.spend(key)
            return Grant(_address(remote), opened.config, opened.locked, key)
        return Grant(self._holder(key, remote))

    def check_token(self, headers: Mapping[str, str], remote: str | None = None) -> str:
        """Let a request in that only holders of a token may make; returns who it counts for.

        Raises:
            Refused: 400, 401 or 403.
        """
        self.check_origin(headers)
        _check_shape(headers)
        key = _key(headers, ())
        if self._tokens and key is not None and key.startswith(SECRET_PREFIX):
            raise unauthorised("this needs a token of the server; a client secret only opens conversations")
        return self._holder(key, remote)

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Refuse pages of other sites. Programs send no ``Origin`` and pass.

        Raises:
            Refused: 403.
        """
        origin = headers.get("origin")
        if origin is None or self.allows(origin, headers.get("host", "")):
            return
        raise Refused(
            403,
            "origin_not_allowed",
            f"pages of {origin[:200]} may not call this server; its owner can allow them (--origin, allowed_origins)",
        )

    def allows(self, origin: str, host: str) -> bool:
        """Whether pages of ``origin`` may call a server that was addressed as ``host``.

        A page of our own has the origin that the request was sent to. That alone would let in a page whose name was
        made to lead here (DNS rebinding), so a name counts only if keys are needed anyway, or if it is an address,
        ``localhost`` or our ``public_url``.
        """
        allowed = self.options.allowed_origins
        if "*" in allowed or origin in allowed:
            return True
        page = _split(origin)
        if page is None or page.scheme not in ("http", "https"):
            return False
        public = _split(self.options.public_url or "")
        if public is not None and _place(page) == _place(public) and page.scheme == public.scheme:
            return True
        ours = _split(f"{page.scheme}://{host}")
        if ours is None or _place(page) != _place(ours):
            return False
        return bool(self._tokens) or _names_no_other(ours.hostname or "")

    # ------------------------------------------------------------ client secrets

    def make_secret(
        self,
        client: str,
        config: Mapping[str, object] | None = None,
        seconds: float | None = None,
        *,
        locked: bool = False,
    ) -> tuple[str, int]:
        """A key for one conversation, to be handed to a browser; returns it and when it expires (Unix time, s).

        Args:
            client: Who makes it, from :meth:`check_token`.
            config: Session settings bound to it, as JSON can hold them.
            seconds: Its life, 10 to 7,200 s; ``None``: ``secret_s`` of the options.
            locked: The conversation's client may not change those settings.

        Raises:
            Refused: 400 for a life out of range, 503 when too many wait to be used.
        """
        return self._secrets.make(client, Opened(config, locked), seconds)

    async def keep_secret(self, value: str) -> None:
        """Before a secret from :meth:`make_secret` is handed out: have it be known wherever it may be used.

        Raises:
            Refused: 503: there is no room.
        """
        await self._secrets.keep(value)

    async def claim(self, grant: Grant) -> Grant:
        """Before a conversation begins: make sure that no other worker takes its secret. Returns the grant to go by.

        Raises:
            Refused: 401: one did. 503: that can't be told now.
        """
        if grant.secret is None:
            return grant
        opened = await self._secrets.claim(grant.secret, Opened(grant.config, grant.locked))
        return replace(grant, config=opened.config, locked=opened.locked)

    def give_back(self, grant: Grant) -> None:
        """The conversation was refused after all (the server is full): its secret can be used again."""
        if grant.secret is not None:
            self._secrets.give_back(grant.secret, Opened(grant.config, grant.locked))

    # ------------------------------------------------------------ tokens

    def _holder(self, key: str | None, remote: str | None) -> str:
        if not self._tokens:
            return _address(remote)
        if key is None:
            raise unauthorised("a key is needed: Authorization: Bearer KEY")
        shown = key.encode("utf-8", "surrogateescape")
        found = None
        for token in self._tokens:  # all of them, so that the time taken says nothing
            if hmac.compare_digest(token, shown):
                found = token
        if found is None:
            raise unauthorised("the key is wrong")
        return f"token {hashlib.sha256(found).hexdigest()[:8]}"


def _key(headers: Mapping[str, str], subprotocols: Sequence[str]) -> str | None:
    """The key that a client shows: in ``Authorization``, in ``api-key`` (Azure), or as a subprotocol."""
    scheme, _, key = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    if (azure := headers.get("api-key", "").strip()) != "":
        return azure
    return next((p.removeprefix(KEY_PROTOCOL) for p in subprotocols if p.startswith(KEY_PROTOCOL)), None)


def _check_shape(headers: Mapping[str, str]) -> None:
    """Refuse clients of the protocol's beta, whose events have other names."""
    if "realtime=v1" in headers.get("openai-beta", "").replace(" ", "").split(","):
        raise Refused(
            400,
            "beta_api_shape_disabled",
            "the beta of the Realtime API is not served; use a client of the general release, which sends no "
            "OpenAI-Beta: realtime=v1",
        )


def _address(remote: str | None) -> str:
    return f"address {remote or 'unknown'}"


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for what is no number
    except ValueError:
        return None
    return parts if parts.hostname else None


def _place(parts: SplitResult) -> tuple[str, int]:
    return (parts.hostname or "").lower(), parts.port or (443 if parts.scheme in ("https", "wss") else 80)


def _names_no_other(host: str) -> bool:
    """Whether ``host`` can't be a foreign site's name: an address, or this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
