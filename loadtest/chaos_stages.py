"""Engines and tools in which anything may go wrong at each await, as a seed decides; what they give says whose it is.

An utterance's level is its session's number, an answer's words are a code of their own, and the voice's samples are
that code: whoever hears or reads something can tell whose it should have been.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np

from loadtest.chaos_trouble import Trouble
from voice.batching import Batcher
from voice.compute import ComputeGate
from voice.errors import EngineFailed
from voice.interfaces import (
    Finished,
    ModelEvent,
    Pcm16,
    Prompt,
    RecogniserCapabilities,
    Speech,
    Stages,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    Transcript,
    Usage,
    VoiceDetector,
)
from voice.scope import Scope
from voice.testing import VirtualExecutor, check_prompt
from voice.tool_context import ToolContext
from voice.tools import AnyTool, tool

RATE_HZ = 4_000
NEUTRAL = 1_000
"""Level of words that are no model's: an apology, a filler, what the owner has the agent say."""
FIRST_CODE = 2_000
MOST_CODES = 28_000
_CODE = re.compile(r"\b[Qq]([a-z]{4})\b")
CALLER = re.compile(r"caller[a-z]{4}")
_WORD_S = 0.3


def letters(number: int) -> str:
    """Four letters that stand for a number below 26⁴."""
    return "".join(chr(97 + number // 26**place % 26) for place in (3, 2, 1, 0))


def number_of(text: str) -> int:
    """The number that :func:`letters` wrote."""
    total = 0
    for letter in text:
        total = total * 26 + ord(letter) - 97
    return total


def codes_in(text: str) -> set[int]:
    """The codes of answers in a text."""
    return {number_of(found) for found in _CODE.findall(text)}


# ---------------------------------------------------------------- recognition and turn model


class ChaosRecogniser:
    """Behind a real batcher and gate; the engine's call itself may raise, hang and miscount."""

    name = "chaos-recogniser"
    capabilities = RecogniserCapabilities(max_audio_s=600.0)

    def __init__(self, trouble: Trouble, gate: ComputeGate) -> None:
        self._trouble = trouble
        self.executor = VirtualExecutor(self._cost_s)
        self._hang = False
        self.batcher: Batcher[tuple[int, int], str] = Batcher(
            self._run,
            name=self.name,
            executor=self.executor,
            max_batch=4,
            max_queue=16,
            gate=gate,
            timeout_s=4.0,
        )

    async def transcribe(
        self, audio: Pcm16, scope: Scope, *, language: str | None = None, hints: Sequence[str] = ()
    ) -> Transcript:
        """See :class:`~voice.interfaces.Recogniser`."""
        with self._trouble.call("recogniser"):
            await self._trouble.pass_time(0.02, "recogniser", "before its call")
            level = int(audio[-1]) if audio.size else 0
            text = await self.batcher.submit((level, audio.size), scope)
            await self._trouble.pass_time(0.01, "recogniser", "after its call")
            if self._trouble.strikes(self._trouble.rate / 4):
                self._trouble.note("recogniser", "no transcript")
                return self._trouble.chance.choice([None, Transcript(None), "text"])  # type: ignore[arg-type, return-value]
            return Transcript(text)

    def _run(self, items: Sequence[tuple[int, int]]) -> list[str]:
        trouble = self._trouble
        if trouble.strikes():
            kind = trouble.chance.choice(["engine", "memory", "value", "bug", "count", "hang"])
            trouble.note("recogniser in its call", kind)
            match kind:
                case "engine":
                    raise EngineFailed("the recogniser's device is gone")
                case "memory":
                    raise MemoryError
                case "value" if any(size % 3 == 0 for _, size in items):
                    raise ValueError("an item is odd")
                case "bug" if any(size % 5 == 0 for _, size in items):
                    raise IndexError("an item is out of range")
                case "count":
                    return [words_said(level, size) for level, size in items][:-1]
                case "hang":
                    self._hang = True
        if trouble.calm:
            return [f"This is caller{letters(level)} and I would like to know more." for level, _ in items]
        return [words_said(level, size) for level, size in items]

    def _cost_s(self, call: Callable[..., Any], args: tuple[Any, ...]) -> float:
        hangs, self._hang = self._hang and not self._trouble.calm, False
        if hangs or self._trouble.strikes(self._trouble.rate / 4):
            return self._trouble.chance.uniform(3.0, 20.0)
        return self._trouble.chance.uniform(0.02, 0.3)


def words_said(level: int, size: int) -> str:
    """What was said: by its length."""
    name = f"caller{letters(level)}"
    texts = (
        *(
            f"This is {name} and I would like to know more.",
            f"Wait, stop, {name} speaking.",
            f"And then {name} and",
        ),
        *("", "Mm-hm.", f"What is the weather for {name}?", f"No. {name}."),
    )
    return texts[size // 97 % len(texts)]


class ChaosTurnModel:
    """Tells at random whether the user is done, if anything."""

    name = "chaos-turn"
    window_s = 8.0

    def __init__(self, trouble: Trouble) -> None:
        self._trouble = trouble

    async def completion(self, audio: Pcm16, scope: Scope) -> float:
        """See :class:`~voice.interfaces.TurnModel`."""
        with self._trouble.call("turn model"):
            try:
                await self._trouble.pass_time(0.02, "turn model", "in its call")
            except (RuntimeError, ValueError, OSError) as error:
                if self._trouble.wants("bugs of the turn model"):
                    raise
                raise EngineFailed("the turn model has a bug") from error
            if self._trouble.wants("no probability") and self._trouble.strikes(self._trouble.rate / 2):
                self._trouble.note("turn model", "no probability")
                return self._trouble.chance.choice([math.nan, 2.0, -1.0, None, "yes"])  # type: ignore[return-value]
            return self._trouble.chance.random()


# ---------------------------------------------------------------- model and voice


class ChaosModel:
    """Answers with a code of its own in every word; calls tools.

    Attributes:
        asked_by: Code → session that asked.
        complaints: Prompts that were invalid or held another session's words.
    """

    def __init__(self, trouble: Trouble, name: str = "chaos-model") -> None:
        self.name = name
        self._trouble = trouble
        self.asked_by: dict[int, str] = {}
        self.complaints: list[str] = []

    async def generate(self, prompt: Prompt, scope: Scope) -> AsyncIterator[ModelEvent]:
        """See :class:`~voice.interfaces.LanguageModel`."""
        trouble, chance = self._trouble, self._trouble.chance
        code = self._note(prompt, scope.identity.session)
        with trouble.call(self.name):
            await trouble.pass_time(chance.uniform(0.05, 0.4), self.name, "before its first token")
            count = 0 if trouble.strikes() else chance.choice([3, 8, 15, 25])
            for number in range(count):
                if number:
                    await trouble.pass_time(0.02, self.name, "between tokens")
                if trouble.strikes(trouble.rate / 10):
                    trouble.note(self.name, "an event of no kind")
                    yield chance.choice([None, "text", TextDelta(None), TextDelta("")])  # type: ignore[misc, arg-type]
                end = ". " if number % 8 == 7 or number == count - 1 else " "
                yield TextDelta(("Q" if number % 8 == 0 else "q") + letters(code) + end)
            if prompt.tools and prompt.messages[-1].role == "user" and chance.random() < 0.2:
                for call in self._calls(scope.identity.session):
                    if chance.random() < 0.3:
                        yield ToolCallDelta(call.call_id, call.name, call.arguments)
                    await trouble.pass_time(0.02, self.name, "before a tool call")
                    yield call
                yield Finished("tool_calls")
                return
            await trouble.pass_time(0.0, self.name, "at its end")
            if not trouble.strikes():
                yield Usage(1, count)
                yield Finished("stop")

    def _note(self, prompt: Prompt, session: str) -> int:
        text = "\n".join(message.text for message in prompt.messages)
        if (others := set(CALLER.findall(text)) - {session}) or session not in prompt.messages[0].text:
            self.complaints.append(f"the prompt of {session} holds {others or 'not its own instructions'}")
        for code in codes_in(text):
            if self.asked_by.get(code, session) != session:
                self.complaints.append(f"the prompt of {session} holds an answer of {self.asked_by[code]}")
        try:
            check_prompt(prompt)
        except EngineFailed as error:
            self.complaints.append(f"{session}: {error}")
        code = len(self.asked_by)
        self.asked_by[code] = session
        return code

    def _calls(self, session: str) -> list[ToolCall]:
        chance = self._trouble.chance
        names = chance.choices(["look_up", "kept", "blocking", "nowhere"], k=chance.choice([1, 1, 2, 3]))
        arguments = json.dumps({"who": session})
        odd = ['{"who": ', "{}", "[]", '{"who": 3}']
        return [
            ToolCall(
                chance.choice(["", "call_1", "same"]),
                name,
                chance.choice(odd) if self._trouble.strikes() else arguments,
            )
            for name in names
        ]


class ChaosVoice:
    """A level for each word that tells its answer."""

    name = "chaos-voice"
    sample_rate = RATE_HZ
    max_chars = 400

    def __init__(self, trouble: Trouble) -> None:
        self._trouble = trouble

    async def synthesise(self, text: str, scope: Scope, *, voice: str | None = None) -> AsyncIterator[Speech]:
        """See :class:`~voice.interfaces.Synthesiser`."""
        trouble, chance = self._trouble, self._trouble.chance
        codes = [FIRST_CODE + number_of(found) for found in _CODE.findall(text)] or [NEUTRAL]
        with trouble.call("voice"):
            await trouble.pass_time(chance.uniform(0.03, 0.15), "voice", "before its first audio")
            for start in range(0, len(codes), 3):
                if start:
                    await trouble.pass_time(0.05, "voice", "between pieces")
                levels = np.repeat(np.array(codes[start : start + 3], np.int16), round(_WORD_S * RATE_HZ))
                if trouble.strikes(trouble.rate / 4):
                    trouble.note("voice", "odd audio")
                    odd = [levels.astype(np.float32), levels[:0], levels.reshape(1, -1), b"\x00\x00", None]
                    yield Speech(chance.choice(odd))  # type: ignore[arg-type]
                yield Speech(levels if chance.random() < 0.8 else levels.astype("<i2").tobytes())
            await trouble.pass_time(0.0, "voice", "at its end")


# ---------------------------------------------------------------- tools


def chaos_tools(trouble: Trouble) -> list[AnyTool]:
    """Three tools that fail in all ways that tools do; they return who asked."""
    chance = trouble.chance

    async def meddle(context: ToolContext) -> None:
        if not trouble.strikes():
            return
        act = chance.choice(["say", "interrupt", "hang_up", "say"])
        trouble.note("tool", act)
        if act == "say":
            context.say("Still looking.")
        elif act == "interrupt":
            context.interrupt()
        else:
            context.hang_up()

    @tool(timeout_s=3.0, on_interrupt="cancel")
    async def look_up(who: str, context: ToolContext) -> str:
        """Look something up.

        Args:
            who: Who asks.
        """
        with trouble.call("tool"):
            await trouble.pass_time(chance.uniform(0.05, 1.0), "tool", "in its call")
            await meddle(context)
            await trouble.pass_time(0.05, "tool", "at its end")
        return f"found for {who}"

    @tool(timeout_s=4.0)
    async def kept(who: str, context: ToolContext) -> str:
        """Do something that may not be undone.

        Args:
            who: Who asks.
        """
        with trouble.call("tool"):
            await trouble.pass_time(chance.uniform(0.1, 2.5), "tool", "in its call")
        return f"done for {who}"

    @tool(timeout_s=3.0)
    def blocking(who: str) -> str:
        """Work in a thread.

        Args:
            who: Who asks.
        """
        if trouble.strikes():
            kind = chance.choice(["bug", "exit", "value"])
            trouble.note("blocking tool", kind)
            raise {"bug": RuntimeError("a bug"), "exit": SystemExit(3), "value": ValueError("odd")}[kind]
        return f"worked for {who}"

    return [look_up, kept, blocking]


def chaos_stages(
    trouble: Trouble, detector: VoiceDetector
) -> tuple[Stages, ChaosRecogniser, list[ChaosModel]]:
    """Stages for all sessions of a round; the models share their count of codes."""
    gate = ComputeGate(2)
    recogniser = ChaosRecogniser(trouble, gate)
    model, fallback = ChaosModel(trouble), ChaosModel(trouble, "chaos-fallback")
    fallback.asked_by = model.asked_by
    with_fallback = trouble.chance.random() < 0.5
    stages = Stages(
        detector,
        recogniser,
        model,
        ChaosVoice(trouble),
        fallback_model=fallback if with_fallback else None,
        turn=ChaosTurnModel(trouble) if trouble.chance.random() < 0.7 else None,
        fallback_synthesiser=ChaosVoice(trouble) if trouble.chance.random() < 0.3 else None,
    )
    return stages, recogniser, [model, fallback]
