"""Whole recordings: every piece once and in order, engines that fail, runs that are stopped and go on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import soundfile
from recording_fakes import LevelFinder, hz_of, texts, tones

from stages.asr.recordings import journal
from stages.asr.recordings.cut import CutOptions
from stages.asr.recordings.options import RecordingOptions
from stages.asr.recordings.result import RecordingTranscript
from stages.asr.recordings.transcribe import RecordingTranscriber
from stages.asr.speakers.diarise import SpeakerTurn
from voice.errors import BadAudio, BadRequest, EngineFailed, Overloaded
from voice.interfaces import ASR_RATE_HZ, Pcm16, Recogniser, RecogniserCapabilities, Transcript
from voice.scope import Scope
from voice.testing import ScriptedRecogniser, run_virtual, silence, speak

ONE_EACH = CutOptions(aim_s=2.0)
"""Each utterance of :func:`tones` is a piece."""

HOURS = float(os.environ.get("VOICE_LONG_RECORDING_HOURS", "0.1"))
"""Length of the recording whose memory is watched; the full form is 10."""

WORDS = [
    "alpha.",
    "bravo.",
    "charlie.",
    "delta.",
    "echo.",
    "foxtrot.",
    "golf.",
    "hotel.",
    "india.",
    "juliet.",
]


class Told:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.at_s: list[float] = []
        self.begun = self.ended = 0
        self.resumed_s = 0.0
        self.duration_s: float | None = None

    def begin(self, duration_s: float | None) -> None:
        self.begun += 1

    def at(self, done_s: float, resumed_s: float, duration_s: float | None) -> None:
        self.at_s.append(done_s)
        self.resumed_s, self.duration_s = resumed_s, duration_s

    def end(self) -> None:
        self.ended += 1


async def transcribe(
    path: Path,
    recognisers: Sequence[Recogniser],
    journals: Path,
    *,
    told: Told | None = None,
    in_flight: int = 4,
    diariser: object = None,
    **options: object,
) -> RecordingTranscript:
    transcriber = RecordingTranscriber(
        recognisers, LevelFinder(), journals=journals, in_flight=in_flight, diariser=diariser
    )
    with Scope("process") as scope:
        asked = RecordingOptions(**{"cut": ONE_EACH, **options})
        return await transcriber.transcribe(path, scope, asked, told)


def recogniser(words: Sequence[str] = WORDS, **options: object) -> ScriptedRecogniser:
    return ScriptedRecogniser(texts(words), **options)


def test_pieces_are_recognised_side_by_side_and_put_together_by_time(tmp_path: Path) -> None:
    path = tones(tmp_path / "a.wav", 10)
    # the earlier a piece, the longer it takes
    slow = recogniser(delay_s=lambda audio: 5.0 - 0.01 * float(np.count_nonzero(np.diff(np.sign(audio)))))
    told = Told()
    found = run_virtual(transcribe(path, [slow], tmp_path / "j", told=told))
    assert found.text == " ".join(WORDS)
    assert found.pieces == 10
    assert found.duration_s == pytest.approx(23.0, abs=0.05)
    for number, segment in enumerate(found.segments):
        assert segment.start_s == pytest.approx(1.0 + 2.2 * number, abs=0.05)
        assert segment.end_s == pytest.approx(2.2 + 2.2 * number, abs=0.1)
    assert told.at_s == sorted(told.at_s)
    assert (told.begun, told.ended) == (1, 1)
    assert told.at_s[-1] == pytest.approx(22.5, abs=0.6)


def test_no_more_pieces_are_in_flight_than_allowed(tmp_path: Path) -> None:
    most = 0

    def watched(audio: Pcm16) -> float:
        nonlocal most
        most = max(most, engine.running)
        return 1.0

    engine = recogniser(delay_s=watched)
    run_virtual(transcribe(tones(tmp_path / "a.wav", 10), [engine], tmp_path / "j", in_flight=3))
    assert most == 3


def test_silence_is_never_recognised_and_gives_an_empty_transcript(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(60 * ASR_RATE_HZ, np.int16), ASR_RATE_HZ)
    engine = recogniser()
    found = run_virtual(transcribe(tmp_path / "a.wav", [engine], tmp_path / "j"))
    assert (found.segments, engine.calls, found.duration_s) == ((), 0, pytest.approx(60.0))


def test_several_recordings_share_the_engine_side_by_side(tmp_path: Path) -> None:
    engine = recogniser(delay_s=1.0)
    transcriber = RecordingTranscriber([engine], LevelFinder(), journals=tmp_path / "j")
    paths = [tones(tmp_path / f"{n}.wav", n) for n in (3, 1, 5)]

    async def all_of_them() -> list[RecordingTranscript]:
        with Scope("process") as scope:
            options = RecordingOptions(cut=ONE_EACH)
            return await asyncio.gather(*(transcriber.transcribe(p, scope, options) for p in paths))

    assert [f.text for f in run_virtual(all_of_them())] == [" ".join(WORDS[:n]) for n in (3, 1, 5)]


def test_memory_stays_flat_however_long_the_recording_is(tmp_path: Path) -> None:
    path = tmp_path / "long.flac"
    minute = np.concatenate([speak(2.0, hz_of(3)), silence(1.0)] * 20)
    with soundfile.SoundFile(path, "w", ASR_RATE_HZ, 1, "PCM_16") as out:
        for _ in range(round(HOURS * 60)):
            out.write(minute)
    resident_mb: list[float] = []

    def heard(audio: Pcm16) -> str:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        resident_mb.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
        return "delta."

    engine = ScriptedRecogniser(heard, delay_s=0.0)
    found = run_virtual(transcribe(path, [engine], tmp_path / "j", cut=CutOptions(), speakers=False))
    assert found.duration_s == pytest.approx(HOURS * 3600, abs=0.5)
    assert max(resident_mb) - resident_mb[len(resident_mb) // 4] < 20


# ---------------------------------------------------------------- engines that fail


def test_a_piece_that_fails_is_tried_again_on_another_engine(tmp_path: Path) -> None:
    broken, well = recogniser(fail_at=range(100)), recogniser()
    found = run_virtual(transcribe(tones(tmp_path / "a.wav", 10), [broken, well], tmp_path / "j"))
    assert found.text == " ".join(WORDS)
    assert broken.calls <= 5, "an engine that fails is hardly asked any more"


def test_pieces_are_spread_over_engines_that_work(tmp_path: Path) -> None:
    engines = [recogniser(delay_s=1.0), recogniser(delay_s=1.0)]
    run_virtual(transcribe(tones(tmp_path / "a.wav", 10), engines, tmp_path / "j"))
    assert [engine.calls for engine in engines] == [5, 5]


def test_an_engine_that_is_too_busy_is_asked_again_when_it_wants(tmp_path: Path) -> None:
    class Busy(ScriptedRecogniser):
        async def transcribe(self, audio: Pcm16, scope: Scope, **options: object) -> Transcript:
            if self.calls == 0:
                self.calls += 1
                raise Overloaded("too busy", retry_after_s=7.0)
            assert asyncio.get_running_loop().time() >= 7.0
            return Transcript("alpha.", "en")

    found = run_virtual(transcribe(tones(tmp_path / "a.wav", 1), [Busy()], tmp_path / "j"))
    assert found.text == "alpha."


def test_an_engine_that_is_dead_fails_the_recording_but_not_what_was_done(tmp_path: Path) -> None:
    path = tones(tmp_path / "a.wav", 10)
    with pytest.raises(EngineFailed):
        run_virtual(transcribe(path, [recogniser(fail_at=range(6, 100))], tmp_path / "j", in_flight=1))
    engine = recogniser()
    found = run_virtual(transcribe(path, [engine], tmp_path / "j"))
    assert found.text == " ".join(WORDS)
    assert (engine.calls, found.resumed) == (4, 6)


def test_a_failure_that_will_not_pass_is_told_at_once(tmp_path: Path) -> None:
    class Closed(ScriptedRecogniser):
        async def transcribe(self, audio: Pcm16, scope: Scope, **options: object) -> Transcript:
            self.calls += 1
            raise EngineFailed("it is closed", retryable=False)

    engine = Closed()
    with pytest.raises(EngineFailed, match="it is closed"):
        run_virtual(transcribe(tones(tmp_path / "a.wav", 1), [engine], tmp_path / "j"))
    assert engine.calls == 1


@pytest.mark.parametrize("content", [b"", b"no audio at all" * 100])
def test_what_is_no_recording_is_told(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.wav").write_bytes(content)
    with pytest.raises(BadAudio, match=r"bad\.wav"):
        run_virtual(transcribe(tmp_path / "bad.wav", [recogniser()], tmp_path / "j"))


def test_impossible_wishes_are_told(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="at least one recogniser"):
        RecordingTranscriber([], LevelFinder())
    with pytest.raises(BadRequest, match="no diariser"):
        run_virtual(transcribe(tones(tmp_path / "a.wav", 1), [recogniser()], tmp_path / "j", speakers=True))


# ---------------------------------------------------------------- texts that end early


def test_a_text_that_is_too_short_for_its_speech_is_recognised_again_in_halves(tmp_path: Path) -> None:
    """Twelve pieces of three utterances; the recogniser skips all but one of them where it hears the fifth."""
    path = tones(tmp_path / "a.wav", 36, speech_s=2.0, pause_s=0.3)
    words = [f"these are the words number {number}" for number in range(12)]

    class Skips(ScriptedRecogniser):
        async def transcribe(self, audio: Pcm16, scope: Scope, **options: object) -> Transcript:
            found = await super().transcribe(audio, scope, **options)
            if len(audio) > 5 * ASR_RATE_HZ and "number 4" in found.text:
                return Transcript(words[3], "en")
            return found

    engine = Skips(texts(words))
    found = run_virtual(transcribe(path, [engine], tmp_path / "j", cut=CutOptions(aim_s=7.4)))
    assert found.text == " ".join(words * 3)
    assert found.rechecked == 3


def test_a_slow_speaker_is_not_taken_for_a_gap(tmp_path: Path) -> None:
    path = tones(tmp_path / "a.wav", 12, speech_s=5.0, pause_s=0.5)
    words = ["these are as many words as usual"] * 11 + ["slow"]
    engine = recogniser(words)
    found = run_virtual(transcribe(path, [engine], tmp_path / "j", cut=CutOptions(aim_s=6.0)))
    assert found.text == " ".join(words)
    assert engine.calls == 12, "there is no pause to cut it in"


# ---------------------------------------------------------------- languages


class Polyglot(ScriptedRecogniser):
    """Hears the second utterance as French unless it is told the language."""

    def __init__(self) -> None:
        super().__init__(texts(WORDS), capabilities=RecogniserCapabilities(languages=("en", "de", "fr")))
        self.languages: list[str | None] = []

    async def transcribe(self, audio: Pcm16, scope: Scope, **options: object) -> Transcript:
        found = await super().transcribe(audio, scope)
        language = options.get("language")
        self.languages.append(None if language is None else str(language))
        if language is None:
            return Transcript("pardon", "fr") if found.text == "bravo." else Transcript(found.text, "de")
        return Transcript(found.text, str(language))


def test_the_language_is_found_in_the_first_pieces_and_kept(tmp_path: Path) -> None:
    engine = Polyglot()
    found = run_virtual(transcribe(tones(tmp_path / "a.wav", 10), [engine], tmp_path / "j"))
    assert found.text == " ".join(WORDS), "what was heard in another language is heard again"
    assert found.language == "de"
    assert engine.languages[:5] == [None] * 5
    assert set(engine.languages[5:]) == {"de"}


def test_a_language_that_is_given_is_used_for_all(tmp_path: Path) -> None:
    engine = Polyglot()
    path = tones(tmp_path / "a.wav", 10)
    found = run_virtual(transcribe(path, [engine], tmp_path / "j", language="en"))
    assert set(engine.languages) == {"en"}
    assert found.language == "en"


# ---------------------------------------------------------------- speakers


def test_speakers_are_told_apart_by_the_audio_of_their_speech(tmp_path: Path) -> None:
    class ByPitch:
        async def speakers(self, spans: Sequence[tuple[float, float]], read: object) -> list[SpeakerTurn]:
            turns = []
            for start_s, end_s in spans:
                audio = await asyncio.to_thread(read, start_s, end_s)
                crossings = np.count_nonzero(np.diff(np.signbit(audio))) / 2 / (end_s - start_s)
                turns.append(SpeakerTurn(start_s, end_s, "A" if crossings < hz_of(1) + 12 else "B"))
            return turns

    path = tones(tmp_path / "a.wav", 4)
    found = run_virtual(
        transcribe(path, [recogniser()], tmp_path / "j", speakers=True, diariser=ByPitch()),
        allow_sockets=True,
    )
    assert [(s.speaker, s.text) for s in found.segments] == list(zip("AABB", WORDS[:4], strict=True))


# ---------------------------------------------------------------- stopped, and gone on with


def test_a_run_that_is_cancelled_goes_on_where_it_was_and_leaves_no_thread(tmp_path: Path) -> None:
    path = tones(tmp_path / "a.wav", 10)
    before = set(threading.enumerate())

    async def stopped() -> None:
        engine = recogniser(delay_s=1.0)
        work = asyncio.create_task(transcribe(path, [engine], tmp_path / "j", in_flight=2))
        while engine.calls < 7:  # noqa: ASYNC110 - the fake tells nobody
            await asyncio.sleep(0.5)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert engine.running == 0

    run_virtual(stopped())
    for thread in set(threading.enumerate()) - before:
        thread.join(5.0)
        assert not thread.is_alive()
    engine, told = recogniser(), Told()
    found = run_virtual(transcribe(path, [engine], tmp_path / "j", told=told))
    assert found.text == " ".join(WORDS)
    assert found.resumed + engine.calls == 10
    assert engine.calls <= 5
    assert told.resumed_s > 10
    assert list((tmp_path / "j").iterdir()) == [], "a journal that is done is removed"


def test_another_setting_begins_anew(tmp_path: Path) -> None:
    path = tones(tmp_path / "a.wav", 10)
    with pytest.raises(EngineFailed):
        run_virtual(transcribe(path, [recogniser(fail_at=range(5, 100))], tmp_path / "j", in_flight=1))
    for options in ({"language": "en"}, {"resume": False}):
        engine = recogniser()
        run_virtual(transcribe(path, [engine], tmp_path / "j", **options))
        assert engine.calls == 10
    assert len(list((tmp_path / "j").iterdir())) == 1


def test_a_recording_is_done_without_a_journal_where_none_can_be_kept(tmp_path: Path) -> None:
    (tmp_path / "j").write_text("a file, not a folder")
    found = run_virtual(transcribe(tones(tmp_path / "a.wav", 3), [recogniser()], tmp_path / "j"))
    assert found.text == " ".join(WORDS[:3])
    assert any("can't be resumed" in note for note in found.notes)


KILLED = """
import asyncio, os, sys
from pathlib import Path
sys.path[:0] = {tests!r}
from recording_fakes import texts
from test_recordings import WORDS, recogniser, transcribe

class Slow(type(recogniser())):
    async def transcribe(self, audio, scope, **options):
        found = await super().transcribe(audio, scope, **options)
        print("heard", flush=True)
        return found

engine = Slow(texts(WORDS), delay_s=0.1)
asyncio.run(transcribe(Path({path!r}), [engine], Path({journals!r}), in_flight=2))
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_a_run_that_is_killed_costs_at_most_what_was_in_flight(tmp_path: Path) -> None:
    path = tones(tmp_path / "a.wav", 10)
    here = Path(__file__).parent
    places = {"tests": [str(here), str(here.parent)], "path": str(path), "journals": str(tmp_path / "j")}
    code = KILLED.format(**places)
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    for _ in range(5):
        run.stdout.readline()
    run.send_signal(signal.SIGKILL)
    heard = 5 + len(run.stdout.readlines())
    run.wait()
    (kept,) = (tmp_path / "j").iterdir()
    assert len(kept.read_bytes().splitlines()) >= heard - 2
    engine = recogniser()
    found = run_virtual(transcribe(path, [engine], tmp_path / "j"))
    assert found.text == " ".join(WORDS)
    assert engine.calls <= 10 - (heard - 2)


def test_the_default_place_of_journals_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "default_folder", lambda: tmp_path / "default")
    transcriber = RecordingTranscriber([recogniser()], LevelFinder())

    async def one() -> RecordingTranscript:
        with Scope("process") as scope:
            return await transcriber.transcribe(tones(tmp_path / "a.wav", 1), scope)

    assert run_virtual(one()).text == "alpha."
    assert (tmp_path / "default").is_dir()
