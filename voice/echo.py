"""OwnVoice: takes the agent's own voice, back from a loudspeaker, out of what the detector is given.

Both signals are looked at as levels in 20 bands, a frame every 16 ms, so that colouring, reverberation, a drifting
clock and levelling by the device hardly matter. Three things are learned while the agent speaks: the delay (by
correlation over all delays up to 0.66 s), the return's gain in each band, and the room's noise. They predict what
the echo alone would sound like. A window is the agent's own voice as far as it moves with that prediction
(correlation over the last 0.15 s) and does not exceed it (excess): a user who talks over the echo breaks both.
What is not, loses the bands that the echo explains: the tap of a key over the echo is then a tap, not a voice.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from voice.band_levels import (
    BANDS,
    FRAME_S,
    HOP_S,
    LAGS,
    LEVELLING,
    MAX_DELAY_S,
    MOVED_APART_S,
    Floats,
    Played,
    analysis,
    band_levels,
)
from voice.errors import BadAudio
from voice.interfaces import ASR_RATE_HZ, Pcm16

_HOP = round(HOP_S * ASR_RATE_HZ)
_FRAME = round(FRAME_S * ASR_RATE_HZ)
WINDOW_SAMPLES = 2 * _HOP
"""What :meth:`OwnVoice.without_echo` is given at a time: a window of Silero's."""
_FRAMES = np.array([[0], [_HOP]]) + np.arange(_FRAME)
_ECHOED, _ECHOED_BY = 0.1, 0.02
"""There is an echo when so large a share of the windows of the last 1.5 s was nothing else."""
_ENOUGH = 60
"""Windows of the agent's voice (2 s) without an echo: there is none, until one is heard."""
_TAIL_S = 0.4
"""Reverberation after the longest delay."""
_NO_ECHO_TAIL_S = 0.1
"""Where there is no echo, it is looked for while the agent speaks and so long after it."""
_SILENT_DBFS = -60.0
"""A microphone that is silent hears neither the agent nor anybody else…"""
_SILENT_WINDOWS = 20
"""…once it has been so for 0.64 s. The gaps in an echo are silent too, and they tell: both fell silent at once."""

_AUDIBLE_DB = -60.0
"""Where the agent's voice is below this in all bands there is no echo to speak of (dB re full scale, per band)."""
_MEMORY = np.exp(-2 * HOP_S / np.array([[0.15], [1.5]])).astype(np.float32)
"""What a window leaves of older ones, in seconds: for the verdict, for the delay."""
_KNOWN_FROM = 8
"""Windows (0.26 s) before a delay is believed: by chance any two sounds move alike for a moment."""
_KNOWN_DELAY = 0.5
"""A correlation above this over 1.5 s tells the delay; two unrelated voices reach 0.3."""
_ONLY_ECHO = 0.5
"""A correlation above this over 0.15 s: hardly anything but the echo is heard."""
_MOSTLY_ECHO = 0.4
"""A correlation above this over 1.5 s: taps and bangs come and go, but the echo is what lasts."""
_EARLY_DB, _DECAY_DB = 25.0, 2.5
"""What comes a frame before the known delay counts so much less; reverberation decays so much a frame (60 dB in
0.38 s)."""
_FIRST_GAIN_DB = 6.0
"""Before anything is known: a device's levelling can bring the echo back louder than it was played."""
_ACTIVE_DB = 25.0
"""Bands that far under the loudest tell nothing about the return's gain."""
_EXCESS_SHARE = 0.44
"""What a window counts in the running excess."""
_MARGIN_DB, _FULL_DB = 4.0, 12.0
"""Excess over the prediction counts from the margin on, up to that much."""
_OVER_NOISE_DB, _FLOOR_RISE_DB = 3.0, 0.2
"""The noise floor follows the quietest frames; a band is heard that far above it."""
_TAKEN_DB, _LEAST_LEFT = 13.0, 0.02
"""So much more than the predicted echo is taken out, down to that share of the amplitude."""
_NOTHING: Pcm16 = np.zeros(WINDOW_SAMPLES, np.int16)
_NOTHING.flags.writeable = False
_ENERGY = 1e3
"""Squared dB below which a movement is none (20 bands, some frames, a few dB)."""
_OWN = (18.0, 10.5, 33.0)
"""Log-odds of "own voice": a constant, the excess's and the similarity's weight. Logistic regression over 40 rooms of
``loadtest.overlap_sounds`` (echo at -6 to -30 dB, users at -32 to -22 dBFS), moved so that own voice is
mistaken for a user less often than the other way round."""


class OwnVoice:
    """One session's guard against its own echo. Plain calls, no clock, bounded memory (about 0.1 MB).

    Args:
        rate_hz: Rate of the audio that is played, 8 000 Hz or more.

    Attributes:
        own: How surely the last window was the agent's own voice and nothing else, 0-1; from 0.5 on it is.
        active: Whether the last window was looked at: something was played within the last second.
    """

    def __init__(self, rate_hz: int) -> None:
        self._far = Played(rate_hz)
        self.own = 0.0
        self.active = False
        self._rest = np.zeros(_HOP, np.float32)
        self._overlap = np.zeros(_HOP, np.float32)
        self._slot: int | None = None  # when the microphone's next frame begins, in hops
        self._due = 0.0
        self._lag: int | None = None
        self._audible = 0  # windows in which an echo could have been heard
        self._echoed = 0.0  # share of the windows that were the agent's voice and nothing else
        self._gain = np.full(BANDS, _FIRST_GAIN_DB, np.float32)
        self._floor: Floats | None = None
        self._mean = np.zeros(BANDS, np.float32)
        self._excess, self._compared = 0.0, 0
        self._far_energy: Floats
        self._silent: Pcm16 | None = None  # the last window, where it was silent
        self._silent_run = 0  # windows of silence up to now
        self._passed = 0  # windows of silence since one was looked at
        self._passed_over = 0  # those of them under the agent's voice
        self._forget()

    @property
    def echoes(self) -> bool:
        """Whether the agent's voice has lately come back: by itself, not only beside a user who sounds alike."""
        return self._echoed > _ECHOED

    @property
    def delay_s(self) -> float | None:
        """From playing to the microphone, as measured; ``None`` until an echo was noticed."""
        return None if self._lag is None else self._lag * HOP_S

    def played(self, pcm: Pcm16, at: float) -> None:
        """What goes to the loudspeaker: mono int16 (n,), its first sample heard at loop time ``at``.

        Pieces come in order, at most :data:`~voice.band_levels.MAX_AHEAD_S` before their time.
        """
        self._far.add(pcm, at)

    def silenced(self, at: float) -> None:
        """What was to be heard at loop time ``at`` and later was dropped."""
        self._far.cut(at)

    def without_echo(self, pcm: Pcm16, at: float, level_dbfs: float = 0.0) -> Pcm16:
        """What the microphone heard besides the agent: silence, where that was nothing.

        While nothing was played within the last second this is ``pcm`` itself and costs nothing; so does a window of
        silence. Else every window must be given, speech or not, and the answer is one hop late: it begins 256 samples
        before ``pcm``.

        Args:
            pcm: What the microphone heard, int16 (512,) at 16 kHz.
            at: Loop time of the first sample.
            level_dbfs: Its level, as far as it is known.

        Raises:
            BadAudio: A window of another size.
        """
        if pcm.shape != (WINDOW_SAMPLES,):
            raise BadAudio(f"a window has {WINDOW_SAMPLES} samples at 16 kHz, not {pcm.shape}")
        self.own = 0.0
        self._silent_run = self._silent_run + 1 if level_dbfs < _SILENT_DBFS else 0
        self.active = self._far.sounded_since(
            at - (_NO_ECHO_TAIL_S if self.no_echo else MAX_DELAY_S + _TAIL_S)
        )
        if not self.active:
            self._slot = None
            return pcm
        if self._slot is None or abs(at - self._due) > MOVED_APART_S:
            self._slot = round(at / HOP_S) - 1  # the first frame begins a hop before the window
            self._rest[:] = self._overlap[:] = 0.0
            self._silent, self._passed, self._passed_over = None, 0, 0
            self._forget()
        self._due = at + WINDOW_SAMPLES / ASR_RATE_HZ
        if self._silent_run > (0 if self.no_echo else _SILENT_WINDOWS):
            self._slot += 2
            self._silent = pcm
            self._passed += 1
            self._passed_over += self._far.sounded_since(at - MAX_DELAY_S)
            self._far.let_go(at - MAX_DELAY_S)
            return pcm
        if self._silent is not None:
            self._catch_up(self._silent, self._slot)
        wave = np.concatenate((self._rest, pcm.astype(np.float32)))
        self._rest = wave[WINDOW_SAMPLES:]
        spectrum = np.fft.rfft(wave[_FRAMES] * analysis(ASR_RATE_HZ)[0])
        share = self._compare(band_levels(spectrum, ASR_RATE_HZ), self._slot)
        self._slot += 2
        if share is not None:  # the agent was audible
            self._audible += 1
            self._echoed += _ECHOED_BY * ((self.own >= 0.5) - self._echoed)
        if self.no_echo:
            self._overlap[:] = 0.0
            return pcm  # headphones: what sounds like the agent now is somebody who does
        if self.own >= 0.5:
            self._overlap[:] = 0.0
            return _NOTHING
        if share is not None:
            spectrum *= share @ _to_bins()
        frames = np.fft.irfft(spectrum).astype(np.float32)
        whole = np.concatenate((self._overlap + frames[0, :_HOP], frames[0, _HOP:] + frames[1, :_HOP]))
        self._overlap = frames[1, _HOP:]
        return np.asarray(np.clip(np.rint(whole), -32768, 32767), np.int16)

    @property
    def no_echo(self) -> bool:
        """Whether the agent was heard for long enough (2 s), and nothing came back."""
        return self._audible >= _ENOUGH and self._echoed < _ECHOED / 2

    def _catch_up(self, silent: Pcm16, slot: int) -> None:
        """What windows of silence tell, beside the last of them that was looked at: the agent moved, the microphone
        did not."""
        passed, over = self._passed, self._passed_over
        self._silent, self._passed, self._passed_over = None, 0, 0
        self._rest = silent[_HOP:].astype(np.float32)
        self._overlap[:] = 0.0
        wave = np.concatenate((np.zeros(_HOP, np.float32), silent.astype(np.float32)))
        self._hear(band_levels(np.fft.rfft(wave[_FRAMES] * analysis(ASR_RATE_HZ)[0]), ASR_RATE_HZ))
        _, _, energy = self._far.before(slot - 1)
        left = _MEMORY**passed
        self._cross *= left
        self._near_energy *= left
        meanwhile = 2.0 * float(energy.mean()) * (1.0 - left) / (1.0 - _MEMORY)
        self._far_energy = np.asarray(self._far_energy * left + meanwhile, np.float32)
        self._excess *= (1.0 - _EXCESS_SHARE) ** passed
        self._echoed *= (1.0 - _ECHOED_BY) ** over
        self._audible += over
        self._compared += over

    def _forget(self) -> None:
        """Old movements say nothing about a stream that begins anew."""
        self._cross = np.zeros((2, LAGS), np.float32)
        self._near_energy = np.zeros((2, 1), np.float32)
        self._far_energy = np.zeros((2, LAGS), np.float32)
        self._excess = 0.0
        self._compared = 0  # windows since then in which the agent was audible

    def _compare(self, levels: Floats, slot: int) -> Floats | None:
        """Judge two frames of the microphone, shape (2, bands); returns the share of each band that is not echo."""
        heard, noise = self._hear(levels)
        far, moves, energy = self._far.before(slot + 1)
        if float(far.max()) < _AUDIBLE_DB:
            return None
        match = self._match(heard - self._mean, moves, energy)
        best = int(match[1].argmax())
        self._compared += 1
        if match[1, best] > _KNOWN_DELAY and self._compared >= _KNOWN_FROM:
            self._lag = best
        if self._lag is None:
            similar, known = float(match[0].max()), LAGS
        else:
            similar, known = _near(match[0], self._lag), self._lag
        penalty = _penalties()[known]
        echo = np.stack(((far[:-1] - penalty).max(axis=0), (far[1:] - penalty).max(axis=0)))
        lasting = 0.0 if self._lag is None else _near(match[1], self._lag)
        self._learn_gain(levels, echo, similar, lasting)
        echo += self._gain
        expected = np.maximum(echo, noise) + _MARGIN_DB
        over = float(np.minimum(np.maximum(levels - expected, 0.0), _FULL_DB).sum()) / (
            levels.size * _FULL_DB
        )
        self._excess += _EXCESS_SHARE * (over - self._excess)
        self.own = 1.0 / (1.0 + math.exp(_OWN[0] + _OWN[1] * self._excess - _OWN[2] * similar))
        left = 1.0 - np.power(10.0, 0.1 * np.minimum(echo + _TAKEN_DB - levels, 0.0))
        return np.asarray(np.maximum(np.sqrt(left), _LEAST_LEFT), np.float32)

    def _hear(self, levels: Floats) -> tuple[Floats, Floats]:
        """Follow the room's noise and the mean level; returns what is heard, at least the noise, and the noise."""
        if self._floor is None:
            self._floor = levels.min(axis=0)
            self._mean[:] = levels[0]
        self._floor += np.minimum(0.4 * (levels.min(axis=0) - self._floor), _FLOOR_RISE_DB)
        noise = self._floor + _OVER_NOISE_DB
        heard = np.maximum(levels, noise)
        self._mean += LEVELLING * (heard[0] + heard[1] - 2.0 * self._mean)
        return heard, noise

    def _match(self, moved: Floats, moves: Floats, energy: Floats) -> Floats:
        """Correlation with what was played, for each memory and delay (from none on), shape (2, lags)."""
        cross = moves @ moved.T
        self._cross = self._cross * _MEMORY + (cross[:-1, 0] + cross[1:, 1])[::-1]
        self._far_energy = self._far_energy * _MEMORY + (energy[:-1] + energy[1:])[::-1]
        self._near_energy = self._near_energy * _MEMORY + float(np.vdot(moved, moved))
        return np.asarray(self._cross / np.sqrt(self._far_energy * self._near_energy + _ENERGY))

    def _learn_gain(self, levels: Floats, echo: Floats, similar: float, lasting: float) -> None:
        """The return is never louder than the microphone; and as loud, while only the echo is heard: what was heard
        too low, because of taps over it, rises slowly."""
        change = np.where(echo > echo.max() - _ACTIVE_DB, 0.3 * (levels - echo - self._gain), 0.0)
        most = 0.7 if similar > _ONLY_ECHO else 0.2 if lasting > _MOSTLY_ECHO else 0.0
        self._gain += np.minimum(np.maximum(change, -1.5), most).sum(axis=0)


def _near(match: Floats, lag: int) -> float:
    """The best match within a hop of a delay."""
    return float(match[max(0, lag - 1) : lag + 2].max())


@cache
def _to_bins() -> Floats:
    """Weights (bands, bins) that spread the bands' shares over the bins; outside all bands: the nearest one's."""
    _, bands = analysis(ASR_RATE_HZ)
    weights = bands / bands.max(axis=0)
    total = weights.sum(axis=1)
    inside = np.flatnonzero(total > 1e-3)
    weights[: inside[0], 0] = weights[inside[-1] + 1 :, -1] = 1.0
    return np.ascontiguousarray((weights / weights.sum(axis=1, keepdims=True)).T)


@cache
def _penalties() -> Floats:
    """For each delay that may be known (the last: none) what each row counts less, shape (lags + 1, lags, 1)."""
    lag = np.arange(LAGS - 1, -1, -1, dtype=np.float32)
    known = np.arange(LAGS, dtype=np.float32)[:, None]
    after, early = lag - known - 1, known - 1 - lag
    table = _DECAY_DB * np.maximum(0.0, after) + _EARLY_DB * np.maximum(0.0, early)
    return np.concatenate((table, np.zeros((1, LAGS), np.float32)))[:, :, None].astype(np.float32)
