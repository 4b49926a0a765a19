"""What a conversation looks like in a terminal: readable while it happens, or one JSON object a line."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from voice.events import (
    Problem,
    ResponseEnded,
    SessionEvent,
    SpeechStarted,
    ToolEnded,
    ToolStarted,
    UserSaid,
)


@dataclass(slots=True)
class Report:
    """Prints events as they come and adds up the latencies.

    Attributes:
        as_json: One object a line on ``out``; otherwise a transcript. Problems go to ``errors`` either way.
        latencies_ms: Voice-to-voice latency of each turn that was answered.
        failed: Answers that failed outright.
    """

    as_json: bool = False
    out: TextIO = field(default_factory=lambda: sys.stdout)
    errors: TextIO = field(default_factory=lambda: sys.stderr)
    turns: int = 0
    failed: int = 0
    latencies_ms: list[float] = field(default_factory=list)

    def __call__(self, event: SessionEvent) -> None:
        """Take an event of the session."""
        match event:
            case Problem():
                print(f"voice: {event.message}", file=self.errors, flush=True)
            case ResponseEnded():
                self._ended(event)
            case _ if self.as_json:
                pass
            case SpeechStarted():
                self._line(event.at_s, "…", "")
            case UserSaid():
                self._line(None, "you", event.text or "(no words)")
            case ToolStarted():
                self._line(None, "tool", f"{event.call.name}({event.call.arguments})")
            case ToolEnded():
                self._line(None, "tool", f"→ {event.output[:200]}")
            case _:
                pass

    def _line(self, at_s: float | None, who: str, text: str) -> None:
        if who != "…":
            print(f"{who:>6}  {text}", file=self.out, flush=True)

    def _ended(self, event: ResponseEnded) -> None:
        times = event.times
        self.failed += event.status == "failed"
        if event.user_text:
            self.turns += 1
        if times.voice_to_voice_ms is not None:
            self.latencies_ms.append(times.voice_to_voice_ms)
        if self.as_json:
            print(json.dumps(self._turn(event), ensure_ascii=False), file=self.out, flush=True)
            return
        cut = {"interrupted": " —", "cancelled": "(not heard)", "failed": "(no answer)"}.get(event.status, "")
        self._line(None, "agent", f"{event.heard}{cut}")
        if times.voice_to_voice_ms is not None:
            parts = (
                ("endpoint", times.endpoint_ms),
                ("asr", times.asr_ms),
                ("llm", times.llm_first_token_ms),
                ("tts", times.tts_first_audio_ms),
            )
            detail = ", ".join(f"{name} {value:.0f}" for name, value in parts if value is not None)
            guess = ", guessed early" if times.speculated else ""
            print(f"        {times.voice_to_voice_ms:.0f} ms ({detail}{guess})", file=self.out, flush=True)

    def _turn(self, event: ResponseEnded) -> dict[str, Any]:
        times = event.times
        return {
            "type": "turn" if event.user_text else "say",
            "index": self.turns - 1 if event.user_text else None,
            "user": event.user_text,
            "agent": event.heard,
            "generated": event.generated,
            "interrupted": event.status in ("interrupted", "cancelled"),
            "status": event.status,
            "speech_end_s": _rounded(times.speech_end_s, 3),
            "first_audio_s": _rounded(times.first_audio_s, 3),
            "voice_to_voice_ms": _rounded(times.voice_to_voice_ms, 1),
            "pause_ms": _rounded(times.pause_ms, 1),
            "ready_ms": _rounded(times.ready_ms, 1),
            "endpoint_ms": _rounded(times.endpoint_ms, 1),
            "asr_ms": _rounded(times.asr_ms, 1),
            "llm_first_token_ms": _rounded(times.llm_first_token_ms, 1),
            "llm_first_clause_ms": _rounded(times.llm_first_clause_ms, 1),
            "tts_first_audio_ms": _rounded(times.tts_first_audio_ms, 1),
            "gate_to_audio_ms": _rounded(times.gate_to_audio_ms, 1),
            "speculated": times.speculated,
            "error": event.error,
        }

    def finish(self, peak_rss_mb: float) -> None:
        """Print the summary. ``peak_rss_mb``: the process's largest memory."""
        p50, p95 = percentile(self.latencies_ms, 50), percentile(self.latencies_ms, 95)
        if self.as_json:
            summary = {
                "type": "summary",
                "turns": self.turns,
                "voice_to_voice_ms": {"p50": _rounded(p50, 1), "p95": _rounded(p95, 1)},
                "peak_rss_mb": round(peak_rss_mb, 1),
            }
            print(json.dumps(summary), file=self.out, flush=True)
        elif p50 is not None and p95 is not None:
            turns = "1 turn" if self.turns == 1 else f"{self.turns} turns"
            print(
                f"{turns}, voice to voice {p50:.0f} ms (median), {p95:.0f} ms (p95), {peak_rss_mb:.0f} MB",
                file=self.out,
                flush=True,
            )


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The nearest-rank percentile; ``None`` of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
