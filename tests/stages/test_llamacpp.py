"""The in-process language model: slots, the hand-over from threads, and (live) the real small model."""

from __future__ import annotations

import asyncio
import json
import os
import random
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from stages.llm.handover import Handover
from stages.llm.llamacpp import DEFAULT_MODEL, LlamaCpp, chat_template, find_gguf
from stages.llm.slots import Slots
from stages.llm.tool_grammar import forced_call_schema, read_forced_call, without_tools
from voice import models
from voice.compute import ComputeGate
from voice.errors import (
    BadRequest,
    DeadlineExceeded,
    EngineFailed,
    ModelMissing,
    Overloaded,
    ScopeCancelled,
    VoiceError,
)
from voice.executor import ThreadExecutor
from voice.interfaces import (
    Finished,
    ImagePart,
    Message,
    ModelEvent,
    ModelOptions,
    Prompt,
    TextDelta,
    TextPart,
    ToolCall,
    ToolSpec,
    Usage,
)
from voice.scope import Identity, Priority, Reason, Scope
from voice.testing import run_virtual

SYSTEM = "You are a helpful assistant. Answer briefly and correctly."
WEATHER = ToolSpec(
    "get_weather",
    "Get the weather of a city",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
)


def conversation(*turns: str, tools: tuple[ToolSpec, ...] = (), **options: object) -> Prompt:
    """User and assistant in turn, after the usual instructions."""
    roles = ("user", "assistant")
    said = tuple(Message(roles[n % 2], (TextPart(text),)) for n, text in enumerate(turns))  # type: ignore[arg-type]
    return Prompt((Message("system", (TextPart(SYSTEM),)), *said), tools, ModelOptions(**options))  # type: ignore[arg-type]


async def collect(model: LlamaCpp, prompt: Prompt, scope: Scope | None = None) -> list[ModelEvent]:
    async with aclosing(model.generate(prompt, scope or Scope("turn"))) as events:  # type: ignore[type-var]
        return [event async for event in events]


def text_of(events: list[ModelEvent]) -> str:
    return "".join(e.text for e in events if isinstance(e, TextDelta))


def usage_of(events: list[ModelEvent]) -> Usage:
    return next(e for e in events if isinstance(e, Usage))


async def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what changes is changed by a thread
            await asyncio.sleep(0.002)


# ---------------------------------------------------------------- slots


def test_slots_go_to_the_best_class_first_and_then_by_arrival() -> None:
    async def run() -> list[str]:
        slots, order = Slots(1), []
        await slots.take(Scope("turn"))

        async def wait(name: str, priority: Priority) -> None:
            slot = await slots.take(Scope("turn", priority=priority))
            order.append(name)
            slots.give_back(slot)

        classes = [Priority.BACKGROUND, Priority.SPECULATIVE, Priority.COMMITTED, Priority.SPECULATIVE]
        waiting = [asyncio.create_task(wait(f"{n}:{p.name}", p)) for n, p in enumerate(classes)]
        await asyncio.sleep(0)
        slots.give_back(0)
        await asyncio.gather(*waiting)
        assert slots.free == 1
        return order

    assert run_virtual(run()) == ["2:COMMITTED", "1:SPECULATIVE", "3:SPECULATIVE", "0:BACKGROUND"]


def test_a_session_gets_its_last_slot_or_the_one_left_longest_ago() -> None:
    async def run() -> None:
        slots = Slots(3)

        async def turn(session: str) -> int:
            slot = await slots.take(Scope("turn", identity=Identity(session, 1, 0)))
            slots.give_back(slot)
            return slot

        assert [await turn(s) for s in ("a", "b", "c")] == [0, 1, 2]
        assert [await turn(s) for s in ("b", "a", "b")] == [1, 0, 1]
        assert await turn("d") == 2  # c's, which was left before the others
        assert await turn("c") == 0

    run_virtual(run())


def test_a_session_waits_a_little_for_its_own_slot_while_its_old_call_is_stopped() -> None:
    async def run() -> None:
        slots = Slots(2)
        ours = Scope("turn", identity=Identity("ours", 1, 0))
        loop = asyncio.get_running_loop()
        assert await slots.take(ours) == 0
        slots.leaving(0)
        loop.call_later(0.1, slots.give_back, 0)
        assert await slots.take(ours) == 0
        assert loop.time() == pytest.approx(0.1)
        slots.leaving(0)  # this time it does not leave
        assert await slots.take(Scope("turn", identity=Identity("other", 1, 0))) == 1
        slots.give_back(1)
        assert await slots.take(ours) == 1
        assert loop.time() == pytest.approx(0.6)

    run_virtual(run())


def test_a_full_queue_refuses_and_a_long_wait_ends() -> None:
    async def run() -> None:
        slots = Slots(1, max_waiting=1, max_wait_s=5)
        await slots.take(Scope("turn"))
        waiting = asyncio.create_task(slots.take(Scope("turn")))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="1 requests wait"):
            await slots.take(Scope("turn"))
        with pytest.raises(Overloaded, match="within 5 s"):
            await waiting
        with pytest.raises(DeadlineExceeded):
            await slots.take(Scope("process").child("turn", timeout_s=1))
        assert slots.waiting == 0
        slots.give_back(0)
        assert slots.free == 1

    run_virtual(run())


@pytest.mark.parametrize("seed", range(20))
def test_no_slot_is_lost_whenever_a_waiting_request_is_cancelled(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def use(slots: Slots, scope: Scope) -> None:
        slot = await slots.take(scope)
        try:
            await asyncio.sleep(rng.choice([0, 0, 0.01]))
        finally:
            slots.give_back(slot)

    async def run() -> None:
        slots = Slots(2, max_waiting=100)
        scopes = [Scope("turn") for _ in range(30)]
        tasks = [asyncio.create_task(use(slots, scope)) for scope in scopes]
        for _ in range(30):
            await asyncio.sleep(rng.choice([0, 0.005]))
            n = rng.randrange(30)
            if rng.random() < 0.5:
                tasks[n].cancel()
            else:
                scopes[n].cancel(Reason.RESUMED)
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert outcome is None or isinstance(outcome, ScopeCancelled | asyncio.CancelledError)
        await asyncio.sleep(0)
        assert (slots.free, slots.waiting) == (2, 0)

    run_virtual(run())


# ---------------------------------------------------------------- hand-over


class Source:
    """A native call that makes numbered chunks until it is told to stop; counts how far it came."""

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks
        self.offered = 0
        self.told_to_stop = False
        self.freed = 0

    def __call__(self, put: Callable[[str], bool]) -> None:
        for n in range(self.chunks):
            self.offered = n + 1
            if put(str(n)):
                self.told_to_stop = True
                return

    def free(self) -> None:
        self.freed += 1


@asynccontextmanager
async def native(source: Source, bound: int = 8) -> AsyncIterator[tuple[Handover, asyncio.Future[None]]]:
    executor = ThreadExecutor("native")
    handover = Handover(source.free, bound=bound)
    try:
        yield handover, executor.run(handover.run, source)
    finally:
        handover.stop()
        executor.close()


def test_chunks_arrive_in_order_and_whole() -> None:
    async def run() -> None:
        source = Source(500)
        async with native(source) as (handover, done):
            taken = []
            while (chunk := await handover.get(10)) is not None:
                taken.append(chunk)
            await done
        assert taken == [str(n) for n in range(500)]
        assert source.freed == 1

    asyncio.run(run())


def test_a_slow_consumer_holds_the_source_back_and_a_stop_frees_it() -> None:
    async def run() -> None:
        source = Source(500)
        async with native(source, bound=8) as (handover, done):
            await until(lambda: source.offered == 9)
            await handover.get(10)
            await until(lambda: source.offered == 10)
            assert not done.done()
            handover.stop()
            await done
            assert source.told_to_stop
            assert (source.offered, source.freed) == (10, 1)
            with pytest.raises(EngineFailed):
                await handover.get(10)

    asyncio.run(run())


def test_a_call_that_never_began_gives_its_slot_back_once() -> None:
    async def run() -> None:
        source = Source(5)
        handover = Handover(source.free)
        handover.stop()
        handover.stop()
        handover.run(source)
        assert (source.offered, source.freed) == (0, 1)

    asyncio.run(run())


def test_a_source_whose_event_loop_is_gone_stops() -> None:
    source = Source(500)

    async def begin() -> Handover:
        return Handover(source.free, bound=8)

    thread = threading.Thread(target=asyncio.run(begin()).run, args=(source,))
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert (source.told_to_stop, source.freed) == (True, 1)


def test_a_failing_call_fails_its_consumer_after_its_last_chunk() -> None:
    def call(put: Callable[[str], bool]) -> None:
        put("one")
        raise ValueError("bad template")

    async def run() -> None:
        async with native(Source(0)) as (_, done):
            await done
        handover = Handover(lambda: None)
        await asyncio.to_thread(handover.run, call)
        assert await handover.get(10) == "one"
        with pytest.raises(EngineFailed, match="bad template") as caught:
            await handover.get(10)
        assert not caught.value.retryable

    asyncio.run(run())


# ---------------------------------------------------------------- prompts and files


def test_a_forced_call_is_described_by_a_schema_whose_references_count_from_its_root() -> None:
    parameters = {
        "type": "object",
        "properties": {"p": {"$ref": "#/$defs/P"}},
        "$defs": {"P": {"type": "integer"}},
    }
    schema = forced_call_schema([WEATHER, ToolSpec("f", "", parameters)])
    assert [c["properties"]["name"] for c in schema["anyOf"]] == [{"const": "get_weather"}, {"const": "f"}]
    assert schema["$defs"] == {"P": {"type": "integer"}}
    assert "$defs" not in schema["anyOf"][1]["properties"]["arguments"]


@pytest.mark.parametrize("written", ["", '{"name": "f", "argum', '"f"', "[]", "null", '{"name": "f"}'])
def test_a_forced_call_that_was_cut_is_an_error(written: str) -> None:
    with pytest.raises(EngineFailed, match="max_tokens"):
        read_forced_call(written, "the model")


def test_a_template_without_tools_sees_earlier_results_as_plain_messages() -> None:
    call = ToolCall("c", "get_weather", "{}")
    prompt = Prompt(
        (
            Message("user", (TextPart("Weather?"),)),
            Message("assistant", (TextPart("Wait."),), (call,)),
            Message("tool", (TextPart("sunny"),), tool_call_id="c"),
        ),
        (WEATHER,),
    )
    plain = without_tools(prompt)
    assert [(m.role, m.text) for m in plain.messages] == [
        ("user", "Weather?"),
        ("assistant", "Wait."),
        ("system", "Tool result: sunny"),
    ]
    assert not plain.tools


def test_the_chat_template_is_read_from_the_files_metadata(tmp_path: Path) -> None:
    template = b"{% if tools %}"
    text = b"tokenizer.chat_template" + struct.pack("<IQ", 8, len(template)) + template
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + b"\0" * 40 + text + b"more")
    assert chat_template(path) == template
    path.write_bytes(b"GGUF" + b"\0" * 40)
    assert chat_template(path) == b""


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (None, ModelMissing, "can't be read"),
        (b"", EngineFailed, "no GGUF model"),
        (b"<html>not found</html>", EngineFailed, "no GGUF model"),
        (b"GGUF" + bytes(range(256)) * 8, EngineFailed, "can't load"),
    ],
)
def test_a_missing_or_corrupt_model_is_one_sentence(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    content: bytes | None,
    error: type[VoiceError],
    words: str,
) -> None:
    pytest.importorskip("xllamacpp")
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    model = LlamaCpp(path, threads=1)
    with pytest.raises(error, match=words) as caught:
        asyncio.run(collect(model, conversation("Hi")))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(error):
        asyncio.run(model.warm_up())
    model.close()
    assert capfd.readouterr() == ("", "")


def test_an_empty_folder_holds_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"no \.gguf file"):
        find_gguf(tmp_path)


def test_too_little_context_is_refused() -> None:
    with pytest.raises(BadRequest, match="too few"):
        LlamaCpp(context_tokens=512, slots=4)


# ---------------------------------------------------------------- the real model


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaCpp]:
    engine = LlamaCpp(threads=1)
    yield engine
    engine.close()


async def busy(model: LlamaCpp) -> bool:
    return (await model.metrics())["requests_processing"] > 0


async def wait_idle(model: LlamaCpp) -> None:
    """Until llama.cpp has no request and all slots are free."""
    async with asyncio.timeout(60):
        while (await busy(model)) or model.slots.free < model.slots.count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.live
def test_the_small_model_answers_a_simple_question(
    model: LlamaCpp, capfd: pytest.CaptureFixture[str]
) -> None:
    models.path(DEFAULT_MODEL)
    capfd.readouterr()  # a first download says so; from here on nothing may be printed
    asyncio.run(model.warm_up())
    events = asyncio.run(collect(model, conversation("What is the capital of France?")))
    assert "Paris" in text_of(events)
    assert len([e for e in events if isinstance(e, TextDelta)]) > 3
    assert events[-1] == Finished("stop")
    assert usage_of(events).completion_tokens > 3
    assert capfd.readouterr() == ("", "")


@pytest.mark.live
def test_the_second_turn_finds_the_first_in_the_prefix_cache(model: LlamaCpp) -> None:
    first = "Name three animals that live in the sea, please."

    async def run() -> None:
        def turn(session: str) -> Scope:
            return Scope("turn", identity=Identity(session, 1, 0))

        one = await collect(model, conversation(first), turn("ours"))
        for n in range(3):  # other sessions with the same instructions come between
            await collect(model, conversation(f"Say the number {n}.", max_tokens=3), turn(f"other {n}"))
        again = conversation(first, text_of(one), "And two more?", max_tokens=5)
        two = await collect(model, again, turn("ours"))
        used = usage_of(one)
        known = used.prompt_tokens + used.completion_tokens
        assert usage_of(two).cached_tokens >= known - 4

    asyncio.run(run())


@pytest.mark.live
def test_four_streams_run_at_once_and_a_fifth_waits(model: LlamaCpp) -> None:
    async def run() -> None:
        together, most = 0, 0

        async def one(n: int) -> list[ModelEvent]:
            nonlocal together, most
            events: list[ModelEvent] = []
            async for event in model.generate(conversation(f"Count to {n}.", max_tokens=24), Scope("turn")):
                if not events:
                    together += 1
                    most = max(most, together)
                events.append(event)
            together -= 1
            return events

        answers = await asyncio.gather(*(one(n) for n in range(5, 10)))
        assert all(isinstance(a[-1], Finished) for a in answers)
        assert 2 <= most <= 4
        await wait_idle(model)

    asyncio.run(run())


@pytest.mark.live
@pytest.mark.parametrize("choice", ["required", "get_weather"])
def test_a_forced_tool_call_has_valid_arguments_and_no_words(model: LlamaCpp, choice: str) -> None:
    prompt = conversation("What is the weather in Paris?", tools=(WEATHER,), tool_choice=choice)
    events = asyncio.run(collect(model, prompt))
    call, usage, finished = events
    assert isinstance(call, ToolCall)
    assert isinstance(usage, Usage)
    assert finished == Finished("tool_calls")
    arguments = json.loads(call.arguments)
    assert call.name == "get_weather"
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("celsius", "fahrenheit")
    assert isinstance(arguments["city"], str)


@pytest.mark.live
@pytest.mark.parametrize("way", ["close", "task", "scope", "deadline"])
def test_an_abort_frees_the_slot_while_tokens_are_left(model: LlamaCpp, way: str) -> None:
    async def run() -> None:
        root = Scope("process")
        scope = root.child("turn", timeout_s=0.5 if way == "deadline" else 60)
        prompt = conversation("Tell me a very long story.", max_tokens=1500, extra={"ignore_eos": True})
        before = (await model.metrics())["tokens_predicted_total"]

        async def read() -> None:
            async with aclosing(model.generate(prompt, scope)) as events:  # type: ignore[type-var]
                async for event in events:
                    if isinstance(event, TextDelta) and way != "deadline":
                        if way == "close":
                            return
                        asyncio.get_running_loop().call_soon(
                            task.cancel if way == "task" else lambda: scope.cancel(Reason.BARGE_IN)
                        )

        task = asyncio.create_task(read())
        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        expected = {
            "close": type(None),
            "task": asyncio.CancelledError,
            "scope": ScopeCancelled,
            "deadline": DeadlineExceeded,
        }
        assert type(outcome) is expected[way]
        await wait_idle(model)
        assert (await model.metrics())["tokens_predicted_total"] - before < 1000

    asyncio.run(run())


@pytest.mark.live
def test_an_abort_during_the_prefill_ends_it_after_a_batch(model: LlamaCpp) -> None:
    async def run() -> None:
        words = " ".join(random.Random(5).choices(["sea", "boat", "sky", "tree", "moon", "fish"], k=1700))
        before = await model.metrics()
        task = asyncio.create_task(collect(model, conversation(words)))
        async with asyncio.timeout(60):
            while not await busy(model):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await wait_idle(model)
        after = await model.metrics()
        assert after["n_tokens_max"] < 1700 or after["n_tokens_max"] == before["n_tokens_max"]

    asyncio.run(run())


@pytest.mark.live
def test_cancels_at_random_points_leave_no_thread_stuck_and_no_slot_lost(model: LlamaCpp) -> None:
    seed = int(os.environ.get("VOICE_TEST_SEED", "20261130"))
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def run() -> None:
        gate = ComputeGate(1)
        model._gate = gate
        for _ in range(15):
            scope = Scope("turn")
            task = scope.run(collect(model, conversation("Tell me a story.", max_tokens=60), scope), "read")
            await asyncio.sleep(rng.random() ** 2 * 0.4)
            scope.cancel(Reason.BARGE_IN)
            await asyncio.gather(task, return_exceptions=True)
        model._gate = None
        await wait_idle(model)
        assert gate.stats.running == 0
        assert not model._streams

    asyncio.run(run())
    answer = asyncio.run(collect(model, conversation("What is the capital of France?")))
    assert "Paris" in text_of(answer)


@pytest.mark.live
def test_a_prompt_that_does_not_fit_is_an_error_that_says_so(model: LlamaCpp) -> None:
    with pytest.raises(EngineFailed, match=r"exceeds the available context size \(2048 tokens\)") as caught:
        asyncio.run(collect(model, conversation("word " * 3000)))
    assert not caught.value.retryable
    asyncio.run(until(lambda: model.slots.free == 4))


@pytest.mark.live
def test_pictures_are_refused(model: LlamaCpp) -> None:
    prompt = Prompt((Message("user", (ImagePart(b"x", "image/png"),)),))
    with pytest.raises(BadRequest, match="can't see pictures"):
        asyncio.run(collect(model, prompt))


@pytest.mark.live
def test_a_closed_model_says_so_and_ends_what_runs() -> None:
    async def run() -> None:
        engine = LlamaCpp(threads=1, slots=1, context_tokens=2048, executor=ThreadExecutor("closing", 2))
        await engine.warm_up()
        prompt = conversation("Tell me a long story.", max_tokens=1500, extra={"ignore_eos": True})
        with pytest.raises(EngineFailed, match="stopped"):
            async for event in engine.generate(prompt, Scope("turn")):
                if isinstance(event, TextDelta):
                    engine.close()
        with pytest.raises(EngineFailed, match="was closed"):
            await collect(engine, prompt)

    asyncio.run(run())
    for thread in threading.enumerate():
        if thread.name.startswith(("closing", "llama.cpp close")):
            thread.join(30)
            assert not thread.is_alive()
