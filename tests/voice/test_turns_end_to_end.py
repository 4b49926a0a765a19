"""Whole conversations with callers and owners who do anything at any time, in virtual time: what is heard is one
answer after the other and never a stale one, the history says exactly that, and in the end everybody is silent.

``VOICE_TURNS_CALLS=2000`` plays that many, ``VOICE_TURNS_CALL=7`` one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from random import Random

from voice.agent import Agent
from voice.chat import AgentEntry, UserEntry
from voice.events import (
    ResponseEnded,
    ResponseStarted,
    SessionEvent,
    SpeechStarted,
    UserSaid,
)
from voice.interfaces import ModelEvent, Pcm16, Prompt, Speech, Stages
from voice.options import SpeechOptions, TurnOptions
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
from voice.testing.audio import TURNS

CALLS = int(os.environ.get("VOICE_TURNS_CALLS", "10"))
ONE_CALL = os.environ.get("VOICE_TURNS_CALL")
SECONDS, MOST_S = 15.0, 60.0
"""How long a caller talks, and how long it may take until all is silent after that."""
TEXTS = {
    150: "What is it?",
    180: "Mm-hm.",
    210: "Stop.",
    240: "and then",
    270: "I would like to know more.",
    300: "",
}
SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]


def word_of(number: int) -> str:
    """The one word of which answer ``number`` is made, any number of times."""
    return SYLLABLES[number // len(SYLLABLES)] + SYLLABLES[number % len(SYLLABLES)] + "x"


def number_of(word: str) -> int:
    """The answer to which a word belongs."""
    return SYLLABLES.index(word[:2]) * len(SYLLABLES) + SYLLABLES.index(word[2:4])


class Answers:
    """Numbers what is said: no two answers share a word, and so none a tone."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.count = 0

    def next(self) -> list[str]:
        """The next answer, in sentences."""
        word = word_of(self.count)
        self.count += 1
        return [
            " ".join([word] * self.rng.randint(1, 12)) + self.rng.choice([". ", "? ", ". "]) for _ in range(2)
        ]


class Model(ScriptedModel):
    """Takes its time."""

    def __init__(self, answers: Answers) -> None:
        super().__init__(lambda prompt: answers.next())
        self._rng = answers.rng

    async def generate(self, prompt: Prompt, scope: Scope) -> AsyncIterator[ModelEvent]:
        await asyncio.sleep(self._rng.choice([0.0, 0.1, 0.4, 1.5]))
        async for event in super().generate(prompt, scope):
            yield event


class Voice(ToneSynthesiser):
    """A tone of its own for each answer."""

    async def synthesise(self, text: str, scope: Scope, *, voice: str | None = None) -> AsyncIterator[Speech]:
        number = number_of(text.split()[0].strip(".?"))
        session, turn = divmod(number, TURNS)
        scope = Scope(
            "stage", parent=scope, identity=replace(scope.identity, session=f"s{session}", turn=turn)
        )
        try:
            async for speech in super().synthesise(text, scope, voice=voice):
                yield speech
        finally:
            scope.close()


class TurnModel:
    """Guesses."""

    name, window_s = "guessing", 8.0

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    async def completion(self, audio: Pcm16, scope: Scope) -> float:
        await asyncio.sleep(self._rng.choice([0.02, 0.3]))
        return self._rng.random()


class Call:
    """One conversation, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.answers = Answers(rng)
        self.events: list[SessionEvent] = []
        recogniser = ScriptedRecogniser(TEXTS, delay_s=lambda audio: rng.choice([0.05, 0.2, 0.8]))
        turn = TurnModel(rng) if rng.random() < 0.5 else None
        options = TurnOptions(
            max_delay_s=rng.choice([0.5, 1.0, 2.5]),
            min_delay_s=0.4,
            speculate=rng.random() < 0.8,
            hold_s=rng.choice([0.0, 0.25]),
            idle_s=rng.choice([None, 3.0]),
            interrupt=rng.random() < 0.9,
            echo_guard=rng.random() < 0.3,
        )
        voice = Voice(rtf=rng.choice([0.02, 0.3]), first_byte_s=rng.choice([0.0, 0.2]))
        agent = Agent(
            "Be brief.",
            Stages(ScriptedDetector(), recogniser, Model(self.answers), voice, turn=turn),
            turns=options,
            speech=SpeechOptions(filler=""),
        )
        self.client: PullClient | PushClient = rng.choice([PullClient, PushClient])()
        self.session = Session(agent, self.client, session_id="s0", on_event=self.events.append)

    async def run(self) -> None:
        """Talk, then be silent until the agent is."""
        async with self.session:
            self.client.attach(self.session)
            at = self.rng.uniform(0.2, 1.0)
            gaps_s = self.rng.choice([[0.15, 0.3, 0.7], [0.3, 1.5], [1.5, 3.0], [0.15, 0.7, 3.0]])
            while at < SECONDS:
                seconds = self.rng.choice([0.05, 0.15, 0.3, 0.6, 1.5, 4.0])
                self.client.say(speak(seconds, self.rng.choice(list(TEXTS))), at_s=round(at, 2))
                at += seconds + self.rng.choice(gaps_s)
            owner = asyncio.create_task(self.owner())
            await self.client.run(SECONDS + 4.0)
            await owner
            while not self.session.is_quiet() and self.client.now_s < SECONDS + MOST_S:
                await self.client.run(1.0)

    async def owner(self) -> None:
        """The owner interferes."""
        rng, session = self.rng, self.session
        for _ in range(rng.choice([0, 0, 3, 8])):
            await asyncio.sleep(rng.uniform(0.0, SECONDS / 8))
            match rng.randrange(6):
                case 0 | 1:
                    session.say("".join(self.answers.next()), interruptible=rng.random() < 0.5)
                case 2:
                    session.send_text("Note this.", answer=rng.random() < 0.5)
                case 3:
                    session.interrupt()
                case 4:
                    session.clear()
                case 5:
                    speculate, interrupt = rng.random() < 0.5, rng.random() < 0.5
                    session.configure(replace(session.options, speculate=speculate, interrupt=interrupt))

    # ------------------------------------------------------------ what must hold

    def check(self) -> None:
        assert self.client.now_s < SECONDS + MOST_S, "it does not come to rest"
        sound = [(run.session * TURNS + run.turn, run.words) for run in words_heard(self.client.heard)]
        heard, written = dict(sound), self.written()
        assert len(heard) == len(sound), f"an answer came back after another one: {sound}"
        for number, words, cut in written:  # where an answer was cut is known to a word
            most = heard.get(number, 0)
            assert abs(words - most) <= cut, (
                f"of answer {number} {most} words were heard, {words} are written"
            )
        numbers = [number for number, _, _ in written]
        assert all(words <= 1 or number in numbers for number, words in sound), "heard, and not written down"
        assert numbers == [number for number, _ in sound if number in numbers], "written in another order"
        self.check_events()

    def written(self) -> list[tuple[int, int, bool]]:
        """The agent's side of the history: answer, words heard, whether it was cut."""
        entries = [e for e in self.session.chat.entries if isinstance(e, AgentEntry) and e.heard.strip()]
        return [
            (number_of(e.heard.split()[0].strip(".?")), len(e.heard.split()), e.interrupted) for e in entries
        ]

    def check_events(self) -> None:
        """One answer at a time, and the user's words in the history are those that were told."""
        live: str | None = None
        opened: set[str] = set()
        told: list[str] = []
        for event in self.events:
            match event:
                case ResponseStarted():
                    assert live is None, "two answers at once"
                    live = event.response_id
                case ResponseEnded():
                    assert live == event.response_id
                    live = None
                case SpeechStarted():
                    opened.add(event.item_id)
                case UserSaid():
                    opened.discard(event.item_id)
                    told += [event.text] if event.text else []
        assert live is None
        assert not opened, "a turn was begun and never ended"
        users = [e.text for e in self.session.chat.entries if isinstance(e, UserEntry)]
        assert [text for text in users if text != "Note this."] == told


def test_nothing_stale_is_heard_and_the_history_is_what_was_heard() -> None:
    for seed in range(CALLS) if ONE_CALL is None else [int(ONE_CALL)]:
        call = Call(seed)
        run_virtual(call.run(), seed=seed)
        try:
            call.check()
        except AssertionError as error:
            raise AssertionError(f"VOICE_TURNS_CALL={seed}: {error}") from error
