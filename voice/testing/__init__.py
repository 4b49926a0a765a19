"""Test tools for conversations: virtual time and fakes for every engine and transport. Public API.

:func:`run_virtual` runs a coroutine in virtual time; the fakes stand in for engines and callers and
count what happens to them.
"""

from voice.testing.audio import (
    ToneRun,
    WordRun,
    first_audible_s,
    noise,
    silence,
    speak,
    tone_for,
    tone_hz,
    tone_runs,
    words_heard,
)
from voice.testing.clients import PullClient, PushClient
from voice.testing.executor import VirtualExecutor
from voice.testing.loop import Deadlocked, LeftOver, TimeLimit, VirtualLoop, VirtualTimeError
from voice.testing.model import Fail, Hang, Pause, ScriptedModel, check_prompt
from voice.testing.run import run_virtual
from voice.testing.stages import ScriptedDetector, ScriptedRecogniser
from voice.testing.synthesiser import ToneSynthesiser
from voice.testing.tools import SlowTool, slow_tool

__all__ = [
    "Deadlocked",
    "Fail",
    "Hang",
    "LeftOver",
    "Pause",
    "PullClient",
    "PushClient",
    "ScriptedDetector",
    "ScriptedModel",
    "ScriptedRecogniser",
    "SlowTool",
    "TimeLimit",
    "ToneRun",
    "ToneSynthesiser",
    "VirtualExecutor",
    "VirtualLoop",
    "VirtualTimeError",
    "WordRun",
    "check_prompt",
    "first_audible_s",
    "noise",
    "run_virtual",
    "silence",
    "slow_tool",
    "speak",
    "tone_for",
    "tone_hz",
    "tone_runs",
    "words_heard",
]
