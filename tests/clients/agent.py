"""Whom do the stock clients talk to? An agent of fakes: it hears words in the pitch of a tone and has few answers.

Run by ``voice serve --agent tests/clients/agent.py:agent``. What a caller can say, and what it hears then, is
:data:`CALLER`; the answers are fixed so that every client can check them word by word.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

from voice.agent import Agent
from voice.interfaces import Prompt, Stages, ToolCall, ToolCallDelta
from voice.testing import ScriptedDetector, ScriptedModel, ScriptedRecogniser, ToneSynthesiser
from voice.testing.model import Reply, Step

HELLO, WEATHER, STORY, STOP, PUSHED, FORECAST = 200, 225, 250, 275, 300, 325
"""Pitch of the caller's sentences, Hz; all below the agent's voice."""

CALLER = {
    HELLO: "Hello there.",
    WEATHER: "What is the weather in Paris?",
    STORY: "Tell me a long story.",
    STOP: "Stop it please.",
    PUSHED: "I pushed the button.",
    FORECAST: "Look up the weather in Paris.",
}
"""Pitch → the words that the recogniser makes of it."""

ANSWERS = {
    CALLER[HELLO]: "Hello, nice to hear you.",
    CALLER[STOP]: "All right, I stop.",
    CALLER[PUSHED]: "You pushed the button.",
    "What is two and two?": "Two and two is four.",
}
"""What it says to words it knows; others are repeated."""

STORY_TEXT = " ".join(f"word{n}" + "." * (n % 6 == 0) for n in range(1, 61))
"""Sixty words: twelve seconds of speech."""


def weather_text(output: str) -> str:
    """What the agent says when the tool has answered ``output``."""
    return f"The weather is {output}."


_call_numbers = itertools.count(1)


def _reply(prompt: Prompt) -> Reply:
    last = prompt.messages[-1]
    if last.role == "tool":
        return weather_text(_plain(last.text))
    text = last.text.strip()
    if "weather" in text.lower() and any(tool.name == "get_weather" for tool in prompt.tools):
        return ["Let", " me", " see.", *_weather_call()] if "look" in text.lower() else _weather_call()
    if "story" in text.lower():
        return STORY_TEXT
    if (answer := _answer_to(text)) is not None:
        return answer
    return f"You said {text}"


def _answer_to(text: str) -> str | None:
    return next((answer for words, answer in ANSWERS.items() if text.endswith(words)), None)


def _weather_call() -> Sequence[Step]:
    call_id = f"call_weather_{next(_call_numbers)}"
    arguments = '{"city": "Paris"}'
    pieces = [arguments[:7], arguments[7:]]
    deltas = [ToolCallDelta(call_id, "get_weather", piece) for piece in pieces]
    return [*deltas, ToolCall(call_id, "get_weather", arguments)]


def _plain(output: str) -> str:
    """Clients wrap what a tool returns in JSON, or not."""
    try:
        value = json.loads(output)
    except ValueError:
        return output.strip()
    return str(next(iter(value.values()), "")) if isinstance(value, dict) else str(value)


def make_agent() -> Agent:
    """A new agent, with engines of its own."""
    return Agent(
        "You are a test agent.",
        Stages(
            ScriptedDetector(),
            ScriptedRecogniser(CALLER, delay_s=0.02),
            ScriptedModel(_reply, first_token_s=0.05, token_s=0.01),
            ToneSynthesiser(),
        ),
    )


agent = make_agent()
