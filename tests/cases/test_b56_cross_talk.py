"""B56: with more than one session, one caller hears another's answer.

The kind of fault: what belongs to one session lies in an object that all share. It is made impossible by where state
lives: an answer's audio is in its own ``Track`` (``voice/playout.py``), history, turn, prompt and voice hang from
one ``Session``, engines keep none of it between calls, and every call carries its ``Scope``, whose identity names whose
the result is.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from collections.abc import AsyncIterator, Callable, Sequence

import numpy as np
import pytest
from conversation import Conversation, words
from served import Place, empty, place, run

from transports.websocket import audio_of, connect
from voice.agent import Agent
from voice.events import ResponseEnded, ToolEnded, UserSaid
from voice.interfaces import (
    ModelEvent,
    ModelOptions,
    Pcm16,
    Prompt,
    RecogniserCapabilities,
    Speech,
    Stages,
    ToolCall,
    Transcript,
)
from voice.options import TurnOptions
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
    tone_for,
    words_heard,
)
from voice.tools import ToolContext, tool

SESSIONS, SECONDS, SEED = 8, 60.0, 56
SOCKET_SECONDS = float(os.environ.get("VOICE_CROSS_TALK_S", "4"))
"""Over sockets, in real time."""
RATE_HZ = 24_000


class SharedModel(ScriptedModel):
    """Notes whose prompt is whose."""

    def __init__(self) -> None:
        super().__init__(self.answer)
        self.asked: list[tuple[str, Prompt]] = []

    async def generate(self, prompt: Prompt, scope: Scope) -> AsyncIterator[ModelEvent]:
        self.asked.append((scope.identity.session, prompt))
        async for event in super().generate(prompt, scope):
            yield event

    tools = True

    def answer(self, prompt: Prompt) -> list[str | ToolCall]:
        number = numbers_in(prompt.messages[0].text)[0]
        if self.tools and prompt.messages[-1].role == "user" and len(prompt.messages) % 4 == 2:
            return [ToolCall("", "draw", f'{{"number": {number}}}')]
        return [f"Here is number {number}. ", *(f"{w} " for w in words(14, ends=[7, 14]).split())]


class SharedRecogniser(ScriptedRecogniser):
    """Notes in which language whose words are asked for."""

    def __init__(self) -> None:
        texts = {pitch(n): f"Show me number {n}." for n in range(SESSIONS)}
        super().__init__(texts, capabilities=RecogniserCapabilities(languages=("en", "de", "fr")))
        self.languages: list[tuple[str, str | None]] = []

    async def transcribe(
        self, audio: Pcm16, scope: Scope, *, language: str | None = None, hints: Sequence[str] = ()
    ) -> Transcript:
        self.languages.append((scope.identity.session, language))
        return await super().transcribe(audio, scope, language=language, hints=hints)


class SharedVoice(ToneSynthesiser):
    """Notes in which voice whose words are spoken."""

    def __init__(self, session_number: Callable[[str], int] | None = None) -> None:
        super().__init__(session_number=session_number)
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


def language(number: int) -> str:
    return ("en", "de", "fr")[number % 3]


def check_blocks(heard: Pcm16, number: int) -> int:
    """Every 200 ms with sound in half of it are the session's own tone and nothing else; returns how many there are."""
    size, checked = RATE_HZ // 5, 0
    hz = np.fft.rfftfreq(size, 1 / RATE_HZ)
    own = (hz > tone_for(number, 0) - 15.0) & (hz < tone_for(number, 7) + 15.0)
    for start in range(0, heard.size - size, size):
        block = heard[start : start + size].astype(np.float64)
        loud = np.abs(block.reshape(-1, size // 20)).max(axis=1) > 500
        if loud.mean() < 0.5:  # so short a piece is of all pitches; its loudest is looked at elsewhere
            continue
        power = np.abs(np.fft.rfft(block * np.hanning(size))) ** 2
        least = 0.9 if loud.all() else 0.6
        assert power[own].sum() > least * power.sum(), (
            f"at {start / RATE_HZ:.1f} s caller {number} hears another"
        )
        checked += 1
    return checked


def test_eight_callers_at_once_hear_see_and_get_nothing_of_each_other() -> None:
    model, synthesiser, recogniser = SharedModel(), SharedVoice(), SharedRecogniser()
    rng = random.Random(SEED)
    stages = Stages(ScriptedDetector(), recogniser, model, synthesiser)

    async def call(number: int) -> tuple[Session, PullClient | PushClient, list[object]]:
        agent = Agent(
            f"You are number {number}.",
            stages,
            tools=[draw],
            voice=f"voice {number}",
            language=language(number),
            model_options=ModelOptions(max_tokens=100 + number),
            turns=TurnOptions(min_delay_s=0.3 + number / 50),
        )
        client = (PullClient if number % 2 else PushClient)(frame_s=0.08, record_s=SECONDS)
        events: list[object] = []
        await asyncio.sleep(rng.uniform(0.0, 0.05))
        async with Session(agent, client, session_id=f"caller-{number}", on_event=events.append) as session:
            client.attach(session)
            for turn in range(number % 4):  # each has a past of its own
                session.send_text(
                    f"My number {number} is dear to me, I say it time and again: {turn}.", answer=False
                )
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
        assert check_blocks(client.heard, number) > 20
        assert session.counters.barge_ins >= 2
        for event in events:
            assert set(numbers_in(repr(event))) <= {number}
        assert set(numbers_in(repr(session.chat.entries))) == {number}
        assert any(isinstance(e, ToolEnded) for e in events)
        assert any(isinstance(e, UserSaid) for e in events)
    for session_id, prompt in model.asked:
        number = int(session_id[-1])
        assert set(numbers_in(repr(prompt))) == {number}
        assert prompt.options.max_tokens == 100 + number
        assert repr(prompt).count("dear to me") == number % 4
    for session_id, asked in recogniser.languages:
        assert asked == language(int(session_id[-1]))
    for session_id, text, voice in synthesiser.spoken:
        assert voice == f"voice {session_id[-1]}"
        assert set(numbers_in(text)) <= {int(session_id[-1])}


# ---------------------------------------------------------------- over sockets


def settings(number: int) -> dict[str, object]:
    detection = {"type": "server_vad", "silence_duration_ms": 200 + 20 * number}
    return {
        "instructions": f"You are number {number}.",
        "max_output_tokens": 100 + number,
        "audio": {
            "input": {
                "turn_detection": detection,
                "transcription": {"model": "whisper-1", "language": language(number)},
            },
            "output": {"voice": f"voice {number}"},
        },
    }


async def socket_call(server: Place, number: int, rng: random.Random) -> tuple[list[str], Pcm16]:
    """One caller: a past, then speech over most answers. Returns all it was told and the sound it got."""
    told: list[str] = []
    heard: list[Pcm16] = []
    await asyncio.sleep(rng.uniform(0.0, 0.05))
    async with connect(f"http://127.0.0.1:{server.port}", session=settings(number)) as client:

        async def listen() -> None:
            async for event in client:
                if event["type"] == "response.output_audio.delta":
                    heard.append(audio_of(event))
                else:
                    told.append(json.dumps(event))

        listening = asyncio.create_task(listen())
        part = {"type": "input_text", "text": f"My number {number} is dear to me."}
        await client.send(
            "conversation.item.create", item={"type": "message", "role": "user", "content": [part]}
        )
        loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        sound = np.zeros(0, np.int16)
        size = RATE_HZ // 25
        for frame in range(round(25 * SOCKET_SECONDS)):
            if sound.size < size:  # a sentence, then time for an answer to begin
                pause = np.zeros(round(rng.uniform(0.5, 1.0) * RATE_HZ), np.int16)
                speech = speak(rng.uniform(0.4, 0.8), pitch(number), RATE_HZ)
                sound = np.concatenate([sound, speech, pause])
            await client.hear(sound[:size])
            sound = sound[size:]
            await asyncio.sleep(max(0.0, began + (frame + 1) / 25 - loop.time()))
        await asyncio.sleep(1.0)
        listening.cancel()
    return told, np.concatenate(heard) if heard else np.zeros(0, np.int16)


def test_eight_callers_over_sockets_get_nothing_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions: dict[str, int] = {}  # whose caller is whose session, as told by the voice asked for
    model, recogniser = SharedModel(), SharedRecogniser()
    model.tools = False

    class Voice(SharedVoice):
        async def synthesise(
            self, text: str, scope: Scope, *, voice: str | None = None
        ) -> AsyncIterator[Speech]:
            sessions.setdefault(scope.identity.session, int((voice or "?")[-1]))
            async for speech in super().synthesise(text, scope, voice=voice):
                yield speech

    synthesiser = Voice(sessions.__getitem__)
    agent = Agent("You are nobody.", Stages(ScriptedDetector(), recogniser, model, synthesiser))
    rng = random.Random(SEED)

    async def main() -> None:
        async with place(agent, admission=None) as server:
            calls = await asyncio.gather(*(socket_call(server, n, rng) for n in range(SESSIONS)))
            await empty(server.server)
        for number, (told, heard) in enumerate(calls):
            assert set(numbers_in(" ".join(told))) == {number}, f"seed {SEED}"
            assert check_blocks(heard, number) >= 2
            assert {run.session for run in words_heard(heard)} == {number}

    run(main)
    assert sorted(sessions.values()) == list(range(SESSIONS))
    for session_id, prompt in model.asked:
        number = sessions[session_id]
        assert set(numbers_in(repr(prompt))) == {number}
        assert prompt.options.max_tokens == 100 + number
        assert repr(prompt).count("dear to me") == 1
    assert {(sessions[i], asked) for i, asked in recogniser.languages if i in sessions} == {
        (n, language(n)) for n in range(SESSIONS)
    }
    for session_id, text, voice in synthesiser.spoken:
        assert voice == f"voice {sessions[session_id]}"
        assert set(numbers_in(text)) <= {sessions[session_id]}


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
