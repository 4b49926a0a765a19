"""The page's files as a browser gets them."""

from __future__ import annotations

import json

import pytest
from served import event, place, run


def test_the_page_comes_with_its_types_and_strict_headers() -> None:
    async def work() -> None:
        async with place() as at:
            index = await at.http.get("/")
            assert index.status_code == 200
            assert index.headers["content-type"] == "text/html; charset=utf-8"
            policy = index.headers["content-security-policy"]
            assert "default-src 'self'" in policy
            assert "unsafe" not in policy
            assert index.headers["x-content-type-options"] == "nosniff"
            script = await at.http.get("/page/app.js")
            assert script.headers["content-type"] == "text/javascript; charset=utf-8"
            assert script.headers["content-security-policy"] == policy
            again = await at.http.get("/page/app.js", headers={"If-None-Match": script.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
            other = await at.http.get("/page/app.js", headers={"If-None-Match": '"other"'})
            assert other.content == script.content
            assert (await at.http.head("/")).content == b""

    run(work)


@pytest.mark.parametrize(
    "path",
    ["/page/../server.py", "/page/%2e%2e/server.py", "/page//etc/passwd", "/page/", "/page/.hidden", "/x"],
)
def test_nothing_but_the_page_can_be_read(path: str) -> None:
    async def work() -> None:
        async with place() as at:
            reader, writer = await at.raw(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            answer = await reader.read()
            assert b" 404 " in answer.split(b"\r\n", 1)[0]
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "not_found"
            writer.close()

    run(work)


def test_a_server_without_page_has_none() -> None:
    async def work() -> None:
        async with place(page=False) as at:
            assert (await at.http.get("/")).status_code == 404
            assert (await at.http.get("/page/app.js")).status_code == 404
            async with at.ws() as websocket:
                assert (await event(websocket))["type"] == "session.created"

    run(work)
