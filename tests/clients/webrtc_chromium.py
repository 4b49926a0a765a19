"""Does ``@openai/agents-realtime`` converse with our server by WebRTC? The stock client, bundled, in Chromium.

The page is put under the server's own origin by the browser's test interface, so no header of another origin is needed;
the key is an ephemeral one from ``/v1/realtime/client_secrets``, as in a product.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from clients import contract
from clients.contract import Stage, check
from playwright.async_api import Browser, Page, Playwright, Route, async_playwright

MODULES = Path(os.environ.get("CLIENTS_NODE", "."))
"""Folder with ``node_modules`` and copies of the scripts; ``run.py`` sets it."""
TOOL = {"name": contract.TOOL_NAME, "parameters": contract.TOOL_PARAMETERS, "result": contract.TOOL_RESULT}
PAGE = "<!doctype html><title>stock client</title><script type=module src=/stock-client/page.js></script>"


def bundle(folder: Path) -> Path:
    """The page's script with the client inside."""
    out = folder / "page.js"
    esbuild = MODULES / "node_modules" / ".bin" / "esbuild"
    command: list[str | Path] = [
        esbuild,
        "webrtc_page.mjs",
        "--bundle",
        "--format=esm",
        "--platform=browser",
        f"--outfile={out}",
    ]
    done = subprocess.run(command, cwd=MODULES, capture_output=True, text=True)
    if done.returncode:
        raise contract.Failed(f"esbuild failed: {done.stderr[:500]}")
    return out


def installed_browser() -> Path | None:
    """Chromium of the system, if it has one."""
    return next((p for p in map(Path, ("/usr/bin/chromium", "/usr/bin/google-chrome")) if p.exists()), None)


async def launch(playwright: Playwright) -> Browser:
    """Chromium of the system, or else Playwright's own."""
    flags = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"]
    return await playwright.chromium.launch(executable_path=installed_browser(), args=flags)


class Caller:
    """The page, asked from outside."""

    def __init__(self, stage: Stage, page: Page) -> None:
        self.stage, self.page = stage, page

    async def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the page's."""
        return await self.page.evaluate(
            "([name, given]) => window.caller[name](...given)", [name, list(arguments)]
        )

    async def poll(self) -> None:
        """Bring over the events as they come."""
        while True:
            for event in await self.call("events", len(self.stage.events)):
                self.stage.took(event)
            await asyncio.sleep(0.02)

    async def reply(self, number: int, text: str) -> None:
        """Wait for the answer with that number (from 1) and check its words."""
        await self.stage.until(f"answer {number}", lambda: len(self.stage.replies()) >= number)
        said = self.stage.replies()[number - 1]
        check(said == text, f"the agent said {said!r}, expected {text!r}")


@asynccontextmanager
async def calling(stage: Stage, detection: str = "server") -> AsyncIterator[Caller]:
    """Open the page and connect; check at the end that the client reported no error.

    ``detection`` of turns: the ``"server"``'s by voice, the client's ``"default"``, or ``"none"``.
    """
    origin = stage.url.replace("ws", "http", 1).removesuffix("/v1/realtime")
    with tempfile.TemporaryDirectory() as folder:
        script = bundle(Path(folder))

        async def serve(route: Route) -> None:
            name = route.request.url.rsplit("/", 1)[1]
            if name.endswith(".wav"):
                await route.fulfill(path=stage.sounds / name, content_type="audio/wav")
            elif name == "page.js":
                await route.fulfill(path=script, content_type="text/javascript")
            else:
                await route.fulfill(body=PAGE, content_type="text/html")

        async with async_playwright() as playwright:
            browser = await launch(playwright)
            page = await browser.new_page()
            failures: list[str] = []
            page.on("pageerror", lambda error: failures.append(str(error)))
            await page.route("**/stock-client/*", serve)
            await page.goto(f"{origin}/stock-client/")
            await page.wait_for_function("window.caller !== undefined")
            caller = Caller(stage, page)
            polling = asyncio.create_task(caller.poll())
            try:
                key = await asyncio.to_thread(client_secret, origin)
                options = {
                    "key": key,
                    "url": f"{origin}/v1/realtime/calls",
                    "tool": TOOL,
                    "detection": detection,
                }
                await caller.call("connect", options)
                await stage.until_events("session.updated")
                yield caller
                await caller.call("close")
            finally:
                polling.cancel()
            errors = await page.evaluate("window.caller.state.errors")
            await browser.close()
    check(not errors and not failures, f"the client reported {(errors + failures)[:3]}")


def client_secret(origin: str) -> str:
    """An ephemeral key for one call."""
    body = json.dumps({"session": {"type": "realtime", "model": "gpt-realtime"}}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer unused"}
    request = urllib.request.Request(f"{origin}/v1/realtime/client_secrets", body, headers)
    with urllib.request.urlopen(request, timeout=5) as response:
        return str(json.load(response)["value"])


async def heard(caller: Caller, energy_before: float) -> None:
    """Wait until the browser has received sound since then."""
    await _energy_above(caller, energy_before + 1e-4)


async def _energy_above(caller: Caller, level: float) -> None:
    for _ in range(200):
        if await caller.call("energy") > level:
            return
        await asyncio.sleep(0.05)
    raise contract.Failed("no sound was received")


async def spoken(stage: Stage) -> None:
    async with calling(stage, "default") as caller:
        await caller.call("say", "hello")
        await caller.reply(1, contract.HELLO_ANSWER)
        await heard(caller, 0)
        await stage.until_events("output_audio_buffer.stopped")
        await stage.until_events("response.done")
        said = await caller.call("history", "user")
        check("Hello there." in said, f"the history holds {said}")


async def tool(stage: Stage) -> None:
    await _tool(stage, "weather", [])


async def tool_aloud(stage: Stage) -> None:
    await _tool(stage, "forecast", [contract.ALOUD_ANSWER])


async def _tool(stage: Stage, sound: str, first: list[str]) -> None:
    async with calling(stage) as caller:
        await caller.call("say", sound)
        await caller.reply(len(first) + 1, contract.TOOL_ANSWER)
        check(stage.replies()[:-1] == first, f"before the call it said {stage.replies()[:-1]}")
        await stage.until_events("response.done", 2)
        called = await caller.page.evaluate("window.caller.state.called")
        check(called == [{"city": "Paris"}], f"the tool was given {called}")
        await stage.until_events("output_audio_buffer.stopped", len(stage.replies()))


async def barge_in(stage: Stage) -> None:
    async with calling(stage) as caller:
        await caller.call("say", "story")
        await heard(caller, 0)
        await asyncio.sleep(1.5)
        speaking = asyncio.create_task(caller.call("say", "stop"))
        await stage.until_events("output_audio_buffer.cleared")
        await asyncio.sleep(0.2)
        quiet_from = await caller.call("energy")
        await asyncio.sleep(0.3)
        louder = await caller.call("energy") - quiet_from
        check(louder < 1e-4, f"sound went on after the interruption (energy {louder:.5f})")
        await speaking
        cut = await stage.until_events("conversation.item.truncated")
        check(1000 <= cut["audio_end_ms"] <= 2600, f"heard until {cut['audio_end_ms']} ms")
        await caller.reply(2, contract.STOP_ANSWER)
        kept = [
            e["item"] for e in stage.of("conversation.item.retrieved") if e["item"]["id"] == cut["item_id"]
        ]
        words = len(kept[-1]["content"][0]["transcript"].split()) if kept else 0
        check(5 <= words <= 13, f"{cut['audio_end_ms']} ms are {words} words: {kept}")
        await stage.until_events("response.done", 2)
        await stage.until_events("output_audio_buffer.stopped")


async def push_to_talk(stage: Stage) -> None:
    async with calling(stage, "none") as caller:
        await caller.call("send", {"type": "input_audio_buffer.clear"})
        await stage.until_events("input_audio_buffer.cleared")
        await caller.call("say", "pushed")
        await asyncio.sleep(0.3)  # what is on its way by RTP
        await caller.call("send", {"type": "input_audio_buffer.commit"})
        await stage.until_events("input_audio_buffer.committed")
        await asyncio.sleep(0.3)
        check(not stage.of("response.created"), "a commit alone started a response")
        await caller.call("send", {"type": "response.create"})
        await caller.reply(1, contract.PUSHED_ANSWER)
        await stage.until_events("response.done")
        await stage.until_events("output_audio_buffer.stopped")


async def text(stage: Stage) -> None:
    async with calling(stage) as caller:
        await caller.call("write", contract.TEXT_QUESTION)
        await caller.reply(1, contract.TEXT_ANSWER)
        await stage.until_events("response.done")
        await heard(caller, 0)
        await stage.until_events("output_audio_buffer.stopped")


if __name__ == "__main__":
    sys.exit(contract.main([spoken, tool, tool_aloud, barge_in, push_to_talk, text]))
