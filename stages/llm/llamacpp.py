"""How do we run a small instruct model inside this process? llama.cpp through ``xllamacpp``'s server API.

Each generation is one blocking call in a thread; llama.cpp batches the calls that run at once (continuous
batching over its slots) and keeps the prompts of earlier turns (prefix cache), so that a next turn computes
only what is new.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import secrets
import shutil
import struct
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from stages.llm.chat_chunks import ChunkReader
from stages.llm.chat_format import Dialect, chosen_tools, request_body
from stages.llm.handover import Handover
from stages.llm.slots import Slots
from stages.llm.tool_grammar import forced_call_message, forced_call_schema, read_forced_call, without_tools
from voice import models
from voice.compute import ComputeGate
from voice.errors import BadRequest, DeadlineExceeded, EngineFailed, ModelMissing
from voice.executor import Executor, ThreadExecutor
from voice.interfaces import Finished, ImagePart, ModelEvent, Prompt, TextDelta
from voice.scope import Scope

DEFAULT_MODEL = "smollm2-135m-instruct"
DIALECT = Dialect("llama.cpp", cache_prompt=True, extra={"return_progress": True})
PREFILL_BATCH_TOKENS = 64
"""Tokens of a prompt computed at a time: how long other streams, and an abort, have to wait for a prefill."""
STALL_S = 30.0
"""Longest time without a sign of life from the engine: a batch of a prefill, or a token."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a prompt's options leave open. The defaults suit models of a few hundred million parameters:
    these are only coherent near greedy decoding, and a repetition penalty keeps them from repeating the
    question's own words in the answer.

    Attributes:
        temperature: 0–2.
        repeat_penalty: 1 switches it off.
        max_tokens: Longest answer.
    """

    temperature: float = 0.0
    repeat_penalty: float = 1.0
    max_tokens: int = 160


class NativeServer(Protocol):
    """What we use of ``xllamacpp.Server``."""

    def handle_chat_completions(self, request: str, callback: Callable[[str], bool]) -> object: ...

    def handle_metrics(self) -> str: ...


class LlamaCpp:
    """A GGUF model on this machine's processor, shared by all sessions of the process.

    Loaded on first use or by :meth:`warm_up`. May be used from one event loop after another. A model whose
    chat template knows no tools (the default one) is not told of tools it may use; a call that is *demanded*
    (``tool_choice`` ``"required"`` or a name) works with every model, because a grammar leaves it no other
    answer.

    Holding back a slow reader: at most 256 chunks wait here. llama.cpp itself generates on into its own
    queue, up to the answer's ``max_tokens``.

    Args:
        model_path: A ``.gguf`` file; ``None``: the catalogue's ``smollm2-135m-instruct``, fetched on first
            use.
        threads: For making tokens; ``None``: half the cores. They meet several hundred times a token, so one
            thread that other work holds up holds up all: with two threads on two busy cores, generation was
            measured to be 4 to 30 times slower than with one.
        prefill_threads: For reading the prompt, which happens behind the gate; ``None``: as ``threads``.
        context_tokens: Of all slots together; a prompt and its answer must fit in ``context_tokens / slots``.
        slots: Generations at once.
        gate: The process's compute gate; held from the request to the first token (prefill).
        sampling: What a prompt's options leave open.
        max_waiting: Requests that may wait for a slot; more are refused.
        executor: Where the blocking calls run; needs ``slots`` + 1 threads.

    Attributes:
        name: The model's name: the file's, or the catalogue's.
        window_tokens: A prompt and its answer must fit in so many.
    """

    def __init__(
        self,
        model_path: str | Path | None = None,
        *,
        threads: int | None = None,
        prefill_threads: int | None = None,
        context_tokens: int = 8192,
        slots: int = 4,
        gate: ComputeGate | None = None,
        sampling: Sampling = Sampling(),
        max_waiting: int = 32,
        executor: Executor | None = None,
    ) -> None:
        if slots < 1 or context_tokens < 256 * slots:
            raise BadRequest(f"{context_tokens} tokens of context are too few for {slots} slots (256 each)")
        self.name = DEFAULT_MODEL if model_path is None else Path(model_path).stem.lower()
        self.threads = threads or max(1, (os.cpu_count() or 1) // 2)
        self.prefill_threads = prefill_threads or self.threads
        self.context_tokens = context_tokens
        self.window_tokens = context_tokens // slots
        self.sampling = sampling
        self.slots = Slots(slots, max_waiting=max_waiting)
        self._model_path = model_path
        self._gate = gate
        self._executor = executor or ThreadExecutor("llama.cpp", slots + 1)
        self._loading = threading.Lock()
        self._server: NativeServer | None = None
        self._tools_in_template = False
        self._streams: set[Handover] = set()
        self._closed = False

    async def warm_up(self) -> None:
        """Load the model and make one token.

        Raises:
            ModelMissing: There is no such file.
            EngineFailed: The file is no model that llama.cpp can load.
        """
        server = await self._loaded()
        request = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 1}
        await self._executor.run(server.handle_chat_completions, json.dumps(request), lambda _: False)

    async def metrics(self) -> dict[str, float]:
        """llama.cpp's counters by name without their prefix (``requests_processing``,
        ``prompt_tokens_total``, ``prompt_tokens_cached_total``, …); answered between two of its batches."""
        server = await self._loaded()
        lines = (await self._executor.run(server.handle_metrics)).splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name.removeprefix("llamacpp:"): float(value) for name, _, value in pairs}

    async def prepare(self, prompt: Prompt, scope: Scope) -> None:
        """Read a prompt whose end is still unknown into the session's slot; see
        :class:`~voice.interfaces.LanguageModel`. Does nothing while the model isn't loaded or all slots are busy.

        Raises:
            As :meth:`generate`.
        """
        if self._server is None or self.slots.free == 0:
            return
        options = replace(prompt.options, max_tokens=1, tool_choice="none")
        async with aclosing(self.generate(replace(prompt, tools=(), options=options), scope)) as events:
            async for _ in events:
                pass

    async def generate(self, prompt: Prompt, scope: Scope) -> AsyncGenerator[ModelEvent, None]:
        """Stream an answer; see :class:`~voice.interfaces.LanguageModel`.

        Raises:
            ModelMissing: As :meth:`warm_up`.
            EngineFailed: As :meth:`warm_up`; or the prompt doesn't fit in a slot, or llama.cpp failed.
            Overloaded: All slots are busy and too many requests wait.
            BadRequest: The prompt holds pictures, or demands a tool that isn't offered.
            DeadlineExceeded: The scope's deadline passed.
            ScopeCancelled: The scope was cancelled.
        """
        scope.check()
        chosen = chosen_tools(prompt)
        try:
            async with asyncio.timeout(scope.remaining()):
                server = await self._loaded()
        except TimeoutError:
            raise DeadlineExceeded(f"the deadline passed while {self.name} was loading") from None
        request = self._request(prompt)
        slot = await self.slots.take(scope)
        stream = Handover(lambda: self.slots.give_back(slot), on_stopping=lambda: self.slots.leaving(slot))
        body = json.dumps(request | {"id_slot": slot})
        self._streams.add(stream)
        forget = scope.on_cancel(stream.stop)
        call: asyncio.Future[None] | None = None
        reader = ChunkReader(f"the local model {self.name}")
        written = ""
        try:
            async with AsyncExitStack() as prefill:
                if self._gate is not None:
                    await self._enter_gate(prefill, self._gate, scope)
                call = self._executor.run(stream.run, lambda put: server.handle_chat_completions(body, put))
                while (chunk := await self._next(stream, scope)) is not None:
                    events = reader.feed(json.loads(chunk))
                    if reader.progress:
                        await prefill.aclose()
                    for event in events:
                        if chosen and isinstance(event, TextDelta):
                            written += event.text  # the call's JSON, never to be spoken
                        else:
                            yield event
            if chosen:
                yield read_forced_call(written, reader.source)
            for event in reader.close():
                yield Finished("tool_calls") if chosen and isinstance(event, Finished) else event
        finally:
            forget()
            stream.stop()
            self._streams.discard(stream)
            if call is not None:
                call.cancel()  # drops the result; the thread ends by itself at the next chunk

    def close(self) -> None:
        """Stop all generations and free the model once the last thread has left it."""
        self._closed = True
        for stream in list(self._streams):
            stream.stop()
        server, self._server = [self._server], None
        # Freeing joins llama.cpp's threads, which takes a tenth of a second: not on an event loop.
        threading.Thread(target=server.clear, name="llama.cpp close").start()
        self._executor.close()

    async def _enter_gate(self, stack: AsyncExitStack, gate: ComputeGate, scope: Scope) -> None:
        try:
            async with asyncio.timeout(scope.remaining()):
                await stack.enter_async_context(gate.slot(scope))
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed while waiting for the processor") from None
        scope.check()

    async def _next(self, stream: Handover, scope: Scope) -> str | None:
        remaining = scope.remaining()
        wait_s = STALL_S if remaining is None else min(remaining, STALL_S)
        try:
            return await stream.get(wait_s)
        except TimeoutError:
            scope.check()
            if scope.remaining() == 0:
                raise DeadlineExceeded(f"the deadline passed while {self.name} was answering") from None
            raise EngineFailed(f"the local model {self.name} made no progress within {STALL_S:g} s") from None
        except EngineFailed:
            scope.check()
            raise

    def _request(self, prompt: Prompt) -> dict[str, Any]:
        """The request, with what this model can't take turned into what it can."""
        if any(isinstance(part, ImagePart) for m in prompt.messages for part in m.content):
            raise BadRequest(f"the local model {self.name} can't see pictures")
        chosen = chosen_tools(prompt)
        shown = prompt if self._tools_in_template and not chosen else without_tools(prompt)
        options = shown.options
        defaults = self.sampling
        shown = replace(
            shown,
            options=replace(
                options,
                temperature=defaults.temperature if options.temperature is None else options.temperature,
                max_tokens=defaults.max_tokens if options.max_tokens is None else options.max_tokens,
            ),
        )
        body = request_body(shown, None, DIALECT)
        body.setdefault("repeat_penalty", defaults.repeat_penalty)
        if chosen:
            body["messages"].append(forced_call_message(chosen))
            body["json_schema"] = forced_call_schema(chosen)
        return body

    async def _loaded(self) -> NativeServer:
        if self._closed:
            raise EngineFailed(f"the local model {self.name} was closed", retryable=False)
        server = self._server
        return server if server is not None else await self._executor.run(self._load)

    def _load(self) -> NativeServer:
        """Load the model unless another thread has. Blocks for about a second."""
        with self._loading:
            if self._server is None:
                path = find_gguf(self._model_path)
                self._tools_in_template = b"tools" in chat_template(path)
                self._server = start_server(
                    path, self.threads, self.prefill_threads, self.context_tokens, self.slots.count
                )
            return self._server


def find_gguf(model_path: str | Path | None) -> Path:
    """The model's file, checked to be there and to be GGUF.

    Raises:
        ModelMissing: It isn't there.
        EngineFailed: It is something else.
    """
    path = models.path(DEFAULT_MODEL) if model_path is None else Path(model_path)
    if path.is_dir():
        found = sorted(path.rglob("*.gguf"))
        if not found:
            raise ModelMissing(f"there is no .gguf file in {path}")
        path = found[0]
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelMissing(f"the model {path} can't be read: {error.strerror}") from None
    if magic != b"GGUF":
        raise EngineFailed(f"{path} is no GGUF model: it begins with {magic!r}", retryable=False)
    return path


def chat_template(path: Path) -> bytes:
    """The chat template in a GGUF file's metadata (a key, the type 8 for a string, its length, the text);
    empty when there is none."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        key = b"tokenizer.chat_template" + struct.pack("<I", 8)
        at = data.find(key)
        if at < 0 or at + len(key) + 8 > len(data):
            return b""
        (length,) = struct.unpack_from("<Q", data, at + len(key))
        start = at + len(key) + 8
        return bytes(data[start : start + min(length, 1 << 20)])


def start_server(
    path: Path, threads: int, prefill_threads: int, context_tokens: int, slots: int
) -> NativeServer:
    """Load a model. Nothing is printed, and nothing outside this process can reach the server.

    Raises:
        EngineFailed: llama.cpp can't load the file.
        ModelMissing: ``xllamacpp`` is not installed.
    """
    try:
        import xllamacpp
    except ImportError:
        raise ModelMissing("local models need the package xllamacpp: install voice[local]") from None
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel = context_tokens, slots
    params.n_batch = params.n_ubatch = PREFILL_BATCH_TOKENS
    params.cache_ram_mib = 0  # its second prompt cache, which serves only requests that name no slot
    params.verbosity = -1
    params.warmup = params.use_jinja = params.cache_prompt = params.endpoint_metrics = True
    params.n_threads_http = 1
    params.cpuparams.n_threads, params.cpuparams.poll = threads, 0
    params.cpuparams_batch.n_threads, params.cpuparams_batch.poll = prefill_threads, 0
    folder = tempfile.mkdtemp(prefix="voice-")
    try:
        # xllamacpp always listens somewhere: let it be a socket file that only we may open, and remove that.
        address = os.path.join(folder, "llama.sock")
        if os.name == "posix" and len(os.fsencode(address)) < 100:
            params.hostnames = [address]
        params.api_keys = [secrets.token_urlsafe(32)]
        server: NativeServer = xllamacpp.Server(params)
        return server
    except RuntimeError as error:
        raise EngineFailed(f"llama.cpp can't load {path}: {error}", retryable=False) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
