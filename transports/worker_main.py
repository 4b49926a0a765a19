"""How does a worker begin and end? What would be told on the terminal, it tells its parent."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from transports.monitoring import log_to_stderr
from transports.options import ServerOptions
from transports.worker_process import Seat
from voice.agent import Agent
from voice.errors import BadRequest, VoiceError

if TYPE_CHECKING:
    from transports.server import WarmUp


def run_worker(
    handle: int,
    options: ServerOptions,
    make_agent: Callable[[], tuple[Agent, str]],
    warm_up: WarmUp,
    *,
    log_json: bool = False,
) -> int:
    """Be a worker of ``voice serve --workers`` to the end; returns the exit status.

    Args:
        handle: Our end of the channel to the parent.
        options: Of the whole server; ``max_sessions`` is divided among the workers.
        make_agent: Gives who callers talk to, and what that is made of, for people.
        warm_up: Loads the engines.
        log_json: How the log is written.
    """
    seat = Seat.take(handle)
    log_to_stderr(as_json=log_json)
    seat.mark_log_lines()
    try:
        share = math.ceil(options.max_sessions / seat.workers)
        options = replace(options, max_sessions=share, secret_key=seat.secret_key)
        agent, about = make_agent()
        seat.tell("loaded", about=about)  # its models are there: the others can start now

        from transports.server import app
        from transports.worker_http import serve_as_worker

        server = app(agent, options=options, warm_up=warm_up, seat=seat)
        return 0 if asyncio.run(serve_as_worker(server, seat)) else 1
    except VoiceError as error:
        seat.tell("failed", error=str(error), bad_request=isinstance(error, BadRequest))
        return 1
