"""The OpenAI-compatible client against a scripted server on a real socket."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from stages.llm.chat_chunks import ChunkReader
from stages.llm.chat_format import Dialect, request_body
from stages.llm.openai import Endpoint, OpenAIChat
from stages.llm.sse import SseParser
from voice.errors import BadRequest, DeadlineExceeded, EngineFailed, ProtocolError, ScopeCancelled
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
    ToolCallDelta,
    ToolSpec,
    Usage,
)
from voice.scope import Reason, Scope
from voice.testing.openai_server import Reply, ScriptedOpenAIServer

PROMPT = Prompt((Message("user", (TextPart("Hi"),)),))
WEATHER = ToolSpec("weather", "The weather.", {"type": "object", "properties": {"city": {"type": "string"}}})
TIME = ToolSpec("time", "The time.", {"type": "object", "properties": {}})


@asynccontextmanager
async def serving(
    replies: Sequence[Reply | str] | Callable[..., Reply | str], **options: Any
) -> AsyncIterator[tuple[OpenAIChat, ScriptedOpenAIServer]]:
    async with ScriptedOpenAIServer(replies) as server:
        model = OpenAIChat(server.url, options.pop("model", "m"), options.pop("api_key", ""), **options)
        try:
            yield model, server
        finally:
            await model.aclose()


async def collect(model: OpenAIChat, prompt: Prompt = PROMPT, scope: Scope | None = None) -> list[ModelEvent]:
    async with aclosing(model.generate(prompt, scope or Scope("turn"))) as events:
        return [event async for event in events]


def events_of(reply: Reply | str, prompt: Prompt = PROMPT, **options: Any) -> list[ModelEvent]:
    async def run() -> list[ModelEvent]:
        async with serving([reply], **options) as (model, _):
            return await collect(model, prompt)

    return asyncio.run(run())


def error_of(reply: Reply | str, **options: Any) -> EngineFailed:
    with pytest.raises(EngineFailed) as caught:
        events_of(reply, **options)
    assert "127.0.0.1:" in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


def text_of(events: Sequence[ModelEvent]) -> str:
    return "".join(e.text for e in events if isinstance(e, TextDelta))


# ---------------------------------------------------------------- answers


def test_an_answer_streams_and_ends_with_usage_and_finished() -> None:
    events = events_of(Reply("Hello there, friend.", usage=Usage(12, 4, 8)))
    assert text_of(events) == "Hello there, friend."
    assert events[-2:] == [Usage(12, 4, 8), Finished("stop")]


def test_reasoning_is_never_yielded() -> None:
    events = events_of(Reply("Four.", reasoning="Two and two..."))
    assert text_of(events) == "Four."


def test_parallel_tool_calls_come_as_deltas_and_then_whole() -> None:
    calls = (ToolCall("a", "weather", '{"city": "Paris"}'), ToolCall("b", "time", "{}"))
    prompt = Prompt(PROMPT.messages, tools=(WEATHER, TIME))
    events = events_of(Reply("Wait.", tool_calls=calls), prompt)
    deltas = [e for e in events if isinstance(e, ToolCallDelta)]
    assert "".join(d.arguments for d in deltas if d.call_id == "a") == '{"city": "Paris"}'
    assert [e for e in events if isinstance(e, ToolCall)] == list(calls)
    assert events[-1] == Finished("tool_calls")


@pytest.mark.parametrize(
    "reply",
    [
        Reply("Good.", finish=None),  # no finish reason before [DONE]
        Reply("Good.", done=False),  # the body ends after the finish reason, without [DONE]
        Reply("Good.", fault="hang", fault_after=3),  # the connection stays open after the finish reason
        Reply("Good.", fault="reset", fault_after=4),  # the connection breaks after the usage
    ],
)
def test_a_complete_answer_counts_however_its_stream_ends(reply: Reply) -> None:
    events = events_of(reply)
    assert text_of(events) == "Good."
    assert events[-1] == Finished("stop")


def test_a_server_that_does_not_stream_is_understood() -> None:
    whole = {
        "id": "1",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Whole."}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": None},
    }
    events = events_of(Reply(body=json.dumps(whole).encode()))
    assert events == [TextDelta("Whole."), Usage(3, 2, 0), Finished("stop")]


def test_chunks_of_other_servers_are_understood() -> None:
    reader = ChunkReader("x")
    chunks: list[Any] = [
        {"id": "7", "choices": [], "prompt_filter_results": []},
        {"choices": [{"delta": None, "index": 0, "logprobs": None}]},
        {"choices": [{"delta": {"content": [{"type": "text", "text": "Hi"}], "unknown": 1}, "index": 0}]},
        {"choices": [{"delta": {"content": "other choice"}, "index": 1}]},
        # calls without an index or an id, and arguments as an object
        {"choices": [{"delta": {"tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": None}},
    ]
    events = [e for chunk in chunks for e in reader.feed(chunk)] + reader.close()
    assert events == [
        TextDelta("Hi"),
        ToolCallDelta("call_7_0", "f", '{"a": 1}'),
        ToolCall("call_7_0", "f", '{"a": 1}'),
        Usage(),
        Finished("tool_calls"),
    ]


# ---------------------------------------------------------------- requests


def test_a_conversation_with_tools_and_pictures_goes_out_in_chat_format() -> None:
    prompt = Prompt(
        (
            Message("system", (TextPart("Be brief."),)),
            Message("user", (TextPart("What is this?"), ImagePart(b"\x89PNG", "image/png", "low"))),
            Message("assistant", (), (ToolCall("c1", "weather", '{"city":"Rome"}'),)),
            Message("tool", (TextPart("sunny"),), tool_call_id="c1"),
        ),
        tools=(WEATHER,),
        options=ModelOptions("weather", max_tokens=50, temperature=0.5, stop=("END",), extra={"seed": 7}),
    )

    async def run() -> Any:
        async with serving(["ok"], dialect=Dialect(max_tokens_field="max_completion_tokens")) as (
            model,
            server,
        ):
            await collect(model, prompt)
            return server.chats[0]

    body = asyncio.run(run())
    url = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city":"Rome"}'},
                }
            ],
        },
        {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
    ]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert (body["max_completion_tokens"], body["temperature"], body["stop"], body["seed"]) == (
        50,
        0.5,
        ["END"],
        7,
    )
    assert body["stream"] is True


def test_a_dialect_leaves_out_what_a_server_refuses() -> None:
    body = request_body(PROMPT, None, Dialect("strict", stream_options=False))
    assert set(body) == {"messages", "stream"}


@pytest.mark.parametrize(
    "options", [ModelOptions("required"), ModelOptions("nope"), ModelOptions(extra={"messages": []})]
)
def test_a_prompt_that_contradicts_itself_is_refused_before_anything_is_sent(options: ModelOptions) -> None:
    with pytest.raises(BadRequest):
        request_body(Prompt(PROMPT.messages, options=options), "m")


@pytest.mark.parametrize(
    ("text", "url", "host"),
    [
        ("http://localhost:8000", "http://localhost:8000/v1", "localhost:8000"),
        ("http://localhost:8000/v1", "http://localhost:8000/v1", "localhost:8000"),
        (" http://localhost:8000/v1/ ", "http://localhost:8000/v1", "localhost:8000"),
        ("https://llm.example/api/openai/", "https://llm.example/api/openai", "llm.example:443"),
        ("http://h/v1/chat/completions", "http://h/v1", "h:80"),
        ("http://[::1]:9", "http://[::1]:9/v1", "[::1]:9"),
    ],
)
def test_urls_are_normalised(text: str, url: str, host: str) -> None:
    endpoint = Endpoint.parse(text)
    assert (endpoint.url, endpoint.host) == (url, host)


@pytest.mark.parametrize(
    "text", ["", "localhost:8000", "ftp://x/v1", "http://", "http://h:x", "http://h/v1?a=b"]
)
def test_what_is_no_url_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(BadRequest, match="expected http"):
        OpenAIChat(text)


def test_without_a_name_the_first_listed_model_is_used_and_asked_for_once() -> None:
    async def run() -> None:
        async with serving(["one", "two"], model=None) as (model, server):
            await collect(model)
            await collect(model)
            assert [r.path for r in server.requests].count("/v1/models") == 1
            assert {c["model"] for c in server.chats} == {"scripted-model"}
            assert model.name == "scripted-model"

    asyncio.run(run())


def test_turns_reuse_their_connection_and_event_loops_do_not_share_it() -> None:
    async def turns(url: str, model: OpenAIChat) -> None:
        for _ in range(3):
            assert text_of(await collect(model)) == "again"
        await model.aclose()

    async def run() -> None:
        async with ScriptedOpenAIServer(["again"]) as server:
            model = OpenAIChat(server.url, "m", "")
            await turns(server.url, model)
            assert server.connections == 1
            await asyncio.to_thread(lambda: asyncio.run(turns(server.url, model)))
            assert server.connections == 2

    asyncio.run(run())


def test_the_key_is_sent_but_neither_logged_nor_repeated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    body = json.dumps({"error": {"message": "Incorrect API key provided: sk-secret"}}).encode()

    async def run() -> str:
        async with serving([Reply(status=401, body=body)], api_key=None) as (model, server):
            with pytest.raises(EngineFailed) as caught:
                await collect(model)
            assert server.requests[0].headers["authorization"] == "Bearer sk-secret"
            assert "sk-secret" not in repr(vars(caught.value))
            return str(caught.value)

    with caplog.at_level(logging.DEBUG):
        message = asyncio.run(run())
    assert "Incorrect API key provided: ***" in message
    assert "sk-secret" not in caplog.text


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("status", "retryable"),
    [
        *((status, False) for status in (307, 400, 401, 404, 422)),
        *((status, True) for status in (408, 409, 425, 429, 500, 502, 503)),
    ],
)
def test_a_refusal_names_the_status_and_says_whether_to_try_again(status: int, retryable: bool) -> None:
    error = error_of(Reply(status=status))
    assert f"answered {status}: scripted {status}" in str(error)
    assert error.retryable is retryable


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": "model not loaded"}', "model not loaded"),
        (b'{"object": "error", "message": "too long", "code": 400}', "too long"),
        (b'{"detail": [{"loc": ["body"], "msg": "field required"}]}', "field required"),
        (b"<html><style>p{}</style><h1>Bad\n Gateway</h1></html>", "Bad Gateway"),
        (b"upstream \xff died", "upstream"),
        (b"x" * 5000, "x" * 300),
    ],
)
def test_a_refusal_repeats_the_servers_own_words(body: bytes, words: str) -> None:
    message = str(error_of(Reply(status=500, body=body)))
    assert words in message
    assert len(message) < 400


def test_an_empty_refusal_is_still_a_sentence() -> None:
    assert str(error_of(Reply(status=502, body=b""))).endswith("answered 502")


def test_a_server_that_refuses_the_connection_is_named() -> None:
    async def run() -> str:
        async with ScriptedOpenAIServer(["x"]) as server:
            url = server.url
        with pytest.raises(EngineFailed, match=r"127\.0\.0\.1:\d+ can't be reached: it refused") as caught:
            await collect(OpenAIChat(url, "m", ""))
        assert caught.value.retryable
        return url

    asyncio.run(run())


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(EngineFailed, match=r"nowhere\.invalid:80 can't be reached"):
        asyncio.run(collect(OpenAIChat("http://nowhere.invalid", "m", "", first_token_timeout_s=5)))


def test_tls_to_a_server_without_it_is_named() -> None:
    async def run() -> None:
        async with ScriptedOpenAIServer(["x"]) as server:
            model = OpenAIChat(server.url.replace("http:", "https:"), "m", "", first_token_timeout_s=5)
            with pytest.raises(EngineFailed, match="can't be reached securely"):
                await collect(model)

    asyncio.run(run())


def test_a_hang_before_the_headers_ends_at_the_first_token_timeout() -> None:
    error = error_of(Reply("x", fault="hang_before_headers"), first_token_timeout_s=0.1)
    assert "did not answer within 0.1 s" in str(error)
    assert error.retryable


@pytest.mark.parametrize("reply", [Reply("x", fault="comments"), Reply("x", fault="hang", fault_after=1)])
def test_comments_and_empty_chunks_are_no_first_token(reply: Reply) -> None:
    assert "did not answer within 0.2 s" in str(error_of(reply, first_token_timeout_s=0.2, gap_timeout_s=9))


@pytest.mark.parametrize("fault", ["hang", "comments"])
def test_a_stall_between_tokens_ends_at_the_gap_timeout(fault: Any) -> None:
    error = error_of(Reply("a b c", fault=fault, fault_after=3), gap_timeout_s=0.15)
    assert "sent no further token within 0.15 s" in str(error)


def test_holding_the_model_back_is_no_stall() -> None:
    async def run() -> str:
        async with serving(["one two three"], gap_timeout_s=0.1, first_token_timeout_s=5) as (model, _):
            text = ""
            async for event in model.generate(PROMPT, Scope("turn")):
                await asyncio.sleep(0.15)
                text += event.text if isinstance(event, TextDelta) else ""
            return text

    assert asyncio.run(run()) == "one two three"


@pytest.mark.parametrize(
    ("fault", "words"),
    [("reset", "closed the connection"), ("end", "the stream ended early"), ("garbage", "not JSON")],
)
def test_a_death_in_mid_stream_is_one_error_after_the_text_that_came(fault: Any, words: str) -> None:
    async def run() -> None:
        async with serving([Reply("one two three", fault=fault, fault_after=3)]) as (model, _):
            text = ""
            with pytest.raises(EngineFailed, match=words) as caught:
                async for event in model.generate(PROMPT, Scope("turn")):
                    text += event.text if isinstance(event, TextDelta) else ""
            assert text == "one two"
            assert caught.value.retryable

    asyncio.run(run())


def test_an_error_inside_the_stream_is_the_servers_own() -> None:
    body = b'data: {"error": {"message": "out of memory", "code": 500}}\n\n'
    error = error_of(Reply(body=body, content_type="text/event-stream"))
    assert "out of memory" in str(error)


def test_a_web_page_is_not_an_answer() -> None:
    error = error_of(Reply(body=b"<html>hello</html>", content_type="text/html; charset=utf-8"))
    assert "web page" in str(error)
    assert not error.retryable


def test_a_line_without_end_is_refused() -> None:
    parser = SseParser(max_event_bytes=100)
    with pytest.raises(ProtocolError, match="more than 100 bytes"):
        for _ in range(20):
            parser.feed(b"data: 890")
    parser = SseParser(max_event_bytes=100)
    with pytest.raises(ProtocolError, match="more than 100 bytes"):
        for _ in range(40):
            parser.feed(b"data: 890\n")


# ---------------------------------------------------------------- ends of scopes


def test_the_deadline_of_the_scope_bounds_a_hang() -> None:
    async def run() -> None:
        async with serving([Reply("x", fault="hang_before_headers")]) as (model, _):
            scope = Scope("process").child("turn", timeout_s=0.1)
            with pytest.raises(DeadlineExceeded):
                await collect(model, scope=scope)

    asyncio.run(run())


@dataclass
class Leaving:
    """Ways to lose interest in an answer after its first word."""

    task: asyncio.Task[None] | None = None
    scope: Scope = field(default_factory=lambda: Scope("turn"))

    async def read(self, model: OpenAIChat, way: str) -> None:
        self.task = asyncio.current_task()
        async with aclosing(model.generate(PROMPT, self.scope)) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    if way == "close":
                        break
                    asyncio.get_running_loop().call_soon(self._leave, way)

    def _leave(self, way: str) -> None:
        if way == "task" and self.task is not None:
            self.task.cancel()
        elif way == "scope":
            self.scope.cancel(Reason.BARGE_IN)


@pytest.mark.parametrize("way", ["task", "close", "scope"])
def test_leaving_in_mid_answer_closes_the_connection_at_once(way: str) -> None:
    async def run() -> None:
        async with serving([Reply("one two three", fault="hang", fault_after=2)]) as (model, server):
            task = asyncio.create_task(Leaving().read(model, way))
            outcome = (await asyncio.gather(task, return_exceptions=True))[0]
            expected = {"task": asyncio.CancelledError, "close": type(None), "scope": ScopeCancelled}[way]
            assert isinstance(outcome, expected)
            await server.until(lambda: server.disconnects == 1 and server.active == 0)

    asyncio.run(run())


def test_a_cancelled_scope_sends_nothing() -> None:
    async def run() -> None:
        async with serving(["x"]) as (model, server):
            scope = Scope("turn")
            scope.cancel(Reason.RESUMED)
            with pytest.raises(ScopeCancelled):
                await collect(model, scope=scope)
            assert not server.chats

    asyncio.run(run())


def test_many_streams_at_once_keep_to_themselves_and_leave_nothing_behind() -> None:
    async def run() -> None:
        def script(request: Any) -> Reply:
            return Reply(request["messages"][0]["content"] * 3, gap_s=0.001)

        async with serving(script) as (model, server):
            prompts = [Prompt((Message("user", (TextPart(f"session {n} "),)),)) for n in range(40)]
            answers = await asyncio.gather(*(collect(model, p) for p in prompts))
            assert [text_of(a) for a in answers] == [p.messages[0].text * 3 for p in prompts]
            assert server.active == 0
        for _ in range(5):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(run())
