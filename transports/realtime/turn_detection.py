"""When is the user done, as a client puts it? ``server_vad`` and ``semantic_vad`` settings, as ``TurnOptions``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from transports.realtime import fields
from transports.realtime.errors import missing
from voice.options import TurnOptions

Kind = Literal["server_vad", "semantic_vad"]
Eagerness = Literal["low", "medium", "high", "auto"]

_KINDS: tuple[Kind, ...] = ("server_vad", "semantic_vad")
_EAGERNESS: tuple[Eagerness, ...] = ("low", "medium", "high", "auto")
_LONGEST_WAIT_S: dict[Eagerness, float] = {"low": 8.0, "medium": 4.0, "high": 2.0, "auto": 4.0}
"""The vendor's documented longest waits; ``auto`` is ``medium``."""
_EAGER_WAIT_S = 0.3
"""``high``: words that look complete are answered after this much silence."""
_KNOWN = (
    "type", "threshold", "prefix_padding_ms", "silence_duration_ms", "idle_timeout_ms", "eagerness",
    "create_response", "interrupt_response", "model_version",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TurnDetection:
    """The voice decides whose turn it is. ``None`` leaves a value as the agent has it.

    Attributes:
        type: ``"server_vad"``: silence of a fixed length ends the turn. ``"semantic_vad"``: the words count too.
        threshold: Voice probability above which sound is speech, 0.05–0.95 (``server_vad``).
        prefix_padding_ms: Audio kept from before the voice, 0–1000 (``server_vad``).
        silence_duration_ms: Silence that ends the turn, 50–30,000 (``server_vad``).
        idle_timeout_ms: Silence on both sides after which the agent speaks again; ``None``: never (``server_vad``).
        eagerness: How soon the agent takes the turn (``semantic_vad``).
        create_response: A turn is answered without ``response.create``.
        interrupt_response: The user's voice interrupts the agent.
    """

    type: Kind = "server_vad"
    threshold: float | None = None
    prefix_padding_ms: int | None = None
    silence_duration_ms: int | None = None
    idle_timeout_ms: int | None = None
    eagerness: Eagerness = "auto"
    create_response: bool | None = None
    interrupt_response: bool | None = None

    def wire(self, base: TurnOptions) -> dict[str, object]:
        """The ``turn_detection`` object with what is in force; ``base`` holds the agent's values."""
        answers = base.respond if self.create_response is None else self.create_response
        interrupts = base.interrupt if self.interrupt_response is None else self.interrupt_response
        both: dict[str, object] = {"create_response": answers, "interrupt_response": interrupts}
        if self.type == "semantic_vad":
            return {"type": self.type, "eagerness": self.eagerness, **both}
        padding_ms, silence_ms = self.prefix_padding_ms, self.silence_duration_ms
        return {
            "type": self.type,
            "threshold": base.speech_threshold if self.threshold is None else self.threshold,
            "prefix_padding_ms": round(base.pre_roll_s * 1000) if padding_ms is None else padding_ms,
            "silence_duration_ms": round(base.min_delay_s * 1000) if silence_ms is None else silence_ms,
            "idle_timeout_ms": self.idle_timeout_ms,
            **both,
        }

    def turn_options(self, base: TurnOptions) -> TurnOptions:
        """``base`` with these settings."""
        options = replace(
            base,
            mode="automatic",
            idle_s=None,
            respond=base.respond if self.create_response is None else self.create_response,
            interrupt=base.interrupt if self.interrupt_response is None else self.interrupt_response,
        )
        return self._semantic(options) if self.type == "semantic_vad" else self._by_silence(options)

    def _by_silence(self, base: TurnOptions) -> TurnOptions:
        options = replace(
            base,
            speech_threshold=base.speech_threshold if self.threshold is None else self.threshold,
            pre_roll_s=base.pre_roll_s if self.prefix_padding_ms is None else self.prefix_padding_ms / 1000,
            idle_s=None if self.idle_timeout_ms is None else self.idle_timeout_ms / 1000,
        )
        if self.silence_duration_ms is None:
            return options
        silence_s = self.silence_duration_ms / 1000
        return replace(
            options,
            pause_s=min(base.pause_s, silence_s),
            min_delay_s=silence_s,
            max_delay_s=silence_s,
        )

    def _semantic(self, base: TurnOptions) -> TurnOptions:
        min_delay_s = base.min_delay_s
        if self.eagerness == "high":
            min_delay_s = min(min_delay_s, _EAGER_WAIT_S)
        return replace(
            base,
            pause_s=min(base.pause_s, min_delay_s),
            min_delay_s=min_delay_s,
            max_delay_s=max(_LONGEST_WAIT_S[self.eagerness], min_delay_s),
        )


def updated_turn_detection(now: TurnDetection | None, patch: object, param: str) -> TurnDetection | None:
    """``now`` with a client's changes: ``null`` for the manual mode; another ``type`` starts from its defaults.

    Settings that "are used only" in the other type are checked and then left aside. Values that the turn taker
    can't have are moved to the nearest that it can; the echo tells.

    Raises:
        RealtimeError: As for every field.
    """
    if patch is None:
        return None
    data = fields.as_object(patch, param)
    fields.only_known(data, param, _KNOWN)
    if data.get("type") is not None:
        kind = fields.as_one_of(data["type"], f"{param}.type", _KINDS)
        if now is None or now.type != kind:
            now = TurnDetection(kind)
    elif now is None:
        raise missing(f"{param}.type")
    changes = {key: _value(key, part, f"{param}.{key}") for key, part in data.items() if key in _READ}
    other = {"eagerness"} if now.type == "server_vad" else _SILENCE_ONLY
    return replace(now, **{key: value for key, value in changes.items() if key not in other})  # type: ignore[arg-type]


_READ = frozenset(_KNOWN) - {"type", "model_version"}
_SILENCE_ONLY = {"threshold", "prefix_padding_ms", "silence_duration_ms", "idle_timeout_ms"}


def _value(key: str, value: object, param: str) -> object:
    """A setting as it is kept; ``null`` puts it back to the agent's."""
    if value is None:
        return "auto" if key == "eagerness" else None
    match key:
        case "threshold":
            return min(max(fields.as_number(value, param, 0.0, 1.0), 0.05), 0.95)
        case "prefix_padding_ms":
            return min(fields.as_integer(value, param, 0, 10_000), 1000)
        case "silence_duration_ms":
            return max(fields.as_integer(value, param, 0, 30_000), 50)
        case "idle_timeout_ms":
            return fields.as_integer(value, param, 100, 3_600_000)
        case "eagerness":
            return fields.as_one_of(value, param, _EAGERNESS)
    return fields.as_bool(value, param)
