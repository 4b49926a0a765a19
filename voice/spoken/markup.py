"""MarkupReader: from the raw stream to clean text, however the stream was cut.

At every position it either knows what the next characters are, whatever may follow, or waits for more. What
is decided never depends on where the stream was cut, so markup needs no second look and nothing is rescanned.
"""

from __future__ import annotations

import re

from voice.spoken.blocks import Kind, Wait, match_block
from voice.spoken.clean import BREAK, CleanText
from voice.spoken.inline import (
    Act,
    Mark,
    match_angle,
    match_brace,
    match_bracket,
    match_emphasis,
    match_entity,
)
from voice.spoken.languages import CJK, CJK_CHAR, LanguageWords
from voice.spoken.silent import Fence, LinkTarget, Silence, UrlTail
from voice.spoken.symbols import CONTROL, EMOJI, INVISIBLE, JOINER, KEYCAP_TAIL

_PLAIN = re.compile(rf"[^\n\t\r\\`*_~#\[\]!<|{{&{CONTROL}{INVISIBLE}{JOINER}{EMOJI}]+")
_CODE = re.compile(rf"[^`\n{CONTROL}{INVISIBLE}{EMOJI}]+")
_EMOJI = re.compile(f"[{EMOJI}]")
_URL = re.compile(r"https?://|www\.(?=[^\s.])", re.IGNORECASE)
_URL_PART = re.compile(r"(?:h|ht|htt|https?:?/?|w|ww|www\.?)$", re.IGNORECASE)
_HOST = re.compile(rf"(?:(?![{CJK}])[\w.-]){{0,255}}")
_SPACES = re.compile(r"\s{0,256}")
_RUN_MAX = 64  # a longer run of one mark is dropped in parts, so that an endless one is not held
_SHORT_LINE = 40  # characters; a shorter line that ends without punctuation was broken on purpose: a pause
_ESCAPABLE = frozenset("\\`*_{}[]()#+-.!|<>~$&\"'/:;,?=@%^")


class MarkupReader:
    """Appends to ``out`` what is meant for the ear.

    Attributes:
        position: How much of the answer has been read, in characters; the rest is still ambiguous.
    """

    def __init__(self, out: CleanText, words: LanguageWords) -> None:
        self.out = out
        self.words = words
        self.position = 0
        self._base = 0  # where _raw lies in the answer
        self._raw = ""
        self._prev = ""  # the raw character before the current one
        self._silence: Silence | None = None
        self._at_line_start = True
        self._line = Kind.TEXT
        self._line_chars = 0
        self._code_run = 0  # backticks that opened the code span we are in
        self._stars = 0  # asterisks of emphasis that are open
        self._brackets: list[bool] = []  # open brackets: was the bracket itself given out?

    @property
    def silent(self) -> bool:
        """What comes next is known to be unspoken."""
        return self._silence is not None

    def feed(self, delta: str) -> None:
        """Read more of the answer."""
        self._raw += delta
        self._run(final=False)

    def finish(self) -> None:
        """The answer is over: what was ambiguous is taken as it stands."""
        self._run(final=True)

    def _run(self, final: bool) -> None:
        raw, pos = self._raw, 0
        base = self.position
        while pos < len(raw):
            end = self._step_silence(pos, final) if self._silence else self._text(pos, final)
            if end is None:
                break
            if end > pos:
                self._prev = raw[end - 1]
                self.position = base + end
            pos = end
        self._raw = raw[pos:]
        self._base = self.position

    def _step_silence(self, pos: int, final: bool) -> int | None:
        silence = self._silence
        assert silence is not None
        end = silence.step(self._raw, pos, final)
        if end is not None and silence.of_word:
            self.out.extend(self._base + end)
        if silence.done:
            self._silence = None
        return end

    def _text(self, pos: int, final: bool) -> int | None:
        if self._at_line_start:
            end = self._open_line(pos, final)
            if end is None or end > pos:
                return end
        char = self._raw[pos]
        if char == "\n":
            return self._newline(pos, final)
        if self._code_run and char != "`":
            m = _CODE.match(self._raw, pos)
            return self._add(pos, m.end()) if m else self._unspoken(pos)
        if m := _PLAIN.match(self._raw, pos):
            return self._plain(pos, m.end(), final)
        match char:
            case "*" | "_" | "~":
                return self._emphasis(pos, final)
            case "`":
                return self._backticks(pos, final)
            case "[":
                return self._open_bracket(pos, final)
            case "]":
                return self._close_bracket(pos, final)
            case "<":
                return self._apply(match_angle(self._raw, pos, self._prev, final), pos)
            case "{":
                return self._apply(match_brace(self._raw, pos, final), pos)
            case "&":
                return self._apply(match_entity(self._raw, pos, final), pos)
            case "|":
                return self._bar(pos, final)
            case "\\" | "!" | "#":
                return self._lone(char, pos, final)
        return self._unspoken(pos)

    # ------------------------------------------------------------ giving out

    def _add(self, pos: int, end: int) -> int:
        """Raw text is spoken as it is."""
        self.out.add(self._raw[pos:end], self._base + pos)
        self._line_chars += end - pos
        return end

    def _put(self, text: str, pos: int, end: int) -> int:
        """``text`` is spoken in place of raw text, which stays in one piece."""
        self.out.replace(text, self._base + pos, self._base + end)
        self._line_chars += len(text)
        return end

    def _space(self, end: int) -> int:
        """Raw text up to ``end`` is silent, but parts words."""
        if self.out.text and not self.out.text[-1].isspace():
            self.out.insert(" ", self._base + end)
        return end

    def _pause(self, pos: int) -> None:
        """A hard pause, unless nothing was given out since the last."""
        if self.out.text.strip() and self.out.text[-1] != BREAK:
            self.out.insert(BREAK, self._base + pos)

    def _apply(self, mark: Mark | Wait | None, pos: int) -> int | None:
        match mark:
            case Wait():
                return None
            case None:
                return self._add(pos, pos + 1)
        match mark.act:
            case Act.LITERAL:
                self._add(pos, mark.end)
            case Act.CLOSE:
                self.out.extend(self._base + mark.end)
            case Act.SPACE:
                self._space(mark.end)
            case Act.PAUSE:
                self._pause(mark.end)
            case Act.PUT:
                self._put(mark.spoken, pos, mark.end)
        self._silence = mark.silence
        return mark.end

    def _unspoken(self, pos: int) -> int:
        """An emoji, a control character or a tab."""
        char = self._raw[pos]
        is_joiner = char == JOINER
        if is_joiner and not _EMOJI.match(self._prev):
            return self._add(pos, pos + 1)  # shapes letters of Indic scripts
        if char.isspace() or is_joiner or _EMOJI.match(char):
            return self._space(pos + 1)
        return pos + 1

    # ------------------------------------------------------------ lines

    def _open_line(self, pos: int, final: bool) -> int | None:
        """Past the mark that opens a line; ``pos`` itself for plain text."""
        block = match_block(self._raw, pos, final)
        if isinstance(block, Wait):
            return None
        if block is None:
            self._at_line_start = False
            return pos
        self._line = block.kind
        self._at_line_start = block.kind is Kind.QUOTE
        if block.kind is Kind.FENCE:
            self._pause(pos)
            self._put(self.words.code_remark, pos, block.end)
            self._pause(block.end)
            self._silence = Fence(block.fence)
        elif block.spoken:
            self._put(block.spoken, pos, block.end)
            self._space(block.end)
        return block.end

    def _newline(self, pos: int, final: bool) -> int | None:
        """Does the line flow on into the next, or is there a pause?"""
        raw = self._raw
        m = _SPACES.match(raw, pos)
        end = m.end() if m else pos + 1
        if self._line is Kind.TEXT and raw.count("\n", pos, end) < 2:
            if end == len(raw) and not final:
                return None
            block = match_block(raw, pos + 1, final)
            if isinstance(block, Wait):
                return None
            if block is None:
                self._flow_on(pos)
                self._open_new_line()
                return pos + 1
        self._pause(pos)
        self._open_new_line()
        self._line, self._code_run, self._stars = Kind.TEXT, 0, 0
        self._brackets.clear()
        return pos + 1

    def _flow_on(self, pos: int) -> None:
        text = self.out.text
        if self._line_chars < _SHORT_LINE and text and (text[-1].isalnum() or text[-1] in ")\"'”’"):
            self.out.insert("，" if CJK_CHAR.match(text[-1]) else ",", self._base + pos)
        if not CJK_CHAR.match(text[-1:]):
            self._space(pos + 1)

    def _open_new_line(self) -> None:
        self._at_line_start = True
        self._line_chars = 0

    # ------------------------------------------------------------ within a line

    def _plain(self, pos: int, end: int, final: bool) -> int | None:
        raw = self._raw
        for url in _URL.finditer(raw, pos, min(len(raw), end + 8)):
            if url.start() >= end:
                break
            before = raw[url.start() - 1] if url.start() > pos else self._prev
            if before.isascii() and before.isalnum():
                continue
            if url.start() > pos:
                end = url.start()
                break
            return self._url(url, final)
        if end == len(raw) and not final:
            if raw[end - 1] in "0123456789":  # may become a keycap emoji
                end -= 1
            elif m := _URL_PART.search(raw, pos, end):
                before = raw[m.start() - 1] if m.start() > pos else self._prev
                end = end if before.isascii() and before.isalnum() else m.start()
            return self._add(pos, end) if end > pos else None
        if raw[end - 1] in "0123456789" and raw[end : end + 1] in tuple(KEYCAP_TAIL):
            if end - 1 > pos:
                return self._add(pos, end - 1)
            return self._keycap(pos, final)
        return self._add(pos, end)

    def _keycap(self, pos: int, final: bool) -> int | None:
        """A digit, ``#`` or ``*`` before a variation selector or the enclosing keycap."""
        tail = self._raw[pos + 1 : pos + 3]
        if tail == KEYCAP_TAIL[0] and not final:
            return None
        if tail == KEYCAP_TAIL or tail[:1] == KEYCAP_TAIL[1]:
            return self._space(pos + 1 + tail.index(KEYCAP_TAIL[1]) + 1)
        return self._add(pos, pos + 1)

    def _url(self, m: re.Match[str], final: bool) -> int | None:
        """A raw URL is spoken as its host."""
        raw, pos = self._raw, m.start()
        start = m.end() if raw[m.end() - 1] == "/" else pos
        host_match = _HOST.match(raw, start)
        end = host_match.end() if host_match else start
        if end == len(raw) and not final:
            return None
        host = raw[start:end].rstrip(".-_")
        end = start + len(host)
        host = host.lower().removeprefix("www.")
        if host and self.words.dot:
            host = host.replace(".", f" {self.words.dot} ")
        self._put(host, pos, max(end, m.end()))
        self._silence = UrlTail(in_angles=self._prev == "<")
        return max(end, m.end())

    def _emphasis(self, pos: int, final: bool) -> int | None:
        raw = self._raw
        if raw[pos] == "*" and raw[pos + 1 : pos + 2] in tuple(KEYCAP_TAIL):
            return self._keycap(pos, final)
        mark = match_emphasis(raw, pos, self._prev, self._stars, final)
        if isinstance(mark, Mark) and raw[pos] == "*" and mark.act is not Act.LITERAL:
            count = mark.end - pos
            self._stars = max(0, self._stars - count) if mark.act is Act.CLOSE else self._stars + count
        return self._apply(mark, pos)

    def _backticks(self, pos: int, final: bool) -> int | None:
        raw, end = self._raw, pos
        while end < len(raw) and raw[end] == "`" and end - pos < _RUN_MAX:
            end += 1
        if end - pos == _RUN_MAX:
            return end
        if end == len(raw) and not final:
            return None
        run = end - pos
        if not self._code_run:
            if run >= 3:  # some models open a block without a new line
                block = match_block(raw, pos, final)
                if isinstance(block, Wait):
                    return None
                if block and block.kind is Kind.FENCE:
                    return self._open_line(pos, final)
            self._code_run = run
        elif run == self._code_run:
            self._code_run = 0
            self.out.extend(self._base + end)
        return end

    def _open_bracket(self, pos: int, final: bool) -> int | None:
        mark = match_bracket(self._raw, pos, self._prev, final)
        if mark is not None:
            return self._apply(mark, pos)
        spoken = self._prev.isalnum()  # a[i]: an index, not a link
        if len(self._brackets) < 32:
            self._brackets.append(spoken)
        return self._add(pos, pos + 1) if spoken else pos + 1

    def _close_bracket(self, pos: int, final: bool) -> int | None:
        after = self._raw[pos + 1 : pos + 2]
        if not after and not final:
            return None
        spoken = self._brackets.pop() if self._brackets else False
        if after == "(":
            self._silence = LinkTarget()
            spoken = False
        if spoken:
            return self._add(pos, pos + 1)
        self.out.extend(self._base + pos + 1)
        return pos + 1

    def _bar(self, pos: int, final: bool) -> int | None:
        """A cell's edge, or a bar between words, is a short pause."""
        raw = self._raw
        m = _SPACES.match(raw, pos + 1)
        after = m.end() if m else pos + 1
        if after == len(raw) and not final:
            return None
        last_cell = after == len(raw) or "\n" in raw[pos + 1 : after]
        if self._line is Kind.TABLE:
            text = self.out.text.rstrip()
            if last_cell or not text or text[-1] in ",|":
                return pos + 1
            return self._put(",", pos, pos + 1)
        if not self._prev.strip() and after > pos + 1 and self.out.text.strip():
            return self._put(",", pos, pos + 1)
        return self._add(pos, pos + 1)

    def _lone(self, char: str, pos: int, final: bool) -> int | None:
        """A backslash, exclamation mark or number sign, by what follows it."""
        after = self._raw[pos + 1 : pos + 2]
        undecided = not after and not final
        if char == "\\":
            if undecided:
                return None
            return self._put(after, pos, pos + 2) if after in _ESCAPABLE else self._add(pos, pos + 1)
        if char == "!" and self._prev.isalnum():
            return self._add(pos, pos + 1)  # ends a sentence: no look at what follows
        if undecided:
            return None
        if char == "!":
            return pos + 1 if after == "[" else self._add(pos, pos + 1)
        return self._keycap(pos, final) if after in tuple(KEYCAP_TAIL) else self._add(pos, pos + 1)
