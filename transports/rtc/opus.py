"""Opus packets to samples and back, with PyAV's libopus; one decoder and one encoder for each call.

FFmpeg's libopus always decodes at 48 kHz, and has no call to conceal a loss or to use the redundancy in the next
packet, so both the step to the recogniser's rate and the concealment are here. Measured on one slow core, per 20 ms
frame: decoding 60 µs, the step to 16 kHz 25 µs (the session's own resampler takes 130 µs for the same), a loss 450 µs.
"""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt
from av import AudioFrame, CodecContext, Packet
from av.audio.codeccontext import AudioCodecContext
from numpy.lib.stride_tricks import sliding_window_view

from voice.interfaces import ASR_RATE_HZ, Pcm16

OPUS_HZ = 48_000
"""Rate of Opus timestamps, whatever the audio (RFC 7587, 4.1)."""
SPEAK_HZ = 24_000
"""Rate that the encoder takes: the agent's voice has nothing above 12 kHz."""
FRAME_S = 0.02
SPEAK_SAMPLES = int(SPEAK_HZ * FRAME_S)
MOST_SAMPLES = 5760
"""A packet holds at most 120 ms (RFC 6716, 3.2.5)."""

BIT_RATE = 28_000
COMPLEXITY = 2
"""Of 0-10. On speech at 28 kbit/s the log-spectral distance to the original is 5.9 dB at 0 and 1, 5.6 at 2 to 6 and
5.4 at 10; a frame takes 160, 185, 235, 310 and 350 µs at 0, 1, 2, 6 and 10."""
EXPECTED_LOSS = 5
"""Per cent, told to the encoder: from here on it repeats the last frame, coarsely, in the next packet."""

_STEP = OPUS_HZ // ASR_RATE_HZ
_TAPS = 96
_PAST = _TAPS - _STEP
_BLOCK = 24  # input samples that make 8; the shortest packet has five blocks
_SETTLED_FRAMES = 15
"""After so much silence the encoder's packets no longer carry a tail of speech."""
_COUNT = 3
"""The bits of a packet's first byte that say how many frames it holds (RFC 6716, 3.1)."""
_MOST_TOLD = 5
"""After so many lost frames libopus has faded to silence: more of them change nothing. Each takes it 300 µs."""
_SIZES_SILK = (480, 960, 1920, 2880)
_SIZES_CELT = (120, 240, 480, 960)


def samples_of(payload: bytes) -> int | None:
    """Length of an Opus packet in samples at 48 kHz, from its first bytes; ``None`` if it is not valid.

    Tables 2 and 3 and rules R1 to R5 of RFC 6716, 3.1 to 3.4.
    """
    if not payload:
        return None
    config, code = payload[0] >> 3, payload[0] & 3
    if config < 12:
        size = _SIZES_SILK[config & 3]
    elif config < 16:
        size = _SIZES_SILK[config & 1]
    else:
        size = _SIZES_CELT[config & 3]
    if code == 3:
        frames = payload[1] & 63 if len(payload) > 1 else 0
    else:
        frames = 1 if code == 0 else 2
    total = size * frames
    return total if 0 < total <= MOST_SAMPLES else None


def _decimation() -> npt.NDArray[np.float32]:
    """Column k holds the taps of the block's k-th output sample. Kaiser's window for −60 dB; −6 dB at 7.8 kHz."""
    n = np.arange(_TAPS) - (_TAPS - 1) / 2
    taps = np.sinc(2 * 7800.0 / OPUS_HZ * n) * np.kaiser(_TAPS, 5.65)
    matrix = np.zeros((_PAST + _BLOCK, _BLOCK // _STEP), np.float32)
    for k in range(_BLOCK // _STEP):
        matrix[_STEP * k : _STEP * k + _TAPS, k] = taps / taps.sum()
    return matrix


_MATRIX = _decimation()


class OpusDecoder:
    """One caller's packets as mono int16 at 16 kHz, without seams where some are missing.

    Attributes:
        bad_packets: Packets that could not be decoded; they were concealed.
    """

    def __init__(self) -> None:
        self.bad_packets = 0
        self._codec = _decoder()
        self._decimator = Decimator()
        self._concealer = Concealer(ASR_RATE_HZ)
        self._frame = int(OPUS_HZ * FRAME_S)
        self._missing: bytes | None = None  # stands for a lost frame; None: nothing was heard yet
        self._missed = 0  # frames in a row that libopus was told of

    def decode(self, payload: bytes) -> Pcm16:
        """The packet's samples, exactly as many as it says it holds."""
        samples = samples_of(payload)
        if samples is None:
            self.bad_packets += 1
            return self.conceal(self._frame)
        self._frame = samples
        try:
            frames = self._codec.decode(Packet(payload))
        except av.FFmpegError:
            frames = []
        if len(frames) != 1 or frames[0].samples != samples:
            self.bad_packets += 1
            return self.conceal(samples)
        pcm = np.frombuffer(bytes(frames[0].planes[0]), np.int16)[:samples]
        self._missing, self._missed = bytes([payload[0] & ~_COUNT]), 0
        return self._concealer.heard(self._decimator.process(pcm))

    def conceal(self, samples: int) -> Pcm16:
        """What may have been in ``samples`` (48 kHz) that are missing."""
        self._tell_missing(samples)
        self._decimator.skip()
        return self._concealer.conceal(samples // _STEP)

    def silence(self, samples: int) -> Pcm16:
        """What the sender left out because it was silent."""
        return self._concealer.heard(np.zeros(samples // _STEP, np.int16))

    def _tell_missing(self, samples: int) -> None:
        """Have libopus go on over a loss as the sender did; its own concealment, which may hum on, is not used.

        A packet of only the first byte says "a frame was here" and no more, which libopus takes for a loss. Unless it
        is told, the frames after a loss come out wrong by more than their own level, up to three times as loud.
        """
        frames = max(1, samples // self._frame)
        while self._missing is not None and frames > 0 and self._missed < _MOST_TOLD:
            frames, self._missed = frames - 1, self._missed + 1
            try:
                self._codec.decode(Packet(self._missing))
            except av.FFmpegError:
                self._missing = None


class Decimator:
    """48 kHz → 16 kHz by a windowed sinc of 96 taps: flat to 6.8 kHz, −60 dB from 8.8 kHz on, 1 ms of delay.

    Eight samples are made at once: a block of the input times the taps as a matrix, which is four times as quick as
    one product per sample, and small enough to stay in the cache.
    """

    def __init__(self) -> None:
        self._past = np.zeros(_PAST, np.float32)
        self._use(_BLOCK)

    def _use(self, samples: int) -> None:
        """Make room for pieces of this length; overlapping blocks are views into it."""
        self._buffer = np.empty(_PAST + samples, np.float32)
        self._blocks = sliding_window_view(self._buffer, _PAST + _BLOCK)[::_BLOCK]

    def process(self, pcm: Pcm16) -> Pcm16:
        """A third as many samples; ``len(pcm)`` must be a multiple of 24, as that of every Opus packet is."""
        if self._buffer.size != _PAST + pcm.size:
            self._use(pcm.size)
        self._buffer[:_PAST] = self._past
        self._buffer[_PAST:] = pcm
        self._past[:] = self._buffer[-_PAST:]
        out = (self._blocks @ _MATRIX).reshape(-1)
        np.rint(out, out=out)
        np.minimum(out, 32767, out=out)
        np.maximum(out, -32768, out=out)
        return out.astype(np.int16)

    def skip(self) -> None:
        """What comes next doesn't follow what was."""
        self._past[:] = 0


class Concealer:
    """Bridges a gap with what was heard last: its pitch period, repeated and faded out over 60 ms, and joined to
    what follows over 5 ms. After G.711 Appendix I, in outline.

    Args:
        rate_hz: Rate of the samples.
    """

    def __init__(self, rate_hz: int) -> None:
        self._shortest, self._longest = int(rate_hz * 0.0025), int(rate_hz * 0.015)
        self._window = int(rate_hz * 0.02)
        self._fade = int(rate_hz * 0.06)
        self._join = int(rate_hz * 0.005)
        self._history: Pcm16 = np.zeros(self._window + self._longest, np.int16)
        self._period: npt.NDArray[np.float32] | None = None
        self._made = 0  # samples of this gap concealed so far

    def heard(self, pcm: Pcm16) -> Pcm16:
        """Samples that did come; their beginning is joined to what was made up before them."""
        if self._made:
            length = min(self._join, pcm.size)
            ramp = np.arange(1, length + 1, dtype=np.float32) / (length + 1)
            pcm = pcm.copy()
            pcm[:length] = np.rint(pcm[:length] * ramp + self._go_on(length) * (1 - ramp))
            self._made = 0
            self._period = None
        self._remember(pcm)
        return pcm

    def conceal(self, samples: int) -> Pcm16:
        """Make up ``samples``; a second call goes on where the first one ended."""
        out = np.rint(self._go_on(samples)).astype(np.int16)
        self._made += samples
        self._remember(out)
        return out

    def _remember(self, pcm: Pcm16) -> None:
        size = self._history.size
        self._history = pcm[-size:] if pcm.size >= size else np.concatenate([self._history[pcm.size :], pcm])

    def _go_on(self, samples: int) -> npt.NDArray[np.float32]:
        """The next ``samples`` of the repeated period."""
        if self._period is None:
            self._period = self._history[-self._find_period() :].astype(np.float32)
        at = self._made + np.arange(samples)
        gain = np.clip(1.0 - at / self._fade, 0.0, 1.0).astype(np.float32)
        return self._period[at % self._period.size] * gain

    def _find_period(self) -> int:
        """The lag at which the last 20 ms are most like what came before, 2.5 to 15 ms."""
        history = self._history.astype(np.float32)
        recent = history[-self._window :]
        earlier = history[-self._window - self._longest : -self._shortest]
        likeness = np.correlate(earlier, recent, "valid")[::-1]  # by lag, from the shortest on
        energy = np.convolve(earlier * earlier, np.ones(self._window, np.float32), "valid")[::-1]
        return self._shortest + int(np.argmax(likeness / np.sqrt(energy + 1.0)))


class OpusEncoder:
    """The agent's voice as Opus packets of 20 ms: mono, 28 kbit/s, tuned for speech, with in-band redundancy."""

    def __init__(self) -> None:
        codec = CodecContext.create("libopus", "w")
        assert isinstance(codec, AudioCodecContext)
        codec.sample_rate, codec.format, codec.layout = SPEAK_HZ, "s16", "mono"
        codec.bit_rate = BIT_RATE
        codec.time_base = Fraction(1, SPEAK_HZ)
        codec.options = {
            "application": "voip",
            "frame_duration": "20",
            "fec": "1",
            "packet_loss": str(EXPECTED_LOSS),
            "compression_level": str(COMPLEXITY),
        }
        codec.open()
        self._codec = codec
        self._at = 0
        self._quiet = 0  # frames of silence in a row
        self._silence: bytes | None = None

    def encode(self, pcm: Pcm16) -> bytes:
        """The packet of a frame: at most 480 samples at 24 kHz; what is missing is silence."""
        if not pcm.size:
            return self.silence()
        self._quiet = 0
        if pcm.size < SPEAK_SAMPLES:
            pcm = np.concatenate([pcm, np.zeros(SPEAK_SAMPLES - pcm.size, np.int16)])
        return self._encode(pcm.tobytes())

    def silence(self) -> bytes:
        """The packet of a silent frame. Costs nothing once the encoder has settled: it is always the same then."""
        self._quiet += 1
        if self._quiet <= _SETTLED_FRAMES:
            self._silence = self._encode(bytes(2 * SPEAK_SAMPLES))
        assert self._silence is not None
        return self._silence

    def _encode(self, data: bytes) -> bytes:
        frame = AudioFrame(format="s16", layout="mono", samples=SPEAK_SAMPLES)
        frame.planes[0].update(data)
        frame.sample_rate = SPEAK_HZ
        frame.time_base = Fraction(1, SPEAK_HZ)
        frame.pts = self._at
        self._at += SPEAK_SAMPLES
        (packet,) = self._codec.encode(frame)
        return bytes(packet)


def _decoder() -> AudioCodecContext:
    codec = CodecContext.create("libopus", "r")
    assert isinstance(codec, AudioCodecContext)
    codec.sample_rate, codec.format, codec.layout = OPUS_HZ, "s16", "mono"
    return codec
