"""How does the user's voice become text, and how is the client told? The ``transcription`` object and its events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from transports.realtime import fields
from transports.realtime.agent_defaults import AgentDefaults
from voice.partials import rest_of

_KNOWN = ("model", "language", "prompt", "delay", "keywords", "languages")
_MAX_WORDS = 200


@dataclass(frozen=True, slots=True)
class Transcription:
    """The client wants the user's words. The recogniser is the agent's, whatever model a client names.

    Attributes:
        language: ISO 639-1 code; ``None``: the agent's.
        prompt: Text that shows what to expect; ``None`` when there is none or the recogniser takes none.
        keywords: Words to expect, likewise.
        asked: The client has named them itself: it is told its words while it speaks.
    """

    language: str | None = None
    prompt: str | None = None
    keywords: tuple[str, ...] = ()
    asked: bool = field(default=False, compare=False)

    def wire(self, agent: AgentDefaults) -> dict[str, object]:
        """The object with what is in force."""
        shown: dict[str, object] = {"model": agent.recogniser}
        language = self.language or agent.language
        if language is not None:
            shown["language"] = language
        if self.prompt is not None:
            shown["prompt"] = self.prompt
        if self.keywords:
            shown["keywords"] = list(self.keywords)
        return shown

    def updated(self, patch: object, param: str, agent: AgentDefaults) -> Transcription:
        """These settings with a client's changes.

        Raises:
            RealtimeError: Also for a language that the recogniser can't hear.
        """
        data = fields.as_object(patch, param)
        fields.only_known(data, param, _KNOWN)
        changes: dict[str, Any] = {"asked": True}
        for key, value in data.items():
            at = f"{param}.{key}"
            match key:
                case "language":
                    changes["language"] = agent.read_language(value, at)
                case "prompt":
                    prompt = None if value is None else fields.as_text(value, at, most=10_000)
                    changes["prompt"] = prompt if agent.hints else None
                case "keywords":
                    keywords = _words(value, at)
                    changes["keywords"] = keywords if agent.hints else ()
                case "languages":
                    _words(value, at)
                case "model" | "delay" if value is not None:
                    fields.as_text(value, at, most=256)
        return replace(self, **changes)


class UsersWords:
    """The events ``conversation.item.input_audio_transcription.…``: of one item at a time, the words as they come.

    Args:
        emit: Sends an event with its fields.
    """

    def __init__(self, emit: Callable[..., None]) -> None:
        self._emit = emit
        self._item_id, self._sent = "", ""

    def so_far(self, item_id: str, stable: str) -> None:
        """Words that don't change any more; each time all of them from the item's beginning."""
        if item_id != self._item_id:
            self._item_id, self._sent = item_id, ""
        if len(stable) > len(self._sent):
            self._delta(stable[len(self._sent) :])
            self._sent = stable

    def final(self, item_id: str, text: str, audio_s: float) -> None:
        """All of them. Where they are others than those told before, only the whole says so: deltas can't."""
        rest: str | None = text
        if item_id == self._item_id and self._sent:
            rest = rest_of(self._sent, text)
        self._item_id, self._sent = item_id, ""
        if rest:
            self._delta(rest)
        usage = {"type": "duration", "seconds": round(audio_s, 3)}
        self._tell("completed", transcript=text, usage=usage)

    def lost(self, item_id: str, why: str) -> None:
        """They are not known."""
        self._item_id, self._sent = item_id, ""
        error = {"type": "server_error", "code": "transcription_failed", "message": why}
        self._tell("failed", error=error)

    def _delta(self, text: str) -> None:
        self._tell("delta", delta=text)

    def _tell(self, what: str, **more: object) -> None:
        kind = f"conversation.item.input_audio_transcription.{what}"
        self._emit(kind, item_id=self._item_id, content_index=0, **more)


def _words(value: object, param: str) -> tuple[str, ...]:
    listed = [] if value is None else fields.as_list(value, param, _MAX_WORDS)
    return tuple(fields.as_text(one, f"{param}[{i}]", most=100) for i, one in enumerate(listed))
