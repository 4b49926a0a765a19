"""Recordings of any container and codec: what is read, when it was, and what is said of files that are broken."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from stages.asr.recordings.decode import RecordingFile
from voice.errors import BadAudio
from voice.interfaces import ASR_RATE_HZ, Pcm16

HOURS = float(os.environ.get("VOICE_LONG_RECORDING_HOURS", "0.1"))
"""Length of the recording whose memory is watched; the full form is 10."""


def sine(seconds: float, hz: float = 1000.0, rate_hz: int = 16_000) -> Pcm16:
    return np.asarray(
        10_000 * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate_hz)) / rate_hz), np.int16
    )


def read(path: Path) -> tuple[Pcm16, RecordingFile]:
    file = RecordingFile(path)
    blocks = list(file.blocks())
    file.close()
    return np.concatenate(blocks), file


def pitch_hz(pcm: Pcm16) -> float:
    spectrum = np.abs(np.fft.rfft(pcm.astype(np.float64) * np.hanning(len(pcm))))
    return float(spectrum.argmax() * ASR_RATE_HZ / len(pcm))


def write(
    path: Path,
    tracks: Sequence[Sequence[tuple[float, Pcm16]]],
    *,
    codec: str = "pcm_s16le",
    rate_hz: int = 16_000,
    picture: bool = False,
) -> Path:
    """A container with audio tracks: stretches of mono audio, each at its time in seconds."""
    with av.open(str(path), "w") as out:
        video = None
        if picture:
            video = out.add_stream("mpeg4", rate=5)
            video.width, video.height, video.pix_fmt = 32, 32, "yuv420p"
        streams = [out.add_stream(codec, rate=rate_hz, layout="mono") for _ in tracks]
        if video is not None:
            for number in range(10):
                image = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), "rgb24")
                image.pts, image.time_base = number, Fraction(1, 5)
                out.mux(video.encode(image))
            out.mux(video.encode(None))
        for stream, track in zip(streams, tracks, strict=True):
            for at_s, pcm in track:
                size = stream.codec_context.frame_size or 1024
                for start in range(0, len(pcm), size):
                    frame = av.AudioFrame.from_ndarray(pcm[None, start : start + size], "s16", "mono")
                    frame.sample_rate, frame.time_base = rate_hz, Fraction(1, rate_hz)
                    frame.pts = round(at_s * rate_hz) + start
                    out.mux(stream.encode(frame))
            out.mux(stream.encode(None))
    return path


@pytest.mark.parametrize(
    ("name", "codec", "rate_hz"),
    [
        ("a.wav", "pcm_s16le", 8_000),
        ("a.wav", "pcm_u8", 16_000),
        ("a.wav", "pcm_s24le", 48_000),
        ("a.wav", "pcm_f64le", 44_100),
        ("a.wav", "pcm_mulaw", 8_000),
        ("a.mp3", "libmp3lame", 44_100),
        ("a.m4a", "aac", 48_000),
        ("a.ogg", "libopus", 48_000),
        ("a.webm", "libopus", 48_000),
        ("a.flac", "flac", 22_050),
        ("a.mkv", "ac3", 44_100),
        ("a.mp4", "aac", 32_000),
    ],
)
def test_a_recording_is_read_as_mono_16_khz_whatever_holds_it(
    name: str, codec: str, rate_hz: int, tmp_path: Path
) -> None:
    pcm, file = read(
        write(tmp_path / name, [[(0.0, sine(2.0, 1000.0, rate_hz))]], codec=codec, rate_hz=rate_hz)
    )
    assert len(pcm) / ASR_RATE_HZ == pytest.approx(2.0, abs=0.1)
    assert pitch_hz(pcm) == pytest.approx(1000.0, abs=2.0)
    assert np.abs(pcm[8_000:24_000]).max() == pytest.approx(10_000, rel=0.15)
    assert file.duration_s == pytest.approx(2.0, abs=0.1)
    assert file.notes == []


def test_a_voice_on_one_channel_alone_keeps_its_level(tmp_path: Path) -> None:
    tone = sine(1.0)
    soundfile.write(tmp_path / "a.wav", np.stack([tone, np.zeros_like(tone)], axis=1), 16_000)
    pcm, _ = read(tmp_path / "a.wav")
    np.testing.assert_allclose(pcm, tone, atol=1)


def test_channels_are_averaged_also_more_than_eight_of_them(tmp_path: Path) -> None:
    tone = sine(1.0)
    soundfile.write(tmp_path / "a.wav", np.stack([tone, tone // 2], axis=1), 16_000)
    np.testing.assert_allclose(read(tmp_path / "a.wav")[0], tone * 0.75, atol=2)
    soundfile.write(tmp_path / "b.wav", np.stack([tone] * 12, axis=1), 16_000)
    np.testing.assert_allclose(read(tmp_path / "b.wav")[0], tone, atol=2)


def test_of_several_audio_streams_the_first_is_taken_and_said_so(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mkv", [[(0.0, sine(1.0, 500))], [(0.0, sine(1.0, 900))]], picture=True)
    pcm, file = read(path)
    assert pitch_hz(pcm) == pytest.approx(500, abs=2)
    assert file.notes == [f"{path}: has 2 audio streams; the first is taken"]


def test_sound_that_begins_late_in_a_film_has_the_films_times(tmp_path: Path) -> None:
    pcm, file = read(write(tmp_path / "a.mkv", [[(1.0, sine(0.5))]], picture=True))
    assert np.abs(pcm[: round(0.95 * ASR_RATE_HZ)]).max() == 0
    assert np.abs(pcm[round(1.05 * ASR_RATE_HZ) :]).max() > 5000
    assert len(pcm) / ASR_RATE_HZ == pytest.approx(1.5, abs=0.05)
    assert file.duration_s is None or file.duration_s >= 1.45


def test_a_hole_in_the_times_is_silence(tmp_path: Path) -> None:
    pcm, _ = read(write(tmp_path / "a.mkv", [[(0.0, sine(1.0)), (3.0, sine(1.0))]]))
    assert len(pcm) / ASR_RATE_HZ == pytest.approx(4.0, abs=0.05)
    assert np.abs(pcm[17_000:47_000]).max() == 0


def test_a_clock_that_was_set_is_no_pause_of_days(tmp_path: Path) -> None:
    pcm, _ = read(write(tmp_path / "a.mkv", [[(0.0, sine(1.0)), (90_000.0, sine(1.0))]]))
    assert len(pcm) / ASR_RATE_HZ == pytest.approx(2.0, abs=0.05)


# ---------------------------------------------------------------- broken files


@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "text", "film", "cut header", "header only"])
def test_what_is_no_recording_is_told_in_one_sentence_with_its_name(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.mp4"
    match kind:
        case "folder":
            path.mkdir()
        case "empty":
            path.touch()
        case "text":
            path.write_text("this is no audio, whatever its name says\n" * 100)
        case "film":
            write(path, [], picture=True)
        case "cut header":  # an MP4 file whose index, at its end, is lost
            whole = write(
                tmp_path / "whole.mp4", [[(0.0, sine(2.0, rate_hz=32_000))]], codec="aac", rate_hz=32_000
            )
            path.write_bytes(whole.read_bytes()[:5000])
        case "header only":
            soundfile.write(path, np.zeros(0, np.int16), 16_000, format="WAV")
    with pytest.raises(BadAudio, match=r"bad\.mp4") as told:
        read(path)
    assert "\n" not in str(told.value)


def test_a_film_without_sound_is_told_apart_from_what_is_no_film(tmp_path: Path) -> None:
    with pytest.raises(BadAudio, match="no audio in it, only video"):
        RecordingFile(write(tmp_path / "a.mkv", [], picture=True))


def test_samples_that_are_no_numbers_are_no_audio(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.full(16_000, np.nan, np.float32), 16_000, subtype="FLOAT")
    with pytest.raises(BadAudio, match="NaN"):
        read(tmp_path / "a.wav")


def test_a_few_samples_that_are_no_numbers_are_silence(tmp_path: Path) -> None:
    wave = (sine(2.0) / 32768).astype(np.float32)
    wave[100] = np.inf
    soundfile.write(tmp_path / "a.wav", wave, 16_000, subtype="FLOAT")
    assert pitch_hz(read(tmp_path / "a.wav")[0]) == pytest.approx(1000, abs=2)


def test_a_recording_that_was_cut_off_is_read_to_there_and_said_so(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.flac", [[(0.0, sine(20.0))]], codec="flac").read_bytes()
    (tmp_path / "a.flac").write_bytes(whole[: len(whole) // 2])
    pcm, file = read(tmp_path / "a.flac")
    assert 8.0 < len(pcm) / ASR_RATE_HZ < 12.0
    assert any("cut off" in note for note in file.notes)


def test_damage_in_the_middle_costs_no_more_than_what_is_damaged(tmp_path: Path) -> None:
    noise = np.random.default_rng(5).normal(0, 3000, 20 * 16_000).astype(np.int16)
    whole = bytearray(write(tmp_path / "whole.mp3", [[(0.0, noise)]], codec="libmp3lame").read_bytes())
    middle = len(whole) // 2
    whole[middle : middle + 2000] = bytes(range(250)) * 8
    (tmp_path / "a.mp3").write_bytes(whole)
    pcm, _ = read(tmp_path / "a.mp3")
    assert len(pcm) / ASR_RATE_HZ == pytest.approx(20.0, abs=2.0)


def test_a_playlist_is_not_followed(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "secret.wav", sine(1.0), 16_000)
    (tmp_path / "a.m3u8").write_text("#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/secret.wav\n#EXT-X-ENDLIST\n")
    with pytest.raises(BadAudio):
        read(tmp_path / "a.m3u8")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("live.m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nsecret.mp3\n"),  # it would wait for more
        ("a.ffconcat", "ffconcat version 1.0\nfile secret.mp3\n"),
    ],
)
def test_a_list_of_files_beside_it_is_refused_and_not_waited_for(
    name: str, text: str, tmp_path: Path
) -> None:
    soundfile.write(tmp_path / "secret.mp3", sine(1.0), 16_000)
    (tmp_path / name).write_text(text)
    with pytest.raises(BadAudio, match="list of other files"):
        read(tmp_path / name)


def test_a_name_that_looks_like_an_address_is_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    soundfile.write(tmp_path / "concat:a.wav", sine(1.0), 16_000, format="WAV")
    assert len(read(Path("concat:a.wav"))[0]) == 16_000


def test_memory_stays_flat_however_long_the_recording_is(tmp_path: Path) -> None:
    path = tmp_path / "long.flac"
    hum = sine(60.0, 100.0, 8_000)
    with soundfile.SoundFile(path, "w", 8_000, 1, "PCM_16") as out:
        for _ in range(round(HOURS * 60)):
            out.write(hum)
    file = RecordingFile(path)
    blocks = file.blocks()
    samples = sum(len(next(blocks)) for _ in range(60))
    before_mb, most_mb = resident_mb(), 0.0
    for number, block in enumerate(blocks):
        assert len(block) <= 3 * ASR_RATE_HZ
        samples += len(block)
        if number % 60 == 0:
            most_mb = max(most_mb, resident_mb())
    file.close()
    assert samples / ASR_RATE_HZ == pytest.approx(HOURS * 3600, abs=0.5)
    assert most_mb - before_mb < 30


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
