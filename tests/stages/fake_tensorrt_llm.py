"""Stands for the package ``tensorrt_llm``: its LLM API as far as Whisper goes, as strict as the real one.

Written after the guide "Use encoder-decoder models with the PyTorch backend", ``modeling_whisper.py`` and the results
of ``executor/result.py``. What it does with a request is a test's script.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

LANGUAGES = {"en": 50259, "de": 50261, "fr": 50265}
END = 50257


@dataclass
class Reply:
    """What the engine makes of a request. ``text`` has a token per word, with ``logprob`` each.

    Attributes:
        seconds: How long it takes, of the event loop's time.
        logprobs: How they are listed: ``"tables"``, ``"numbers"`` or ``"none"``.
        error: Raised by the request instead.
        first_token: Comes first, such as a language.
    """

    text: str = "Hello there."
    logprob: float = -0.2
    seconds: float = 0.05
    finish: str | None = None
    logprobs: str = "tables"
    error: Exception | None = None
    first_token: int | None = None


Script = Callable[[npt.NDArray[np.float32], str, Any], Reply]


@dataclass(slots=True)
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass(kw_only=True)
class SamplingParams:
    max_tokens: int = 32
    temperature: float | None = None
    logprobs: int | None = None
    skip_special_tokens: bool = True


@dataclass(kw_only=True)
class KvCacheConfig:
    enable_block_reuse: bool = True
    free_gpu_memory_fraction: float = 0.9
    cross_kv_cache_fraction: float | None = None


@dataclass(kw_only=True)
class SchedulerConfig:
    use_python_scheduler: bool = False


@dataclass
class PreprocessedInputs:
    samples: npt.NDArray[np.float32]
    prompt: str


@dataclass
class CompletionOutput:
    text: str
    token_ids: list[int]
    logprobs: Any
    finish_reason: str | None


class RequestOutput:
    def __init__(self, llm: LLM, reply: Reply, params: SamplingParams) -> None:
        self._llm, self._reply, self._params = llm, reply, params
        self.finished = False
        self.aborted = False
        self.outputs: list[CompletionOutput] = []

    async def aresult(self) -> RequestOutput:
        llm, reply = self._llm, self._reply
        llm.active += 1
        llm.most_active = max(llm.most_active, llm.active)
        try:
            await asyncio.sleep(reply.seconds)
            if reply.error is not None:
                raise reply.error
            words = reply.text.split()[: self._params.max_tokens]
            first = [] if reply.first_token is None else [reply.first_token]
            tokens = (first + list(range(len(words))) + [END])[: self._params.max_tokens]
            finish = reply.finish or ("stop" if tokens and tokens[-1] == END else "length")
            listed: Any = {
                "tables": [{7: Logprob(-9.0, 2), t: Logprob(reply.logprob, 1)} for t in tokens],
                "numbers": [reply.logprob for _ in tokens],
                "none": [],
            }[reply.logprobs]
            self.outputs = [CompletionOutput(f" {' '.join(words)}", tokens, listed, finish)]
            self.finished = True
            return self
        finally:
            llm.active -= 1

    def abort(self) -> None:
        self.aborted = True
        self._llm.aborted += 1


class LLM:
    """Refuses what the real one refuses. ``script`` decides about each request."""

    script: ClassVar[Script] = staticmethod(lambda samples, prompt, params: Reply())
    made: ClassVar[list[LLM]] = []

    def __init__(
        self,
        model: str,
        *,
        backend: str,
        attn_backend: str,
        trust_remote_code: bool,
        max_batch_size: int,
        max_beam_width: int,
        max_input_len: int,
        max_num_tokens: int,
        enable_chunked_prefill: bool,
        disable_overlap_scheduler: bool,
        kv_cache_config: KvCacheConfig,
        scheduler_config: SchedulerConfig,
    ) -> None:
        if backend != "pytorch" or attn_backend != "TRTLLM" or trust_remote_code:
            raise ValueError("encoder-decoder models need the PyTorch backend and TRTLLM attention")
        if kv_cache_config.cross_kv_cache_fraction is None or kv_cache_config.enable_block_reuse:
            raise ValueError("cross_kv_cache_fraction is required, block reuse is not supported")
        if enable_chunked_prefill or not scheduler_config.use_python_scheduler:
            raise ValueError("chunked prefill is not supported; use the python scheduler")
        if max_input_len < 1500 or max_num_tokens < 1500:
            raise ValueError("the cross-KV pool is too small for 1500 encoder positions")
        self.multilingual = bool(
            json.loads((Path(model) / "generation_config.json").read_text()).get("lang_to_id")
        )
        self.max_batch_size = max_batch_size
        self.prompts: list[str] = []
        self.sampling: list[SamplingParams] = []
        self.clips: list[npt.NDArray[np.float32]] = []
        self.active = self.most_active = self.aborted = 0
        self.down = False
        LLM.made.append(self)

    def preprocess(self, inputs: Any, sampling_params: SamplingParams) -> PreprocessedInputs:
        clips = inputs["multi_modal_data"]["audio"]
        if len(clips) != 1:
            raise ValueError(f"Whisper supports exactly one audio clip per request; got {len(clips)}.")
        samples, rate_hz = clips[0]
        if rate_hz != 16_000 or samples.dtype != np.float32 or samples.ndim != 1:
            raise ValueError("Whisper expects 16000 Hz mono audio")
        if len(samples) > 30 * rate_hz:
            raise ValueError("Whisper supports at most 30s per request; chunk the input on the client side.")
        assert np.abs(samples).max(initial=0.0) <= 1.0
        prompt = inputs["prompt"]
        if prompt and not prompt.startswith("<|startoftranscript|>"):
            raise ValueError("A Whisper text prompt must start with <|startoftranscript|>")
        if not self.multilingual and "<|transcribe|>" in prompt:
            raise ValueError("an English-only model has no such token")
        return PreprocessedInputs(samples, prompt)

    def generate_async(self, inputs: PreprocessedInputs, *, sampling_params: SamplingParams) -> RequestOutput:
        asyncio.get_running_loop()  # without one, results can't be awaited
        if self.down:
            raise RuntimeError("LLM is shutting down")
        self.prompts.append(inputs.prompt)
        self.sampling.append(sampling_params)
        self.clips.append(inputs.samples)
        reply = LLM.script(inputs.samples, inputs.prompt, sampling_params)
        return RequestOutput(self, reply, sampling_params)

    def shutdown(self) -> None:
        self.down = True


def install(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, script: Script | None = None, version: str = "1.3.0rc9"
) -> None:
    """Put the package in place of the real one, and a checkpoint of a multilingual model into ``folder``."""
    names = ["tensorrt_llm", "tensorrt_llm.llmapi", "tensorrt_llm._torch", "tensorrt_llm._torch.models"]
    whisper = "tensorrt_llm._torch.models.modeling_whisper"
    for name in [*names, whisper]:
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None, is_package=name != whisper)
        module.__path__ = []  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    api = sys.modules["tensorrt_llm.llmapi"]
    sys.modules["tensorrt_llm"].__version__ = version  # type: ignore[attr-defined]
    for public in (LLM, KvCacheConfig, SamplingParams, SchedulerConfig):
        monkeypatch.setattr(api, public.__name__, public, raising=False)
    monkeypatch.setattr(LLM, "script", staticmethod(script or (lambda samples, prompt, params: Reply())))
    monkeypatch.setattr(LLM, "made", [])
    write_checkpoint(folder)


def write_checkpoint(folder: Path, *, multilingual: bool = True, model_type: str = "whisper") -> None:
    """The files of a checkpoint that are looked at; the weights are empty."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, "max_target_positions": 448}))
    table = {f"<|{code}|>": token for code, token in LANGUAGES.items()}
    (folder / "generation_config.json").write_text(json.dumps({"lang_to_id": table} if multilingual else {}))
    (folder / "model.safetensors").write_bytes(b"")
