"""B01: after a barge-in, audio that was already made plays to its end.

The kind of fault: interrupting stops the making of an answer but not what lies finished in a queue behind it. It is
made impossible in ``voice/playout.py``: all audio of an answer lives in its own ``Track``, only the current track is
ever read, and ``Scope.cancel`` drops it before it returns (``Response._on_cancel``), before any stage has unwound.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from conversation import KINDS, Conversation, Kind, words

from voice.events import AudioStarted, ResponseEnded, SpeechStarted
from voice.interfaces import Speech
from voice.scope import Scope
from voice.testing import PushClient, ScriptedModel, ToneSynthesiser, run_virtual

WEATHER_S = 2.39
REPLY = words(40, ends=[8, 16, 24, 32, 40])


class SlowToStop(ToneSynthesiser):
    """A synthesiser that takes a second to unwind when it is cancelled."""

    async def synthesise(self, text: str, scope: Scope, *, voice: str | None = None) -> AsyncIterator[Speech]:
        inner = super().synthesise(text, scope, voice=voice)
        try:
            async for speech in inner:
                yield speech
        finally:
            await asyncio.sleep(1.0)
            await inner.aclose()  # type: ignore[attr-defined]


def stages(speed: str) -> tuple[ScriptedModel, ToneSynthesiser]:
    match speed:
        case "all made":
            return ScriptedModel([REPLY, "Sunny and warm all day long."]), ToneSynthesiser(rtf=0.05)
        case "being made":
            return (
                ScriptedModel([REPLY, "Sunny and warm all day long."], token_s=0.2),
                ToneSynthesiser(rtf=2.0),
            )
        case _:
            return ScriptedModel([REPLY, "Sunny and warm all day long."], token_s=0.2), SlowToStop(rtf=0.9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("speed", ["all made", "being made", "slow to stop"])
def test_after_a_barge_in_the_next_audio_is_the_new_turns(kind: Kind, speed: str) -> None:
    async def main() -> None:
        model, synthesiser = stages(speed)
        talk = Conversation(
            kind, texts={220: "Hello.", 250: "What is the weather?"}, model=model, synthesiser=synthesiser
        )
        async with talk:
            talk.say(1.0, 1.0)
            first_s = await talk.until(AudioStarted)
            barge_s = round(first_s + 1.5, 2)
            talk.say(barge_s, WEATHER_S, 250)
            decided_s = await talk.until(SpeechStarted, 2)
            await talk.to(round(decided_s + 0.1, 2))
            assert model.running == 0
            if speed != "slow to stop":
                assert synthesiser.running == 0
            await talk.until(ResponseEnded, 2)
            await talk.to(round(talk.client.now_s + 1.0, 2))

            old, new = talk.sound_of(1), talk.sound_of(2)
            edge_s = talk.of(SpeechStarted)[1].edge_s
            silent_from_s = edge_s if kind == "pull" else decided_s
            assert old[-1][1] <= silent_from_s + 0.06
            assert decided_s <= barge_s + 0.06 + 0.1 + talk.agent.turns.interrupt_after_s
            assert new[0][0] > old[-1][1]
            assert [run[:2] for run in talk.heard] == [(0, 1), (0, 2)]
            assert talk.heard[1].words == 6
            if isinstance(talk.client, PushClient):
                assert len(talk.client.cleared_s) == 1
                old_id = talk.of(ResponseEnded)[0].response_id
                assert all(s.at_s <= decided_s + 0.02 for s in talk.client.sent if s.response_id == old_id)
            # each generator was opened and closed exactly once
            assert model.opened == model.finished + model.closed_early == 2
            assert synthesiser.opened == synthesiser.finished + synthesiser.closed_early
            assert talk.problems == []

    run_virtual(main())
