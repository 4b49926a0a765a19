"""How do the parent and a worker talk? By a pair of Unix sockets that keeps messages apart and can carry a connection.

A message is a JSON object, bytes if need be, and at most one socket. Messages arrive in order. Linux only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from voice.errors import BadRequest, VoiceError

MOST_DATA_BYTES = 136 * 1024
"""Longest data of a message. Less than a socket holds by default (208 kB), which bounds a message."""

MOST_WAITING = 1024
"""Messages that wait for the other side to read; then it is taken for stuck."""

_HEAD_BYTES = 56 * 1024
_BUFFER_BYTES = 2**20
_AT_ONCE = 64


class ChannelFull(VoiceError):
    """The other side does not read, or is gone."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        head: What it says; ``do`` names its kind.
        data: Bytes that belong to it.
        passed: A connection that changes hands; whoever gets it closes it.
    """

    head: Mapping[str, Any]
    data: bytes = b""
    passed: socket.socket | None = None

    def encoded(self) -> bytes:
        """As it travels."""
        return json.dumps(self.head, separators=(",", ":")).encode() + b"\n" + self.data


class Channel:
    """One end. Used on one event loop.

    Args:
        end: From :func:`pair`.
        on_message: Called for each message, in order.
        on_end: Called once, when the other side is gone.
    """

    def __init__(
        self, end: socket.socket, on_message: Callable[[Message], None], on_end: Callable[[], None]
    ) -> None:
        end.setblocking(False)
        self._end, self._on_message, self._on_end = end, on_message, on_end
        self._waiting: deque[Message] = deque()
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._loop.add_reader(end, self._read)

    @property
    def waiting(self) -> int:
        """Messages that the other side has not made room for."""
        return len(self._waiting)

    def send(self, head: Mapping[str, Any], data: bytes = b"", passed: socket.socket | None = None) -> None:
        """Send a message; ``passed`` is closed here once it is sent.

        Raises:
            ChannelFull: It can't be sent; ``passed`` is still open.
        """
        if self._closed or len(self._waiting) >= MOST_WAITING or len(data) > MOST_DATA_BYTES:
            raise ChannelFull("the other process is gone or does not read")
        message = Message(head, data, passed)
        if not self._waiting:
            try:
                send(self._end, message)
                return
            except BlockingIOError:
                self._loop.add_writer(self._end, self._write)
            except OSError as error:
                raise ChannelFull(f"the other process is gone: {error.strerror}") from error
        self._waiting.append(message)

    def close(self) -> None:
        """Take and give no more."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._end)
        self._loop.remove_writer(self._end)
        self._end.close()
        for message in self._waiting:
            if message.passed is not None:
                message.passed.close()
        self._waiting.clear()

    def _write(self) -> None:
        try:
            while self._waiting:
                send(self._end, self._waiting[0])
                self._waiting.popleft()
        except BlockingIOError:
            return
        except OSError:
            self._over()
            return
        self._loop.remove_writer(self._end)

    def _read(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                message = receive(self._end)
            except BlockingIOError:
                return
            except OSError:
                message = None
            if message is None:
                self._over()
                return
            self._on_message(message)
            if self._closed:
                return

    def _over(self) -> None:
        if not self._closed:
            self.close()
            self._on_end()


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a new channel.

    Raises:
        BadRequest: This system has no such sockets.
    """
    try:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise BadRequest(f"several workers need Linux: {error.strerror or error}") from None
    for end in ends:
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    return ends


def receive(end: socket.socket) -> Message | None:
    """The next message; ``None`` when the other side is gone.

    Raises:
        OSError: ``BlockingIOError``: there is none yet. Others: the channel is broken.
    """
    encoded, handles, _, _ = socket.recv_fds(end, MOST_DATA_BYTES + _HEAD_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
    passed = socket.socket(fileno=handles[0]) if handles else None
    if not encoded:
        return None
    head, _, data = encoded.partition(b"\n")
    return Message(json.loads(head), data, passed)


def send(end: socket.socket, message: Message) -> None:
    """Send one message; its connection is closed here.

    Raises:
        OSError: ``BlockingIOError``: there is no room now. Others: the channel is broken.
    """
    encoded = message.encoded()
    if message.passed is None:
        end.send(encoded)
        return
    socket.send_fds(end, [encoded], [message.passed.fileno()])
    message.passed.close()
