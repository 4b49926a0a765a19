"""What is one pass of Whisper over a stretch of audio: the audio's features, and how they are read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from stages.asr.mel import Features
from stages.asr.words import Sounding

TOKENS_PER_S = 8
SPARE_TOKENS = 16
"""A pass makes at most 8 tokens a second of audio + 16: fast English speech has about 5."""


class Align(IntEnum):
    """When is a text aligned with its audio? It costs a tenth of a pass."""

    IF_REPEATED = 0  # each copy may be a loop's
    IN_DOUBT = 1  # also if it is so short that something may be missing
    ALWAYS = 2


class Encoding:
    """The encoder's output for one stretch of audio in one window, kept for further passes over the same.

    It lives as long as its utterance is worked on; 1 MB for tiny.en in the narrowest window, 3 MB for base.
    """

    def __init__(self) -> None:
        self._window = 0
        self._output: npt.NDArray[np.float32] | None = None

    def get(self, window: int) -> npt.NDArray[np.float32] | None:
        """The output in this window, shape (window / 2, width), if it is known."""
        return self._output if self._window == window else None

    def keep(self, window: int, output: npt.NDArray[np.float32]) -> None:
        """Remember this one, instead of that of another window."""
        self._window, self._output = window, output


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One pass over one utterance, or a piece of it.

    Attributes:
        features: Log-mel features of the audio, without padding.
        silence: The value of a frame of silence.
        audio_s: Length of the audio.
        sounding: Which blocks of it are loud enough for speech.
        window: Encoder window, mel frames.
        beam: 1 is greedy.
        temperature: 0, or sampling at this temperature.
        timestamps: Whether the text is to have timestamps between its sentences: slower, but it skips nothing.
        align: When words get their times.
        language: Code like ``"en"``; ``None``: detect.
        hints: Words to expect, as tokens.
        encoding: Keeps the encoder's output.
    """

    features: Features
    silence: float
    audio_s: float
    sounding: Sounding
    window: int
    beam: int = 1
    temperature: float = 0.0
    timestamps: bool = False
    align: Align = Align.IN_DOUBT
    language: str | None = None
    hints: tuple[int, ...] = ()
    encoding: Encoding = field(default_factory=Encoding)

    @property
    def bucket(self) -> tuple[int, int, float, bool, int, bool]:
        """What all passes of a batch share."""
        encoded = self.encoding.get(self.window) is not None
        return (self.window, self.beam, self.temperature, self.timestamps, len(self.hints), encoded)

    @property
    def most_tokens(self) -> int:
        """Where decoding stops."""
        return SPARE_TOKENS + math.ceil(TOKENS_PER_S * self.audio_s)
