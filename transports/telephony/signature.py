"""X-Twilio-Signature: did this request come from Twilio, for this account? (Twilio's "Security" page: HMAC-SHA1.)"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import SplitResult, urlsplit

Parameters = Mapping[str, Sequence[str]]


def sign(token: str, url: str, parameters: Parameters | None = None) -> str:
    """The signature of a request.

    Args:
        token: The account's auth token.
        url: The full address as Twilio was told it, with its query.
        parameters: The form of a POST: each name with its values.
    """
    text = url
    for name in sorted(parameters or {}):
        for value in sorted(set((parameters or {})[name])):
            text += name + value
    digest = hmac.new(token.encode(), text.encode(), hashlib.sha1).digest()
    return base64.b64encode(digest).decode("ascii")


def is_signed(token: str, given: str, url: str, parameters: Parameters | None = None) -> bool:
    """Whether ``given`` is the signature of the request, whichever way its address was written: with the scheme of the
    web or of sockets (proxies take TLS away), with or without the standard port, a socket's with a last slash."""
    found = False
    for written in _ways_to_write(urlsplit(url)):
        expected = sign(token, written, parameters)
        found |= hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace"))
    return found


_STANDARD_PORTS = {"http": ":80", "ws": ":80", "https": ":443", "wss": ":443"}


def _ways_to_write(url: SplitResult) -> Iterator[str]:
    is_socket = url.scheme in ("ws", "wss")
    schemes = (url.scheme, "wss", "https") if is_socket else (url.scheme, "https")
    paths = (url.path, f"{url.path}/") if is_socket else (url.path,)
    for scheme in dict.fromkeys(schemes):
        port = _STANDARD_PORTS[scheme]
        bare = url.netloc.removesuffix(_STANDARD_PORTS[url.scheme])
        hosts = (bare, bare + port) if url.port is None or bare != url.netloc else (url.netloc,)
        for host, path in itertools.product(hosts, paths):
            yield url._replace(scheme=scheme, netloc=host, path=path).geturl()
