"""Engines that fail, stall and misbehave at random, from a seed, until they are told to be calm."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterator

from talk import WatchedDetector

from voice.agent import Agent
from voice.errors import EngineFailed
from voice.interfaces import Finished, Prompt, Stages, TextDelta, ToolCall, ToolCallDelta
from voice.options import Limits, SpeechOptions, TurnOptions
from voice.testing import (
    Fail,
    Hang,
    Pause,
    ScriptedModel,
    ScriptedRecogniser,
    ToneSynthesiser,
    check_prompt,
)
from voice.testing.model import Reply, Step
from voice.tools import ToolContext, tool

CLIENT_TOOLS = ("weather", "stocks")
OWN_TOOLS = ("quick", "slow", "stoppable", "broken", "hang_up")
CALM_REPLY = "All is well."


class Chance(Collection[int]):
    """Holds a number with some probability: which calls of a fake fail."""

    def __init__(self, rng: random.Random, share: float) -> None:
        self._rng, self.share = rng, share

    def __contains__(self, number: object) -> bool:
        return self._rng.random() < self.share

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return 0


class Engines:
    """What an agent of a fuzzed conversation is made of.

    Attributes:
        faults: Prompts that a strict provider refuses.
        calm: From now on everything works.
    """

    def __init__(self, rng: random.Random) -> None:
        self.faults: list[str] = []
        self.calm = False
        self._rng = rng
        self._chances = [Chance(rng, share) for share in (0.04, 0.02, 0.04, 0.02)]
        self.model = ScriptedModel(
            self._reply,
            first_token_s=rng.choice([0.0, 0.1, 0.6]),
            token_s=rng.choice([0.0, 0.02, 0.1]),
            strict=False,
        )
        self.recogniser = ScriptedRecogniser(
            self._words, delay_s=self._recognition_s, fail_at=self._chances[0], hang_at=self._chances[1]
        )
        self.synthesiser = ToneSynthesiser(
            rtf=rng.choice([0.02, 0.2, 0.9]), fail_at=self._chances[2], hang_at=self._chances[3]
        )

    def calm_down(self) -> None:
        """Everything works from now on."""
        self.calm = True
        for chance in self._chances:
            chance.share = 0.0

    def agent(self) -> Agent:
        """An agent with these engines, tools of its own, and random habits."""
        rng = self._rng
        return Agent(
            rng.choice(["be brief", "be brief", ""]),
            Stages(WatchedDetector(), self.recogniser, self.model, self.synthesiser, None),
            tools=self._tools(),
            greeting=rng.choice([None, None, "Hello, who is there?"]),
            turns=TurnOptions(
                speculate=rng.random() < 0.8,
                hold_s=rng.choice([0.0, 0.25]),
                respond=rng.random() < 0.9,
                interrupt=rng.random() < 0.9,
            ),
            speech=SpeechOptions(filler=rng.choice(["", "One moment."]), timeout_s=rng.choice([8.0, 40.0])),
            limits=rng.choice([Limits(), Limits(history_entries=8), Limits(history_chars=300)]),
        )

    # ------------------------------------------------------------ what they do

    def _words(self, audio: object) -> str:
        if self.calm:
            return "Are you well?"
        return self._rng.choice(["", "Yes.", "Hello there.", "and then", "I want to", "Grüße, 你好."])

    def _recognition_s(self, audio: object) -> float:
        return 0.05 if self.calm else self._rng.choice([0.0, 0.05, 0.05, 0.4, 2.0])

    def _reply(self, prompt: Prompt) -> Reply:
        try:
            if prompt.messages:  # a client may ask for an answer to nothing at all
                check_prompt(prompt)
        except EngineFailed as error:
            self.faults.append(str(error))
        if self.calm:
            return CALM_REPLY
        rng = self._rng
        kinds: list[Callable[[], list[Step]]] = [
            self._talk, self._talk, self._talk, self._call, self._call, self._calls, self._trouble,
        ]  # fmt: skip
        return [step for _ in range(rng.choice([1, 1, 1, 2])) for step in rng.choice(kinds)()]

    def _talk(self) -> list[Step]:
        rng = self._rng
        count = rng.choice([1, 3, 10, 60])
        words: list[Step] = [f" word{n}" + "." * (n % 5 == 0) for n in range(1, count + 1)]
        if rng.random() < 0.2:
            words.insert(
                rng.randrange(len(words) + 1), rng.choice(["**", "😀", "\ud800", " ", "\n\n", "49.95"])
            )
        if rng.random() < 0.1:
            words.append(Finished(rng.choice(["length", "content_filter", "stop"])))
        return words

    def _call(self) -> list[Step]:
        rng = self._rng
        name = rng.choice([*CLIENT_TOOLS, *OWN_TOOLS[:4], "unknown"])
        if rng.random() < 0.03:
            name = "hang_up"
        call_id = rng.choice(["", "c1", "c2", "same"])
        arguments = rng.choice(["{}", '{"city":"Rome"}', '{"ci', ""])
        steps: list[Step] = [ToolCall(call_id, name, arguments)]
        if call_id and rng.random() < 0.6:
            middle = rng.randrange(len(arguments) + 1)
            deltas = [arguments[:middle], arguments[middle:]]
            steps[:0] = [ToolCallDelta(call_id, name, delta) for delta in deltas]
            if rng.random() < 0.2:
                steps.pop()  # the model ends in the middle of it
        if rng.random() < 0.2:
            steps.insert(rng.randrange(len(steps) + 1), Pause(rng.choice([0.1, 1.0])))
        return steps

    def _calls(self) -> list[Step]:
        """Two calls whose arguments come mixed."""
        first, second = self._rng.sample([*CLIENT_TOOLS, "quick", "slow"], 2)
        return [
            ToolCallDelta("a", first, "{"),
            ToolCallDelta("b", second, "{}"),
            ToolCallDelta("a", first, "}"),
            ToolCall("b", second, "{}"),
            ToolCall("a", first, "{}"),
        ]

    def _trouble(self) -> list[Step]:
        return self._rng.choice(
            [
                [],
                [Fail()],
                [Fail(retryable=False)],
                [TextDelta("Well")],
                [" Well,", " it", Fail()],
                [ToolCallDelta("x", "weather", '{"a'), Fail()],
                [ToolCallDelta("x", "weather", '{"a'), Hang()],
                [" So", Hang()],
                [Hang()],
                [Pause(1.0), " slow.", Pause(1.5), " Yes."],
            ]
        )

    def _tools(self) -> list[object]:
        @tool
        async def quick() -> str:
            """Answers at once."""
            return "done"

        @tool
        async def slow() -> str:
            """Takes its time, whatever happens."""
            await asyncio.sleep(3.0)
            return "done at last"

        @tool(on_interrupt="cancel")
        async def stoppable() -> str:
            """Takes its time unless interrupted."""
            await asyncio.sleep(3.0)
            return "done at last"

        @tool
        async def broken() -> str:
            """Fails."""
            raise RuntimeError("the tool is broken, as it should be")

        @tool
        async def hang_up(context: ToolContext) -> str:
            """Ends the call."""
            context.hang_up()
            return "bye"

        return [quick, slow, stoppable, broken, hang_up]
