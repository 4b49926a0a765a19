"""A Realtime client that asks for transcription reads along while it speaks: words once told are never taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from realtime_talk import Client, call
from talk import make_agent

from voice.agent import Agent
from voice.interfaces import Pcm16
from voice.testing import ScriptedRecogniser, run_virtual

WORDS = [
    "I",
    "would",
    "like",
    "to",
    "book",
    "a",
    "table",
    "for",
    "four",
    "people",
    "on",
    "Friday",
    "evening",
    "please",
]
KIND = "conversation.item.input_audio_transcription."
ASK = {"input": {"transcription": {"model": "whisper-1"}}}


def so_far(audio: Pcm16) -> str:
    """Three words a second."""
    count = max(1, int(3 * audio.size / 16_000))
    return " ".join(WORDS[:count])


def agent(texts: Callable[[Pcm16], str] = so_far) -> Agent:
    return make_agent(["Fine, thanks."], recogniser=ScriptedRecogniser(texts))


async def speak(client: Client, seconds: float = 3.5) -> dict[str, Any]:
    """One turn; returns its completed event."""
    await client.say(seconds)
    return await client.until(KIND + "completed")


def deltas(client: Client) -> list[str]:
    return [event["delta"] for event in client.of(KIND + "delta")]


def test_words_come_as_they_become_stable_and_together_are_the_transcript() -> None:
    async def main() -> None:
        async with call(agent()) as client:
            await client.update(audio=ASK)
            done = await speak(client)
            told = deltas(client)
            assert len(told) > 4 and "".join(told) == done["transcript"]
            kinds = client.kinds()
            started = kinds.index("input_audio_buffer.speech_started")
            stopped = kinds.index("input_audio_buffer.speech_stopped")
            assert kinds[started + 1] == KIND + "delta" and stopped == started + 2
            item = client.of("input_audio_buffer.speech_started")[0]["item_id"]
            assert {event["item_id"] for event in client.of(KIND + "delta")} == {item} == {done["item_id"]}
            assert all(event["content_index"] == 0 for event in client.of(KIND + "delta"))
            assert not client.of("voice.user_partial")

    run_virtual(main())


@pytest.mark.parametrize("update", [None, {"input": {"transcription": None}}])
def test_a_client_that_did_not_ask_costs_no_partial(update: dict[str, Any] | None) -> None:
    async def main() -> None:
        recogniser = ScriptedRecogniser(so_far)
        async with call(make_agent(recogniser=recogniser)) as client:
            if update is not None:
                await client.update(audio=update)
            await client.say(3.5)
            await client.until("response.done")
            assert recogniser.calls == 1
            assert len(deltas(client)) == (update is None)

    run_virtual(main())


def test_where_the_final_text_says_otherwise_only_the_whole_is_told() -> None:
    def mistaken(audio: Pcm16) -> str:
        heard = so_far(audio)
        return heard.replace("table", "label") if audio.size < 3.55 * 16_000 else heard

    async def main() -> None:
        async with call(agent(mistaken)) as client:
            await client.update(audio=ASK)
            done = await speak(client)
            assert "label" in "".join(deltas(client)) and "label" not in done["transcript"]
            last = client.events.index(client.of(KIND + "delta")[-1])
            stopped = client.kinds().index("input_audio_buffer.speech_stopped")
            assert client.events[last]["type"] == KIND + "delta" and last < client.events.index(done)
            assert KIND + "delta" not in client.kinds()[stopped:]
            assert client.session.counters.committed_words_changed == 1

    run_virtual(main())


def test_other_marks_at_the_end_of_a_word_are_no_contradiction() -> None:
    def marked(audio: Pcm16) -> str:
        heard = so_far(audio)
        return f"{heard}." if audio.size < 3.55 * 16_000 else heard.replace("table", "table,")

    async def main() -> None:
        async with call(agent(marked)) as client:
            await client.update(audio=ASK)
            done = await speak(client)
            assert "".join(deltas(client)).replace(",", "") == done["transcript"].replace(",", "")

    run_virtual(main())


def test_our_own_clients_are_told_of_words_that_may_change() -> None:
    async def main() -> None:
        async with call(agent(), extensions=True) as client:
            await client.update(audio=ASK)
            await speak(client)
            partials = client.of("voice.user_partial")
            assert all(one["text"].startswith(one["stable"]) for one in partials)
            assert any(len(one["text"]) > len(one["stable"]) for one in partials)

    run_virtual(main())


def test_speech_that_the_client_clears_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with call(agent()) as client:
            await client.update(audio=ASK)
            await client.say(2.0)
            await client.send("input_audio_buffer.clear")
            told = len(deltas(client))
            assert told and not client.of(KIND + "completed")
            await client.quiet(1.0)
            done = await speak(client)
            assert "".join(deltas(client)[told:]) == done["transcript"]

    run_virtual(main())


def test_a_transcription_session_reads_along_from_the_first_word() -> None:
    async def main() -> None:
        async with call(agent()) as client:
            await client.send("session.update", session={"type": "transcription"})
            done = await speak(client)
            assert len(deltas(client)) > 4 and "".join(deltas(client)) == done["transcript"]

    run_virtual(main())


def test_without_turn_detection_the_words_come_when_it_is_committed() -> None:
    async def main() -> None:
        async with call(agent()) as client:
            await client.update(audio={"input": {"transcription": {}, "turn_detection": None}})
            await client.say(3.5)
            assert not deltas(client)
            await client.send("input_audio_buffer.commit")
            done = await client.until(KIND + "completed")
            assert deltas(client) == [done["transcript"]]

    run_virtual(main())
