"""B26: audio bytes that are cut in the middle of a sample, and chunks of odd sizes.

Kind of fault: a stream's pieces taken for whole units. Made impossible in ``voice.audio.PcmAssembler`` (what
synthesis yields) and ``voice.audio.Decoder`` (what transports hear): both own the stream's dangling bytes,
and arrays of int16 are all that gets past them.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from voice.audio import AudioFormat, Decoder, PcmAssembler, Resampler
from voice.testing.audio import tone

ODD_SIZES = (1, 3, 4063, 1697, 2, 0)


def in_pieces(data: bytes, sizes: tuple[int, ...]) -> list[bytes]:
    pieces, at = [], 0
    for size in itertools.cycle(sizes):
        if at >= len(data):
            return pieces
        pieces.append(data[at : at + size])
        at += size
    return pieces


def test_speech_in_odd_chunks_is_heard_byte_for_byte_as_if_unsplit() -> None:
    speech = tone(400, 48_000, 24_000).astype("<i2").tobytes()
    assembler = PcmAssembler()
    heard = b"".join(assembler.push(piece).tobytes() for piece in in_pieces(speech, ODD_SIZES))
    assert heard == speech and assembler.end() == 0


def test_speech_in_odd_chunks_is_resampled_as_if_unsplit() -> None:
    pcm = tone(400, 24_000, 24_000)
    whole, split, assembler = Resampler(24_000, 48_000), Resampler(24_000, 48_000), PcmAssembler()
    expected = np.concatenate([whole.process(pcm), whole.flush()])
    pieces = in_pieces(pcm.astype("<i2").tobytes(), ODD_SIZES)
    heard = [split.process(assembler.push(piece)) for piece in pieces]
    np.testing.assert_array_equal(np.concatenate([*heard, split.flush()]), expected)


def test_the_dangling_byte_belongs_to_its_stream_and_is_dropped_and_counted_at_its_end() -> None:
    first, second = PcmAssembler(), PcmAssembler()
    assert first.push(b"\x01\x02\x03").tolist() == [0x0201]
    assert second.push(b"\x05\x06").tolist() == [0x0605]  # not shifted by the other stream's byte
    assert first.end() == 1 and first.dropped_bytes == 1
    assert first.push(b"\x07\x08").tolist() == [0x0807]


@pytest.mark.parametrize("rate_hz", [16_000, 24_000, 48_000])
@pytest.mark.parametrize("channels", [1, 2])
def test_microphone_frames_of_any_size_decode_as_if_unsplit(rate_hz: int, channels: int) -> None:
    sizes = (333 * 2, 7, rate_hz // 25 * 2, 2 * rate_hz * 2)  # 333 samples, 7 bytes, 40 ms, 2 s
    speech = np.repeat(tone(220, 5 * rate_hz, rate_hz), channels).astype("<i2").tobytes()
    declared = AudioFormat("pcm16", rate_hz, channels)
    whole, split = Decoder(declared), Decoder(declared)
    expected = np.concatenate([whole.decode(speech), whole.flush()])
    heard = [split.decode(piece) for piece in in_pieces(speech + b"\x01", sizes)]
    np.testing.assert_array_equal(np.concatenate([*heard, split.flush()]), expected)
    assert split.dropped_bytes == 1 and len(expected) == 5 * 16_000
