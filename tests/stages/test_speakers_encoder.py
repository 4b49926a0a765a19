"""The speaker encoder: what is read of torch's old files and what is refused, its network, and what it hears."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from stages.asr.speakers import encoder_graph
from stages.asr.speakers.encoder import SpeakerEncoder, window_mel
from stages.asr.speakers.encoder_graph import encoder_model
from stages.asr.speakers.torch_tensors import MAGIC, PROTOCOL, read_tensors
from voice.errors import BadAudio, ModelMissing

Floats = npt.NDArray[np.float32]
SpeechFile = Callable[[str], Path]
RATE = 16_000


# ---------------------------------------------------------------- files as torch wrote them


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def pickled(content: bytes) -> bytes:
    return b"\x80\x02" + content + b"."


def tensor(key: str, storage: int, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    """The instructions for one: what is called, the storage, where it begins, lengths and steps."""
    name = b"ctorch._utils\n_rebuild_tensor_v2\n"
    place = b"((" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu") + number(storage)
    numbers = b"".join(b"(" + b"".join(map(number, values)) + b"t" for values in (shape, strides))
    return name + place + b"NtQ" + number(offset) + numbers + b"\x89ccollections\nOrderedDict\n)RtR"


def file_of(members: bytes, storages: Mapping[str, Floats], magic: int = MAGIC) -> bytes:
    long = magic.to_bytes(10, "little")
    head = (
        pickled(b"\x8a\x0a" + long)
        + pickled(number(PROTOCOL))
        + pickled(b"}" + text("little_endian") + b"\x88s")
    )
    whole = pickled(b"}" + text("model_state") + members + b"s")
    keys = pickled(b"](" + b"".join(map(text, storages)) + b"e")
    values = b"".join(
        struct.pack("<q", len(data)) + data.astype("<f4").tobytes() for data in storages.values()
    )
    return head + whole + keys + values


def weights_file(weights: Mapping[str, Floats]) -> bytes:
    """All tensors in one storage, one after another."""
    members, at, size = b"", 0, sum(values.size for values in weights.values())
    for name, values in weights.items():
        strides = tuple(int(np.prod(values.shape[axis + 1 :])) for axis in range(values.ndim))
        members += text(name) + tensor("7", size, at, values.shape, strides) + b"s"
        at += values.size
    together = np.concatenate([values.ravel() for values in weights.values()])
    return file_of(b"}" + members, {"7": together})


ONE = {"7": np.arange(6, dtype=np.float32)}


def test_tensors_are_read_with_their_names_shapes_and_values() -> None:
    members = (
        b"}"
        + text("a")
        + tensor("7", 6, 0, (2, 2), (2, 1))
        + b"s"
        + text("b")
        + tensor("7", 6, 4, (2,), (1,))
    )

    found = read_tensors(file_of(members + b"s" + text("step") + number(3) + b"s", ONE), "model_state")

    assert found["a"].tolist() == [[0, 1], [2, 3]]
    assert found["b"].tolist() == [4, 5]
    assert list(found) == ["a", "b"]


@pytest.mark.parametrize(
    "members",
    [
        b"cposix\nsystem\n" + b"(" + text("true") + b"tR",
        b"cbuiltins\neval\n" + b"(" + text("1") + b"tR",
        b"ctorch._utils\n_rebuild_tensor_v2\n(tR",
        b"ccollections\nOrderedDict\n(" + text("x") + b"tR",
        text("builtins") + text("eval") + b"\x93" + b"(" + text("1") + b"tR",
        b"(S'true'\nios\nsystem\n",
        b"ccollections\nOrderedDict\n)\x81",
        tensor("7", 6, 5, (2,), (1,)),
        tensor("7", 6, -1, (2,), (1,)),
        tensor("7", 6, 0, (2, 2), (1, 2)),
        tensor("7", 6, 0, (-1, -2), (-2, 1)),
        tensor("7", 9, 0, (2,), (1,)),
        tensor("8", 6, 0, (2,), (1,)),
        b"(" * 3 + b"t" + b"t",
        b"0" * 9,
    ],
)
def test_what_could_run_or_reach_outside_is_refused(members: bytes) -> None:
    with pytest.raises(ModelMissing):
        read_tensors(file_of(b"}" + text("a") + members + b"s", ONE), "model_state")


def test_nothing_that_a_file_names_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    command = b"cos\nsystem\n(" + text(f"touch {mark}") + b"tR"

    with pytest.raises(ModelMissing, match="os system"):
        read_tensors(file_of(b"}" + text("a") + command + b"s", ONE), "model_state")
    assert not mark.exists()


def test_a_damaged_or_other_file_is_refused() -> None:
    whole = file_of(b"}" + text("a") + tensor("7", 6, 0, (6,), (1,)) + b"s", ONE)
    for broken in (
        b"",
        b"PK\x03\x04" + whole,
        whole[:-1],
        whole[:60],
        whole[:-24],
        file_of(b"}", ONE, 5),
        b"\x80\x02.",
    ):
        with pytest.raises(ModelMissing):
            read_tensors(broken, "model_state")
    with pytest.raises(ModelMissing, match="optimizer"):
        read_tensors(whole, "optimizer")


# ---------------------------------------------------------------- the network


def drawn_weights() -> dict[str, Floats]:
    rng = np.random.default_rng(3)
    shapes = {"linear.weight": (256, 256), "linear.bias": (256,)}
    for layer in range(3):
        shapes[f"lstm.weight_ih_l{layer}"] = (1024, 256 if layer else 40)
        shapes[f"lstm.weight_hh_l{layer}"] = (1024, 256)
        shapes[f"lstm.bias_ih_l{layer}"] = shapes[f"lstm.bias_hh_l{layer}"] = (1024,)
    return {name: (0.15 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def by_hand(weights: Mapping[str, Floats], mel: Floats) -> Floats:
    """The network as it is defined: mel (frames, 40) → (256,)."""
    x = mel.astype(np.float64)
    for layer in range(3):
        h, c, out = np.zeros(256), np.zeros(256), []
        for frame in x:
            gates = weights[f"lstm.weight_ih_l{layer}"] @ frame + weights[f"lstm.bias_ih_l{layer}"]
            gates = gates + weights[f"lstm.weight_hh_l{layer}"] @ h + weights[f"lstm.bias_hh_l{layer}"]
            take, keep, cell, show = np.split(gates, 4)
            c = c / (1 + np.exp(-keep)) + np.tanh(cell) / (1 + np.exp(-take))
            h = np.tanh(c) / (1 + np.exp(-show))
            out.append(h)
        x = np.array(out)
    raw = np.maximum(weights["linear.weight"] @ x[-1] + weights["linear.bias"], 0)
    result: Floats = raw / np.linalg.norm(raw)
    return result


def test_the_network_computes_what_its_definition_says(tmp_path: Path) -> None:
    weights = drawn_weights()
    (tmp_path / "pretrained.pt").write_bytes(weights_file(weights))
    rng = np.random.default_rng(5)
    windows = [(3000 * rng.standard_normal(length)).astype(np.int16) for length in (25_600, 9_000, 1)]

    found = SpeakerEncoder(tmp_path).embed(windows)

    expected = np.stack([by_hand(weights, window_mel(audio)) for audio in windows])
    assert np.abs(found - expected).max() < 1e-5


def test_a_file_with_other_weights_is_refused() -> None:
    weights = drawn_weights()
    weights["lstm.weight_hh_l1"] = weights["lstm.weight_hh_l1"][:, :-1]
    with pytest.raises(ModelMissing, match="weight_hh_l1"):
        encoder_model(weights_file(weights))
    weights = drawn_weights()
    weights["linear.bias"][3] = np.nan
    with pytest.raises(ModelMissing, match=r"linear\.bias"):
        encoder_model(weights_file(weights))
    with pytest.raises(ModelMissing):
        SpeakerEncoder(Path("nowhere.pt"))


# ---------------------------------------------------------------- what it hears


def test_loudness_does_not_change_what_is_heard() -> None:
    rng = np.random.default_rng(6)
    audio = (300 * rng.standard_normal(25_600)).astype(np.int16)

    assert window_mel(audio) == pytest.approx(window_mel(8 * audio), rel=1e-3)
    assert window_mel(np.zeros(100, np.int16)).max() == 0.0
    assert window_mel(np.zeros(0, np.int16)).shape == (encoder_graph.FRAMES, encoder_graph.MELS)


def test_a_tone_lights_the_band_it_lies_in_while_it_sounds() -> None:
    tone = (8000 * np.sin(2 * np.pi * 1000 * np.arange(8_000) / RATE)).astype(np.int16)

    mel = window_mel(tone)

    assert set(mel[2:48].argmax(axis=1).tolist()) == {
        13
    }  # 1 kHz is mel 15 of 45.2; band 13 is centred on 15.4
    assert mel[55:].max() == 0.0


@pytest.mark.parametrize(
    "audio", [np.zeros(10, np.float32), np.zeros((2, 10), np.int16), np.zeros(25_601, np.int16)]
)
def test_a_window_that_is_none_is_refused(audio: npt.NDArray[np.int16]) -> None:
    with pytest.raises(BadAudio):
        window_mel(audio)


@pytest.mark.live
def test_a_conversation_of_two_voices_is_told_apart_and_one_voice_is_one(
    speech_file: SpeechFile, tmp_path: Path
) -> None:
    from loadtest.conversations import SENTENCES, conversation, recorded_voice
    from loadtest.speakers import compare, speech_spans
    from stages.asr.speakers.diarise import Diariser

    as_it_is = speech_file(" ".join(SENTENCES[:6]))
    pcm, rate_hz = soundfile.read(as_it_is, dtype="int16")
    soundfile.write(tmp_path / "higher.wav", pcm, round(1.3 * rate_hz))  # quicker too: another voice
    voices = {"low": recorded_voice(as_it_is), "high": recorded_voice(tmp_path / "higher.wav")}

    async def run(names: list[str], seconds: float) -> tuple[float, int]:
        spoken = conversation({name: voices[name] for name in names}, seconds, seed=3)
        audio, diariser = spoken.audio, Diariser()
        spans = await speech_spans(audio)
        turns = await diariser.speakers(spans, lambda a, b: audio[round(a * RATE) : round(b * RATE)])
        diariser.close()
        return compare(spoken, turns).rate, len({turn.speaker for turn in turns})

    error, _ = asyncio.run(run(["low", "high"], 50.0))
    _, found = asyncio.run(run(["low"], 25.0))
    assert error <= 0.15
    assert found == 1
