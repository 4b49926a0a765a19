"""Callers of the streaming test, in virtual time: what they measure, and whether they notice a mix-up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from loadtest.asr_corpus import Utterance
from loadtest.asr_streaming import MARKS, Figures, together
from loadtest.asr_talkers import Talk, Talks, Told, listening_options, talk_at_once
from voice.errors import BadAudio
from voice.interfaces import ASR_RATE_HZ, Pcm16, Recogniser, Stages, Transcript
from voice.scope import Scope
from voice.session import Session
from voice.testing import ScriptedDetector, ScriptedModel, ScriptedRecogniser, ToneSynthesiser, run_virtual
from voice.testing.audio import tone

SEED = 3
RATE = ASR_RATE_HZ


@pytest.fixture(autouse=True)
def say_the_seed() -> None:
    print(f"seed {SEED}")


def corpus(
    sessions: int, utterances: int, seconds: float = 1.6
) -> tuple[list[list[Utterance]], dict[int, str]]:
    """Every utterance has a tone of its own, which its words are known by."""
    texts, said = {}, []
    for session in range(sessions):
        own = []
        for number in range(utterances):
            hz = 200 + 40 * (session * utterances + number)
            texts[hz] = f"my word is {MARKS[session]} and this is sentence number {hz}"
            own.append(Utterance(f"{session} {number}", texts[hz], tone(hz, int(seconds * RATE), RATE)))
        said.append(own)
    return said, texts


def talk(recogniser: Recogniser, said: Sequence[Sequence[Utterance]], *, partials: bool = False) -> Talks:
    stages = Stages(ScriptedDetector(), recogniser, ScriptedModel(), ToneSynthesiser())
    return run_virtual(talk_at_once(stages, said, listening_options(partials), SEED))


def test_the_final_text_is_timed_from_the_pause() -> None:
    said, texts = corpus(1, 3)
    talks = talk(ScriptedRecogniser(texts, delay_s=0.09), said)
    figures = Figures.of(talks, 0.4)

    assert [list(one.finals.values()) for one in talks.all] == [[text] for text in texts.values()]
    assert figures.short_final_ms == pytest.approx([30.0] * 3, abs=1.0)  # begun when the voice fell silent
    assert all(90 + 40 <= ms <= 90 + 140 for ms in figures.after_speech_ms)  # the pause itself is 120 ms
    assert [length_s for length_s, _ in figures.final_ms] == pytest.approx([1.6] * 3, abs=0.05)
    assert not talks.problems


def test_sixteen_sessions_at_once_keep_their_words_apart(capsys: pytest.CaptureFixture[str]) -> None:
    said, texts = corpus(16, 2)
    talks = talk(ScriptedRecogniser(texts, delay_s=0.05), said)

    assert together(said, talks)
    assert "finals in another session: 0" in capsys.readouterr().out
    assert len(talks.all) == 32 and all(len(one.finals) == 1 for one in talks.all)


class _MixesUp:
    """Tells each session, now and then, what somebody else said."""

    def __init__(self, texts: dict[int, str]) -> None:
        self.inner = ScriptedRecogniser(texts)
        self.name, self.capabilities = self.inner.name, self.inner.capabilities
        self.last = Transcript("")
        self.calls = 0

    async def transcribe(
        self, audio: Pcm16, scope: Scope, *, language: str | None = None, hints: Sequence[str] = ()
    ) -> Transcript:
        right = await self.inner.transcribe(audio, scope, language=language, hints=hints)
        self.calls += 1
        given, self.last = self.last if self.calls % 3 == 0 else right, right
        return given


def test_a_transcript_that_lands_elsewhere_is_noticed() -> None:
    said, texts = corpus(4, 2)
    assert not together(said, talk(_MixesUp(texts), said))


def test_a_final_that_is_missing_is_noticed() -> None:
    said, texts = corpus(2, 2)
    silent = dict.fromkeys(list(texts)[:1], "")
    assert not together(said, talk(ScriptedRecogniser({**texts, **silent}), said))


def test_finals_out_of_order_are_noticed() -> None:
    said, texts = corpus(1, 2)
    (one, other) = texts
    talks = talk(ScriptedRecogniser({one: texts[other], other: texts[one]}), said)
    assert not together(said, talks)


def test_speech_is_as_it_was_given_with_a_room_around_it() -> None:
    said, texts = corpus(1, 1)
    recogniser = ScriptedRecogniser(texts)
    talk(recogniser, said)
    heard = recogniser.heard[-1].astype(np.int32)
    assert np.count_nonzero(np.abs(heard) > 500) / RATE == pytest.approx(1.6, abs=0.1)


def test_partials_are_timed_from_the_first_sample_and_their_settled_words_held_against_the_final() -> None:
    partials = (
        Told("a", 10.6, "the cat", ""),
        Told("a", 11.0, "the cat sat", "the cat"),
        Told("a", 11.4, "the hat sat on", "the hat"),
        Told("b", 11.8, "no", "no"),
    )
    spoken = Talk("the hat sat", 10.0, 12.0, partials, 12.2, 12.3, {"a": "The cat sat.", "b": "No."}, (5, 4))
    silent = Talk("no", 20.0, 20.5, (), 20.7, None, {}, (0, 0))

    figures = Figures.of(Talks([[spoken], [silent]]), 0.4)

    assert figures.first_partial_ms == pytest.approx([600.0])
    assert figures.short_final_ms == pytest.approx([100.0])
    assert figures.after_speech_ms == pytest.approx([300.0])
    assert (figures.due, figures.asked, figures.answered, figures.told) == (5 + 1, 5, 4, 4)
    assert (figures.committed, figures.changed, figures.taken_back) == (3, 1, 1)
    assert figures.changed_share == pytest.approx(1 / 3)


def test_a_session_that_takes_no_more_audio_fails_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = 0

    def hear(*_: object) -> None:
        nonlocal heard
        heard += 1
        if heard > 200:
            raise BadAudio("no more")

    monkeypatch.setattr(Session, "hear", hear)
    said, texts = corpus(2, 1)
    with pytest.raises(BadAudio, match="no more"):
        talk(ScriptedRecogniser(texts), said)


def test_partials_come_while_somebody_speaks() -> None:
    said, texts = corpus(1, 2, seconds=3.0)
    talks = talk(ScriptedRecogniser(texts, delay_s=0.05), said, partials=True)
    figures = Figures.of(talks, 0.4)

    assert figures.told >= 2 and figures.asked >= 8 and figures.answered <= figures.asked <= figures.due
    assert all(200 <= ms <= 700 for ms in figures.first_partial_ms) and len(figures.first_partial_ms) == 2
    assert figures.committed >= 2 and figures.changed == figures.taken_back == 0
