"""How is a client told that it was refused? As the OpenAI API does: ``{"error": {type, code, message, param}}``."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.responses import Response

from transports.realtime.errors import RealtimeError
from voice.errors import BadRequest, Overloaded, ProtocolError, VoiceError

RETRY_S = 5.0
"""When a client that found the server full may try again, if nothing better is known."""


class Refused(VoiceError):
    """A request was refused; the answer tells the client why.

    Attributes:
        status: HTTP status.
        code: For programs, such as ``"invalid_api_key"``; ``None`` where the status says it all.
        param: The parameter at fault.
        headers: For the answer.
    """

    def __init__(
        self,
        status: int,
        code: str | None,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param
        self.headers = dict(headers or {})

    @property
    def error(self) -> dict[str, object]:
        """The error object of the OpenAI API."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"type": kind, "code": self.code, "message": str(self), "param": self.param}


def refusal(error: Exception) -> Refused:
    """What a client is told of ``error``: the truth about its own mistakes, nothing about ours."""
    match error:
        case Refused():
            return error
        case Overloaded():
            wait = str(round(error.retry_after_s or RETRY_S))
            return Refused(503, "server_overloaded", str(error), headers={"Retry-After": wait})
        case RealtimeError():
            return Refused(400, error.code, error.message, param=error.param)
        case ProtocolError() | BadRequest():
            return Refused(400, "invalid_value", str(error))
    return Refused(500, "internal_error", "something went wrong in the server")


def unauthorised(message: str) -> Refused:
    """The client's key is missing or wrong."""
    return Refused(401, "invalid_api_key", message, headers={"WWW-Authenticate": "Bearer"})


def error_response(error: Refused) -> Response:
    """The HTTP answer that says so."""
    return json_response({"error": error.error}, error.status, headers=error.headers)


def json_response(
    content: Mapping[str, object], status: int = 200, *, headers: Mapping[str, str] | None = None
) -> Response:
    """``content`` as JSON in ASCII, so that it can hold whatever text a client sent (lone surrogates)."""
    return Response(json.dumps(content), status, headers, media_type="application/json")
