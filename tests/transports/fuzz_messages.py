"""Random events of a Realtime client: right ones, wrong ones, and what is no event at all."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from typing import Any

from fuzz_engines import CLIENT_TOOLS, OWN_TOOLS
from realtime_talk import Client

Event = dict[str, Any]

KINDS = (
    "session.update",
    "input_audio_buffer.append",
    "input_audio_buffer.commit",
    "input_audio_buffer.clear",
    "output_audio_buffer.clear",
    "conversation.item.create",
    "conversation.item.retrieve",
    "conversation.item.truncate",
    "conversation.item.delete",
    "response.create",
    "response.cancel",
)
PNG = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(64)).decode()
JUNK: tuple[Any, ...] = (
    *(None, True, -1, 0, 3, 0.5, 1e308, 2**70, "", "null", "x" * 2000, "\ud800", "root", [], {}, [[]]),
    *({"type": None}, {"type": "x"}, [None, 3], {"a": {"b": {"c": [{}] * 20}}}),
)
NOT_EVENTS: tuple[str | bytes, ...] = (
    *("", "[", "{}", "null", "3", '"x"', "[]", '{"type":', '{"type":"x"}', '{"type":7}', "{" * 2000, "\x00"),
    *('{"type":"response.create","type":"x"}', '{"type":"session.update","session":NaN}', "[" * 100_000),
    *(b"", b"\x00\xff", b'{"type":"response.create"}'),
)


class Messages:
    """Makes events for one client; ids come from what it has received.

    Attributes:
        placed: Ids of items at a place of the client's choice, or made with audio.
    """

    def __init__(self, rng: random.Random, client: Client) -> None:
        self._rng, self._client = rng, client
        self.placed: set[str] = set()
        self._count = 0

    def event(self) -> Event:
        """An event that may be right."""
        rng = self._rng
        kind = rng.choice(KINDS)
        if kind == "session.update" or rng.random() < 0.15:
            return self.update()
        make: dict[str, Callable[[], Event]] = {
            "input_audio_buffer.append": self._append,
            "conversation.item.create": self._create,
            "conversation.item.retrieve": lambda: {"item_id": self._item_id()},
            "conversation.item.truncate": self._truncate,
            "conversation.item.delete": lambda: {"item_id": self._item_id()},
            "response.create": self._respond,
            "response.cancel": lambda: {"response_id": self._response_id()} if rng.random() < 0.6 else {},
        }
        return {"type": kind, **make.get(kind, dict)()}

    def wrong(self) -> Event:
        """An event with one thing changed at random: most are wrong, some are not."""
        rng, event = self._rng, self.event()
        holders: list[Any] = [event]
        for value in holders:
            inner = value.values() if isinstance(value, dict) else value
            holders += [one for one in inner if isinstance(one, dict | list) and one]
        holder = rng.choice(holders)
        if isinstance(holder, list):
            holder[rng.randrange(len(holder))] = rng.choice(JUNK)
        elif rng.random() < 0.2:
            holder["surprise"] = rng.choice(JUNK)
        elif rng.random() < 0.3:
            del holder[rng.choice(sorted(holder))]
        else:
            holder[rng.choice(sorted(holder))] = rng.choice(JUNK)
        return event

    def raw(self) -> str | bytes:
        """A message that is no event, whole or cut."""
        if self._rng.random() < 0.7:
            return self._rng.choice(NOT_EVENTS)
        text = json.dumps(self.event())
        return text[: self._rng.randrange(len(text))]

    # ------------------------------------------------------------ ids

    def _ids(self, kind: str, *path: str) -> list[str]:
        found = []
        for event in self._client.of(kind)[-8:]:
            for key in path:
                event = event[key]
            found.append(str(event))
        return found

    def _item_id(self) -> str:
        known = self._ids("conversation.item.added", "item", "id")
        return self._rng.choice([*known, *known, "nowhere", "root"])

    def _response_id(self) -> str:
        known = self._ids("response.created", "response", "id")
        return self._rng.choice([*known[-2:], *known, "nowhere"])

    def _call_id(self) -> str:
        added = [e["item"] for e in self._client.of("conversation.item.added")[-12:]]
        known = [item["call_id"] for item in added if item["type"] == "function_call"]
        return self._rng.choice([*known, *known, *known, "nowhere"])

    # ------------------------------------------------------------ each kind

    def update(self) -> Event:
        """A change of the settings."""
        rng = self._rng
        detection = rng.choice(
            [
                None,
                {"type": "server_vad"},
                {"type": "server_vad", "create_response": False},
                {"type": "server_vad", "interrupt_response": False},
                {"type": "server_vad", "create_response": True, "interrupt_response": True},
                {"type": "server_vad", "silence_duration_ms": 50, "idle_timeout_ms": 3000},
                {"type": "server_vad", "silence_duration_ms": 2000, "prefix_padding_ms": 0},
                {"type": "semantic_vad", "eagerness": rng.choice(["low", "high", "auto"])},
            ]
        )
        audio_format = {"type": rng.choice(["audio/pcm", "audio/pcmu", "audio/pcma"])}
        tools = [{"type": "function", "name": name} for name in CLIENT_TOOLS[: rng.randrange(3)]]
        changes: list[Event] = [
            {"audio": {"input": {"turn_detection": detection}}},
            {"audio": {"input": {"turn_detection": detection}}},
            {"audio": {"output": {"format": audio_format}}},
            {"audio": {"input": {"format": audio_format}}},
            {"audio": {"input": {"transcription": rng.choice([None, {"language": "en"}])}}},
            {"output_modalities": [rng.choice(["audio", "text"])]},
            {"tools": tools, "tool_choice": rng.choice(["auto", "none", "required"])},
            {"tools": [{"type": "function", "name": name} for name in CLIENT_TOOLS]},
            {"instructions": rng.choice(["be rude", "", None])},
            {"max_output_tokens": rng.choice([1, 20, "inf"])},
            {"audio": {"output": {"voice": "anything"}}},
            {},
        ]
        kind = "transcription" if rng.random() < 0.02 else "realtime"
        return {"type": "session.update", "session": {"type": kind, **rng.choice(changes)}}

    def _append(self) -> Event:
        seconds = self._rng.choice([0.0, 0.001, 0.1, 0.5, 2.5])
        loud = self._rng.choice([b"\x00", b"\x40", b"\x7f"])
        data = base64.b64encode(loud * int(48_000 * seconds)).decode()
        return {"audio": data}

    def _create(self) -> Event:
        rng = self._rng
        self._count += 1
        event: Event = {"item": self._item()}
        item_id = rng.choice([f"mine{self._count}", f"mine{self._count}", None, f"mine{self._count - 1}"])
        if item_id is not None:
            event["item"]["id"] = item_id
        audio = any(part["type"] == "input_audio" for part in event["item"].get("content", ()))
        if item_id == f"mine{self._count}" and rng.random() < 0.4:
            event["previous_item_id"] = self._item_id()
        elif audio:
            event["item"]["id"] = item_id = f"mine{self._count}"
        if audio or "previous_item_id" in event:
            self.placed.add(str(item_id))
        return event

    def _item(self) -> Event:
        rng = self._rng
        audio = base64.b64encode(b"\x00\x40" * rng.choice([240, 12_000])).decode()
        text: Event = {"type": "input_text", "text": rng.choice(["Well?", "", "Look.", "long " * 200])}
        answer = {"type": "output_text", "text": "So it is."}
        call_id = rng.choice(["c1", "mine", f"own{self._count}"])
        return rng.choice(
            [
                {"type": "message", "role": "user", "content": [text]},
                {"type": "message", "role": "user", "content": [text]},
                {"type": "message", "role": "system", "content": [text]},
                {"type": "message", "role": "assistant", "content": [answer]},
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_image", "image_url": PNG}, text],
                },
                {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": audio}]},
                {"type": "function_call", "call_id": call_id, "name": "weather", "arguments": "{}"},
                {"type": "function_call_output", "call_id": self._call_id(), "output": "sun"},
                {"type": "function_call_output", "call_id": self._call_id(), "output": "rain"},
            ]
        )

    def _truncate(self) -> Event:
        rng = self._rng
        spoken = [
            *self._ids("response.output_audio.delta", "item_id"),
            *self._ids("response.content_part.added", "item_id"),
        ]
        item_id = rng.choice([*spoken, *spoken, self._item_id()])
        end_ms = rng.choice([0, 1, 250.5, 1000, 90_000])
        return {"item_id": item_id, "content_index": rng.choice([0, 0, 0, 1]), "audio_end_ms": end_ms}

    def _respond(self) -> Event:
        rng = self._rng
        if rng.random() < 0.4:
            return {}
        asked: Event = {}
        if rng.random() < 0.5:
            asked["output_modalities"] = [rng.choice(["audio", "text"])]
        if rng.random() < 0.3:
            asked["conversation"] = rng.choice(["none", "auto"])
        if rng.random() < 0.3:
            references = [{"type": "item_reference", "id": self._item_id()} for _ in range(rng.randrange(3))]
            asked["input"] = [*references, *(self._item() for _ in range(rng.randrange(3)))]
        if rng.random() < 0.3:
            names = rng.sample([*CLIENT_TOOLS, OWN_TOOLS[0]], 2)
            asked["tools"] = [{"type": "function", "name": name} for name in names]
        if rng.random() < 0.2:
            asked["metadata"] = {"topic": "x"}
        if rng.random() < 0.2:
            asked["max_output_tokens"] = 3
        return {"response": asked}
