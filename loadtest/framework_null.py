"""The harness alone: a conversation with no framework and no detector, to be taken off the figures."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import numpy as np

from loadtest.framework_caller import FRAME_S, SoundCard
from loadtest.framework_report import SILENCE_S
from loadtest.stubs import ServiceTimes, StubModel, StubRecogniser, StubVoice
from voice.interfaces import Pcm16, Prompt, TextDelta
from voice.scope import Identity, Scope

_LOUD = 64
_EMPTY: Pcm16 = np.zeros(0, np.int16)


class Oracle:
    """Knows speech by its level: a turn is over 0.2 s after the last loud frame; a loud frame ends an answer."""

    def __init__(self, number: int, times: ServiceTimes, card: SoundCard, wake: Callable[[], None]) -> None:
        self._id, self._card, self._wake = f"load-{number}", card, wake
        self._recogniser, self._model, self._voice = StubRecogniser(times), StubModel(times), StubVoice(times)
        self._speaking, self._quiet, self._turn = False, 0, 0
        self._answer: asyncio.Task[None] | None = None
        self._chunks: deque[Pcm16] = deque()  # one answer's: at most 12 s

    async def start(self) -> None:
        """Nothing to begin."""

    def hear(self, pcm: Pcm16) -> None:
        """See :class:`~loadtest.framework_caller.Conversation`."""
        if int(np.abs(pcm).max()) > _LOUD:
            self._quiet = 0
            if not self._speaking:
                self._speaking = True
                self._cut()
        elif self._speaking:
            self._quiet += 1
            if self._quiet * FRAME_S >= SILENCE_S - 1e-9:
                self._speaking = False
                self._turn += 1
                self._answer = asyncio.get_running_loop().create_task(self._say())

    def _cut(self) -> None:
        if self._answer is not None:
            self._answer.cancel()
        self._chunks.clear()
        self._card.stopped()

    async def _say(self) -> None:
        with Scope("turn", identity=Identity(self._id, self._turn, 0)) as scope:
            await self._recogniser.transcribe(_EMPTY, scope)
            sentences: asyncio.Queue[str | None] = asyncio.Queue(16)
            speaking = asyncio.get_running_loop().create_task(self._speak(sentences, scope))
            try:
                text = ""
                async for event in self._model.generate(Prompt(()), scope):
                    if isinstance(event, TextDelta):
                        text += event.text
                        if text.endswith("."):
                            await sentences.put(text)
                            text = ""
                await sentences.put(None)
                await speaking
            finally:
                speaking.cancel()

    async def _speak(self, sentences: asyncio.Queue[str | None], scope: Scope) -> None:
        while (text := await sentences.get()) is not None:
            async for speech in self._voice.synthesise(text, scope):
                assert isinstance(speech.pcm, np.ndarray)
                self._chunks.append(speech.pcm)
                self._wake()

    def read(self, samples: int) -> Pcm16:
        """See :class:`~loadtest.framework_caller.Conversation`."""
        if not self._chunks:
            return _EMPTY
        first = self._chunks[0]
        if first.size <= samples:
            return self._chunks.popleft()
        self._chunks[0] = first[samples:]
        return first[:samples]

    async def close(self) -> None:
        """Hang up."""
        self._cut()
