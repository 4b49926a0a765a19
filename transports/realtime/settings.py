"""How are the small settings read that a session and a single response share, and those without effect here?"""

from __future__ import annotations

from typing import Literal

from transports.realtime import fields
from transports.realtime.errors import RealtimeError, wrong_type, wrong_value
from voice.audio import AudioFormat

SessionKind = Literal["realtime", "transcription"]
Modality = Literal["audio", "text"]
WireFormat = Literal["audio/pcm", "audio/pcmu", "audio/pcma"]

SESSION_KINDS: tuple[SessionKind, ...] = ("realtime", "transcription")
INSTRUCTIONS_CHARS = 100_000
MAX_OUTPUT_TOKENS = 4096
"""The vendor's bound on ``max_output_tokens``."""
PCM_RATE_HZ = 24_000
G711_RATE_HZ = 8_000

FORMATS: dict[WireFormat, AudioFormat] = {
    "audio/pcm": AudioFormat("pcm16", PCM_RATE_HZ),
    "audio/pcmu": AudioFormat("pcmu", G711_RATE_HZ),
    "audio/pcma": AudioFormat("pcma", G711_RATE_HZ),
}
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


def read_format(value: object, param: str) -> WireFormat:
    """An audio format object; ``null`` for PCM."""
    if value is None:
        return "audio/pcm"
    if isinstance(value, str):
        expected = 'an object such as {"type": "audio/pcm", "rate": 24000} (names alone belong to the beta)'
        raise wrong_type(param, expected, value)
    data = fields.as_object(value, param)
    fields.only_known(data, param, ("type", "rate"))
    kind = fields.as_one_of(fields.required(data, "type", param), f"{param}.type", tuple(FORMATS))
    rate_hz = FORMATS[kind].rate_hz
    if data.get("rate") is not None:
        fields.as_integer(data["rate"], f"{param}.rate", rate_hz, rate_hz)
    return kind


def wire_format(kind: WireFormat) -> dict[str, object]:
    """The format object; only PCM shows its rate."""
    return {"type": kind, "rate": PCM_RATE_HZ} if kind == "audio/pcm" else {"type": kind}


def read_modality(value: object, param: str) -> Modality:
    """``["audio"]`` or ``["text"]``; ``null`` for audio."""
    if value is None:
        return "audio"
    listed = fields.as_list(value, param, 8)
    if listed == ["audio"]:
        return "audio"
    if listed == ["text"]:
        return "text"
    expected = "['audio'] or ['text'], never both (audio always brings a transcript)"
    raise wrong_value(param, expected, value)


def read_max_output_tokens(value: object, param: str) -> int | None:
    """The longest answer in tokens; ``None`` for ``"inf"`` and ``null``."""
    if value is None or value == "inf":
        return None
    if isinstance(value, str):
        raise wrong_value(param, f"an integer from 1 to {MAX_OUTPUT_TOKENS} or 'inf'", value)
    return fields.as_integer(value, param, 1, MAX_OUTPUT_TOKENS)


def check_ignored(key: str, value: object, param: str) -> None:
    """Check a setting that has no effect here. Only a stored prompt is refused: the agent would say other things.

    Raises:
        RealtimeError: A value that the setting can't have, or a stored prompt.
    """
    if value is None:
        return
    match key:
        case "parallel_tool_calls":
            fields.as_bool(value, param)
        case "speed":
            fields.as_number(value, param, 0.25, 1.5)
        case "noise_reduction":
            _check_noise_reduction(value, param)
        case "reasoning":
            effort = fields.as_object(value, param).get("effort")
            if effort is not None:
                fields.as_one_of(effort, f"{param}.effort", _EFFORTS)
        case "truncation":
            _check_truncation(value, param)
        case "tracing":
            if value != "auto":
                fields.as_object(value, param)
        case "include":
            for index, one in enumerate(fields.as_list(value, param, 16)):
                fields.as_one_of(one, f"{param}[{index}]", ("item.input_audio_transcription.logprobs",))
        case "prompt":
            message = f"Invalid value for '{param}': there are no stored prompts here; send 'instructions'."
            raise RealtimeError(message, param=param)


def _check_noise_reduction(value: object, param: str) -> None:
    data = fields.as_object(value, param)
    fields.only_known(data, param, ("type", "strength"))
    if data.get("type") is not None:
        fields.as_one_of(data["type"], f"{param}.type", ("near_field", "far_field"))
    if data.get("strength") is not None:
        fields.as_number(data["strength"], f"{param}.strength", 0.0, 1e6)


def _check_truncation(value: object, param: str) -> None:
    if isinstance(value, str):
        fields.as_one_of(value, param, ("auto", "disabled"))
        return
    data = fields.as_object(value, param)
    fields.only_known(data, param, ("type", "retention_ratio", "token_limits"))
    fields.as_one_of(fields.required(data, "type", param), f"{param}.type", ("retention_ratio",))
    fields.as_number(fields.required(data, "retention_ratio", param), f"{param}.retention_ratio", 0.0, 1.0)
    if data.get("token_limits") is not None:
        fields.as_object(data["token_limits"], f"{param}.token_limits")
