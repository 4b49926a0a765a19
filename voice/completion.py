"""How is the turn model asked whether the user is done? Its failures and bugs cost that one answer."""

from __future__ import annotations

import asyncio
import logging

from voice.errors import EngineFailed, VoiceError
from voice.interfaces import Pcm16, TurnModel
from voice.scope import Scope

log = logging.getLogger("voice")


async def completion_of(model: TurnModel, audio: Pcm16, scope: Scope) -> float | None:
    """The probability, 0–1, that the user is done; ``None``: there is no audio, or the model failed."""
    if not audio.size:
        return None
    try:
        answer = float(await model.completion(audio, scope))
        if not 0.0 <= answer <= 1.0:  # not a number is not, either
            raise EngineFailed(f"{answer} is no probability")
        return answer
    except VoiceError as error:
        if not scope.cancelled:
            log.warning("the turn model %s failed: %s", model.name, error)
    except asyncio.CancelledError:
        if scope.cancelled or (task := asyncio.current_task()) is None or task.cancelling():
            raise
        log.warning("the turn model %s was cancelled from within", model.name)
    except Exception as error:  # a stranger's code: it costs this judgement, nothing else
        log.warning("the turn model %s failed", model.name, exc_info=error)
    return None
