"""What does ``voice serve`` let its user decide? Its command-line options, and the server options they mean."""

from __future__ import annotations

import argparse
import os
from typing import Any

from transports.options import IceServer, ServerOptions

MOST_WORKERS = 256


def server_options(args: argparse.Namespace) -> ServerOptions:
    """What the options and the environment (``VOICE_TOKEN``, ``VOICE_SECRET_KEY``, ``TWILIO_AUTH_TOKEN``) ask for.

    Raises:
        BadRequest: A value out of range.
    """
    return ServerOptions(
        tokens=tuple(args.token or filter(None, [os.environ.get("VOICE_TOKEN")])),
        allowed_origins=tuple(args.origin),
        max_sessions=args.max_sessions,
        max_sessions_per_client=args.max_sessions_per_client,
        idle_s=args.idle,
        session_s=args.max_time,
        drain_s=args.drain,
        secret_key=os.environ.get("VOICE_SECRET_KEY") or None,
        ice_servers=tuple(IceServer((url,)) for url in args.ice),
        advertised_ip=args.advertised_ip,
        twilio_auth_token=os.environ.get("TWILIO_AUTH_TOKEN") or None,
        public_url=args.public_url,
        page=not args.no_page,
    )


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the options of a server; :func:`server_options` reads them."""

    def add(name: str, metavar: str, help: str, **options: Any) -> None:
        parser.add_argument(name, metavar=metavar, help=help, **options)

    add(
        "--host",
        "ADDRESS",
        "where to listen; 0.0.0.0 for all of this machine's networks",
        default="127.0.0.1",
    )
    add("--port", "N", "0 chooses a free one", type=int, default=8080)
    add(
        "--token",
        "T",
        "a key that clients must show, may be repeated; or VOICE_TOKEN in the environment",
        action="append",
        default=[],
    )
    add("--origin", "URL", "a web site whose pages may call; * for any", action="append", default=[])
    add(
        "--workers",
        "N",
        "processes that share the port, each with engines of its own (1); SIGHUP replaces them one by one",
        type=_count,
        default=1,
    )
    parser.add_argument("--as-worker", type=int, help=argparse.SUPPRESS)
    add("--max-sessions", "N", "conversations at once (100)", type=int, default=100)
    add("--max-sessions-per-client", "N", "of one token or address (20)", type=int, default=20)
    add("--idle", "S", "end a conversation after this silence of its client (300)", type=float, default=300.0)
    add("--max-time", "S", "longest conversation (3600)", type=float, default=3600.0)
    add("--drain", "S", "longest wait for conversations when it is to stop (20)", type=float, default=20.0)
    add("--ice", "URL", "a STUN or TURN server for WebRTC", action="append", default=[])
    add("--advertised-ip", "ADDRESS", "what WebRTC offers instead of this machine's own address")
    add(
        "--public-url",
        "URL",
        "where clients reach it, if elsewhere (proxies, telephone; its key: TWILIO_AUTH_TOKEN)",
    )
    parser.add_argument("--no-page", action="store_true", help="no web page at /")
    parser.add_argument("--log-json", action="store_true", help="log one JSON object a line")


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"1 to {MOST_WORKERS} workers, not {number}")
    return number
