"""A second synthesiser speaks when the first is dead or hangs, in every session, and stays for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from talk import make_agent, talk

from voice.agent import Agent
from voice.errors import EngineFailed
from voice.events import Problem, ResponseEnded
from voice.interfaces import Speech
from voice.options import SpeechOptions
from voice.scope import Scope
from voice.testing import ToneSynthesiser, run_virtual

ANSWER = "One two three four. Five six seven eight. Nine ten eleven twelve."


class Voice(ToneSynthesiser):
    """Notes the voices it was asked for; ``ill``: fails before its first audio."""

    ill = False
    asked: list[str | None]

    async def synthesise(self, text: str, scope: Scope, *, voice: str | None = None) -> AsyncIterator[Speech]:
        self.asked = [*getattr(self, "asked", []), voice]
        if self.ill:
            raise EngineFailed("no voice today")
        async for piece in super().synthesise(text, scope):
            yield piece


def agent_of(usual: Voice, other: Voice, **agent: object) -> Agent:
    made = make_agent([ANSWER] * 4, synthesiser=usual, voice="anna", **agent)
    made.stages = replace(made.stages, fallback_synthesiser=other)
    return made


@pytest.mark.parametrize("rate_hz", [24_000, 16_000])
def test_a_dead_synthesiser_is_replaced_for_the_whole_answer_and_at_once_in_the_next_session(
    rate_hz: int,
) -> None:
    async def run() -> None:
        usual, other = Voice(), Voice(sample_rate=rate_hz)
        usual.ill = True
        agent = agent_of(usual, other)
        async with talk(agent, session_id="s1") as first, talk(agent, session_id="s2") as second:
            first.session.respond()
            await first.client.run(1.0)
            second.session.respond()
            await asyncio.gather(first.client.run(6.0), second.client.run(6.0))
            for it in (first, second):
                assert it.ended.heard == ANSWER and not it.of(Problem)
                assert [words for _, words in it.words] == [12]
        assert usual.asked == ["anna"], "the second session knew that it is dead"
        assert other.asked == [None] * 6, "the other one speaks with its own voice"

    run_virtual(run())


def test_one_that_hangs_is_waited_for_half_as_long_when_there_is_another() -> None:
    async def run() -> None:
        usual, other = Voice(hang_at=[0]), Voice()
        usual.first_byte_s = 100.0
        speech = SpeechOptions(synthesis_s=4.0, filler="")
        async with talk(agent_of(usual, other, speech=speech)) as it:
            it.session.respond()
            await it.client.run(8.0)
            assert it.ended.heard == ANSWER
            assert 2.0 <= it.sounds[0][0] < 2.5

    run_virtual(run())


def test_when_both_are_dead_the_answer_ends_with_an_error() -> None:
    async def run() -> None:
        usual, other = Voice(), Voice()
        usual.ill = other.ill = True
        async with talk(agent_of(usual, other)) as it:
            it.session.respond()
            await it.client.run(4.0)
            assert it.of(Problem) and it.of(ResponseEnded)[0].status == "failed"

    run_virtual(run())
