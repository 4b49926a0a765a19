"""What do callers say? Speech from the default voice or from files, ready to be sent: each frame encoded once for all.

Every utterance ends with its last audible sample in its last frame, so that the moment is known when it was over.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from loadtest.light_socket import masked
from loadtest.scenario import Scenario
from voice import models
from voice.audio import first_audible, last_audible, resample
from voice.errors import BadRequest, VoiceError
from voice.interfaces import Pcm16
from voice.speaking import spoken_text

RATE_HZ = 24_000
NOISE_PEAK = 8
"""Of what callers send while they say nothing: a microphone is never quite silent."""
_NOISE_S = 1.0
_PEAK = 12_000
"""Speech is brought to this peak: a voice at arm's length."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """Something to say.

    Attributes:
        frames: WebSocket frames, each an audio event.
        seconds: Their length.
    """

    frames: tuple[bytes, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Lines:
    """All that the callers of a run can say.

    Attributes:
        utterances: Turns and barge-ins.
        nods: Backchannels; may be none.
        quiet: Frames of a room in which nobody speaks.
        frame_s: Length of a frame.
    """

    utterances: tuple[Utterance, ...]
    nods: tuple[Utterance, ...]
    quiet: tuple[bytes, ...]
    frame_s: float


async def make_lines(scenario: Scenario, folder: Path, speech: Sequence[Path] = ()) -> Lines:
    """The scenario's speech.

    Args:
        scenario: What is said.
        folder: Where the scenario's files are.
        speech: WAV files to say instead of what the scenario says.

    Raises:
        BadRequest: A file can't be read or holds no speech; a voice is needed and none is installed.
    """
    speak = scenario.speak
    texts = [] if speech or speak.files else list(speak.texts)
    nods = [] if speak.nod_files or not scenario.backchannel.share else list(speak.nods)
    spoken = await _spoken([*texts, *nods])
    said = [from_file(path) for path in speech or [folder / name for name in speak.files]]
    nodded = [from_file(folder / name) for name in speak.nod_files]
    said += spoken[: len(texts)]
    nodded += spoken[len(texts) :]
    if scenario.backchannel.share and not nodded:
        raise BadRequest("a scenario with backchannels needs speak.nods or speak.nod_files")
    return lines_of(said, nodded, scenario.frame_ms)


def lines_of(said: Sequence[Pcm16], nodded: Sequence[Pcm16], frame_ms: int) -> Lines:
    """Ready to send: int16 at 24 kHz each."""
    frame = RATE_HZ * frame_ms // 1000
    noise = np.random.default_rng(7).integers(-NOISE_PEAK, NOISE_PEAK + 1, RATE_HZ).astype(np.int16)
    quiet = tuple(_event(noise[at : at + frame]) for at in range(0, int(_NOISE_S * RATE_HZ), frame))
    return Lines(
        tuple(_utterance(pcm, noise, frame) for pcm in said),
        tuple(_utterance(pcm, noise, frame) for pcm in nodded),
        quiet,
        frame_ms / 1000,
    )


def from_file(path: Path) -> Pcm16:
    """A recording: int16, 24 kHz, mono, without the silence around it.

    Raises:
        BadRequest: Not a sound file, or nothing is heard in it.
    """
    try:
        pcm, rate = soundfile.read(path, dtype="int16", always_2d=True)
    except (OSError, RuntimeError) as error:
        raise BadRequest(f"the speech {path} can't be read: {error}") from error
    trimmed = _trimmed(resample(np.ascontiguousarray(pcm[:, 0]), rate, RATE_HZ))
    if not trimmed.size:
        raise BadRequest(f"nothing is heard in {path}")
    return trimmed


async def _spoken(texts: Sequence[str]) -> list[Pcm16]:
    """The texts in the default voice; the voice is forgotten afterwards."""
    if not texts:
        return []
    from stages.tts.piper import DEFAULT_VOICE, Piper

    if DEFAULT_VOICE not in models.installed():
        raise BadRequest(
            f"callers need a voice: run `voice models pull {DEFAULT_VOICE}`, or give recordings with --speech FILE.wav"
        )
    try:
        voice = Piper()
        return [
            _trimmed(resample(await spoken_text(voice, text), voice.sample_rate, RATE_HZ)) for text in texts
        ]
    except ImportError as error:
        raise BadRequest(
            "callers need a voice: pip install 'voice[local]', or give recordings with --speech FILE.wav"
        ) from error
    except VoiceError as error:
        raise BadRequest(f"the callers' voice could not speak: {error}") from error


def _trimmed(pcm: Pcm16) -> Pcm16:
    begin, end = first_audible(pcm, RATE_HZ), last_audible(pcm, RATE_HZ)
    if begin is None or end is None:
        return pcm[:0]
    peak = max(1, int(np.abs(pcm.astype(np.int32)).max()))
    return (pcm[begin:end].astype(np.float32) * (_PEAK / peak)).astype(np.int16)


def _utterance(pcm: Pcm16, noise: Pcm16, frame: int) -> Utterance:
    whole = np.concatenate([noise[: -pcm.size % frame], pcm])
    frames = tuple(_event(whole[at : at + frame]) for at in range(0, whole.size, frame))
    return Utterance(frames, whole.size / RATE_HZ)


def _event(pcm: Pcm16) -> bytes:
    audio = b64encode(pcm.astype("<i2").tobytes()).decode()
    return masked(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
