"""B17 on the real detector and recogniser: one-word answers are heard, also right after the agent; clicks are not.

Kind of fault: a rule against noise ("speech is at least 250 ms") swallows the shortest answers. Made impossible in
``voice.hearing.Ear``, where two windows of speech are enough (``TurnOptions.start_s``) and the pre-roll keeps what
came before them: a sound without words closes its turn without an answer, so there is no need for a longer one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conversation import Conversation

from loadtest.wer import normalise
from stages import presets
from voice.audio import last_audible, read_file, resample, trim_leading_silence
from voice.events import AudioStopped, ResponseEnded, UserSaid
from voice.interfaces import ASR_RATE_HZ, Pcm16, Stages
from voice.options import TurnOptions
from voice.testing import ScriptedDetector, ScriptedModel, ScriptedRecogniser, run_virtual, speak

WORDS = {
    "Yes.": {"yes"},
    "No.": {"no", "know"},
    "Okay.": {"okay", "ok"},
    "Two!": {"two", "2", "to", "too"},
}
"""What is said and what counts as heard: words that sound the same are the same."""
LEVELS_DB = (0.0, -12.0, -20.0)
PACES = (0.87, 1.0, 1.12)
"""A lower and slower voice, the default one, a higher and faster one."""


def voice(pcm: Pcm16, pace: float, level_db: float) -> Pcm16:
    """``pcm`` (16 kHz) at another pitch and pace, its peak at −1 dBFS plus ``level_db``."""
    other = resample(pcm, round(ASR_RATE_HZ * pace), ASR_RATE_HZ).astype(np.float64)
    return np.asarray(other * (29000 / np.abs(other).max() * 10 ** (level_db / 20)), np.int16)


@pytest.fixture(scope="module")
def real() -> Stages:
    return presets.local()


@pytest.mark.live
@pytest.mark.parametrize("gap_s", [1.5, 0.1])
def test_one_word_answers_are_heard_at_any_level_also_right_after_the_agent(
    real: Stages, speech_file: Callable[[str], Path], gap_s: float
) -> None:
    takes: list[tuple[str, Pcm16]] = []
    for word in WORDS:
        pcm, rate_hz = read_file(speech_file(word))
        pcm = trim_leading_silence(resample(pcm, rate_hz, ASR_RATE_HZ), ASR_RATE_HZ)
        pcm = pcm[: last_audible(pcm, ASR_RATE_HZ)]
        takes += [(word, voice(pcm, pace, level)) for pace in PACES for level in LEVELS_DB]
    heard: list[tuple[str, str]] = []

    async def main() -> None:
        model = ScriptedModel(["Fine."] * len(takes), strict=False)
        talk = Conversation(detector=real.detector, recogniser=real.recogniser, model=model)
        async with talk:
            await talk.to(1.0)
            for number, (word, pcm) in enumerate(takes):
                before = len(talk.of(UserSaid))
                talk.client.say(pcm, at_s=talk.client.now_s + gap_s)
                await talk.to(talk.client.now_s + gap_s + len(pcm) / ASR_RATE_HZ + 3.5)
                said = " ".join(e.text for e in talk.of(UserSaid)[before:])
                heard.append((word, said))
                if gap_s < 1.0 and number + 1 < len(takes):  # the next word follows the agent's last frame
                    talk.session.say("Go on.")
                    await talk.until(AudioStopped, len(talk.of(AudioStopped)) + 1)

    run_virtual(main(), thread_wait_s=60)
    right = [bool(WORDS[word] & set(normalise(said))) for word, said in heard]
    wrong = [pair for pair, ok in zip(heard, right, strict=True) if not ok]
    print(f"{sum(right)} of {len(right)}; not heard: {wrong}")
    # 95 % is the rate that is wanted; a single run of 36 may by chance be two words lower
    assert sum(right) >= 0.9 * len(right), wrong


def click(draw: np.random.Generator) -> Pcm16:
    """30 ms of white noise."""
    return np.asarray(draw.normal(0.0, 6500.0, 480), np.int16)


def cough(draw: np.random.Generator) -> Pcm16:
    """A quarter of a second of pink noise that swells for 20 ms and fades for 150 ms, its peak at −6 dBFS."""
    size = ASR_RATE_HZ // 4
    spectrum = np.fft.rfft(draw.normal(size=size))
    wave = np.fft.irfft(spectrum / np.sqrt(np.arange(1, spectrum.size + 1)), size)
    wave[:320] *= np.linspace(0.0, 1.0, 320)
    wave[-2400:] *= np.linspace(1.0, 0.0, 2400)
    return np.asarray(wave / np.abs(wave).max() * 16384, np.int16)


@pytest.mark.live
@pytest.mark.parametrize("sound", [click, cough])
def test_clicks_and_coughs_are_not_answered(
    real: Stages, sound: Callable[[np.random.Generator], Pcm16]
) -> None:
    draw = np.random.default_rng(17)

    async def main() -> None:
        talk = Conversation(detector=real.detector, recogniser=real.recogniser)
        async with talk:
            for number in range(20):
                talk.client.say(sound(draw), at_s=1.0 + 3.0 * number)
            await talk.to(65.0)
            assert not [e.text for e in talk.of(UserSaid) if e.text]
            assert not talk.of(ResponseEnded)
            assert talk.session.is_quiet()

    run_virtual(main(), thread_wait_s=60)


@pytest.mark.parametrize("gap_s", [0.1, 0.6])
def test_a_fifth_of_a_second_of_speech_is_a_turn_with_all_its_audio(gap_s: float) -> None:
    async def main() -> None:
        recogniser = ScriptedRecogniser({220: "Hello.", 300: "Yes."})
        # two tones of equal length are each other's echo, so far as a guard can tell
        turns = TurnOptions(echo_guard=False)
        talk = Conversation(recogniser=recogniser, detector=ScriptedDetector(), turns=turns)
        async with talk:
            talk.say(0.5, 0.8, 220)
            at = await talk.until(AudioStopped)
            said = speak(0.2, 300)
            talk.client.say(said, at_s=at + gap_s)
            await talk.until(ResponseEnded, 2)
            assert [e.text for e in talk.of(UserSaid)] == ["Hello.", "Yes."]
            audio = recogniser.heard[-1]
            first = int(np.flatnonzero(audio)[0]) - int(np.flatnonzero(said)[0])
            assert np.array_equal(audio[first : first + len(said)], said)

    run_virtual(main())
