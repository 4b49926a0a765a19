"""A server whose engines cost next to nothing, in a process of its own: what is left is the transport's cost.

The detector takes loud windows for speech, recogniser and model answer at once, and the synthesiser plays tones.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from loadtest.process import end
from transports.options import ServerOptions
from transports.server import app
from transports.serving import listen, serve
from voice.agent import Agent
from voice.errors import EngineFailed
from voice.interfaces import Stages
from voice.testing import ScriptedDetector, ScriptedModel, ScriptedRecogniser, ToneSynthesiser

ANSWER = "One two three four five six seven eight nine ten."
"""Two seconds of tones."""
_START_S, _END_S = 30.0, 10.0


def silent_agent() -> Agent:
    """An agent of scripted engines that answers every turn with :data:`ANSWER`."""
    model = ScriptedModel(lambda _: ANSWER)
    recogniser = ScriptedRecogniser(lambda _: "Hello.")
    stages = Stages(ScriptedDetector(), recogniser, model, ToneSynthesiser())
    return Agent("Be brief.", stages)


async def main() -> None:
    """Serve on a free port, print it, and stop when told to."""
    sockets = listen("127.0.0.1", 0)
    options = ServerOptions(max_sessions=10_000, max_sessions_per_client=10_000)
    port = sockets[0].getsockname()[1]
    await serve(app(silent_agent(), options=options), sockets, on_ready=lambda: print(port, flush=True))


@asynccontextmanager
async def running() -> AsyncIterator[tuple[str, int]]:
    """Its address and its process id.

    Raises:
        EngineFailed: It did not start.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadtest.silent_server", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        port = ""
        with suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                port = (await child.stdout.readline()).decode().strip()
        if not port.isdigit():
            raise EngineFailed("the server did not start")
        yield f"http://127.0.0.1:{port}", child.pid
    finally:
        await end(child, _END_S)


if __name__ == "__main__":
    asyncio.run(main())
