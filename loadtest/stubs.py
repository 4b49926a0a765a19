"""Stub stages with set service times: a recogniser, a model and a voice that do no work, so that what is measured is
the framework. Every sample of the voice says whose it is.

The times are those of the peer comparison: words 50 ms after the pause, first token after 100 ms and 40 tokens at 20 ms
with a full stop at each tenth, first audio after 60 ms and ten times real time from there on.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from voice.errors import BadRequest
from voice.interfaces import (
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
from voice.scope import Scope

RATE_HZ = 24_000
TRANSCRIPT = "I would really like to hear more about the weather."
VOICES = 40
"""Tones that differ by their frequency: sessions beyond it share one."""
ANSWERS = 26
SENTENCES = 10

_HALF = 20
"""Samples of half a period of the first tone, 600 Hz; each further voice has one sample more, down to 203 Hz."""
_LOUDNESS, _STEP = 2000, 10
_LEVELS = ANSWERS * SENTENCES
_WORD = re.compile(r"[Qq]([a-z])([a-j])([a-z])")


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """How long the stub engines take, in seconds.

    Attributes:
        recognition_s: From the call to the words.
        first_token_s: From the prompt to the first token.
        token_s: Between tokens.
        tokens: Words of an answer.
        sentence_words: Words of a sentence; the last has a full stop.
        first_audio_s: From the text to the first audio.
        speed: Of synthesis after that, in multiples of real time.
        word_s: Length of a spoken word.
        block_s: Length of the pieces that the voice yields.
    """

    recognition_s: float = 0.05
    first_token_s: float = 0.1
    token_s: float = 0.02
    tokens: int = 40
    sentence_words: int = 10
    first_audio_s: float = 0.06
    speed: float = 10.0
    word_s: float = 0.3
    block_s: float = 0.2

    def __post_init__(self) -> None:
        if self.tokens > SENTENCES * self.sentence_words or self.sentence_words > ANSWERS:
            raise BadRequest(f"an answer of stubs has at most {SENTENCES} sentences of {ANSWERS} words")

    @property
    def first_sentence_s(self) -> float:
        """From the first token to the last of the first sentence."""
        return (min(self.tokens, self.sentence_words) - 1) * self.token_s


@dataclass(frozen=True, slots=True)
class Ident:
    """Whose sound it is.

    Attributes:
        voice: :func:`voice_of` the session.
        answer: Number of its turn, modulo :data:`ANSWERS`.
        sentence: Of the answer.
    """

    voice: int
    answer: int
    sentence: int


def voice_of(session_id: str) -> int:
    """The tone of a session, 0 to :data:`VOICES` - 1: the number its id ends in, else a checksum of the id."""
    digits = re.search(r"-(\d+)$", session_id)
    return (int(digits[1]) if digits else zlib.crc32(session_id.encode())) % VOICES


@lru_cache(maxsize=VOICES)
def _signs(voice: int, samples: int) -> Pcm16:
    """A square wave of ±1."""
    return np.where((np.arange(samples) // (_HALF + voice)) % 2 == 0, 1, -1).astype(np.int16)


def _block(ident: Ident, samples: int, block: int) -> Pcm16:
    """The first samples of a block of a square wave."""
    loud = _LOUDNESS + (ident.answer * SENTENCES + ident.sentence) * _STEP
    return _signs(ident.voice, block)[:samples] * np.int16(loud)


def ident_of(pcm: Pcm16) -> tuple[int, int] | None:
    """Answer and sentence of a piece of stub audio at :data:`RATE_HZ`, from its first sample; ``None``: silence."""
    if pcm.size == 0:
        return None
    level = abs(int(pcm[0]))
    if level < _LOUDNESS - _STEP // 2:
        return None
    return divmod(min(_LEVELS - 1, round((level - _LOUDNESS) / _STEP)), SENTENCES)


def voice_heard(pcm: Pcm16) -> int | None:
    """The tone of a piece of stub audio at :data:`RATE_HZ`, from the distance of its edges; ``None``: no tone."""
    edges = np.flatnonzero(np.diff(np.signbit(pcm)))
    if edges.size < 2:
        return None
    half = int(np.median(np.diff(edges)))
    return half - _HALF if _HALF <= half < _HALF + VOICES else None


class StubRecogniser:
    """A :class:`~voice.interfaces.Recogniser` that always hears :data:`TRANSCRIPT`."""

    name = "stub-recogniser"
    capabilities = RecogniserCapabilities(max_audio_s=600.0)

    def __init__(self, times: ServiceTimes) -> None:
        self._times = times

    async def transcribe(
        self, audio: Pcm16, scope: Scope, *, language: str | None = None, hints: Sequence[str] = ()
    ) -> Transcript:
        """See :class:`~voice.interfaces.Recogniser`."""
        await asyncio.sleep(self._times.recognition_s)
        return Transcript(TRANSCRIPT)


class StubModel:
    """A :class:`~voice.interfaces.LanguageModel` whose words name answer, sentence and word."""

    name = "stub-model"

    def __init__(self, times: ServiceTimes) -> None:
        self._times = times

    async def generate(self, prompt: Prompt, scope: Scope) -> AsyncIterator[ModelEvent]:
        """See :class:`~voice.interfaces.LanguageModel`."""
        loop, times = asyncio.get_running_loop(), self._times
        began = loop.time()
        for number, word in enumerate(answer_words(scope.identity.turn, times)):
            due = began + times.first_token_s + number * times.token_s
            await asyncio.sleep(max(0.0, due - loop.time()))
            yield TextDelta(word if number == 0 else " " + word)
        yield Finished("stop")


def answer_words(turn: int, times: ServiceTimes) -> list[str]:
    """The words of an answer."""
    words = []
    for number in range(times.tokens):
        sentence, place = divmod(number, times.sentence_words)
        last = place == times.sentence_words - 1 or number == times.tokens - 1
        letters = chr(97 + turn % ANSWERS) + chr(97 + sentence) + chr(97 + place)
        words.append(("Q" if place == 0 else "q") + letters + ("." if last else ""))
    return words


class StubVoice:
    """A :class:`~voice.interfaces.Synthesiser` of square waves."""

    name = "stub-voice"
    sample_rate = RATE_HZ
    max_chars = 400

    def __init__(self, times: ServiceTimes) -> None:
        self._times = times

    async def synthesise(self, text: str, scope: Scope, *, voice: str | None = None) -> AsyncIterator[Speech]:
        """See :class:`~voice.interfaces.Synthesiser`. Words that no stub model made are not spoken."""
        loop, times = asyncio.get_running_loop(), self._times
        began, tone = loop.time(), voice_of(scope.identity.session)
        said = [(ord(answer) - 97, ord(sentence) - 97) for answer, sentence, _ in _WORD.findall(text)]
        total, block = round(len(said) * times.word_s * RATE_HZ), round(times.block_s * RATE_HZ)
        for number, start in enumerate(range(0, total, block)):
            due = began + times.first_audio_s + number * times.block_s / times.speed
            await asyncio.sleep(max(0.0, due - loop.time()))
            answer, sentence = said[int(start / RATE_HZ / times.word_s)]
            yield Speech(_block(Ident(tone, answer, sentence), min(block, total - start), block))


def stub_stages(detector: VoiceDetector, times: ServiceTimes | None = None) -> Stages:
    """Stub engines around a real detector."""
    times = times or ServiceTimes()
    return Stages(detector, StubRecogniser(times), StubModel(times), StubVoice(times))
