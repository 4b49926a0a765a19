"""An agent with a tool in a program: ``python examples/hello.py QUESTION.wav [LLM_URL]`` answers a recording."""

import asyncio
import sys

from stages import presets
from transports.file import FileCaller
from voice import Agent, Session


def opening_hours(day: str) -> str:
    """When the shop is open on a day of the week."""
    return "closed" if day == "Sunday" else "from nine to five"


async def main(agent: Agent, question: str) -> None:
    caller = FileCaller([question], record_to="answer.wav")
    async with Session(agent, caller, on_event=print) as session:
        await caller.run(session)


stages = presets.local(llm=(*sys.argv, None)[2])
asyncio.run(main(Agent("You answer for a bicycle shop.", stages, [opening_hours]), sys.argv[1]))
