"""Audio of any form becomes the same mono int16, however it is cut; what can't be used is refused in
words."""

from __future__ import annotations

import io
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from voice import g711
from voice.audio import (
    AudioFormat,
    Decoder,
    PcmAssembler,
    first_audible,
    last_audible,
    read_file,
    rms_dbfs,
    to_mono,
    trim_leading_silence,
)
from voice.errors import BadAudio
from voice.interfaces import Pcm16
from voice.resampling import Resampler, resample

RATES = [
    (48_000, 16_000),
    (24_000, 16_000),
    (8_000, 16_000),
    (16_000, 24_000),
    (24_000, 48_000),
    (24_000, 8_000),
    (44_100, 16_000),
    (22_050, 24_000),
    (11_025, 16_000),
    (16_000, 44_100),
]


def sine(rate_hz: int, seconds: float, hz: float = 1000.0, peak: float = 20_000.0) -> np.ndarray[Any, Any]:
    return peak * np.sin(2 * np.pi * hz * np.arange(round(rate_hz * seconds)) / rate_hz)


def int16(wave: np.ndarray[Any, Any]) -> Pcm16:
    return np.rint(wave).astype(np.int16)


def noise(n: int, seed: int = 0) -> Pcm16:
    return np.random.default_rng(seed).integers(-32768, 32768, n).astype(np.int16)


def cut(chance: random.Random, length: int, most: int) -> list[tuple[int, int]]:
    """Random neighbouring ranges that cover ``length``, empty ones among them."""
    ranges, at = [], 0
    while at < length:
        end = min(length, at + chance.choice([0, 1, 2, 3, chance.randint(0, most)]))
        ranges.append((at, end))
        at = end
    return ranges


# ---------------------------------------------------------------- resampling


@pytest.mark.parametrize(("in_hz", "out_hz"), RATES)
def test_a_sine_keeps_its_level_its_phase_and_80_db(in_hz: int, out_hz: int) -> None:
    out = resample(int16(sine(in_hz, 1.0)), in_hz, out_hz).astype(np.float64)
    assert len(out) == out_hz
    inner = slice(out_hz // 10, -out_hz // 10)
    error = (out - sine(out_hz, 1.0))[inner]
    assert 10 * np.log10(np.mean(out[inner] ** 2) / np.mean(error**2)) > 80.0


@pytest.mark.parametrize(("in_hz", "out_hz"), RATES)
def test_the_delay_is_below_5_ms_and_never_more_than_stated(in_hz: int, out_hz: int) -> None:
    stream, pcm, made = Resampler(in_hz, out_hz), noise(in_hz // 2), 0
    assert stream.delay_s < 0.005
    for end in range(0, len(pcm), in_hz // 50):
        made += len(stream.process(pcm[end : end + in_hz // 50]))
        given = min(len(pcm), end + in_hz // 50)
        assert given / in_hz - made / out_hz <= stream.delay_s + 1 / out_hz


def test_what_would_fold_back_is_taken_out() -> None:
    out = resample(int16(sine(48_000, 1.0, 9_500.0)), 48_000, 16_000)
    assert rms_dbfs(out[1000:-1000]) < -80.0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(RATES))
def test_any_chunking_equals_one_shot(seed: int, rates: tuple[int, int]) -> None:
    chance = random.Random(seed)
    pcm = noise(chance.randint(0, 6000), seed)
    stream = Resampler(*rates)
    out = [stream.process(pcm[a:b]) for a, b in cut(chance, len(pcm), 2000)]
    whole = np.concatenate([*out, stream.flush()])
    np.testing.assert_array_equal(whole, resample(pcm, *rates))
    assert len(whole) == math.ceil(len(pcm) * rates[1] / rates[0])


def test_a_flushed_stream_begins_anew() -> None:
    stream, pcm = Resampler(48_000, 16_000), noise(4801)
    first = np.concatenate([stream.process(pcm), stream.flush()])
    second = np.concatenate([stream.process(pcm), stream.flush()])
    np.testing.assert_array_equal(first, second)


def test_equal_rates_pass_the_very_same_array_through() -> None:
    pcm = noise(320)
    stream = Resampler(16_000, 16_000)
    assert stream.process(pcm) is pcm and len(stream.flush()) == 0 and stream.delay_s == 0.0


def test_full_scale_does_not_wrap_around() -> None:
    square = np.where(np.arange(4800) % 96 < 48, 32767, -32768).astype(np.int16)
    out = resample(square, 48_000, 16_000)
    assert np.corrcoef(out, square[::3])[0, 1] > 0.95


@pytest.mark.parametrize("in_hz", [15_999, 44_099])
def test_rates_without_a_common_divisor_work_too(in_hz: int) -> None:
    stream, pcm = Resampler(in_hz, 16_000), int16(sine(in_hz, 1.0))
    out = np.concatenate([stream.process(pcm[a : a + 997]) for a in range(0, in_hz, 997)] + [stream.flush()])
    assert abs(len(out) - 16_000) <= 1
    error = (out[:15_999] - sine(16_000, 1.0)[:15_999])[1000:-1000]
    assert np.sqrt(np.mean(error**2)) < 100.0


@pytest.mark.parametrize("rate_hz", [0, -1, 3_999, 192_001])
def test_rates_out_of_range_are_refused(rate_hz: int) -> None:
    with pytest.raises(BadAudio, match=str(rate_hz)):
        Resampler(rate_hz, 16_000)


# ---------------------------------------------------------------- formats


@pytest.mark.parametrize(
    "wrong",
    [{"encoding": "mp3"}, {"rate_hz": 3_999}, {"rate_hz": 200_000}, {"channels": 0}, {"channels": 9}],
)
def test_a_format_that_can_not_be_taken_is_refused_when_it_is_declared(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadAudio, match="expected"):
        AudioFormat(**wrong)


FORMATS = st.builds(
    AudioFormat,
    st.sampled_from(["pcm16", "pcmu", "pcma", "float32"]),
    st.sampled_from([8_000, 16_000, 24_000, 44_100, 48_000]),
    st.integers(1, 3),
)


def some_bytes(declared: AudioFormat, frames: int, seed: int) -> bytes:
    pcm = noise(frames * declared.channels, seed)
    match declared.encoding:
        case "pcm16":
            return pcm.astype("<i2").tobytes()
        case "float32":
            return (pcm / 32768).astype("<f4").tobytes()
        case law:
            return g711.encode(pcm, law)


@settings(max_examples=80, deadline=None)
@given(FORMATS, st.integers(0, 2**32 - 1), st.integers(0, 3))
def test_a_stream_decodes_the_same_however_its_bytes_are_cut(
    declared: AudioFormat, seed: int, dangling: int
) -> None:
    chance = random.Random(seed)
    dangling = min(dangling, declared.frame_bytes - 1)
    data = some_bytes(declared, chance.randint(0, 2000), seed)
    whole, pieces = Decoder(declared), Decoder(declared)
    expected = np.concatenate([whole.decode(data), whole.flush()])
    data += bytes(dangling)
    got = [pieces.decode(data[a:b]) for a, b in cut(chance, len(data), 700)]
    got.append(pieces.flush())
    np.testing.assert_array_equal(np.concatenate(got), expected)
    assert pieces.dropped_bytes == dangling and all(piece.dtype == np.int16 for piece in got)


@settings(max_examples=40, deadline=None)
@given(FORMATS, st.integers(0, 2**32 - 1))
def test_arrays_and_bytes_of_a_stream_mean_the_same(declared: AudioFormat, seed: int) -> None:
    data = some_bytes(declared, 500, seed)
    dtype = {"pcm16": "<i2", "float32": "<f4"}.get(declared.encoding, "u1")
    array = np.frombuffer(data, dtype)
    expected = Decoder(declared).decode(data)
    np.testing.assert_array_equal(Decoder(declared).decode(array), expected)
    np.testing.assert_array_equal(Decoder(declared).decode(array.reshape(-1, declared.channels)), expected)


@pytest.mark.parametrize(
    "array", [np.zeros(8, np.float32), np.zeros(7, np.int16), np.zeros((4, 3), np.int16), np.zeros((2, 2, 2))]
)
def test_an_array_that_contradicts_the_format_is_refused(array: Any) -> None:
    with pytest.raises(BadAudio):
        Decoder(AudioFormat("pcm16", 16_000, 2)).decode(array)


def test_nan_is_refused_with_a_count_and_the_stream_goes_on() -> None:
    decoder = Decoder(AudioFormat("float32", 16_000))
    bad = np.array([0.0, np.nan, np.inf, 0.5], np.float32)
    with pytest.raises(BadAudio, match="2 of 4"):
        decoder.decode(bad)
    assert decoder.decode(np.array([0.5], np.float32)).tolist() == [16384]


def test_nan_may_be_taken_as_silence_where_the_owner_says_so() -> None:
    decoder = Decoder(AudioFormat("float32", 16_000), nan="silence")
    assert decoder.decode(np.array([np.nan, 0.5, -np.inf], np.float32)).tolist() == [0, 16384, 0]
    assert decoder.not_finite == 2


def test_floats_beyond_full_scale_are_clipped() -> None:
    decoder = Decoder(AudioFormat("float32", 16_000))
    assert decoder.decode(np.array([1.0, -1.0, 7.0, -7.0], np.float32)).tolist() == [
        32767,
        -32768,
        32767,
        -32768,
    ]


def test_channels_are_averaged_and_silent_ones_do_not_count() -> None:
    stereo = AudioFormat("pcm16", 16_000, 2)
    left_only = np.array([[100, 0], [200, 0]], np.int16)
    assert Decoder(stereo).decode(left_only).tolist() == [100, 200]
    decoder = Decoder(stereo)
    assert decoder.decode(np.array([[100, 0], [100, 300], [100, 0]], np.int16)).tolist() == [100, 200, 50]
    assert decoder.decode(left_only).tolist() == [50, 100]
    assert Decoder(stereo).decode(np.zeros((3, 2), np.int16)).tolist() == [0, 0, 0]
    loud = np.full((2, 2), 32767, np.int16)
    assert Decoder(stereo).decode(loud).tolist() == [32767, 32767]


def test_a_whole_recording_is_mixed_to_mono() -> None:
    assert to_mono(np.array([[100, 0], [300, 0]], np.int16)).tolist() == [100, 300]
    assert to_mono(np.array([[0.5, 0.25], [0.0, 0.0]], np.float32)).tolist() == [12288, 0]
    assert to_mono(np.array([1, 2, 3], np.int16)).tolist() == [1, 2, 3]


# ---------------------------------------------------------------- bytes


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 2**32 - 1))
def test_samples_survive_any_cut_of_their_bytes(data: bytes, seed: int) -> None:
    chance = random.Random(seed)
    assembler = PcmAssembler()
    parts = [assembler.push(data[a:b]) for a, b in cut(chance, len(data), 9)]
    joined = b"".join(part.astype("<i2").tobytes() for part in parts)
    assert joined == data[: len(data) // 2 * 2]
    assert assembler.end() == len(data) % 2 == assembler.dropped_bytes
    assert assembler.end() == 0


def test_a_dangling_byte_never_leaks_into_the_next_stream() -> None:
    assembler = PcmAssembler()
    assembler.push(b"\x01\x00\xff")
    assembler.end()
    assert assembler.push(b"\x02\x00").tolist() == [2]


def test_samples_given_as_an_array_pass_through_and_others_are_refused() -> None:
    assembler, pcm = PcmAssembler(), noise(10)
    assert assembler.push(pcm) is pcm
    with pytest.raises(BadAudio):
        assembler.push(np.zeros(4, np.float32))  # type: ignore[arg-type]


# ---------------------------------------------------------------- G.711


@pytest.mark.parametrize(("law", "subtype"), [("pcmu", "ULAW"), ("pcma", "ALAW")])
def test_g711_decodes_as_libsndfile_does_and_encodes_to_the_nearest_level(
    law: g711.Law, subtype: str
) -> None:
    codes = bytes(range(256))
    levels = g711.decode(codes, law)
    raw = io.BytesIO(codes)
    theirs, _ = soundfile.read(raw, dtype="int16", format="RAW", subtype=subtype, samplerate=8000, channels=1)
    np.testing.assert_array_equal(levels, theirs)

    samples = np.arange(-32768, 32768).astype(np.int16)
    ours = g711.decode(g711.encode(samples, law), law).astype(int)
    nearest = np.abs(samples.astype(int)[:, None] - np.unique(levels).astype(int)[None, :]).min(axis=1)
    np.testing.assert_array_equal(np.abs(ours - samples), nearest)


@pytest.mark.parametrize("law", ["pcmu", "pcma"])
def test_g711_survives_being_decoded_and_encoded_again(law: g711.Law) -> None:
    codes = bytes(range(256))
    again = g711.encode(g711.decode(codes, law), law)
    assert [c for c in range(256) if again[c] != c] == (
        [0x7F] if law == "pcmu" else []
    )  # µ-law has two zeros
    assert len(g711.encode(np.zeros(0, np.int16), law)) == 0


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("name", "rate_hz", "channels", "subtype", "tolerance"),
    [
        ("a.wav", 8_000, 2, "ULAW", 700),
        ("b.wav", 96_000, 1, "FLOAT", 1),
        ("c.flac", 44_100, 2, "PCM_24", 1),
        ("d.wav", 16_000, 1, "PCM_16", 1),
        ("e.ogg", 48_000, 1, "VORBIS", 3000),
        ("f.wav", 22_050, 4, "DOUBLE", 1),
    ],
)
def test_files_of_many_kinds_are_read(
    tmp_path: Path, name: str, rate_hz: int, channels: int, subtype: str, tolerance: int
) -> None:
    wave = sine(rate_hz, 1.5, 440.0) / 32768
    soundfile.write(tmp_path / name, np.repeat(wave[:, None], channels, axis=1), rate_hz, subtype=subtype)
    pcm, rate = read_file(tmp_path / name)
    assert rate == rate_hz and pcm.dtype == np.int16 and len(pcm) == len(wave)
    assert np.abs(pcm - wave * 32768).max() <= tolerance + 0.5


def test_16_bit_files_are_read_to_the_bit(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", noise(20_000), 16_000)
    np.testing.assert_array_equal(read_file(tmp_path / "a.wav")[0], noise(20_000))


def test_files_that_can_not_be_used_say_why(tmp_path: Path) -> None:
    (tmp_path / "text.wav").write_text("this is no audio at all" * 100)
    (tmp_path / "nothing.wav").write_bytes(b"")
    (tmp_path / "bare.raw").write_bytes(bytes(1000))
    soundfile.write(tmp_path / "header.wav", np.zeros(0), 16_000)
    soundfile.write(tmp_path / "long.wav", np.zeros(33_000), 16_000)
    soundfile.write(tmp_path / "slow.wav", np.zeros(100), 1_000)
    soundfile.write(tmp_path / "wide.wav", np.zeros((100, 9)), 16_000)
    bad = np.zeros(100, np.float32)
    bad[7:10] = np.nan
    soundfile.write(tmp_path / "nan.wav", bad, 16_000, subtype="FLOAT")
    for name, words in {
        "missing.wav": "no such file",
        "text.wav": "not a sound file",
        "nothing.wav": "not a sound file",
        "bare.raw": "not a sound file",
        "header.wav": "no audio",
        "long.wav": "longer than 2 s",
        "slow.wav": "1000 Hz",
        "wide.wav": "9 channels",
        "nan.wav": "3 samples are NaN",
    }.items():
        with pytest.raises(BadAudio, match=words) as caught:
            read_file(tmp_path / name, max_s=2.0)
        assert name in str(caught.value)
    with pytest.raises(BadAudio, match="no such file"):
        read_file(tmp_path)
    assert len(read_file(tmp_path / "nan.wav", nan="silence")[0]) == 100


def test_a_file_that_ends_too_soon_gives_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "cut.wav"
    soundfile.write(path, noise(16_000), 16_000)
    path.write_bytes(path.read_bytes()[:-10_001])
    assert 10_990 <= len(read_file(path)[0]) <= 11_000


# ---------------------------------------------------------------- levels


def test_levels_are_relative_to_full_scale() -> None:
    assert rms_dbfs(np.full(100, -32768, np.int16)) == pytest.approx(0.0)
    assert rms_dbfs(int16(sine(16_000, 1.0, peak=32_767))) == pytest.approx(-3.01, abs=0.01)
    assert rms_dbfs(np.zeros(100, np.int16)) == -math.inf == rms_dbfs(np.zeros(0, np.int16))


def test_the_first_and_the_last_audible_block_are_found() -> None:
    pcm = np.zeros(16_000, np.int16)
    pcm[5_000:9_001] = 1_000
    assert first_audible(pcm, 16_000) == 4_960  # the 10 ms block that holds sample 5 000
    assert last_audible(pcm, 16_000) == 9_120
    assert first_audible(pcm[:4_000], 16_000) is None and last_audible(pcm[:4_000], 16_000) is None
    assert first_audible(pcm[:0], 16_000) is None
    assert last_audible(pcm[:9_001], 16_000) == 9_001  # a last block that is not whole


def test_the_audible_level_is_minus_50_dbfs() -> None:
    edge = 32768 * 10 ** (-50 / 20)
    assert first_audible(np.full(160, math.floor(edge), np.int16), 16_000) is None
    assert first_audible(np.full(160, math.ceil(edge), np.int16), 16_000) == 0


def test_leading_silence_is_cut_in_whole_blocks() -> None:
    pcm = np.zeros(2_400, np.int16)
    pcm[1_000:] = 500
    assert len(trim_leading_silence(pcm, 24_000)) == 2_400 - 960
    assert len(trim_leading_silence(pcm[:960], 24_000)) == 0
    assert len(trim_leading_silence(pcm[1_000:], 24_000)) == 1_400
