"""Ear: the frame path of one session. Audio in, edges out; plain calls, no task, no await, no queue per frame.

The ear keeps the caller's audio by absolute sample index (16 kHz), hands full windows to the detector, one at a
time, and turns probabilities into two edges: the user began to speak, the user paused.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import numpy as np

from voice.audio import AudioFormat, Decoder, rms_dbfs
from voice.buffers import SampleLog
from voice.echo import WINDOW_SAMPLES as GUARDED_SAMPLES
from voice.echo import OwnVoice
from voice.errors import BadAudio
from voice.interfaces import ASR_RATE_HZ, DetectorStream, Pcm16, VoiceDetector
from voice.noise_floor import SILENCE_DBFS, NoiseFloor
from voice.options import Limits, TurnOptions

log = logging.getLogger("voice")

_RELEASE = 0.15
"""Speech ends this far below the threshold that began it (Silero's own hysteresis)."""
_SURE = 0.7
"""Over the agent's voice a single window that is this surely speech is the edge: it falls silent a window sooner,
reversibly."""
_BLOCK = ASR_RATE_HZ // 100
_AUDIBLE_DBFS = -50.0
_OVER_FLOOR_DB = 10.0
"""Speech is at least this far above the room's noise when its last sample is looked for."""
_LOUD_ROOM_DBFS = -25.0
"""That is asked of nobody where it would be louder than this."""
_TAIL_S = 0.16
"""The last sample may lie this far behind the last window that the detector took for speech (a soft "s")."""
_HUSH = ASR_RATE_HZ // 20
"""After so much silence the owner is told that the voice is off, before it is a pause."""
_LINGER_S = 0.5
"""The detector may go on seeing speech this long after the last audible sample."""
_SILENT_LINE_S = 2.5
"""No audio for so long in mid speech is a pause. Longer than any frame that clients send."""
_GAP_S = 0.25
"""Audio that comes later than this against its own clock was not sent for a while: the clock is set anew."""


class Ear:
    """Hears one session's caller.

    Args:
        detector: The shared voice activity detector.
        options: Thresholds and times; :meth:`configure` changes them during a call.
        limits: Bounds.
        audio_format: What :meth:`hear` is given.
        on_began: Called with the sample index where speech began.
        on_paused: Called with the sample index after the last one of speech.
        on_hushed: Called when the voice falls silent, before that is a pause; the user may go on.

    Attributes:
        log: The audio kept, by absolute index.
        guard: Takes the agent's own voice out of what the detector gets; ``None``: nothing does.
        keep_from: Audio from this index on is needed (an open turn); ``None``: the pre-roll is enough.
        eager: Don't wait for a second window of speech where the first is sure: the agent speaks.
        voiced_until: Index after the newest window with speech in it.
        dropped_samples: Audio that came faster than the detector could judge and was skipped by it.
        failures: Windows that the detector failed on.
    """

    def __init__(
        self,
        detector: VoiceDetector,
        options: TurnOptions,
        limits: Limits,
        audio_format: AudioFormat,
        on_began: Callable[[int], None],
        on_paused: Callable[[int], None],
        on_hushed: Callable[[], None] = lambda: None,
    ) -> None:
        self.options = options
        self.guard: OwnVoice | None = None
        self.keep_from: int | None = None
        self.eager = False
        self.voiced_until = 0
        self.dropped_samples = 0
        self.failures = 0
        self._decoder = Decoder(audio_format)
        self._stream: DetectorStream = detector.open()
        self._window = detector.window_samples
        self._on_began, self._on_paused, self._on_hushed = on_began, on_paused, on_hushed
        self._backlog = int(limits.hear_backlog_s * ASR_RATE_HZ)
        self._beyond_s = limits.hear_backlog_s + 5.0
        self.log = SampleLog(options.max_turn_s + self._beyond_s, rate_hz=ASR_RATE_HZ)
        self._next = 0  # where the next window begins
        self._busy = False  # a window is with the detector
        self._level_dbfs = -math.inf  # of that window
        self._untouched = True  # nothing was taken out of it
        self._pumping = False
        self._speaking = False
        self._deaf = False  # a cut turn's rest: not heard until it pauses
        self._run_start: int | None = None
        self._hushed = False  # it fell silent, for so short that it is no pause
        self._floor = NoiseFloor(self._window / ASR_RATE_HZ)
        self._epoch: float | None = None  # loop time of sample 0
        self._closed = False

    def configure(self, options: TurnOptions) -> None:
        """Use other thresholds and times from now on; the longest turn fits."""
        self.options = options
        longest_s = max(options.max_turn_s + self._beyond_s, len(self.log) / ASR_RATE_HZ)
        self.log.limit(longest_s, overwrite=False)

    def use_format(self, audio_format: AudioFormat) -> None:
        """What :meth:`hear` is given from now on. A sample that came in part is lost."""
        self._decoder = Decoder(audio_format)

    # ------------------------------------------------------------ in

    def hear(self, pcm: bytes | Pcm16, now: float) -> None:
        """Take audio in the declared format, any number of bytes or samples, as it came from the transport.

        Raises:
            BadAudio: Not what the format says (NaN samples, wrong dtype or shape).
        """
        if self._closed:
            return
        if not isinstance(pcm, bytes | bytearray | memoryview | np.ndarray):
            raise BadAudio(f"audio is bytes or an array of samples, not {type(pcm).__name__}")
        samples = self._decoder.decode(pcm)
        if samples.size == 0:
            return
        log, wanted = self.log, self._wanted()
        room = log.end - (wanted if self.keep_from is None else self.keep_from)
        if room + samples.size > log.max_samples:
            raise BadAudio(
                f"{samples.size / ASR_RATE_HZ:.0f} s of audio in one piece do not fit: send it as it is spoken"
            )
        log.drop_before(wanted)
        log.append(samples)
        self._set_clock(now)
        if log.end - self._next > self._backlog + samples.size:
            self._skip()
        self._pump()

    def _wanted(self) -> int:
        """Index of the oldest sample that may still be needed."""
        oldest = min(self._next, self.log.end) - ASR_RATE_HZ
        return max(0, oldest if self.keep_from is None else min(oldest, self.keep_from))

    def _set_clock(self, now: float) -> None:
        """Sample times follow the earliest arrival seen, so that jitter doesn't move them; a gap sets them anew."""
        epoch = now - self.log.end / ASR_RATE_HZ
        if self._epoch is None or epoch < self._epoch or epoch > self._epoch + _GAP_S:
            self._epoch = epoch

    def _skip(self) -> None:
        skipped = self.log.end - self._backlog - self._next
        self.dropped_samples += skipped
        self._next += skipped
        self._stream.reset()

    def time_of(self, index: int) -> float:
        """Loop time at which a sample was spoken."""
        return (self._epoch or 0.0) + index / ASR_RATE_HZ

    def stream_s(self, at: float) -> float:
        """Seconds of the caller's stream at a loop time: the session time of events and metrics."""
        return 0.0 if self._epoch is None else at - self._epoch

    def _pump(self) -> None:
        if self._pumping:
            return
        self._pumping = True
        try:
            while not self._busy and not self._closed and self.log.end - self._next >= self._window:
                start = self._next
                self._next += self._window
                self._busy = True
                try:
                    self._stream.push(self._take_window(start), self._judged)
                except Exception:
                    if not self._busy:  # it had answered: the fault is not the detector's
                        raise
                    if not self.failures:  # once: there may be thirty a second
                        log.exception("the voice activity detector failed")
                    self._judged(math.nan)
        finally:
            self._pumping = False

    def _take_window(self, start: int) -> Pcm16:
        """The window that begins at ``start``, as the detector gets it: without the agent's own voice."""
        window = heard = self.log.read(start, start + self._window)
        self._level_dbfs = rms_dbfs(heard)
        if self.guard is not None and self._window == GUARDED_SAMPLES:
            window = self.guard.without_echo(heard, self.time_of(start), self._level_dbfs)
            if window is not heard:
                self._level_dbfs = rms_dbfs(window)
        self._untouched = window is heard
        return window

    # ------------------------------------------------------------ edges

    def _judged(self, probability: float) -> None:
        self._busy = False
        if self._closed:
            return
        end = self._next
        if math.isnan(probability):
            self.failures += 1
            ago = 0 if self._speaking else 1
        else:
            threshold = self.options.speech_threshold
            if self._speaking:
                threshold = max(threshold - _RELEASE, threshold / 2)
            level_dbfs, speaking, learn = self._level_dbfs, self._speaking, self._untouched
            ago = self._floor.voice_ago(level_dbfs, probability, threshold, speaking=speaking, learn=learn)
        if self._speaking:
            self._while_speaking(ago, end)
        else:
            # where an echo may be, a single window may be what is left of it
            clear = self.guard is None or self.guard.no_echo
            self._while_silent(ago, end, sure=self.eager and clear and probability >= _SURE)
        self._pump()

    def _while_silent(self, ago: int, end: int, *, sure: bool) -> None:
        if ago:
            self._run_start = None
            return
        if self._run_start is None:
            self._run_start = end - self._window
        if sure or end - self._run_start >= self.options.start_s * ASR_RATE_HZ:
            began, self._run_start = self._run_start, None
            self._speaking = True
            self.voiced_until = end
            if not self._deaf:
                self._on_began(began)

    def _while_speaking(self, ago: int, end: int) -> None:
        if not ago:
            self.voiced_until = end
            self._hushed = False
            return
        self.voiced_until = min(self.voiced_until, end - ago * self._window)
        pause = int(self.options.pause_s * ASR_RATE_HZ)
        if end - self.voiced_until < min(_HUSH, pause - int(_TAIL_S * ASR_RATE_HZ)):
            return
        last = self._last_audible(end)
        if end - last < pause:
            if end - last >= _HUSH and not self._hushed and not self._deaf:
                self._hushed = True
                self._on_hushed()
            return
        self._speaking = self._hushed = False
        if self._deaf:
            self._deaf = False
        else:
            self._on_paused(last)

    def _last_audible(self, end: int) -> int:
        """Index after the last 10 ms block above the noise, near the end of the last speech window."""
        audible_dbfs = max(_AUDIBLE_DBFS, self._floor.dbfs + _OVER_FLOOR_DB)
        if audible_dbfs > _LOUD_ROOM_DBFS:  # the noise hides soft sounds: the detector's word is all there is
            return self.voiced_until
        start = max(self.log.start, self.voiced_until - int(_LINGER_S * ASR_RATE_HZ))
        stop = min(end, self.voiced_until + int(_TAIL_S * ASR_RATE_HZ))
        audio = self.log.read(start, max(start, stop))
        blocks = audio[audio.size % _BLOCK :].reshape(-1, _BLOCK).astype(np.float32)
        audible = 32768.0 * 10.0 ** (audible_dbfs / 20.0)
        loud = np.flatnonzero(np.sqrt(np.mean(blocks * blocks, axis=1)) > audible)
        if loud.size == 0:
            return self.voiced_until
        return start + audio.size % _BLOCK + (int(loud[-1]) + 1) * _BLOCK

    def over_noise_db(self, start: int, end: int) -> float | None:
        """Level of the audio between two samples above the room's noise; ``None``: nothing of it is kept.

        It costs about 1 µs for each 30 ms of audio.
        """
        start, end = max(start, self.log.start), min(end, self.log.end)
        if start >= end:
            return None
        return max(SILENCE_DBFS, rms_dbfs(self.log.read(start, end))) - self._floor.dbfs

    def notice_gap(self, now: float) -> None:
        """A caller that stops sending in mid speech (muted, a broken line) has paused."""
        if self._speaking and not self._busy and now - self.time_of(self.log.end) > _SILENT_LINE_S:
            self._speaking = False
            self._stream.reset()
            if self._deaf:
                self._deaf = False
            else:
                self._on_paused(self.voiced_until)

    def cut(self) -> None:
        """What goes on being said belongs to no turn: hear nothing until it pauses."""
        self._deaf = self._speaking

    @property
    def speaking(self) -> bool:
        """Whether the caller's voice is on now."""
        return self._speaking

    def close(self) -> None:
        """Stop hearing. The audio is released."""
        self._closed = True
        self.guard = None
        self._stream.close()
        self.log.drop_before(self.log.end)
