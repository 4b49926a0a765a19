"""An agent inside your own web app: ``python examples/fastapi_mount.py [LLM_URL]``, then open http://127.0.0.1:8000/voice/.

Starlette here; a FastAPI app mounts it in the same way: ``api.mount("/voice", assistant)``.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from stages import presets
from transports import server
from voice import Agent

agent = Agent("You answer for a bicycle shop.", presets.local(llm=(*sys.argv, None)[1]))
assistant = server.app(agent, warm_up=presets.warm_up)


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    await assistant.startup()  # or leave it out: the first request loads the engines
    yield
    await assistant.shutdown()  # drain() before it lets calls finish their sentences


async def home(_: object) -> PlainTextResponse:
    return PlainTextResponse("The shop. The assistant is at /voice/")


web = Starlette(routes=[Route("/", home), Mount("/voice", assistant)], lifespan=lifespan)

if __name__ == "__main__":
    uvicorn.run(web, ws_per_message_deflate=False)
