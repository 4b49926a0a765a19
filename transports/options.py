"""What may the owner of a server decide? Its limits, keys and addresses, with their defaults and units."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass, field, fields
from urllib.parse import urlsplit

from voice.admission import AdmissionOptions
from voice.errors import BadRequest

SECRET_MIN_S, SECRET_MAX_S = 10.0, 7200.0
"""Shortest and longest life of a client secret, in seconds (as of the OpenAI Realtime API)."""

SECRET_KEY_CHARS = 32
"""Fewest characters of a key that seals client secrets."""


@dataclass(frozen=True, slots=True)
class IceServer:
    """A STUN or TURN server that WebRTC clients and this server use to find a way to each other.

    Attributes:
        urls: Such as ``stun:stun.example.org:3478`` or ``turn:turn.example.org``.
        username, credential: For TURN; ``None`` without.
    """

    urls: tuple[str, ...]
    username: str | None = None
    credential: str | None = None

    def __post_init__(self) -> None:
        schemes = ("stun:", "stuns:", "turn:", "turns:")
        _check(bool(self.urls) and not isinstance(self.urls, str), "an ICE server needs a tuple of URLs")
        for url in self.urls:
            _check(url.startswith(schemes), f"the ICE server {url!r} must begin with {', '.join(schemes)}")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """A server's limits, keys and addresses.

    Attributes:
        tokens: Keys that clients show (``Authorization: Bearer KEY``); empty: none is needed.
        allowed_origins: Web sites whose pages may call, such as ``https://app.example.org``, beside the server's
            own page; ``"*"`` for any.
        max_sessions: Conversations at once.
        max_sessions_per_client: Conversations at once of one client: a token, or else a remote address.
        admission: Up to which measured load new conversations are let in; ``None``: only the numbers above count.
        max_message_bytes: Longest message of a client (WebSocket text, data channel); a longer one ends its
            connection. 16 MiB hold the longest audio event of the Realtime protocol (15 MiB of base64).
        first_message_s: A client must have sent something this soon after it was let in.
        idle_s: A conversation ends when nothing came from the client for this long and the agent is silent; after
            twice as long even if it speaks.
        session_s: Longest conversation.
        drain_s: How long conversations may go on, to finish their sentences, when the server is to stop.
        secret_s: Life of a client secret whose maker does not say, 10 to 7,200 s.
        secret_key: Seals client secrets, so that every server with the same key takes them; ``None``: each server takes
            its own only.
        resume_s: How long a WebSocket conversation that was cut waits for its client to come back.
        ice_servers: STUN and TURN servers for WebRTC; none are needed on one network.
        advertised_ip: Address that WebRTC offers to clients instead of this machine's own, for servers behind
            one-to-one address translation; ``None``: the machine's own.
        twilio_auth_token: When set, requests at ``/twilio`` must carry a valid ``X-Twilio-Signature``.
        public_url: Where clients reach the server, such as ``https://voice.example.org``; used for the telephone
            signature and the stream's address, and as an origin that may call.
        page: Serve the browser page at ``/``.

    Raises:
        BadRequest: A value out of range.
    """

    tokens: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_sessions: int = 100
    max_sessions_per_client: int = 20
    admission: AdmissionOptions | None = field(default_factory=AdmissionOptions)
    max_message_bytes: int = 16 * 2**20
    first_message_s: float = 60.0
    idle_s: float = 300.0
    session_s: float = 3600.0
    drain_s: float = 20.0
    secret_s: float = 600.0
    secret_key: str | None = None
    resume_s: float = 15.0
    ice_servers: tuple[IceServer, ...] = ()
    advertised_ip: str | None = None
    twilio_auth_token: str | None = None
    public_url: str | None = None
    page: bool = True

    def __post_init__(self) -> None:
        for name in ("tokens", "allowed_origins", "ice_servers"):
            _check(isinstance(getattr(self, name), tuple), f"{name} must be a tuple")
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name.endswith("_s"):
                ok = _is_number(value) and math.isfinite(value)
                _check(ok and value >= 0, f"{one.name} must be seconds, 0 or more, not {value!r}")
            elif one.name.startswith("max_"):
                ok = isinstance(value, int) and not isinstance(value, bool)
                _check(ok and value >= 1, f"{one.name} must be a whole number of at least 1, not {value!r}")
        _check(self.first_message_s > 0 and self.idle_s > 0, "first_message_s and idle_s must be above 0")
        _check(self.session_s > 0, "session_s must be above 0")
        _check(
            SECRET_MIN_S <= self.secret_s <= SECRET_MAX_S,
            f"secret_s must be {SECRET_MIN_S:g} to {SECRET_MAX_S:g} s",
        )
        _check(
            self.secret_key is None or len(self.secret_key) >= SECRET_KEY_CHARS,
            f"secret_key must have at least {SECRET_KEY_CHARS} characters",
        )
        for token in self.tokens:
            _check(_is_key(token), "a token is a string of printable ASCII characters without blanks")
            _check(not token.startswith("ek_"), "a token must not begin with ek_: so do client secrets")
        for origin in self.allowed_origins:
            _check(
                origin == "*" or _is_origin(origin),
                f"the origin {origin!r} must look like https://app.example.org",
            )
        if self.public_url is not None:
            _check(
                urlsplit(self.public_url).scheme in ("http", "https")
                and bool(urlsplit(self.public_url).hostname),
                f"public_url must look like https://voice.example.org, not {self.public_url!r}",
            )
        if self.advertised_ip is not None:
            _check(
                _is_ip(self.advertised_ip), f"advertised_ip must be an address, not {self.advertised_ip!r}"
            )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_key(token: object) -> bool:
    return isinstance(token, str) and bool(token) and all("!" <= c <= "~" for c in token)


def _is_origin(text: object) -> bool:
    if not isinstance(text, str):
        return False
    parts = urlsplit(text)
    return bool(parts.scheme and parts.hostname) and text == f"{parts.scheme}://{parts.netloc}"


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _check(ok: bool, message: str) -> None:
    if not ok:
        raise BadRequest(message)
