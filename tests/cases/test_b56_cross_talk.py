"""B56: with more than one session, one caller hears another's answer.

The kind of fault: what belongs to one session lies in an object that all share. It is made impossible by where state
lives: an answer's audio is in its own ``Track`` (``voice/playout.py``), history, turn, prompt and voice hang from
one ``Session``, engines keep none of it between calls, and every call carries its ``Scope``, whose identity names whose
the result is.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator

from conversation import Conversation, words

from voice.agent import Agent
from voice.events import ResponseEnded, ToolEnded, UserSaid
from voice.interfaces import ModelEvent, Prompt, Speech, Stages, ToolCall
from voice.scope import Scope
from voice.session import Session
from voice.testing import (
    PullClient,
    PushClient,
    ScriptedDetector,
    ScriptedModel,
    ScriptedRecogniser,
    ToneSynthesiser,
    run_virtual,
    speak,
    words_heard,
)
from voice.tools import ToolContext, tool

SESSIONS, SECONDS, SEED = 8, 60.0, 56


class SharedModel(ScriptedModel):
    """Notes whose prompt is whose."""

    def __init__(self) -> None:
        super().__init__(self.answer)
        self.asked: list[tuple[str, Prompt]] = []

    async def generate(self, prompt: Prompt, scope: Scope) -> AsyncIterator[ModelEvent]:
        self.asked.append((scope.identity.session, prompt))
        async for event in super().generate(prompt, scope):
            yield event

    @staticmethod
    def answer(prompt: Prompt) -> list[str | ToolCall]:
        number = numbers_in(prompt.messages[0].text)[0]
        if prompt.messages[-1].role == "user" and len(prompt.messages) % 4 == 2:
            return [ToolCall("", "draw", f'{{"number": {number}}}')]
        return [f"Here is number {number}. ", *(f"{w} " for w in words(14, ends=[7, 14]).split())]


class SharedVoice(ToneSynthesiser):
    """Notes in which voice whose words are spoken."""

    def __init__(self) -> None:
        super().__init__()
        self.spoken: list[tuple[str, str, str | None]] = []

    async def synthesise(self, text: str, scope: Scope, *, voice: str | None = None) -> AsyncIterator[Speech]:
        self.spoken.append((scope.identity.session, text, voice))
        async for speech in super().synthesise(text, scope, voice=voice):
            yield speech


@tool
async def draw(number: int, context: ToolContext) -> str:
    """Draw a picture, in as many steps as its number says.

    Args:
        number: Which.
    """
    for _ in range(number + 1):
        await asyncio.sleep(0.05)
    return f"a picture of number {number}"


def numbers_in(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"number (\d+)", text)]


def pitch(number: int) -> int:
    return 180 + 25 * number


def test_eight_callers_at_once_hear_see_and_get_nothing_of_each_other() -> None:
    model, synthesiser, rng = SharedModel(), SharedVoice(), random.Random(SEED)
    recogniser = ScriptedRecogniser({pitch(n): f"Show me number {n}." for n in range(SESSIONS)})
    stages = Stages(ScriptedDetector(), recogniser, model, synthesiser)

    async def call(number: int) -> tuple[Session, PullClient | PushClient, list[object]]:
        agent = Agent(f"You are number {number}.", stages, tools=[draw], voice=f"voice {number}")
        client = PullClient() if number % 2 else PushClient()
        events: list[object] = []
        await asyncio.sleep(rng.uniform(0.0, 0.05))
        async with Session(agent, client, session_id=f"caller-{number}", on_event=events.append) as session:
            client.attach(session)
            at = rng.uniform(0.2, 1.0)
            while at < SECONDS - 3.0:  # talks into most answers
                seconds = rng.uniform(0.3, 1.2)
                client.say(speak(seconds, pitch(number)), at_s=round(at, 2))
                at += seconds + rng.uniform(0.8, 5.0)
            await client.run(SECONDS)
        return session, client, events

    async def main() -> list[tuple[Session, PullClient | PushClient, list[object]]]:
        return list(await asyncio.gather(*(call(n) for n in range(SESSIONS))))

    calls = run_virtual(main(), seed=SEED)
    for number, (session, client, events) in enumerate(calls):
        heard = words_heard(client.heard)
        assert {run.session for run in heard} == {number}, f"seed {SEED}"
        assert sum(run.words for run in heard) > 20
        assert session.counters.barge_ins >= 2
        for event in events:
            assert set(numbers_in(repr(event))) <= {number}
        assert set(numbers_in(repr(session.chat.entries))) == {number}
        assert any(isinstance(e, ToolEnded) for e in events)
        assert any(isinstance(e, UserSaid) for e in events)
    for session_id, prompt in model.asked:
        assert set(numbers_in(repr(prompt))) == {int(session_id[-1])}
    for session_id, text, voice in synthesiser.spoken:
        assert voice == f"voice {session_id[-1]}"
        assert set(numbers_in(text)) <= {int(session_id[-1])}


def test_one_tool_called_by_two_sessions_at_once_gives_each_its_own_result() -> None:
    async def main() -> None:
        model = SharedModel()
        talks = [
            Conversation(
                model=model,
                texts={220: f"Show me number {n}."},
                tools=[draw],
                session_id=f"caller-{n}",
                instructions=f"You are number {n}.",
            )
            for n in (3, 9)
        ]

        async def talk_to(talk: Conversation) -> None:
            async with talk:
                talk.say(1.0, 0.5)
                await talk.until(ResponseEnded)

        await asyncio.gather(*map(talk_to, talks))
        for number, talk in zip((3, 9), talks, strict=True):
            assert [e.output for e in talk.of(ToolEnded)] == [f"a picture of number {number}"]

    run_virtual(main())
