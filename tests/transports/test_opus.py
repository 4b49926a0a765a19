"""Opus: lengths are exact, damage is contained, losses are bridged without clicks, silence costs nothing."""

from __future__ import annotations

import random

import numpy as np
import pytest

from transports.rtc.opus import (
    OPUS_HZ,
    SPEAK_HZ,
    SPEAK_SAMPLES,
    Concealer,
    Decimator,
    OpusDecoder,
    OpusEncoder,
    samples_of,
)
from voice.audio import rms_dbfs
from voice.interfaces import Pcm16
from voice.testing.audio import tone, tone_hz

FRAME = 960
HEARD = 320  # samples at 16 kHz
NOTHING = np.zeros(0, np.int16)


def packets(pcm: Pcm16, encoder: OpusEncoder | None = None) -> list[bytes]:
    encoder = encoder or OpusEncoder()
    return [encoder.encode(pcm[i : i + SPEAK_SAMPLES]) for i in range(0, len(pcm), SPEAK_SAMPLES)]


def largest_step(pcm: Pcm16) -> int:
    return int(np.max(np.abs(np.diff(pcm.astype(np.int32)))))


# ---------------------------------------------------------------- packets


@pytest.mark.parametrize(
    ("first", "second", "samples"),
    [
        (0x08, 0, 960),  # SILK, 20 ms
        (0x18, 0, 2880),  # SILK, 60 ms
        (0x68, 0, 960),  # hybrid, 20 ms
        (0xFB, 3, 2880),  # CELT, three frames of 20 ms
        (0xF1, 0, 480 * 2),  # CELT, two frames of 10 ms
        (0x80, 0, 120),  # CELT, 2.5 ms
        (0xFB, 7, None),  # 140 ms: too long
        (0xFB, 0, None),  # no frame
    ],
)
def test_the_length_of_a_packet_is_in_its_first_bytes(first: int, second: int, samples: int | None) -> None:
    assert samples_of(bytes([first, second]) + b"rest") == samples


def test_a_packet_without_bytes_has_no_length() -> None:
    assert samples_of(b"") is None
    assert samples_of(b"\xfb") is None


def test_the_encoder_makes_one_packet_of_20_ms_a_frame_at_about_28_kbit_a_second() -> None:
    rng = np.random.default_rng(3)
    pcm = (tone(180, SPEAK_HZ * 2, SPEAK_HZ) * 0.5 + rng.normal(0, 800, SPEAK_HZ * 2)).astype(np.int16)
    out = packets(pcm)
    assert len(out) == 100
    assert {samples_of(packet) for packet in out} == {FRAME}
    assert 16_000 < sum(map(len, out)) * 8 / 2 < 34_000


def test_a_tone_comes_through_at_its_pitch_level_and_length() -> None:
    decoder = OpusDecoder()
    heard = np.concatenate([decoder.decode(packet) for packet in packets(tone(440, SPEAK_HZ, SPEAK_HZ))])
    assert len(heard) == 16_000
    assert tone_hz(heard[4000:12_000], 16_000) == pytest.approx(440, abs=3)
    assert rms_dbfs(heard[4000:12_000]) == pytest.approx(rms_dbfs(tone(440, 8000, 16_000)), abs=1)


def test_a_short_last_piece_is_filled_up_with_silence() -> None:
    packet = OpusEncoder().encode(tone(440, 100, SPEAK_HZ))
    assert samples_of(packet) == FRAME


# ---------------------------------------------------------------- silence


def test_silence_is_encoded_until_it_has_settled_and_then_repeated() -> None:
    encoder = OpusEncoder()
    packets(tone(300, SPEAK_HZ, SPEAK_HZ), encoder)
    quiet = [encoder.encode(NOTHING) for _ in range(60)]
    assert len({id(packet) for packet in quiet}) < 20, "the same packet, not the same work"
    assert quiet[-1] is quiet[-20]


def test_repeated_silence_is_silent_and_speech_after_it_is_clean() -> None:
    encoder, decoder = OpusEncoder(), OpusDecoder()
    voice = tone(300, SPEAK_HZ, SPEAK_HZ)
    stream = packets(voice, encoder) + [encoder.silence() for _ in range(150)] + packets(voice, encoder)
    heard = np.concatenate([decoder.decode(packet) for packet in stream])
    quiet, after = heard[16_000 + 3200 : 16_000 * 4 - 320], heard[16_000 * 4 + 3200 : 16_000 * 5]
    assert rms_dbfs(quiet) < -70
    assert tone_hz(after, 16_000) == pytest.approx(300, abs=3)
    assert rms_dbfs(after) == pytest.approx(rms_dbfs(tone(300, 8000, 16_000)), abs=1)


# ---------------------------------------------------------------- loss


def test_a_lost_frame_of_a_tone_is_hardly_heard() -> None:
    stream = packets(tone(200, SPEAK_HZ, SPEAK_HZ))
    decoder = OpusDecoder()
    heard = [decoder.decode(packet) for packet in stream[:25]]
    heard.append(decoder.conceal(FRAME))
    heard += [decoder.decode(packet) for packet in stream[26:]]
    pcm = np.concatenate(heard)
    gap = pcm[25 * HEARD : 26 * HEARD]
    around = pcm[20 * HEARD : 25 * HEARD]
    assert len(pcm) == 16_000
    assert rms_dbfs(gap) > rms_dbfs(around) - 4
    assert tone_hz(gap, 16_000) == pytest.approx(200, abs=15)
    assert largest_step(pcm[24 * HEARD : 28 * HEARD]) < 2.5 * largest_step(around)


def a_voice(seconds: float) -> Pcm16:
    """A buzz whose pitch and loudness move as in speech: 24 kHz."""
    t = np.arange(round(seconds * SPEAK_HZ)) / SPEAK_HZ
    phase = 2 * np.pi * np.cumsum(130 + 25 * np.sin(2 * np.pi * 1.3 * t)) / SPEAK_HZ
    buzz = sum((np.sin(k * phase) / k**0.7 for k in range(1, 16)), np.zeros(len(t)))
    syllables = np.abs(np.sin(2 * np.pi * 2.2 * t)) ** 2
    return np.round(9000 * buzz / np.abs(buzz).max() * syllables).astype(np.int16)


def test_speech_after_a_loss_is_what_it_would_have_been() -> None:
    """A decoder that is not told of a loss plays the next frames wrong by more than their own level."""
    stream = packets(a_voice(6.0))
    whole, holed = OpusDecoder(), OpusDecoder()
    lost = range(20, 290, 9)
    clean = [whole.decode(packet) for packet in stream]
    heard = [holed.conceal(FRAME) if n in lost else holed.decode(packet) for n, packet in enumerate(stream)]
    after = [n + k for n in lost for k in (1, 2, 3)]
    signal, error = (
        sum(float(np.sum(np.square(frame, dtype=np.float64))) for frame in frames)
        for frames in ([clean[n] for n in after], [heard[n] - clean[n].astype(np.int32) for n in after])
    )
    assert error < 0.3 * signal, "5 dB below the speech"


def test_a_long_loss_fades_to_silence() -> None:
    decoder = OpusDecoder()
    for packet in packets(tone(200, SPEAK_HZ // 2, SPEAK_HZ)):
        decoder.decode(packet)
    gap = decoder.conceal(15 * FRAME)
    assert len(gap) == 15 * HEARD
    assert not gap[16_000 * 61 // 1000 :].any()
    pieces = [decoder.conceal(FRAME) for _ in range(3)]
    assert not np.concatenate(pieces).any(), "a gap in pieces is one gap"


def test_a_loss_before_anything_was_heard_is_silence() -> None:
    assert not OpusDecoder().conceal(FRAME).any()


def test_the_concealment_finds_the_pitch() -> None:
    for hz in (80, 125, 230, 390):
        concealer = Concealer(16_000)
        concealer.heard(tone(hz, 1600, 16_000))
        assert tone_hz(concealer.conceal(640)[:320], 16_000) == pytest.approx(hz, rel=0.06)


# ---------------------------------------------------------------- damage


def test_damaged_packets_keep_their_length_and_hurt_nobody_after_them() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    stream = packets(tone(300, SPEAK_HZ, SPEAK_HZ))
    decoder = OpusDecoder()
    for _ in range(400):
        packet = bytearray(rng.choice(stream))
        match rng.randrange(4):
            case 0:
                packet = bytearray(rng.randbytes(rng.randrange(80)))
            case 1:
                packet = packet[: rng.randrange(len(packet))]
            case 2:
                packet[rng.randrange(len(packet))] ^= 1 << rng.randrange(8)
            case _:
                packet += rng.randbytes(rng.randrange(2000))
        length = samples_of(bytes(packet))
        pcm = decoder.decode(bytes(packet))
        assert pcm.dtype == np.int16
        if length is not None:
            assert len(pcm) == length // 3
    heard = np.concatenate([decoder.decode(packet) for packet in stream])
    assert tone_hz(heard[8000:], 16_000) == pytest.approx(300, abs=3)


def test_a_sender_that_changes_frame_size_and_channels_is_followed() -> None:
    from av import AudioFrame, CodecContext

    decoder = OpusDecoder()
    total = 0
    for size_ms, layout in ((20, "mono"), (60, "stereo"), (10, "mono"), (2.5, "stereo")):
        codec = CodecContext.create("libopus", "w")
        codec.sample_rate, codec.layout, codec.format = OPUS_HZ, layout, "s16"  # type: ignore[attr-defined]
        codec.options = {"frame_duration": str(size_ms)}
        codec.open()
        channels = 2 if layout == "stereo" else 1
        size = int(OPUS_HZ * size_ms / 1000)
        for _ in range(5):
            frame = AudioFrame(format="s16", layout=layout, samples=size)
            frame.planes[0].update(np.repeat(tone(400, size, OPUS_HZ), channels).tobytes())
            frame.sample_rate = OPUS_HZ
            for packet in codec.encode(frame):  # type: ignore[attr-defined]
                pcm = decoder.decode(bytes(packet))
                assert len(pcm) == size // 3
                total += 1
    assert total >= 18 and decoder.bad_packets == 0


# ---------------------------------------------------------------- rates


def test_the_step_to_16_khz_keeps_speech_and_leaves_nothing_to_fold_back() -> None:
    def level(hz: float) -> float:
        decimator = Decimator()
        pcm = tone(hz, OPUS_HZ, OPUS_HZ)
        out = [decimator.process(pcm[i : i + FRAME]) for i in range(0, len(pcm), FRAME)]
        return rms_dbfs(np.concatenate(out)[1000:]) - rms_dbfs(pcm)

    for hz in (100, 1000, 3000, 6500):
        assert level(hz) == pytest.approx(0, abs=0.3)
    for hz in (9000, 12_000, 20_000):
        assert level(hz) < -55
