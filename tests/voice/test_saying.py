"""``session.say``: a handle to wait for, what was heard of it, and speech that may not be interrupted."""

from __future__ import annotations

import asyncio

import pytest
from talk import ONE_TO_FORTY, Talk, make_agent, talk

from voice.chat import UserEntry
from voice.events import ResponseEnded
from voice.saying import Said, Saying
from voice.testing import Fail, PullClient, PushClient, ToneSynthesiser, run_virtual, speak
from voice.turns import State

CLIENTS = pytest.mark.parametrize("client", [PullClient, PushClient])
NEWS = "One two three four five six seven eight nine ten."


async def beside(it: Talk, handle: Saying, seconds: float) -> Said | None:
    """The client lives on while somebody waits for the handle."""
    waiting = asyncio.ensure_future(handle)  # type: ignore[arg-type]
    await it.client.run(seconds)
    if not waiting.done():
        waiting.cancel()
        return None
    return waiting.result()


@CLIENTS
def test_what_was_heard_to_its_end_was_played(client: type[PullClient] | type[PushClient]) -> None:
    async def main() -> None:
        async with talk(make_agent(), client()) as it:
            handle = it.session.say(NEWS)
            assert not handle.done and handle.said is None
            said = await beside(it, handle, 4.0)
            assert said is not None and said.played and not said.interrupted
            assert said.heard == NEWS and said.heard_s == pytest.approx(2.0, abs=0.1)
            assert handle.done and handle.said == said == await handle

    run_virtual(main())


@CLIENTS
def test_what_the_user_cuts_was_interrupted_and_says_how_far_it_got(
    client: type[PullClient] | type[PushClient],
) -> None:
    async def main() -> None:
        async with talk(make_agent(), client()) as it:
            handle = it.session.say(ONE_TO_FORTY)
            it.client.say(speak(1.0), at_s=2.0)
            said = await beside(it, handle, 8.0)
            assert said is not None and said.status == "interrupted" and said.reason == "barge_in"
            assert 0 < len(said.heard.split()) < 15
            assert said.heard == it.of(ResponseEnded)[0].heard

    run_virtual(main())


def test_a_handle_stops_what_is_heard_and_takes_back_what_waits() -> None:
    async def main() -> None:
        async with talk(make_agent()) as it:
            first, second = it.session.say(ONE_TO_FORTY), it.session.say(NEWS)
            await it.client.run(2.0)
            second.interrupt()
            first.interrupt()
            first.interrupt()
            await it.client.run(2.0)
            assert (await first).status == "interrupted" and (await first).reason == "client"
            assert (await second).status == "cancelled" and (await second).heard == ""
            assert it.session.state is State.LISTENING

    run_virtual(main())


def test_the_end_of_a_session_ends_every_wait() -> None:
    async def main() -> None:
        async with talk(make_agent()) as it:
            live, waiting = it.session.say(ONE_TO_FORTY), it.session.say(NEWS)
            await it.client.run(2.0)
            it.session.hang_up()
            assert (await live).status == "interrupted" and (await waiting).status == "cancelled"
            live.interrupt()  # of a session that is over: nothing

    run_virtual(main())


def test_what_can_not_be_spoken_failed() -> None:
    async def main() -> None:
        async with talk(make_agent(synthesiser=ToneSynthesiser(fail_at=range(20)))) as it:
            said = await beside(it, it.session.say(NEWS), 15.0)
            assert said is not None and said.status == "failed" and said.error

    run_virtual(main())


def test_a_wait_that_is_given_up_leaves_the_speech_alone() -> None:
    async def main() -> None:
        async with talk(make_agent()) as it:
            handle = it.session.say(NEWS)
            assert await beside(it, handle, 1.0) is None
            said = await beside(it, handle, 4.0)
            assert said is not None and said.played

    run_virtual(main())


@CLIENTS
def test_what_may_not_be_interrupted_is_heard_to_its_end_and_what_was_said_meanwhile_is_answered_after_it(
    client: type[PullClient] | type[PushClient],
) -> None:
    async def main() -> None:
        async with talk(make_agent(["Fine."]), client()) as it:
            handle = it.session.say(NEWS, interruptible=False)
            it.client.say(speak(0.6), at_s=0.8)
            said = await beside(it, handle, 4.0)
            assert said is not None and said.played and said.heard == NEWS
            await it.client.run(3.0)
            texts = [e.text for e in it.session.chat.entries if isinstance(e, UserEntry)]
            assert texts == ["Hello there."]
            assert [e.heard for e in it.of(ResponseEnded)] == [NEWS, "Fine."]
            assert [words for _, words in it.words] == [10, 1]

    run_virtual(main())


def test_a_nod_to_what_may_not_be_interrupted_is_no_turn() -> None:
    async def main() -> None:
        async with talk(make_agent(["Fine."], said=["Mm-hm."])) as it:
            it.session.say(NEWS, interruptible=False)
            it.client.say(speak(0.4), at_s=0.8)
            await it.client.run(6.0)
            assert len(it.of(ResponseEnded)) == 1
            assert not [e for e in it.session.chat.entries if isinstance(e, UserEntry)]

    run_virtual(main())


def test_the_owner_can_stop_what_the_user_may_not_interrupt_and_the_next_answer_can_be_interrupted() -> None:
    async def main() -> None:
        async with talk(make_agent([ONE_TO_FORTY, "Fine."])) as it:
            handle = it.session.say(ONE_TO_FORTY, interruptible=False)
            await it.client.run(1.0)
            it.session.interrupt()
            assert (await handle).status == "interrupted"
            it.client.say(speak(0.6))
            await it.client.run(3.5)
            assert it.session.state is State.SPEAKING
            it.client.say(speak(1.0))
            await it.client.run(4.0)
            assert it.of(ResponseEnded)[1].reason == "barge_in"

    run_virtual(main())


def test_a_greeting_is_said_first_and_what_fails_does_not_silence_what_follows() -> None:
    async def main() -> None:
        agent = make_agent(
            [[Fail()], "Fine."], greeting="Good morning.", synthesiser=ToneSynthesiser(fail_at=())
        )
        async with talk(agent) as it:
            await it.client.run(2.0)
            assert it.of(ResponseEnded)[0].heard == "Good morning."
            said = await beside(it, it.session.say("And now the news."), 3.0)
            assert said is not None and said.played

    run_virtual(main())
