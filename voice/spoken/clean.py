"""CleanText: speakable characters that wait to be cut, each with the range of raw text it stands for."""

from __future__ import annotations

from dataclasses import dataclass, field

BREAK = "\n"  # in clean text: a pause as after a sentence (end of a list item, heading, row or paragraph)
JOINT = "\ue000"  # a space at which clean text must not be cut; spoken as a space


@dataclass(slots=True)
class CleanText:
    """Text and, for each of its characters, where in the answer the written counterpart begins and ends.

    Offsets count characters of the raw answer and never fall. Characters that were put in have an empty
    range; characters that stand together for one thing (the host of a URL) share one range.
    """

    text: str = ""
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def add(self, text: str, start: int) -> None:
        """Append text that is spoken as it was written from ``start`` on."""
        self.text += text
        self.starts.extend(range(start, start + len(text)))
        self.ends.extend(range(start + 1, start + len(text) + 1))

    def replace(self, text: str, start: int, end: int) -> None:
        """Append ``text``, spoken in place of the raw range, which stays in one piece."""
        self.text += text.replace(" ", JOINT)
        self.starts.extend([start] * len(text))
        self.ends.extend([end] * len(text))

    def insert(self, text: str, at: int) -> None:
        """Append text that nothing was written for."""
        self.text += text
        self.starts.extend([at] * len(text))
        self.ends.extend([at] * len(text))

    def extend(self, end: int) -> None:
        """Let the last character's range reach to ``end``: a closing mark or a link's target belongs to its
        word."""
        if not self.ends:
            return
        whole = (self.starts[-1], self.ends[-1])
        for i in range(len(self.ends) - 1, -1, -1):
            if (self.starts[i], self.ends[i]) != whole:
                break
            self.ends[i] = max(self.ends[i], end)

    def insert_front(self, text: str) -> None:
        """Put in ``text`` before the first character."""
        at = self.starts[0]
        self.text = text + self.text
        self.starts[:0] = [at] * len(text)
        self.ends[:0] = [at] * len(text)

    def take(self, count: int) -> CleanText:
        """Remove and return the first ``count`` characters."""
        head = CleanText(self.text[:count], self.starts[:count], self.ends[:count])
        self.text = self.text[count:]
        del self.starts[:count]
        del self.ends[:count]
        return head

    def slice(self, start: int, end: int) -> CleanText:
        """A copy of a part."""
        return CleanText(self.text[start:end], self.starts[start:end], self.ends[start:end])
