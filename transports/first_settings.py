"""With which settings does a Realtime conversation begin? The agent's, those that came with it, those of its secret."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from transports.access import Grant
from transports.hosting import Host, Slot
from transports.realtime.config import SessionConfig
from transports.realtime.errors import RealtimeError

MODEL_CHARS = 256


def first_settings(
    host: Host,
    slot: Slot,
    grant: Grant,
    *,
    model: str | None = None,
    given: Mapping[str, object] | None = None,
) -> SessionConfig:
    """The settings in force before the client's first ``session.update``.

    Args:
        grant: Its settings win over ``given``.
        model: By which name the client calls the agent.
        given: What came with the connection.

    Raises:
        RealtimeError: Settings that can't be used, or a name that is too long.
    """
    if model is not None and not 1 <= len(model) <= MODEL_CHARS:
        raise RealtimeError(f"a model's name has 1 to {MODEL_CHARS} characters", param="model")
    config = SessionConfig.of(
        host.agent,
        session_id=slot.id,
        model=model or host.agent.stages.model.name,
        expires_at=int(datetime.now(UTC).timestamp() + host.options.session_s),
    )
    for settings in (given, grant.config):
        if settings is not None:
            config = config.updated({"type": config.type, **settings}, first=True)
    return config
