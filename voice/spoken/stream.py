"""SpeechText: one answer's way from the model's deltas to speakable segments."""

from __future__ import annotations

from voice.errors import BadRequest
from voice.spoken import normalise
from voice.spoken.abbreviations import stop_after
from voice.spoken.clean import CleanText
from voice.spoken.fallback import long_cut, stalled_cut
from voice.spoken.languages import base_language, words_of
from voice.spoken.markup import MarkupReader
from voice.spoken.render import indivisible, render
from voice.spoken.segment import Segment
from voice.spoken.splitter import Cut, Splitter

_LOOK_AHEAD = 48  # characters beyond max_chars that may still show where a number or word ends
_SILENT_CHARS = 200  # unspoken text is given out at least this often
_MIN_MAX_CHARS = 40
_FEED_CHARS = 256


def prepare(language: str) -> None:
    """Load what ``language`` needs (up to 100 ms); call it off the event loop before the first
    conversation."""
    base = base_language(language)
    normalise.load(base)
    stop_after("abc", base, False)


class SpeechText:
    """Turns an answer into speech text while it streams. Sans-I/O; one for each response.

    The first clause is given out as soon as it is complete, then sentence by sentence. Deltas may be cut
    anywhere.

    Args:
        language: The answer's language (``"en"``, ``"en-US"``, ``"it"``, …). Unknown ones are passed
            unchanged.
        max_chars: Longest ``Segment.spoken``, at least 40; what the synthesiser takes in one call.
        first_clause_words: Words that make the first clause worth speaking before its sentence is complete.

    Raises:
        BadRequest: ``max_chars`` is under 40.
    """

    def __init__(self, language: str = "en", max_chars: int = 300, first_clause_words: int = 3) -> None:
        if max_chars < _MIN_MAX_CHARS:
            raise BadRequest(f"max_chars is {max_chars}, but speech text needs at least {_MIN_MAX_CHARS}.")
        self._language = base_language(language)
        self._words = words_of(self._language)
        self._max_chars = max_chars
        self._first_clause_words = first_clause_words
        self._clean = CleanText()
        self._reader = MarkupReader(self._clean, self._words)
        self._splitter = Splitter(self._language, first_clause_words)
        self._written = ""  # what was fed and is in no segment yet
        self._given = 0  # length of the text that is in segments
        self._spoke = False  # a spoken segment was given out
        self._blind_stop_at = (
            -1
        )  # where the last segment ended with a stop of which nothing was known after it
        self._finished = False

    @property
    def pending_chars(self) -> int:
        """Speakable characters of the sentence at hand, and raw ones that are not understood yet.

        Only more text, ``release`` or ``finish`` makes it fall. Under ``max_chars`` + 400, whatever is fed.
        """
        return len(self._clean.text) + self._given + len(self._written) - self._reader.position

    def feed(self, delta: str) -> list[Segment]:
        """More of the answer. Returns what can be spoken now."""
        if self._finished:
            raise BadRequest("The answer is finished: make a new SpeechText for the next one.")
        segments: list[Segment] = []
        for at in range(
            0, len(delta), _FEED_CHARS
        ):  # so that one huge delta costs no more than many small ones
            piece = delta[at : at + _FEED_CHARS]
            self._written += piece
            self._reader.feed(piece)
            segments += self._cut(final=False)
        return segments

    def release(self, *, any_word: bool = False) -> list[Segment]:
        """The model has stalled: give out what is in hand up to the last safe word's end, and keep the
        rest.

        Args:
            any_word: A single word will do (the ear waits); otherwise a clause of some words is wanted.
        """
        text = self._clean.text
        if not text.strip():
            return []
        kept = self._kept(text)
        words = 1 if any_word else self._first_clause_words
        cut = stalled_cut(text, kept, words, self._language)
        return self._segments(cut) if cut else []

    def finish(self) -> list[Segment]:
        """The answer is over. Returns the rest; nothing may be fed afterwards."""
        if self._finished:
            return []
        self._finished = True
        self._reader.finish()
        segments = self._cut(final=True)
        if self._clean.text.strip():
            segments += self._segments(Cut(len(self._clean.text), True))
        self._clean.take(len(self._clean.text))
        if self._written:
            segments.append(self._silent(len(self._written)))
        return segments

    # ------------------------------------------------------------ cutting

    def _cut(self, final: bool) -> list[Segment]:
        segments: list[Segment] = []
        self._mend_blind_stop()
        limit = self._max_chars + _LOOK_AHEAD
        while self._clean.text:
            text = self._clean.text
            cut = self._splitter.next_cut(text, first=not self._spoke, final=final, limit=limit)
            if cut is None:
                if len(text) < limit:
                    break
                cut = Cut(long_cut(text[:limit], self._max_chars, self._kept(text[:limit])), False)
            segments += self._segments(cut)
        if not self._clean.text.strip() and self._reader.position - self._given >= _SILENT_CHARS:
            self._clean.take(len(self._clean.text))
            self._splitter.restart()
            segments.append(self._silent(self._reader.position - self._given))
        return segments

    def _kept(self, text: str) -> list[tuple[int, int]]:
        return indivisible(text, self._language, self._max_chars)

    def _mend_blind_stop(self) -> None:
        """``example.`` was given out and goes on with ``com``: say the point that was taken for a full
        stop."""
        clean = self._clean
        if self._blind_stop_at < 0 or not clean.text:
            return
        if clean.starts[0] == self._blind_stop_at and clean.text[0].islower() and self._words.dot:
            clean.insert_front(self._words.dot + " ")
        self._blind_stop_at = -1

    def _segments(self, cut: Cut) -> list[Segment]:
        """Give out the clean text up to ``cut``; in parts where its words have become too long."""
        head = self._clean.take(cut.end)
        self._splitter.restart()
        segments: list[Segment] = []
        while True:
            part, sentence = head, cut.sentence
            segment = self._render(part, sentence)
            while len(segment.spoken) > self._max_chars:
                size = len(part.text)
                limit = min(size - 1, self._max_chars, size * self._max_chars // len(segment.spoken))
                at = long_cut(part.text, max(limit, 1), self._kept(part.text))
                part, sentence = head.slice(0, at), False
                segment = self._render(part, sentence)
            segments += self._give(segment, part)
            head = head.slice(len(part.text), len(head.text))
            if not head.text:
                break
        if cut.blind and segments and segments[-1].spoken.endswith("."):
            self._blind_stop_at = self._given
        return segments

    def _render(self, part: CleanText, sentence: bool) -> Segment:
        end = max(part.ends) - self._given
        return render(part, self._written[:end], self._given, self._language, self._max_chars, sentence)

    def _give(self, segment: Segment, part: CleanText) -> list[Segment]:
        self._written = self._written[len(segment.written) :]
        self._given += len(segment.written)
        self._spoke = self._spoke or bool(segment.spoken)
        return [segment] if segment.written or segment.spoken else []

    def _silent(self, length: int) -> Segment:
        segment = Segment("", self._written[:length])
        self._written = self._written[length:]
        self._given += length
        return segment
