"""The own-voice guard: an echo is taken out whatever its way, a user is not; nothing breaks it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from voice.audio import resample, rms_dbfs
from voice.echo import OwnVoice
from voice.errors import BadAudio
from voice.interfaces import Pcm16

RATE = 16_000
WINDOW = 512
Wave = npt.NDArray[np.float64]


def voice(seed: int, seconds: float, pitch_hz: float = 120.0) -> Wave:
    """Something like speech: syllables of harmonics under moving formants, with gaps; about -20 dBFS."""
    rng = np.random.default_rng(seed)
    out = np.zeros(int(seconds * RATE))
    at = 0
    while at < out.size - 4000:
        n = int(rng.uniform(0.08, 0.25) * RATE)
        t = np.arange(n) / RATE
        f0 = pitch_hz * rng.uniform(0.85, 1.2)
        formants = rng.uniform([250, 900, 2200], [800, 2200, 3400])
        wave = np.zeros(n)
        for k in range(1, int(5000 / f0)):
            gain = sum(1.0 / (1.0 + ((k * f0 - f) / 120.0) ** 2) for f in formants) + 0.01
            wave += gain * np.sin(2 * np.pi * k * f0 * t + rng.uniform(0, 6.28))
        wave += rng.uniform(0.0, 0.4) * rng.standard_normal(n)
        wave *= np.sin(np.linspace(0, np.pi, n)) ** 0.5 * rng.uniform(0.4, 1.0)
        out[at : at + n] += wave[: out.size - at]
        at += n + int(rng.choice([0.0, 0.03, 0.2], p=[0.5, 0.3, 0.2]) * RATE)
    return out * 0.1 / np.sqrt(np.mean(out**2))


def to_pcm(wave: Wave) -> Pcm16:
    return np.asarray(np.clip(np.rint(wave * 32768), -32768, 32767), np.int16)


def echo_of(wave: Wave, delay_s: float, return_db: float, seed: int = 5, drift: float = 0.0) -> Wave:
    """Through a loudspeaker's colour and a room of 0.3 s."""
    rng = np.random.default_rng(seed)
    response = rng.standard_normal(4800) * 10 ** (-3 * np.arange(4800) / 4800) * 0.03
    response[0] = 1.0
    response[1:] -= 0.6 * response[:-1]  # the low end is weak
    response *= 10 ** (return_db / 20) / np.sqrt(np.sum(response**2))
    late = np.interp(
        np.arange(wave.size) * (1 - drift) - delay_s * RATE, np.arange(wave.size), wave, left=0.0
    )
    size = 1 << int(np.ceil(np.log2(wave.size + response.size)))
    return np.fft.irfft(np.fft.rfft(late, size) * np.fft.rfft(response, size), size)[: wave.size]


def run(
    guard: OwnVoice, played: Wave, heard: Wave, *, start_s: float = 0.0, rate_hz: int = RATE
) -> tuple[npt.NDArray[np.float64], Pcm16]:
    """Play and hear side by side; the guard's certainty for each window, and what it left."""
    own, left = [], []
    far = to_pcm(played) if rate_hz == RATE else resample(to_pcm(played), RATE, rate_hz)
    heard_pcm = to_pcm(heard)
    step = WINDOW * rate_hz / RATE
    for i in range(heard_pcm.size // WINDOW):
        piece = far[round(i * step) : round((i + 1) * step)]
        if piece.size:
            guard.played(piece, start_s + i * WINDOW / RATE)
        window = heard_pcm[i * WINDOW : (i + 1) * WINDOW]
        left.append(guard.without_echo(window, start_s + i * WINDOW / RATE, rms_dbfs(window)))
        own.append(guard.own)
    return np.array(own), np.concatenate(left)


def noise(samples: int, dbfs: float = -65.0) -> Wave:
    return np.random.default_rng(99).standard_normal(samples) * 10 ** (dbfs / 20)


def loud(wave: Wave, dbfs: float = -50.0) -> npt.NDArray[np.bool_]:
    """Which windows of a signal are loud."""
    whole = wave[: wave.size - wave.size % WINDOW].reshape(-1, WINDOW)
    return np.asarray(np.sqrt(np.mean(whole**2, axis=1)) > 10 ** (dbfs / 20))


@pytest.mark.parametrize("return_db", [-6.0, -20.0])
@pytest.mark.parametrize("delay_s", [0.0, 0.04, 0.15, 0.4, 0.5])
def test_an_echo_is_the_agents_own_voice_from_its_first_word_on(delay_s: float, return_db: float) -> None:
    agent = voice(1, 5.0)
    echo = echo_of(agent, delay_s, return_db)
    guard = OwnVoice(RATE)
    own, left = run(guard, agent, echo + noise(agent.size))
    sounding = loud(echo)
    assert np.mean(own[sounding] >= 0.5) > 0.9
    assert rms_dbfs(left) < rms_dbfs(to_pcm(echo)) - 15.0
    assert guard.delay_s is not None
    assert abs(guard.delay_s - delay_s) < 0.04


@pytest.mark.parametrize(("return_db", "share"), [(-6.0, 0.35), (-12.0, 0.5), (-20.0, 0.7)])
def test_a_user_over_the_echo_is_heard_within_two_tenths_of_a_second(return_db: float, share: float) -> None:
    """The echo goes on for the whole test; in a call the agent is silent from the first such window on."""
    agent, user = voice(2, 6.0), voice(77, 1.5, pitch_hz=210.0)
    heard = echo_of(agent, 0.15, return_db) + noise(agent.size)
    start = 3 * RATE
    heard[start : start + user.size] += user
    own, left = run(OwnVoice(RATE), agent, heard)
    first = start // WINDOW
    last = first + user.size // WINDOW
    users = own[first:last] < 0.5
    assert int(np.argmax(users)) * WINDOW / RATE < 0.2
    assert np.mean(users[loud(user)[: last - first]]) > share
    assert rms_dbfs(left[start + 3200 : start + user.size]) > rms_dbfs(to_pcm(user)) - 10.0


def test_with_headphones_a_user_is_never_taken_for_the_agent() -> None:
    agent, user = voice(3, 6.0), voice(78, 4.0, pitch_hz=190.0)
    heard = noise(agent.size)
    heard[RATE : RATE + user.size] += user
    guard = OwnVoice(RATE)
    own, _ = run(guard, agent, heard)
    assert np.mean(own[RATE // WINDOW : 5 * RATE // WINDOW] >= 0.5) < 0.03
    run(guard, agent, noise(agent.size), start_s=6.0)  # nothing comes back: that is learned
    _, later = run(guard, agent, heard, start_s=12.0)
    users = later[RATE : RATE + user.size]
    assert rms_dbfs(users) > rms_dbfs(to_pcm(user)) - 1.5


def test_a_drifting_clock_does_not_matter() -> None:
    agent = voice(4, 30.0)
    own, _ = run(OwnVoice(RATE), agent, echo_of(agent, 0.1, -12.0, drift=1e-4) + noise(agent.size))
    assert np.mean(own[loud(echo_of(agent, 0.1, -12.0))][-200:] >= 0.5) > 0.9


@pytest.mark.parametrize("rate_hz", [8_000, 22_050, 24_000, 48_000])
def test_any_rate_can_be_played(rate_hz: int) -> None:
    agent = voice(5, 4.0)
    echo = echo_of(agent, 0.12, -10.0)
    own, _ = run(OwnVoice(rate_hz), agent, echo + noise(agent.size), rate_hz=rate_hz)
    assert np.mean(own[loud(echo)] >= 0.5) > 0.85


def test_a_delay_that_changes_between_replies_is_found_again() -> None:
    guard = OwnVoice(RATE)
    for reply, delay_s in enumerate((0.3, 0.08, 0.4)):
        agent = voice(10 + reply, 4.0)
        echo = echo_of(agent, delay_s, -10.0)
        own, _ = run(guard, agent, echo + noise(agent.size), start_s=10.0 * reply)
        assert np.mean(own[loud(echo)] >= 0.5) > 0.85
        assert guard.delay_s == pytest.approx(delay_s, abs=0.04)


def test_the_device_may_level_its_microphone() -> None:
    agent = voice(6, 5.0)
    echo = echo_of(agent, 0.1, -12.0) * np.interp(np.arange(5 * RATE), [0, 40000, 80000], [1.0, 3.0, 0.7])
    own, _ = run(OwnVoice(RATE), agent, echo + noise(agent.size))
    assert np.mean(own[loud(echo)] >= 0.5) > 0.85


def test_the_echos_end_is_still_the_agents_after_playing_stopped() -> None:
    agent = voice(7, 3.0)
    heard = np.concatenate((agent, np.zeros(2 * RATE)))
    echo = echo_of(heard, 0.4, -8.0) + noise(heard.size)
    own, _ = run(OwnVoice(RATE), agent, echo)
    tail = slice(3 * RATE // WINDOW, int(3.35 * RATE) // WINDOW)
    assert np.mean(own[tail][loud(echo_of(heard, 0.4, -8.0))[tail]] >= 0.5) > 0.7


def test_what_was_dropped_before_it_was_heard_leaves_no_echo() -> None:
    agent, user = voice(8, 3.0), voice(79, 1.0, pitch_hz=200.0)
    guard = OwnVoice(RATE)
    run(guard, agent, echo_of(agent, 0.1, -10.0) + noise(agent.size))
    guard.played(to_pcm(agent[: 2 * RATE]), 3.0)  # sent ahead, then flushed
    guard.silenced(3.0)
    heard = np.concatenate((np.zeros(RATE), user)) + noise(RATE + user.size)
    pcm = to_pcm(heard)
    own = []
    for i in range(pcm.size // WINDOW):
        guard.without_echo(pcm[i * WINDOW : (i + 1) * WINDOW], 3.0 + i * WINDOW / RATE)
        own.append(guard.own)
    assert np.mean(np.array(own)[RATE // WINDOW :] >= 0.5) < 0.05


def test_while_nothing_is_played_the_audio_passes_untouched() -> None:
    guard, user = OwnVoice(RATE), to_pcm(voice(9, 1.0))
    for i in range(user.size // WINDOW):
        window = user[i * WINDOW : (i + 1) * WINDOW]
        assert guard.without_echo(window, i * WINDOW / RATE) is window
        assert not guard.active


@pytest.mark.parametrize("sound", ["silence", "full scale", "clipped", "noise", "minimum"])
def test_extreme_audio_gives_finite_answers(sound: str) -> None:
    size = 2 * RATE
    wave = {
        "silence": np.zeros(size),
        "full scale": np.where(np.arange(size) % 80 < 40, 1.0, -1.0),
        "clipped": np.clip(voice(11, 2.0) * 50, -1.0, 1.0),
        "noise": noise(size, -10.0),
        "minimum": np.full(size, -1.0),
    }[sound]
    for played in (wave, voice(12, 2.0)):
        guard = OwnVoice(RATE)
        own, left = run(guard, played, wave)
        assert np.all(np.isfinite(own)) and np.all((own >= 0) & (own <= 1))
        assert left.dtype == np.int16 and left.size == size // WINDOW * WINDOW


def test_clients_that_read_in_bursts_and_gaps_in_the_microphones_audio_do_no_harm() -> None:
    rng = np.random.default_rng(13)
    agent = voice(13, 6.0)
    heard = to_pcm(echo_of(agent, 0.15, -10.0) + noise(agent.size))
    far, guard, at, own = to_pcm(agent), OwnVoice(RATE), 0, []
    for i in range(heard.size // WINDOW):
        while at < (i + 1) * WINDOW:  # pieces of odd sizes, with 20 ms of jitter
            size = int(rng.integers(1, 900))
            guard.played(far[at : at + size], at / RATE + rng.uniform(-0.02, 0.02))
            at += size
        if 80 <= i < 100:
            continue
        guard.without_echo(heard[i * WINDOW : (i + 1) * WINDOW], i * WINDOW / RATE)
        own.append(guard.own)
    assert np.mean(np.array(own)[110:] >= 0.5) > 0.6


def test_memory_does_not_grow() -> None:
    guard = OwnVoice(RATE)
    agent = voice(14, 2.0)

    def size() -> int:
        parts = [*vars(guard).values(), *vars(guard._far).values()]
        return sum(part.nbytes for part in parts if isinstance(part, np.ndarray))

    run(guard, agent, echo_of(agent, 0.1, -10.0))
    before = size()
    for i in range(1, 6):
        run(guard, agent, echo_of(agent, 0.1, -10.0), start_s=2.5 * i)
    assert size() <= before + 4096
    assert before < 150_000


def test_a_window_of_another_size_is_refused() -> None:
    with pytest.raises(BadAudio, match="512"):
        OwnVoice(RATE).without_echo(np.zeros(480, np.int16), 0.0)


def test_a_microphone_that_was_muted_for_seconds_learns_of_an_echo_again() -> None:
    agent = voice(21, 8.0)
    heard = echo_of(agent, 0.1, -12.0)
    heard[: 4 * RATE] = 0.0  # the microphone was muted
    own, left = run(OwnVoice(RATE), agent, heard)
    assert not left[: 4 * RATE].any()
    windows = 4 * RATE // WINDOW
    late = loud(heard)
    assert np.mean(own[windows + 12 :][late[windows + 12 :]] >= 0.5) > 0.5


def test_a_silent_microphone_costs_no_analysis_and_a_user_after_it_is_heard_at_once() -> None:
    guard = OwnVoice(RATE)
    agent, user = voice(22, 6.0), voice(23, 6.0, 210.0)
    heard = np.where(np.arange(agent.size) < 4 * RATE, 0.0, user)
    rows: list[int] = []
    far = guard._far
    before = far.before
    far.before = lambda slot: (rows.append(slot), before(slot))[1]  # type: ignore[method-assign]
    own, _ = run(guard, agent, heard)
    assert guard.no_echo
    silent = 4 * RATE // WINDOW
    assert len(rows) < silent / 2 + (heard.size - 4 * RATE) / WINDOW + 20
    assert np.mean(own[silent:] >= 0.5) < 0.05


def test_audio_that_nobody_asks_about_is_not_kept_for_long() -> None:
    guard = OwnVoice(RATE)
    piece = to_pcm(voice(24, 0.5))
    for i in range(1000):  # minutes of the agent, the microphone's audio has stopped
        guard.played(piece, 0.5 * i)
    assert sum(pcm.size for pcm, _ in guard._far._unseen) < 6 * RATE
