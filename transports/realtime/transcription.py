"""How does the user's voice become text? The ``transcription`` object: read, merged, shown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from transports.realtime import fields
from transports.realtime.agent_defaults import AgentDefaults

_KNOWN = ("model", "language", "prompt", "delay", "keywords", "languages")
_MAX_WORDS = 200


@dataclass(frozen=True, slots=True)
class Transcription:
    """The client wants the user's words. The recogniser is the agent's, whatever model a client names.

    Attributes:
        language: ISO 639-1 code; ``None``: the agent's.
        prompt: Text that shows what to expect; ``None`` when there is none or the recogniser takes none.
        keywords: Words to expect, likewise.
    """

    language: str | None = None
    prompt: str | None = None
    keywords: tuple[str, ...] = ()

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
        changes: dict[str, Any] = {}
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


def _words(value: object, param: str) -> tuple[str, ...]:
    listed = [] if value is None else fields.as_list(value, param, _MAX_WORDS)
    return tuple(fields.as_text(one, f"{param}[{i}]", most=100) for i, one in enumerate(listed))
