"""Which look at a piece of audio comes next, if its best text so far is in doubt? Pure.

The first look has a narrow beam, partials none, in a window that fits the audio. What else there is, is chosen by what
is wrong:

* speech was skipped, or the text ends early: a wider beam with timestamps, which go through the audio in order;
* another language is nearly as probable: the same in that one;
* loops and nonsense: a beam in a wider window, then a hotter one in the widest; then the piece is cut smaller.

The first two are over the same samples in the same window: the encoder, most of the cost, doesn't run again. Mere doubt
gets no look: a wider beam over the same finds nothing better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stages.asr.guards import Hypothesis, Judgement, Severity, count_words
from stages.asr.pieces import Piece
from stages.asr.whisper_pass import Align, Pass
from voice.scope import Priority

NARROWEST_FRAMES = 1_400
"""Over the 66 prompts, clean, by telephone and in two noises, as few words are wrong as in the reference's 3,000 frames
(118 of 1,748; the reference 119), with windows of 1,000 four more."""

NARROWEST_QUICK_FRAMES = 1_000
"""For partials, and in a crowd. Below about 10 s of window Whisper begins to repeat itself."""

CROWD = 4
"""When so many wait, a first look is as quick as a partial's: half the time, so that nobody waits twice as long for a
word in a hundred."""

WIDER_FRAMES = (2_000, 3_000)
"""What a second and third look get. 3,000 frames (30 s) are what Whisper was trained on."""

STEP_FRAMES = 200
TAIL_FRAMES = 50
"""Windows grow in steps, so that requests share batches, and end in at least 0.5 s of silence."""

FIRST_BEAM = 3
"""Width of the first look at speech that is over: words are wrong as seldom as with 5, on the 66 prompts half as often
as without (21 and 40), and it takes a tenth longer than without."""

BEAM = 5
"""Width of the further looks, as in the reference."""

HOT = 0.4
"""Temperature of the third look."""

_SKIPPED = ("skipped", "truncated")


def first_look(
    piece: Piece,
    language: str | None,
    hints: tuple[int, ...],
    priority: Priority,
    *,
    word_times: bool,
    waiting: int = 0,
) -> Pass:
    """The first pass over a piece; ``waiting`` others are ahead of it."""
    steps = -(-(piece.features.shape[1] + TAIL_FRAMES) // STEP_FRAMES)
    partial = priority >= Priority.PARTIAL
    quick = partial or waiting >= CROWD
    return Pass(
        piece.features,
        piece.silence,
        piece.audio_s,
        piece.sounding,
        min(
            max(NARROWEST_QUICK_FRAMES if quick else NARROWEST_FRAMES, steps * STEP_FRAMES), WIDER_FRAMES[-1]
        ),
        beam=1 if quick else FIRST_BEAM,
        align=Align.ALWAYS if word_times else Align.IF_REPEATED if partial else Align.IN_DOUBT,
        language=language,
        hints=hints,
        encoding=piece.encoding,
    )


def next_look(done: Sequence[Pass], best: Hypothesis, verdict: Judgement, priority: Priority) -> Pass | None:
    """The next pass after those ``done``, the best of which gave ``best``; ``None``: it is good enough, or nothing
    else would help. Hints only at first: they can be what misled it."""
    if verdict.severity in (Severity.FINE, Severity.SILENT):
        return None
    if priority >= Priority.PARTIAL and (len(done) > 1 or verdict.severity is Severity.UNSURE):
        return None
    plain = replace(done[0], hints=(), language=best.language)
    if len(done) == 1:
        if verdict.reason == "language":
            return replace(done[0], language=best.runner_up) if best.runner_up else None
        if verdict.severity is Severity.UNSURE:
            return None
        if verdict.reason in _SKIPPED:
            return replace(plain, beam=BEAM, timestamps=True)
        if verdict.reason == "repetition" and verdict.severity is Severity.SUSPECT:
            return replace(plain, window=max(plain.window, WIDER_FRAMES[0]), beam=BEAM, timestamps=True)
        return replace(plain, window=_wider(plain.window), beam=BEAM)
    if len(done) == 2 and verdict.severity is Severity.BAD:
        return replace(plain, window=WIDER_FRAMES[-1], temperature=HOT)
    return None


def cut_smaller(best: Hypothesis, verdict: Judgement, priority: Priority) -> bool:
    """Whether, after all looks, the piece should be cut in its longest silence and each part heard alone."""
    if priority >= Priority.PARTIAL:
        return False
    return verdict.severity is Severity.BAD or verdict.reason in _SKIPPED


def badness(found: tuple[Hypothesis, Judgement]) -> tuple[int, float]:
    """Order of preference. Of two that seem to lack words, the one with more of them is the better."""
    hypothesis, verdict = found
    if verdict.reason in _SKIPPED:
        return verdict.severity, -count_words(hypothesis.text)
    return verdict.severity, -hypothesis.average_logprob


def _wider(window: int) -> int:
    return next((frames for frames in WIDER_FRAMES if frames > window), WIDER_FRAMES[-1])
