"""Sender: how audio goes to a client that can only flush: at most ``ahead_s`` before its ear."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from voice.errors import VoiceError

if TYPE_CHECKING:
    from voice.session import Session

log = logging.getLogger("voice")

_CHUNK_S, _LONG_CHUNK_S = 0.04, 0.12
"""Pieces at the beginning of an answer, and once there is some ahead of the ear: each has a price of its own."""
_LEAST_WAIT_S = 0.005
"""A position that is reported may stand still while the clock goes on."""


async def send_audio(session: Session) -> None:
    """Send what the playout gives until the session ends. One task per session.

    A client that takes nothing for ``Limits.send_stall_s``, or that is gone, ends the session.
    """
    playout, transport = session.playout, session.transport
    capabilities = playout.capabilities
    loop = asyncio.get_running_loop()
    long_chunk_s = max(_CHUNK_S, min(_LONG_CHUNK_S, capabilities.ahead_s / 3))
    while session.ended is None:
        playout.wake.clear()
        track = playout.track
        sent_s = 0.0 if track is None else track.taken / playout.rate_hz
        limit_s = max(capabilities.ahead_s, capabilities.burst_s if sent_s < capabilities.burst_s else 0.0)
        chunk_s = _CHUNK_S if sent_s < _LONG_CHUNK_S else long_chunk_s
        early_s = playout.ahead_s(loop.time()) + chunk_s - limit_s
        pcm = playout.read(int(chunk_s * playout.rate_hz)) if track is not None and early_s <= 1e-6 else None
        if pcm is not None and pcm.size and track is not None:
            playout.sending = True
            try:
                async with asyncio.timeout(session.agent.limits.send_stall_s):
                    await transport.send_audio(pcm, track.response_id)
            except TimeoutError:
                log.warning("%s: the client takes no audio; closing it", session.session_id)
                session.hang_up("slow_client")
            except (OSError, VoiceError) as error:
                log.info("%s: the client is gone: %s", session.session_id, error)
                session.hang_up("disconnected")
            except asyncio.CancelledError:
                if session.ended is not None or (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                log.warning("%s: sending was cancelled from within; closing it", session.session_id)
                session.hang_up("disconnected")
            except Exception:  # libraries have their own words for "gone"
                log.warning("%s: sending failed; closing it", session.session_id, exc_info=True)
                session.hang_up("disconnected")
            finally:
                playout.sending = False
            continue
        wait_s = max(early_s, _LEAST_WAIT_S) if pcm is None and track is not None and early_s > 0 else None
        try:
            async with asyncio.timeout(wait_s):
                await playout.wake.wait()
        except TimeoutError:
            pass
