"""What does the framework itself cost and add? Many conversations in one process, with the real voice detector and
stub engines that take set times (``loadtest.stubs``).

Voice-to-voice runs from the time the last frame of speech was due to the agent's first audio in the hands of the sound
card; overhead is that less what the stubs, a silence of 0.2 s and the first sentence's tokens take. Barge-in runs from
the capture of the first sample to the start of the old answer's last piece. ``null`` runs the same callers against an
oracle without any framework or detector: what the harness itself costs.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import soundfile

from loadtest.framework_caller import FRAME, Caller, Feeder, Record, SoundCard, SoundCards, UserAudio
from loadtest.framework_null import Oracle
from loadtest.framework_report import FrameworkRun, ProcessWatch, report
from loadtest.stubs import RATE_HZ, ServiceTimes, stub_stages
from stages.vad.silero import SileroVad
from voice.agent import Agent
from voice.audio import AudioFormat
from voice.degradation import LadderOptions, Rung
from voice.errors import BadRequest, EngineFailed
from voice.interfaces import ASR_RATE_HZ, Capabilities, Pcm16
from voice.options import TurnOptions
from voice.resampling import resample
from voice.running import settle
from voice.service import Service, ServiceOptions
from voice.session import Session

UTTERANCE_S = 2.5
_STAGGER_S = 2.0
_SETTLE_S = 1.0
_TEXT = "I would really like to hear a lot more about the weather in all of the other places."


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    Attributes:
        kind: ``"voice"``, ``"speculating"`` or ``"null"``.
        sessions: Conversations at once.
        seconds: Length of each.
    """

    kind: str
    sessions: int
    seconds: float


class PulledSession:
    """One of our sessions, with a sound card that pulls."""

    capabilities = Capabilities("can_pause", sample_rate=RATE_HZ)

    def __init__(self, agent: Agent, number: int, card: SoundCard, wake: Callable[[], None]) -> None:
        self.session = Session(
            agent,
            self,
            audio_format=AudioFormat(rate_hz=ASR_RATE_HZ),
            session_id=f"load-{number}",
            on_event=_ignore,
        )
        self._card, self._wake = card, wake
        self.hear = self.session.hear

    async def start(self) -> None:
        """Begin."""
        await self.session.start()
        self.session.playout.on_more = self._wake
        self._read = self.session.playout.read

    def read(self, samples: int) -> Pcm16:
        """See :class:`~loadtest.framework_caller.Conversation`."""
        pcm = self._read(samples)
        if pcm.size == 0 and (self.session.playout.held or self.session.playout.track is None):
            self._card.stopped()
        return pcm

    async def send_audio(self, pcm: Pcm16, response_id: str) -> None:
        """Never called: the card pulls."""
        raise BadRequest("a sound card pulls its audio")

    def clear_audio(self) -> None:
        """Nothing is held here."""

    async def close(self) -> None:
        """Hang up."""
        await self.session.close()


def _ignore(_: object) -> None:
    """Events cost what they cost; nobody needs them here."""


def turn_options(*, speculate: bool) -> TurnOptions:
    """As close as options come to "0.2 s of silence end a turn, speech interrupts"."""
    return TurnOptions(
        pause_s=0.15,
        min_delay_s=0.2,
        max_delay_s=0.2,
        start_s=0.05,
        speculate=speculate,
        idle_s=None,
    )


async def measure(plan: Plan, audio: UserAudio, times: ServiceTimes) -> FrameworkRun:
    """One run in this process."""
    watch = ProcessWatch()
    cards, records = SoundCards(), [Record() for _ in range(plan.sessions)]
    conversations: list[PulledSession | Oracle] = []
    detector = None if plan.kind == "null" else SileroVad()
    agent: Agent | None = None
    if detector is not None:
        options = turn_options(speculate=plan.kind == "speculating")
        # all callers get the whole service, whatever the load: the peers know no other
        service = Service(ServiceOptions(ladder=LadderOptions(highest=Rung.FULL)))
        agent = Agent("Be brief.", replace(stub_stages(detector, times), service=service), turns=options)
    watch.loaded()
    for number, record in enumerate(records):
        card = SoundCard(record)
        wake = cards.more(card)
        conversation = (
            PulledSession(agent, number, card, wake)
            if agent is not None
            else Oracle(number, times, card, wake)
        )
        card.conversation = conversation
        await conversation.start()
        conversations.append(conversation)
    await asyncio.sleep(_SETTLE_S)
    settle()
    callers = [Caller(n, audio, c, r) for n, (c, r) in enumerate(zip(conversations, records, strict=True))]
    start = asyncio.get_running_loop().time() + 0.1
    starts = [start + number * _STAGGER_S / plan.sessions for number in range(plan.sessions)]
    watch.start()
    await Feeder(callers, records).run(starts, plan.seconds)
    watch.stop()
    cards.stop()
    await asyncio.gather(*(conversation.close() for conversation in conversations))
    if detector is not None:
        detector.close()
    return report(plan.kind, records, watch, plan.seconds, times)


def utterance(speech: Path) -> Pcm16:
    """Speech without a pause from a file: whole frames, 16 kHz.

    Raises:
        BadRequest: The file can't be used.
    """
    try:
        pcm, rate_hz = soundfile.read(speech, dtype="int16")
    except (OSError, soundfile.LibsndfileError) as error:
        raise BadRequest(f"{speech} can't be read: {error}") from None
    if pcm.ndim != 1:
        raise BadRequest(f"{speech} has {pcm.shape[1]} channels; one is needed")
    voiced = resample(pcm, rate_hz, ASR_RATE_HZ)
    return np.asarray(voiced[: voiced.size - voiced.size % FRAME], np.int16)


async def default_utterance() -> Pcm16:
    """2.5 s of speech in the default voice, which ends where the last sound does."""
    from stages.tts.piper import Piper, PiperOptions
    from voice.speaking import spoken_text

    voice = Piper(options=PiperOptions(deterministic=True))
    pcm = resample(await spoken_text(voice, _TEXT), voice.sample_rate, ASR_RATE_HZ)
    loud = np.flatnonzero(np.abs(pcm) > 1000)
    size = int(UTTERANCE_S * ASR_RATE_HZ)
    begins = int(loud[0])
    ends = int(loud[loud <= begins + size][-1])
    speech = np.zeros(size, np.int16)
    speech[size - (ends - begins) :] = pcm[begins:ends]
    return speech


async def measure_in_child(plan: Plan, speech: Path) -> FrameworkRun:
    """One run in a process of its own, so that no run's memory or garbage is another's.

    Raises:
        EngineFailed: It failed.
    """
    arguments = (plan.kind, str(plan.sessions), str(plan.seconds), str(speech))
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "loadtest.framework",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        env=_one_thread(),
    )
    out, _ = await child.communicate()
    if child.returncode:
        raise EngineFailed(f"a run of {plan.kind} ended with {child.returncode}")
    return FrameworkRun.from_json(out.decode().splitlines()[-1])


def _one_thread() -> dict[str, str]:
    """Native pools of one thread each, as in the runs it is compared with."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {**dict.fromkeys(names, "1"), **os.environ}


async def run(
    sessions: Sequence[int],
    seconds: float,
    runs: int,
    kinds: Sequence[str],
    speech: Path | None,
    as_json: bool,
) -> bool:
    """Print the figures of each kind at each number of sessions: every run, then the medians."""
    pcm = await default_utterance() if speech is None else utterance(speech)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "utterance.wav"
        soundfile.write(path, pcm, ASR_RATE_HZ)
        for count in sessions:
            made: dict[str, list[FrameworkRun]] = {kind: [] for kind in kinds}
            for _ in range(runs):
                for kind in kinds:
                    result = await measure_in_child(Plan(kind, count, seconds), path)
                    made[kind].append(result)
                    print(json.dumps(result.as_dict()) if as_json else result.line(), flush=True)
            if not as_json:
                _print_net(count, made)
    return True


def _print_net(count: int, made: dict[str, list[FrameworkRun]]) -> None:
    """The medians, net of the harness alone."""
    if not made.get("null"):
        return
    harness = statistics.median(run.cpu_s_per_session_minute for run in made["null"])
    for kind, runs in made.items():
        if kind != "null":
            cost = statistics.median(run.cpu_s_per_session_minute for run in runs)
            added = statistics.median((run.rss_peak_mb - run.rss_loaded_mb) / count for run in runs)
            print(
                f"{kind:<16} N={count:<4} net of the harness: {cost - harness:.3f} CPU s a session-minute "
                f"({cost:.3f} - {harness:.3f}); {added:.2f} MB a session at most",
                flush=True,
            )


def main() -> None:
    """A run as a child process: ``python -m loadtest.framework KIND SESSIONS SECONDS SPEECH``."""
    kind, sessions, seconds, speech = sys.argv[1:]
    audio = UserAudio(utterance(Path(speech)))
    gc.collect()
    result = asyncio.run(measure(Plan(kind, int(sessions), float(seconds)), audio, ServiceTimes()))
    print(json.dumps(result.as_dict()))


if __name__ == "__main__":
    main()
