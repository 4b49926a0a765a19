"""What files make up the browser page, and how are they sent? They are read once: nothing else can be asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER = Path(__file__).parent / "page"

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".webmanifest": "application/manifest+json",
}
"""What is served, by the end of the name. Fixed, since the machine's own table may be anything."""

SECURITY: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'self'; connect-src 'self' ws: wss:; object-src 'none'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "microphone=(self), camera=(self)",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of every file: scripts and styles only from files of ours, nothing inline, in nobody's frame."""


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    etag: str
    media_type: str


class Site:
    """The page's files, in memory.

    Args:
        folder: Where they are; files of unknown types and those that begin with a point are left out.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files = {
            path.relative_to(folder).as_posix(): _read(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.suffix in TYPES and not path.name.startswith(".")
        }

    def routes(self) -> list[Route]:
        """``/`` and ``/page/…``."""
        return [Route("/", self._index, name="index"), Route("/page/{name:path}", self._file, name="page")]

    async def _index(self, request: Request) -> Response:
        return self._send("index.html", request)

    async def _file(self, request: Request) -> Response:
        return self._send(request.path_params["name"], request)

    def _send(self, name: str, request: Request) -> Response:
        file = self._files.get(name)
        if file is None:
            raise HTTPException(404)
        # no-cache: kept, but asked for anew each time, so that a page and its scripts are of one version
        headers = {**SECURITY, "Cache-Control": "no-cache", "ETag": file.etag}
        seen = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if file.etag in seen:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.media_type)


def _read(path: Path) -> _File:
    content = path.read_bytes()
    return _File(content, f'"{hashlib.sha256(content).hexdigest()[:32]}"', TYPES[path.suffix])
