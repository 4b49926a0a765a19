"""What does Whisper get of an utterance? Its features, in pieces that fit a window; cut in silence where there is any,
else with an overlap. Pure functions; slow enough for an executor's thread."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stages.asr import levels
from stages.asr.levels import BLOCK_S
from stages.asr.mel import FRAME_S, Features, log_mel
from stages.asr.whisper_pass import Encoding
from stages.asr.words import Sounding
from voice.interfaces import ASR_RATE_HZ, Pcm16

LONGEST_PIECE_S = 28.0
OVERLAP_S = 1.0
"""Two pieces that are cut where somebody speaks share twice so much: three to six words."""

_PAUSE_S = 0.1
"""So much silence around a cut means that no word is cut."""
_BLOCK = round(BLOCK_S * ASR_RATE_HZ)
_BLOCKS_OF_PAUSE = round(_PAUSE_S / BLOCK_S)
_MIDDLE = 0.15  # of a piece that is cut smaller at least this share is left on either side


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A stretch of audio that fits one window.

    Attributes:
        features, silence: See :func:`~stages.asr.mel.log_mel`.
        audio_s: Its length.
        voiced_s: How long there is sound in it.
        sounding: Where it is loud enough for speech.
        start_s: Where it begins in the utterance.
        cut_s: Where the piece before it ends and this one takes over; inside both if they overlap.
        overlaps: It shares audio with the piece before.
        encoding: The encoder's output for it.
    """

    features: Features
    silence: float
    audio_s: float
    voiced_s: float
    sounding: Sounding
    start_s: float = 0.0
    cut_s: float = 0.0
    overlaps: bool = False
    encoding: Encoding = field(default_factory=Encoding)

    def part(self, start_s: float, end_s: float) -> Piece:
        """A stretch of this piece, in its seconds; the end of the piece if ``end_s`` is."""
        first, last = round(start_s / FRAME_S), round(end_s / FRAME_S)
        whole = last >= self.features.shape[1] - 2
        sounding = self.sounding[round(start_s / BLOCK_S) : round(end_s / BLOCK_S)]
        share = int(np.count_nonzero(sounding)) / max(1, int(np.count_nonzero(self.sounding)))
        return Piece(
            self.features[:, first : None if whole else last],
            self.silence,
            end_s - start_s,
            self.voiced_s * share,
            sounding,
            self.start_s + start_s,
            self.start_s + start_s,
        )


def prepare(audio: Pcm16, mels: int) -> str | list[Piece]:
    """The pieces of the audio in order, or why it can't hold speech."""
    loudness = levels.block_levels(audio)
    if (reason := levels.why_no_speech(audio, loudness)) is not None:
        return reason
    if len(audio) <= LONGEST_PIECE_S * ASR_RATE_HZ:
        return [_piece(audio, loudness, mels, 0, len(audio), 0)]
    # Room for an overlap on either side.
    cuts = levels.cut_points(loudness, LONGEST_PIECE_S - OVERLAP_S)
    sounding = levels.sounding(loudness)
    shared = [0 if _in_a_pause(sounding, cut) else round(OVERLAP_S * ASR_RATE_HZ) for cut in cuts]
    edges, margins = [0, *cuts, len(audio)], [0, *shared, 0]
    return [
        _piece(audio, loudness, mels, start - before, end + after, start)
        for (start, end), (before, after) in zip(
            itertools.pairwise(edges), itertools.pairwise(margins), strict=True
        )
    ]


def _piece(
    audio: Pcm16, loudness: npt.NDArray[np.float32], mels: int, start: int, end: int, cut: int
) -> Piece:
    """From ``start``, where a block begins, to ``end``, where one ends or the audio does."""
    features, silence = log_mel(audio[start:end], mels)
    own = loudness[start // _BLOCK : -(-end // _BLOCK)]
    return Piece(
        features,
        silence,
        (end - start) / ASR_RATE_HZ,
        levels.voiced_s(own),
        levels.sounding(own),
        start / ASR_RATE_HZ,
        cut / ASR_RATE_HZ,
        overlaps=start < cut,
    )


def _in_a_pause(sounding: npt.NDArray[np.bool_], cut: int) -> bool:
    block = cut // _BLOCK
    half = _BLOCKS_OF_PAUSE // 2
    return not sounding[max(0, block - half) : block + half + 1].any()


def halves(piece: Piece) -> tuple[Piece, Piece] | None:
    """The piece cut in the middle of its longest inner silence; ``None``: it has none."""
    blocks = len(piece.sounding)
    first, last = int(_MIDDLE * blocks), int((1 - _MIDDLE) * blocks)
    start = best = 0
    cut = None
    for at in range(first, last):
        if piece.sounding[at]:
            start = at + 1
        elif at - max(start, first) + 1 > max(best, _BLOCKS_OF_PAUSE - 1):
            best = at - max(start, first) + 1
            cut = max(start, first) + best // 2
    if cut is None:
        return None
    return piece.part(0.0, cut * BLOCK_S), piece.part(cut * BLOCK_S, piece.audio_s)
