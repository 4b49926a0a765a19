"""B41: a character of several bytes is cut by a stream chunk.

The kind of fault: text is decoded piece by piece although pieces may end anywhere. It is made impossible in
``stages/llm/sse.py``: bytes are collected to whole lines before anything is decoded, and a line end can't be
part of a character in UTF-8. What never became a line is an error when the stream ends.
"""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.llm.openai import OpenAIChat
from stages.llm.sse import SseParser
from voice.errors import EngineFailed
from voice.interfaces import (
    Message,
    ModelEvent,
    Prompt,
    TextDelta,
    TextPart,
    ToolCall,
    ToolCallDelta,
    ToolSpec,
)
from voice.scope import Scope
from voice.testing.openai_server import Reply, ScriptedOpenAIServer

TEXT = "Grüße aus Köln, die Ärzte sagen: ça va 👩‍🚀👨‍👩‍👧 你好，世界。"
ARGUMENTS = json.dumps({"city": "Zürich 🏔️", "note": "雪"}, ensure_ascii=False)
TOOL = ToolSpec("weather", "The weather.", {"type": "object", "properties": {"city": {"type": "string"}}})
PROMPT = Prompt((Message("user", (TextPart("Grüß mich"),)),), tools=(TOOL,))


async def answer(*replies: Reply) -> list[ModelEvent]:
    async with ScriptedOpenAIServer(replies) as server:
        model = OpenAIChat(server.url, "m", "")
        try:
            return [event async for event in model.generate(PROMPT, Scope("turn"))]
        finally:
            await model.aclose()


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_a_reply_that_comes_byte_by_byte_is_equal_to_its_source(line_end: str) -> None:
    events = asyncio.run(answer(Reply(TEXT, chunk_bytes=1, line_end=line_end)))
    text = "".join(e.text for e in events if isinstance(e, TextDelta))
    assert text == TEXT
    assert "�" not in text


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_tool_arguments_that_come_byte_by_byte_parse(line_end: str) -> None:
    call = ToolCall("call_1", "weather", ARGUMENTS)
    events = asyncio.run(
        answer(Reply(tool_calls=(call,), chunk_bytes=1, line_end=line_end, argument_chars=1))
    )
    assert [e for e in events if isinstance(e, ToolCall)] == [call]
    assert "".join(e.arguments for e in events if isinstance(e, ToolCallDelta)) == ARGUMENTS
    assert json.loads(ARGUMENTS)["note"] == "雪"


@pytest.mark.parametrize("kept", range(1, 4))
def test_bytes_left_over_at_the_end_are_one_clear_error(kept: int) -> None:
    whole = 'data: {"choices":[{"index":0,"delta":{"content":"雪'.encode()
    cut = whole[: len(whole) - 3 + kept]  # inside the character, and right after it
    reply = Reply(body=cut, content_type="text/event-stream")
    with pytest.raises(EngineFailed, match=r"127\.0\.0\.1:\d+.*left over"):
        asyncio.run(answer(reply))


@given(st.data(), st.sampled_from(["\n", "\r\n", "\r"]))
def test_any_cutting_of_a_stream_gives_the_same_events(data: st.DataObject, line_end: str) -> None:
    payloads = data.draw(
        st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=8))
    )
    stream = "".join(f": ping{line_end}event: x{line_end}data: {p}{line_end}{line_end}" for p in payloads)
    whole = stream.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=12)) | {0, len(whole)})
    parser = SseParser()
    events = [e for a, b in itertools.pairwise(cuts) for e in parser.feed(whole[a:b])]
    assert events + parser.close() == payloads
