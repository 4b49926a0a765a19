"""What do the bytes of an event stream say? A server-sent-events parser without I/O: bytes in, data out.

It follows the WHATWG grammar (lines end in CR, LF or both; ``data`` lines of one event are joined; lines that
start with a colon are comments) and looks at nothing but ``data``. Lines are cut as bytes and decoded whole,
so a character may be cut anywhere.
"""

from __future__ import annotations

from voice.errors import ProtocolError

MAX_EVENT_BYTES = 1 << 20
"""Longest line, and longest data of one event, in bytes."""

_BOM = b"\xef\xbb\xbf"


class SseParser:
    """Cuts a byte stream into the data of its events.

    Args:
        max_event_bytes: Longest line, and longest data of one event.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._line = bytearray()  # the line that has not ended yet
        self._data: list[str] = []  # the data lines of the event that has not ended yet
        self._data_bytes = 0
        self._after_cr = False  # a line feed that comes next belongs to the line already taken
        self._at_start = True

    def feed(self, chunk: bytes) -> list[str]:
        """Take the next bytes, cut anywhere; returns the data of each event that ended in them.

        Raises:
            ProtocolError: A line or event is too long, or isn't UTF-8.
        """
        if not chunk:
            return []
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        events: list[str] = []
        # ``splitlines`` of bytes knows exactly the three line ends of the grammar: LF, CR and CRLF.
        for piece in chunk.splitlines(keepends=True):
            ended = piece.endswith((b"\n", b"\r"))
            self._line += piece.rstrip(b"\r\n") if ended else piece
            if len(self._line) > self._max:
                raise ProtocolError(f"the event stream has a line of more than {self._max} bytes")
            if ended:
                line = bytes(self._line)
                self._line.clear()
                self._take(line, events)
        self._after_cr = chunk.endswith(b"\r")
        return events

    def close(self) -> list[str]:
        """The stream ended. An event whose lines are whole counts although its blank line is missing.

        Raises:
            ProtocolError: Bytes of an unfinished line are left over.
        """
        if self._line:
            raise ProtocolError(
                f"the event stream ended in the middle of a line: {len(self._line)} bytes are left over"
            )
        events: list[str] = []
        self._take(b"", events)
        return events

    def _take(self, line: bytes, events: list[str]) -> None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                events.append("\n".join(self._data))
                self._data.clear()
                self._data_bytes = 0
            return
        field, _, value = line.partition(b":")
        if field != b"data":
            return  # a comment (nothing before the colon), or a field that no chat server needs
        value = value.removeprefix(b" ")
        self._data_bytes += len(value)
        if self._data_bytes > self._max:
            raise ProtocolError(f"the event stream has an event of more than {self._max} bytes")
        try:
            self._data.append(value.decode())
        except UnicodeDecodeError as error:
            raise ProtocolError(f"the event stream is not UTF-8: {error.reason}") from None
