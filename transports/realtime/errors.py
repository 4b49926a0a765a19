"""How is a client told that it broke the Realtime protocol? Every fault of a client is one ``RealtimeError``."""

from __future__ import annotations

from voice.errors import ProtocolError
from voice.schema import clip, in_words

MAX_MESSAGE_CHARS = 600
MAX_PARAM_CHARS = 160
MAX_EVENT_ID_CHARS = 512
"""The longest ``event_id`` of a client that is taken and repeated."""


class RealtimeError(ProtocolError):
    """A client's mistake, as the protocol's ``error`` event tells it. The connection goes on.

    All texts are made fit for the wire: cut to a bound, and lone surrogates replaced.

    Args:
        message: What was wrong, what was expected, what to do.
        code: The protocol's code, which clients branch on.
        param: Path of the field at fault, such as ``"session.tools[0].name"``.
        type: ``"invalid_request_error"`` for a client's mistake, ``"server_error"`` for ours.
        event_id: The client's own id of the event at fault.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "invalid_value",
        param: str | None = None,
        type: str = "invalid_request_error",
        event_id: str | None = None,
    ) -> None:
        self.message = clip(wire_text(message), MAX_MESSAGE_CHARS)
        super().__init__(self.message)
        self.code = code
        self.param = None if param is None else clip(wire_text(param), MAX_PARAM_CHARS)
        self.type = type
        self.event_id = event_id

    def wire(self) -> dict[str, object]:
        """The ``error`` object of the ``error`` event."""
        return {
            "type": self.type,
            "code": self.code,
            "message": self.message,
            "param": self.param,
            "event_id": self.event_id,
        }


def wire_text(text: str) -> str:
    """``text`` with what JSON in UTF-8 can't hold (lone surrogates) replaced by ``?``."""
    return text.encode("utf-8", "replace").decode()


def wrong_type(param: str, expected: str, value: object) -> RealtimeError:
    """The value is of another JSON type than the field's."""
    message = (
        f"Invalid type for '{clip(param, MAX_PARAM_CHARS)}': expected {expected}, got {in_words(value)}."
    )
    return RealtimeError(message, code="invalid_type", param=param)


def wrong_value(param: str, expected: str, value: object) -> RealtimeError:
    """The value is of the right type, and still not one that the field can have."""
    message = (
        f"Invalid value for '{clip(param, MAX_PARAM_CHARS)}': expected {expected}, got {in_words(value)}."
    )
    return RealtimeError(message, param=param)


def missing(param: str) -> RealtimeError:
    """A required field is absent."""
    return RealtimeError(
        f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param
    )
