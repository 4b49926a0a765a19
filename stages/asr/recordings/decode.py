"""What does a recording hold, second by second? Any container and codec of FFmpeg, as mono int16 at 16 kHz.

A recording is read piece by piece: an hour takes no more memory than a minute. Times follow the container's own clock,
so that subtitles fit a film whose sound begins late or has holes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import av
import av.error
import numpy as np
import numpy.typing as npt

from voice.audio import MAX_CHANNELS, AudioFormat, Decoder
from voice.errors import BadAudio
from voice.interfaces import ASR_RATE_HZ, Pcm16

log = logging.getLogger("voice.recordings")

BLOCK_S = 1.0
"""About so much audio is converted at once."""

HOLE_S = 0.1
"""A hole in the timestamps so long is filled with silence. Shorter ones are rounding: containers count in
milliseconds, and frames last 20 to 90 of them."""

LONGEST_HOLE_S = 3600.0
"""A longer one is a clock that was set, not a pause."""

EARLY_END_S, EARLY_END_SHARE = 2.0, 0.02
"""A recording that ends so much before its stated length, in seconds and as a share of it, was cut off."""

NOT_FINITE_SHARE = 0.01
"""More samples than this that are no numbers (NaN, infinite) are no audio; a few come from damaged packets."""

_LISTS = frozenset({"hls", "concat", "dash", "imf"})
"""Formats of FFmpeg that open other files, some for ever."""
_TEXTS = frozenset({"tty"})
"""What FFmpeg takes a text for."""

_WIDEST = 2.0**31
_Floats = npt.NDArray[np.float32]


class RecordingFile:
    """A recording that is open for reading; blocking, for use in one thread.

    Of several audio streams the first is read. Playlists and addresses are not followed: only this one file is opened.

    Args:
        path: The file.

    Attributes:
        duration_s: Its length as the container states it, in seconds; ``None`` where it doesn't.
        damaged: Packets that could not be decoded so far.
        notes: What its reader should know, in sentences.

    Raises:
        BadAudio: No file, no media file, or no audio in it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.damaged = 0
        self.notes: list[str] = []
        if not self.path.is_file():
            raise BadAudio(f"{self.path}: {_what(self.path)}")
        try:
            # "file:" keeps names like "http:x" or "concat:a" what they are: names
            self._container = av.open(f"file:{self.path}", options={"protocol_whitelist": "file"})
        except (av.error.FFmpegError, OSError, ValueError) as error:
            raise BadAudio(f"{self.path}: not a media file that can be read ({_short(error)})") from error
        try:
            self._refuse_other_kinds()
            self._stream = self._first_audio()
        except BadAudio:
            self._container.close()
            raise
        self.duration_s = self._stated_s()
        self._decoder: Decoder | None = None
        self._samples = self._not_finite = 0

    def _refuse_other_kinds(self) -> None:
        names = set(self._container.format.name.split(","))
        if names & _LISTS:
            raise BadAudio(f"{self.path}: is a list of other files, which are not followed")
        if names & _TEXTS:
            raise BadAudio(f"{self.path}: not a media file that can be read")

    def _first_audio(self) -> av.audio.stream.AudioStream:
        streams = self._container.streams.audio
        if not streams:
            kinds = sorted({stream.type for stream in self._container.streams})
            raise BadAudio(f"{self.path}: there is no audio in it, only {', '.join(kinds) or 'nothing'}")
        if streams[0].codec_context is None:
            raise BadAudio(f"{self.path}: its audio is in a format that FFmpeg can't decode here")
        if len(streams) > 1:
            self.notes.append(f"{self.path}: has {len(streams)} audio streams; the first is taken")
        return streams[0]

    def _stated_s(self) -> float | None:
        if self._stream.duration is not None and self._stream.time_base is not None:
            late_s = max(0.0, float((self._stream.start_time or 0) * self._stream.time_base) - self._origin_s)
            return float(self._stream.duration * self._stream.time_base) + late_s
        return None if self._container.duration is None else self._container.duration / av.time_base

    @property
    def _origin_s(self) -> float:
        """The time that the container calls its start."""
        return (self._container.start_time or 0) / av.time_base

    def close(self) -> None:
        """Close the file. No block can be read after that."""
        self._container.close()

    def blocks(self) -> Iterator[Pcm16]:
        """The audio from its start, in blocks of about a second, of any length at the end.

        Raises:
            BadAudio: There are no samples in it, or none that are numbers; a number of channels or a rate that can't
                be used. What was read before is good.
        """
        at_s = 0.0
        waiting: list[_Floats] = []
        waiting_s = 0.0
        setting: tuple[int, int] | None = None
        for frames, rate_hz, time_s in self._frames():
            channels = frames.shape[1]
            hole_s = 0.0 if time_s is None else time_s - self._origin_s - at_s
            if setting != (rate_hz, channels) or HOLE_S < hole_s <= LONGEST_HOLE_S:
                yield from self._convert(waiting, last=True)
                waiting, waiting_s = [], 0.0
                if HOLE_S < hole_s <= LONGEST_HOLE_S:
                    yield from _silence(hole_s)
                    at_s += hole_s
                setting = rate_hz, channels
                self._decoder = self._new_decoder(rate_hz, channels)
            waiting.append(frames)
            waiting_s += len(frames) / rate_hz
            at_s += len(frames) / rate_hz
            if waiting_s >= BLOCK_S:
                yield from self._convert(waiting)
                waiting, waiting_s = [], 0.0
        yield from self._convert(waiting, last=True)
        self._check_end(at_s)

    def _new_decoder(self, rate_hz: int, channels: int) -> Decoder:
        try:
            return Decoder(AudioFormat("float32", rate_hz, channels), ASR_RATE_HZ, nan="silence")
        except BadAudio as error:
            raise BadAudio(f"{self.path}: {error}") from error

    def _convert(self, waiting: list[_Floats], *, last: bool = False) -> Iterator[Pcm16]:
        """What the frames give at 16 kHz; with ``last`` also what the resampler held back."""
        if self._decoder is None:
            return
        if waiting:
            whole = np.concatenate(waiting)
            self._samples += whole.size
            before = self._decoder.not_finite
            pcm = self._decoder.decode(whole)
            self._not_finite += self._decoder.not_finite - before
            if len(pcm):
                yield pcm
        if last and len(rest := self._decoder.flush()):
            yield rest

    def _frames(self) -> Iterator[tuple[_Floats, int, float | None]]:
        """Decoded frames: samples of shape (n, channels), their rate, and their time on the container's clock."""
        for packet in self._packets():
            try:
                frames = cast(list[Any], packet.decode())
            except (av.error.FFmpegError, ValueError):
                self.damaged += 1
                continue
            for frame in frames:
                if not isinstance(frame, av.AudioFrame) or not frame.samples or not frame.sample_rate:
                    continue
                yield _samples_of(frame), int(frame.sample_rate), frame.time

    def _packets(self) -> Iterator[av.Packet[Any]]:
        packets = self._container.demux(self._stream)
        while True:
            try:
                packet = next(packets)
            except StopIteration:
                return
            except (av.error.FFmpegError, OSError) as error:
                self.damaged += 1
                log.debug("%s ends in %s", self.path, error)
                return
            yield packet

    def _check_end(self, at_s: float) -> None:
        """Say what was wrong with the file as a whole."""
        if not self._samples:
            raise BadAudio(f"{self.path}: there is no audio in it that can be decoded")
        if self._not_finite > NOT_FINITE_SHARE * self._samples:
            raise BadAudio(
                f"{self.path}: {self._not_finite} of {self._samples} samples are NaN or infinite: this is no audio"
            )
        if self.damaged:
            self.notes.append(f"{self.path}: {self.damaged} damaged packets were left out")
        stated_s = self.duration_s
        if stated_s is not None and stated_s - at_s > max(EARLY_END_S, EARLY_END_SHARE * stated_s):
            self.notes.append(f"{self.path}: ends after {at_s:.0f} of {stated_s:.0f} s: it was cut off")


def _samples_of(frame: av.AudioFrame) -> _Floats:
    """The frame's samples, full scale ±1, shape (n, channels)."""
    raw = cast(npt.NDArray[Any], frame.to_ndarray())
    channels = len(frame.layout.channels)
    samples = raw.T if frame.format.is_planar else raw.reshape(-1, channels)
    match raw.dtype.kind, raw.dtype.itemsize:
        case "u", 1:
            floats = (samples.astype(np.float32) - 128.0) / 128.0
        case "i", 2:
            floats = samples.astype(np.float32) / 32768.0
        case "i", 4:
            floats = samples.astype(np.float32) / _WIDEST
        case "i", _:
            floats = (samples / _WIDEST**2 / 2).astype(np.float32)
        case _:
            floats = samples.astype(np.float32, copy=False)
    if channels > MAX_CHANNELS:
        floats = floats.mean(axis=1, keepdims=True)
    return cast(_Floats, np.ascontiguousarray(floats))


def _silence(seconds: float) -> Iterator[Pcm16]:
    left = round(seconds * ASR_RATE_HZ)
    block = np.zeros(round(BLOCK_S * ASR_RATE_HZ), np.int16)
    while left > 0:
        yield block[:left]
        left -= len(block)


def _what(path: Path) -> str:
    if path.is_dir():
        return "is a folder"
    return "is no plain file: pipes can't be read" if path.exists() else "no such file"


def _short(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")
