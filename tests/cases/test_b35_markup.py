"""B35: Markdown, links, code, emoji and reasoning are read aloud.

Kind of fault: text that is not meant for the ear reaches the synthesiser. Made impossible in
``voice/spoken/markup.py``: the only way from the model's text to speech is ``MarkupReader``, which decides
what each character is before it gives it out, wherever the stream is cut; swallowed stretches
(``voice/spoken/silent.py``) have no way to give out anything. What is displayed is ``Segment.written``, which
is cut from the text itself.
"""

from __future__ import annotations

import pytest

from voice.spoken import SpeechText

ANSWER = (
    "# Title\n\nHere is **bold** and _italic_ text, with `inline()` code.\n\n- first item\n- second item\n\n"
    "See [site](https://ex.am/p?q=1), or https://www.ex.am/p?q=1#x. <b>Really</b> &amp; truly.\n\n"
    "| Name | Age |\n|:-----|----:|\n| Ann | 7 |\n\n```python\nprint('never spoken')\n```\n\n"
    "<think>secret **thoughts**\nhere</think>We know 2 * 3 and snake_case and a < b and C#. "
    "Fine 👨\u200d👩\u200d👧 🇩🇪 1️⃣ ❤️!"
)
SPOKEN = [
    "Title.",
    "Here is bold and italic text, with inline() code.",
    "first item.",
    "second item.",
    "See site, or ex dot am.",
    "Really and truly.",
    "Name, Age.",
    "Ann, 7.",
    "Here is some code.",
    "We know 2 * 3 and snake_case and a < b and C#.",
    "Fine!",
]


def speak(deltas: list[str], language: str = "en") -> tuple[list[str], str]:
    speech = SpeechText(language)
    segments = [segment for delta in deltas for segment in speech.feed(delta)] + speech.finish()
    return [s.spoken for s in segments if s.spoken], "".join(s.written for s in segments)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 10_000])
def test_only_what_is_meant_for_the_ear_is_spoken_however_the_markup_is_cut(size: int) -> None:
    spoken, written = speak([ANSWER[i : i + size] for i in range(0, len(ANSWER), size)])
    assert spoken == SPOKEN
    assert written == ANSWER


def test_tokens_that_cut_bold_and_reasoning_in_two_are_understood() -> None:
    spoken, written = speak(["**bo", "ld** ", "move. <thi", "nk>hmm ", "</th", "ink>", "Done."])
    assert spoken == ["bold move.", "Done."]
    assert written == "**bold** move. <think>hmm </think>Done."


def test_reasoning_and_code_that_never_end_are_not_spoken() -> None:
    assert speak(["<think>", "still thinking ", "about it"])[0] == []
    assert speak(["Look:\n```py\n", "x = 1\n", "y = 2"])[0] == ["Look:", "Here is some code."]


def test_the_code_remark_is_in_the_language_of_the_answer() -> None:
    assert speak(["```\nx\n```\n"], language="de")[0] == ["Hier ist etwas Code."]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "get_weather", "arguments": {"city": "Paris}"}}',
        '[{"name": "f", "arguments": {}}]',
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
        "<function=f>{}</function>",
        '[TOOL_CALLS][{"name": "f"}]',
    ],
)
def test_a_tool_call_written_as_text_never_reaches_the_voice(text: str) -> None:
    for size in (1, 3, 1000):
        deltas = ["One moment. ", *(text[i : i + size] for i in range(0, len(text), size))]
        assert speak(deltas) == (["One moment."], "One moment. " + text)


@pytest.mark.parametrize("text", ["2 * 3", "snake_case", "a < b", "C#", "x = {1, 2}", "~5", "5 > 3"])
def test_signs_that_are_no_markup_survive(text: str) -> None:
    spoken, _ = speak(list(f"It is {text} here"), language="xx")
    assert spoken == [f"It is {text} here"]
