"""Can this TensorRT-LLM run Whisper, and how is one request put to it? A model in the GPU's memory.

The LLM API of versions up to 1.2 can't; newer ones are told by what they have, not by their number. What one asks
comes from the guide "Use encoder-decoder models with the PyTorch backend" and
``tensorrt_llm/_torch/models/modeling_whisper.py``.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from voice.errors import EngineFailed, ModelMissing
from voice.interfaces import ASR_RATE_HZ

ENCODER_TOKENS = 1500
"""Positions of a request in the encoder, however short its audio."""
DECODER_POSITIONS = 448
"""Prompt and answer together."""

_START = "<|startoftranscript|>"


@dataclass(frozen=True, slots=True)
class Output:
    """What the engine made of a request.

    Attributes:
        text: Without special tokens, stripped.
        tokens: How many it has, the end token included.
        first_token: Its number; ``None`` when there is none.
        logprob: Mean log probability of a token, the end token included; ``None`` when the engine told none.
        cut: The request ended at its token limit.
    """

    text: str
    tokens: int
    first_token: int | None
    logprob: float | None
    cut: bool


class WhisperEngine:
    """A Whisper model in TensorRT-LLM. :meth:`prepare` belongs on a thread, everything else on the event loop.

    Attributes:
        languages: Codes it knows.
    """

    def __init__(self, llm: Any, api: ModuleType, languages: dict[str, int]) -> None:
        self._llm = llm
        self._api = api
        self._codes = {token: code for code, token in languages.items()}
        self.languages = tuple(languages) or ("en",)
        self.multilingual = bool(languages)

    def prepare(
        self,
        samples: npt.NDArray[np.float32],
        language: str | None,
        most_tokens: int,
        temperature: float,
    ) -> tuple[Any, Any]:
        """Turn audio into what the engine takes.

        Args:
            samples: 16 kHz, ±1, at most 30 s, shape (n,).
            language: A code; ``None`` has the engine name the language and nothing more.
            most_tokens: Longest answer.
            temperature: 0 is greedy.
        """
        task = "" if not self.multilingual else f"<|{language}|><|transcribe|>"
        prompt = _START if language is None else f"{_START}{task}<|notimestamps|>"
        inputs = {"prompt": prompt, "multi_modal_data": {"audio": [(samples, ASR_RATE_HZ)]}}
        # A fresh object each time: the engine lowers its max_tokens.
        sampling = self._api.SamplingParams(
            max_tokens=min(most_tokens, DECODER_POSITIONS - 4), temperature=temperature, logprobs=1
        )
        return self._llm.preprocess(inputs, sampling), sampling

    def start(self, prepared: tuple[Any, Any]) -> Any:
        """Hand in a request. What comes back has ``aresult()`` to wait for it, ``finished`` and ``abort()``."""
        inputs, sampling = prepared
        return self._llm.generate_async(inputs, sampling_params=sampling)

    def read(self, finished: Any) -> Output:
        """What a finished request holds.

        Raises:
            EngineFailed: It was not finished well.
        """
        completion = finished.outputs[0]
        if completion.finish_reason not in ("stop", "length"):
            raise EngineFailed(f"TensorRT-LLM ended a request: {completion.finish_reason}")
        tokens = [int(token) for token in completion.token_ids]
        return Output(
            completion.text.strip(),
            len(tokens),
            tokens[0] if tokens else None,
            _mean_logprob(tokens, completion.logprobs),
            completion.finish_reason == "length",
        )

    def language_of(self, output: Output) -> str:
        """The language that a request without one named; English where it named none."""
        return self._codes.get(output.first_token or -1, "en")

    def close(self) -> None:
        """Give the GPU's memory back."""
        self._llm.shutdown()


def load(folder: Path, *, max_batch: int, gpu_memory: float) -> WhisperEngine:
    """Load a checkpoint; see :class:`~stages.asr.tensorrt_llm.WhisperTensorRT`.

    Raises:
        ModelMissing: The package or files of the checkpoint are absent.
        EngineFailed: This version can't run Whisper, or the model can't be loaded.
    """
    languages = _languages_of(folder)
    api, version = _find_api()
    try:
        llm = api.LLM(
            model=str(folder),
            backend="pytorch",
            attn_backend="TRTLLM",
            trust_remote_code=False,
            max_batch_size=max_batch,
            max_beam_width=1,
            max_input_len=ENCODER_TOKENS,
            # Whole encoder inputs of all that may be admitted in one step, and a token of each that decodes.
            max_num_tokens=max_batch * (ENCODER_TOKENS + 1),
            enable_chunked_prefill=False,
            disable_overlap_scheduler=True,  # the first versions with Whisper don't support it
            kv_cache_config=api.KvCacheConfig(
                enable_block_reuse=False,
                free_gpu_memory_fraction=gpu_memory,
                cross_kv_cache_fraction=0.5,
            ),
            scheduler_config=api.SchedulerConfig(use_python_scheduler=True),
        )
    except Exception as error:
        message = f"TensorRT-LLM {version} can't load Whisper from {folder}: {error}"
        raise EngineFailed(message, retryable=False) from error
    return WhisperEngine(llm, api, languages)


def _find_api() -> tuple[ModuleType, str]:
    """The LLM API and its version."""
    try:
        package = importlib.import_module("tensorrt_llm")
        api = importlib.import_module("tensorrt_llm.llmapi")
    except ImportError as error:
        if (error.name or "").split(".")[0] != "tensorrt_llm":
            raise ModelMissing(f"TensorRT-LLM is not whole: {error}") from error
        raise ModelMissing("Whisper on TensorRT-LLM needs it: pip install 'voice[tensorrt]'") from None
    version = str(getattr(package, "__version__", "of unknown version"))
    try:
        whisper = importlib.util.find_spec("tensorrt_llm._torch.models.modeling_whisper")
    except ModuleNotFoundError:
        whisper = None
    if whisper is None or not hasattr(api.LLM, "preprocess"):
        raise EngineFailed(
            f"TensorRT-LLM {version} can't run Whisper through its LLM API; a version after 1.2 is needed",
            retryable=False,
        )
    return api, version


def _languages_of(folder: Path) -> dict[str, int]:
    """Code → token of the languages a checkpoint knows; empty for an English-only one."""
    config = _read_json(folder / "config.json")
    if config.get("model_type") != "whisper":
        raise ModelMissing(
            f"{folder} holds no Whisper model: its config.json says {config.get('model_type')!r}"
        )
    if not any(folder.glob("*.safetensors")):
        raise ModelMissing(f"{folder} holds no weights in .safetensors; other formats can run code")
    listed = _read_json(folder / "generation_config.json").get("lang_to_id") or {}
    if not isinstance(listed, dict):
        raise ModelMissing(f"the languages in {folder / 'generation_config.json'} are no table")
    return {str(name).strip("<|>"): int(token) for name, token in listed.items()}


def _read_json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelMissing(f"the Whisper checkpoint in {file.parent} lacks {file.name}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelMissing(f"{file} can't be read: {error}") from error
    if not isinstance(found, dict):
        raise ModelMissing(f"{file} holds no JSON object")
    return found


def _mean_logprob(tokens: list[int], listed: Any) -> float | None:
    """Of the tokens that were made. A version lists for each its score, or a table of scores by token."""
    if not tokens or not isinstance(listed, list) or len(listed) != len(tokens):
        return None
    scores: list[float] = []
    for token, one in zip(tokens, listed, strict=True):
        found = one.get(token) if isinstance(one, dict) else one
        score = getattr(found, "logprob", found)
        if not isinstance(score, int | float) or not math.isfinite(score):
            return None
        scores.append(float(score))
    return sum(scores) / len(scores)
