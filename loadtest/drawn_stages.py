"""Stages that do nothing but take the time a profile says, on engines with a finite number of places and a queue.

The queue is the process's own :class:`voice.compute.ComputeGate`: classes, patience and cancellation are the real ones.
"""

from __future__ import annotations

import asyncio
import random
import re
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache

import numpy as np

from loadtest.profile import Engine, Profile
from voice.compute import ComputeGate
from voice.interfaces import (
    ASR_RATE_HZ,
    Finished,
    ModelEvent,
    Pcm16,
    Prompt,
    RecogniserCapabilities,
    Speech,
    Stages,
    TextDelta,
    Transcript,
    VoiceDetector,
)
from voice.scope import Identity, Scope

RATE_HZ = 4_000
"""The lowest that a session takes: nobody listens to the samples."""
SENTENCE, NOD = 0, 1
"""Levels of a drawn ear: what is being said."""
_WORDS = re.findall(r"\w+", "I would really like to hear more about the wind and the sun and the weather")
_SENTENCE_WORDS = 10
_SPOKEN_WORDS_PER_S = 2.5
_PIECE_S = 0.2
"""Text that would come within this is yielded together, when the last of it is there; a sentence never in two."""
_FIRST_S = 0.2
_IN_TIME = 0.8
"""The next piece is made in this share of the time that the ear has of the last one."""
_SOUND = np.int16(8_000)

Delay = Callable[[str], float]
"""Seconds that a result waits for the event loop of a session's worker."""


class Pool:
    """The replicas of one engine.

    Attributes:
        gate: Who waits for a place, and who has one.
        replicas: How many there are.
        busy_s: Seconds of places held, so far.
        waited_s: Seconds waited for one.
        calls: Places given.
    """

    def __init__(self, engine: Engine, replicas: int) -> None:
        self.engine, self.replicas = engine, replicas
        self.gate = ComputeGate(engine.places * replicas)
        self.busy_s = self.waited_s = 0.0
        self.calls = self._running = 0

    @property
    def places(self) -> int:
        """Calls that run at once at most."""
        return self.gate.slots

    @property
    def slowdown(self) -> float:
        """How much longer a call takes than alone, by what runs beside it on its replica now."""
        beside = max(0.0, self._running / self.replicas - 1.0)
        return 1.0 + self.engine.slowdown * beside

    @asynccontextmanager
    async def place(self, scope: Scope) -> AsyncIterator[None]:
        """Hold a place; the wait is by the scope's class."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        async with self.gate.slot(lambda: scope.priority):
            began = loop.time()
            self.waited_s += began - since
            self.calls += 1
            self._running += 1
            try:
                yield
            finally:
                self._running -= 1
                self.busy_s += loop.time() - began


class DrawnRecogniser:
    """A :class:`~voice.interfaces.Recogniser` for audio of a :class:`loadtest.drawn_ear.DrawnEar`."""

    name = "drawn-recogniser"
    capabilities = RecogniserCapabilities(max_audio_s=600.0)

    def __init__(self, profile: Profile, pool: Pool, chance: random.Random, delay: Delay) -> None:
        self._service, self._pool, self._chance, self._delay = profile.recognition, pool, chance, delay

    async def transcribe(
        self, audio: Pcm16, scope: Scope, *, language: str | None = None, hints: Sequence[str] = ()
    ) -> Transcript:
        """See :class:`~voice.interfaces.Recogniser`."""
        audio_s = audio.size / ASR_RATE_HZ
        async with self._pool.place(scope):
            await asyncio.sleep(self._service.seconds(audio_s, self._chance.random()) * self._pool.slowdown)
        if (late_s := self._delay(scope.identity.session)) > 0:
            await asyncio.sleep(late_s)
        return Transcript(words_of(audio))


def words_of(audio: Pcm16) -> str:
    """What a drawn ear's audio says."""
    if audio.size and audio[-1] == NOD:
        return "Mm-hm."
    count = max(2, round(audio.size / ASR_RATE_HZ * _SPOKEN_WORDS_PER_S))
    return sentence(count)


def sentence(words: int) -> str:
    """So many words that end a sentence."""
    return (
        " ".join(_WORDS[n % len(_WORDS)] for n in range(len(_WORDS) * 100 - words, len(_WORDS) * 100)) + "."
    )


class DrawnModel:
    """A :class:`~voice.interfaces.LanguageModel` whose answers have a drawn number of words, a token each."""

    name = "drawn-model"

    def __init__(
        self, profile: Profile, pool: Pool, chance: random.Random, delay: Delay, words: tuple[int, int]
    ) -> None:
        self._profile, self._pool, self._chance, self._delay = profile, pool, chance, delay
        self._words = words

    async def generate(self, prompt: Prompt, scope: Scope) -> AsyncIterator[ModelEvent]:
        """See :class:`~voice.interfaces.LanguageModel`."""
        chars = sum(len(message.text) for message in prompt.messages)
        chance, session, token = self._chance, scope.identity.session, self._profile.token
        token_s = token.fixed_s
        at_once = max(1, int(_PIECE_S / token_s)) if token_s else _SENTENCE_WORDS
        wait_s = max(0.0, self._profile.first_token.seconds(chars, chance.random()) - token_s)
        async with self._pool.place(scope):
            for words in _pieces(answer_length(scope.identity, self._words), at_once):
                wait_s += len(words) * token_s * token.factor.at(chance.random())
                await asyncio.sleep(wait_s * self._pool.slowdown + self._delay(session))
                yield TextDelta(" ".join(words) + " ")
                wait_s = 0.0
        yield Finished("stop")


def answer_length(identity: Identity, words: tuple[int, int]) -> int:
    """Words of a turn's answer: the same whenever it is asked for."""
    drawn = zlib.crc32(f"{identity.session} {identity.turn}".encode())
    return words[0] + drawn % (words[1] - words[0] + 1)


def _pieces(words: int, at_once: int) -> Iterator[list[str]]:
    """An answer of so many words, at most ``at_once`` in a piece, no piece over a sentence's end."""
    for start in range(0, words, _SENTENCE_WORDS):
        spoken = sentence(min(_SENTENCE_WORDS, words - start)).split(" ")
        yield from (spoken[at : at + at_once] for at in range(0, len(spoken), at_once))


class DrawnSynthesiser:
    """A :class:`~voice.interfaces.Synthesiser` of a constant level. The pieces grow as fast as the ear never waits for
    one, each there when its last sample is made."""

    name = "drawn-synthesiser"
    sample_rate = RATE_HZ
    max_chars = 400

    def __init__(self, profile: Profile, pool: Pool, chance: random.Random, delay: Delay) -> None:
        self._profile, self._pool, self._chance, self._delay = profile, pool, chance, delay

    async def synthesise(self, text: str, scope: Scope, *, voice: str | None = None) -> AsyncIterator[Speech]:
        """See :class:`~voice.interfaces.Synthesiser`."""
        profile, chance, session = self._profile, self._chance, scope.identity.session
        left_s = (text.count(" ") + 1) / profile.words_per_s
        wait_s = profile.first_audio.seconds(len(text), chance.random())
        pace = profile.audio_second.seconds(0.0, chance.random())
        piece_s, most = min(_FIRST_S, left_s), max(1.0, _IN_TIME / max(pace, 1e-9))
        async with self._pool.place(scope):
            while left_s > 0:
                await asyncio.sleep(wait_s * self._pool.slowdown + self._delay(session))
                yield _sound(round(piece_s * RATE_HZ))
                left_s -= piece_s
                piece_s = min(left_s, piece_s * most)
                wait_s = piece_s * pace


@lru_cache(maxsize=4096)
def _sound(samples: int) -> Speech:
    """So much of the one level: the same array for all, which nobody can write to."""
    return Speech(np.broadcast_to(_SOUND, (samples,)))


def pools_of(profile: Profile, replicas: Mapping[str, int]) -> dict[str, Pool]:
    """The profile's engines by name, with so many replicas each (1 when not named)."""
    return {name: Pool(engine, replicas.get(name, 1)) for name, engine in profile.engines.items()}


def drawn_stages(
    profile: Profile,
    pools: Mapping[str, Pool],
    chance: random.Random,
    detector: VoiceDetector,
    *,
    delay: Delay = lambda session: 0.0,
    answer_words: tuple[int, int] = (20, 40),
) -> Stages:
    """Stages for any number of sessions.

    Args:
        profile: How long things take.
        pools: From :func:`pools_of`.
        chance: Draws.
        detector: For the interface; with drawn ears it judges nothing.
        delay: What the event loops add.
        answer_words: Fewest and most words of an answer.
    """
    pool = {stage: pools[name] for stage, name in profile.engine_of.items()}
    return Stages(
        detector,
        DrawnRecogniser(profile, pool["recogniser"], chance, delay),
        DrawnModel(profile, pool["model"], chance, delay, answer_words),
        DrawnSynthesiser(profile, pool["synthesiser"], chance, delay),
    )
