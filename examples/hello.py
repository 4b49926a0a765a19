"""An agent with a tool, inside a program: ``python examples/hello.py QUESTION.wav [LLM_URL]`` answers a recording."""

import asyncio
import sys

from stages import presets
from transports.file import FileCaller
from voice import Agent, Session

agent = Agent("You answer the phone of a bicycle shop. Be brief.", presets.local(llm=(sys.argv[2:] or [None])[0]))


@agent.tool
def opening_hours(day: str) -> str:
    """When the shop is open on a day of the week."""
    return "closed" if day == "Sunday" else "from nine to five"


async def main() -> None:
    caller = FileCaller([sys.argv[1]], record_to="answer.wav")
    async with Session(agent, caller, on_event=print) as session:
        await caller.run(session)


asyncio.run(main())
