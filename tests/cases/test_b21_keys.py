"""B21: a key pressed during a prompt stops the audio but the digit is lost; idle prompts come while the user is keying.

The kind of fault: keys that are a signal to stop and nothing else, beside the turn's own bookkeeping. It is made
impossible in ``Session.press``: one call silences the agent, keeps the key (``voice/keypad.py``) and starts the idle
time anew; and in ``voice/dtmf.py``: a tone in the audio is silence before detector or recogniser get it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from talk import ONE_TO_FORTY, Talk, make_agent, talk
from twilio_peer import TwilioPeer, phone

from voice.chat import UserEntry
from voice.errors import BadRequest
from voice.events import Idle, KeysPressed, ResponseEnded, UserSaid
from voice.options import TurnOptions
from voice.testing import PullClient, PushClient, ScriptedRecogniser, run_virtual, speak

CLIENTS = pytest.mark.parametrize("client", [PullClient, PushClient])


async def run_with_keys(it: Talk, seconds: float, keys: list[tuple[float, str]]) -> None:
    """Let the client talk, and press each key at its second."""
    loop = asyncio.get_running_loop()
    for at_s, key in keys:
        loop.call_later(at_s, it.session.press, key)
    await it.client.run(seconds)


def keyed(it: Talk) -> list[str]:
    return [event.keys for event in it.of(KeysPressed)]


def texts(it: Talk) -> list[str]:
    return [entry.text for entry in it.session.chat.entries if isinstance(entry, UserEntry)]


@CLIENTS
def test_a_key_during_a_reply_stops_it_and_arrives(client: type[PullClient] | type[PushClient]) -> None:
    async def main() -> None:
        async with talk(make_agent([ONE_TO_FORTY, "Five it is."]), client()) as it:
            it.client.say(speak(0.6), at_s=0.5)
            await it.client.run(2.0)
            began_s = it.sounds[0][0]
            await run_with_keys(it, 6.0, [(began_s + 1.0 - it.client.now_s, "5")])
            first, second = it.of(ResponseEnded)
            assert first.status == "interrupted" and 0 < len(first.heard) < len(first.generated)
            assert it.sounds[0][1] == pytest.approx(began_s + 1.0, abs=0.06)
            assert keyed(it) == ["5"]
            assert it.times_of(KeysPressed)[0] == pytest.approx(began_s + 1.0 + 2.0, abs=0.03)
            assert texts(it)[-1] == "[keys pressed: 5]"
            assert second.status == "completed" and second.heard == "Five it is."

    run_virtual(main())


@CLIENTS
def test_keys_during_a_reply_and_while_muted_arrive_once_in_order_as_one_input(
    client: type[PullClient] | type[PushClient],
) -> None:
    async def main() -> None:
        async with talk(make_agent([ONE_TO_FORTY, "Thank you."]), client()) as it:
            it.client.say(speak(0.6), at_s=0.5)
            await run_with_keys(it, 3.3, [(2.7, "1"), (3.0, "2")])
            it.client.stop()  # muted: no audio comes
            it.session.press("3")
            await asyncio.sleep(0.3)
            it.session.press("#")
            await it.client.run(4.0)
            assert keyed(it) == ["123"]
            assert texts(it)[1:] == ["[keys pressed: 123]"]
            assert [event.status for event in it.of(ResponseEnded)] == ["interrupted", "completed"]

    run_virtual(main())


def test_keying_is_not_idling() -> None:
    async def main() -> tuple[list[float], list[float]]:
        agent = make_agent(["Thank you."], turns=TurnOptions(idle_s=3.0))
        async with talk(agent) as it:
            await run_with_keys(it, 12.0, [(2.5, "1"), (4.4, "2"), (6.3, "3"), (8.2, "#")])
            assert keyed(it) == ["123"]
            return it.times_of(Idle), it.times_of(KeysPressed)

    idle, pressed = run_virtual(main())
    assert all(at > pressed[0] + 3.0 for at in idle)


def test_each_input_is_answered_by_itself_and_what_is_no_key_is_refused() -> None:
    async def main() -> None:
        async with talk(make_agent(["First.", "Second."])) as it:
            await run_with_keys(it, 3.0, [(0.5, "1"), (0.8, "#")])
            with pytest.raises(BadRequest):
                it.session.press("x")
            await run_with_keys(it, 4.0, [(0.5, "2")])
            assert keyed(it) == ["1", "2"]
            assert [event.heard for event in it.of(ResponseEnded)] == ["First.", "Second."]

    run_virtual(main())


def test_tones_in_the_audio_are_not_taken_for_speech_and_count_once() -> None:
    async def main() -> tuple[list[str], int, list[Any]]:
        recogniser = ScriptedRecogniser({220: "Hello there."})
        peer = TwilioPeer()
        async with phone(make_agent([ONE_TO_FORTY, "Thank you."], recogniser=recogniser), peer) as it:
            peer.say(speak(0.6, rate=8_000), 0.5)
            await it.to(2.0)
            asked = recogniser.calls
            peer.press("123#", 3.0, in_band=True)
            await it.to(8.0)
            assert [event.keys for event in it.of(KeysPressed)] == ["123"]
            assert [event.status for event in it.of(ResponseEnded)] == ["interrupted", "completed"]
            return (
                [entry.text for entry in it.session.chat.entries if isinstance(entry, UserEntry)],
                recogniser.calls - asked,
                it.of(UserSaid),
            )

    said, passes, turns = run_virtual(main())
    assert said == ["Hello there.", "[keys pressed: 123]"]
    assert passes == 0
    assert len(turns) == 1
