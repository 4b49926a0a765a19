"""The local microphone and loudspeaker: two sound card threads on one side, the event loop on the other.

There is no echo canceller here: with open loudspeakers the agent hears itself, so use a headset.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

from transports.call import Call
from voice.audio import Resampler
from voice.errors import EngineFailed
from voice.executor import Executor, ThreadExecutor
from voice.interfaces import ASR_RATE_HZ, Capabilities, Pcm16

PLAY_HZ = 24_000
BLOCK_S = 0.01
AHEAD_BLOCKS = 2
"""Blocks that lie ready for the loudspeaker: a pause takes effect after them, and a loop that is late for longer
is heard as a gap."""

MAX_WAITING = 50
"""Microphone blocks under way to the loop; one that stands still for longer than their half second loses the rest."""

Frames = npt.NDArray[np.int16]


class Stream(Protocol):
    """What is used of ``sounddevice.InputStream`` and ``OutputStream``."""

    latency: float

    def start(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Sound(Protocol):
    """What is used of the module ``sounddevice``; tests and other sound systems put their own in its place.

    Both stream factories take ``samplerate`` (Hz), ``blocksize`` (samples a callback), ``device``, ``channels``,
    ``dtype``, ``latency``, ``callback(data, frames, time, status)`` with int16 ``data`` of shape (frames, 1), and
    ``finished_callback()``. Callbacks come from a thread of the sound system. What can't be opened raises
    ``PortAudioError`` or ``ValueError``.
    """

    PortAudioError: type[Exception]

    def InputStream(self, **options: Any) -> Stream: ...
    def OutputStream(self, **options: Any) -> Stream: ...
    def query_devices(self, device: int | str | None, kind: str) -> dict[str, Any]: ...


class Microphone:
    """A call with whoever sits at this machine.

    First :meth:`open` (it tells the delay that the session must know), then make the session, then :meth:`run`.

    Args:
        input_device: Number or part of the name of the microphone; ``None``: the system's default.
        output_device: The same for the loudspeaker.
        sound: Stands in for the ``sounddevice`` module.
        executor: Where devices are opened and closed; ``None``: a thread of its own.

    Attributes:
        lost_blocks: Microphone blocks of 10 ms that came while the event loop stood still.
        gaps: Loudspeaker blocks of 10 ms for which nothing was ready in time.
    """

    def __init__(
        self,
        *,
        input_device: int | str | None = None,
        output_device: int | str | None = None,
        sound: Sound | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.capabilities = Capabilities(playout="can_pause", sample_rate=PLAY_HZ)
        self._devices = {"input": input_device, "output": output_device}
        self._sound = sound
        self._executor = executor or ThreadExecutor("sound-devices")
        self._streams: list[Stream] = []
        self._capture: _Capture | None = None
        self._speaker: _Speaker | None = None
        self._stopped = asyncio.Event()

    @property
    def lost_blocks(self) -> int:
        return 0 if self._capture is None else self._capture.lost

    @property
    def gaps(self) -> int:
        return 0 if self._speaker is None else self._speaker.gaps

    async def open(self) -> None:
        """Open both devices, without starting them.

        Raises:
            EngineFailed: PortAudio or a device is missing; one sentence that says which.
        """
        loop = asyncio.get_running_loop()

        def finished() -> None:
            _tell(loop, self._stopped.set)

        try:
            self._capture = await self._executor.run(self._open_input, loop, finished)
            self._speaker = await self._executor.run(self._open_output, loop, finished)
        except BaseException:
            await self.close()
            raise
        delay_s = AHEAD_BLOCKS * BLOCK_S + float(self._streams[1].latency)
        self.capabilities = Capabilities(playout="can_pause", sample_rate=PLAY_HZ, delay_s=delay_s)

    async def run(self, call: Call) -> None:
        """Hold the call until cancelled. Closes the devices.

        Raises:
            EngineFailed: A device went away, or could not be started.
        """
        if self._capture is None or self._speaker is None:
            await self.open()
        assert self._capture is not None and self._speaker is not None
        try:
            self._capture.call = call
            self._speaker.begin(call)
            for stream in self._streams:
                await self._executor.run(self._start, stream)
            await self._stopped.wait()
            raise EngineFailed("the sound device stopped: was it unplugged?", retryable=False)
        finally:
            await asyncio.shield(self.close())

    async def close(self) -> None:
        """Close the devices; they can be opened again."""
        if self._capture is not None:
            self._capture.call = None
        streams, self._streams = self._streams, []
        for stream in streams:
            await self._executor.run(_shut, stream)
        self._stopped.clear()

    async def send_audio(self, pcm: Pcm16, response_id: str) -> None:
        """Unused: this transport pulls its audio."""

    def clear_audio(self) -> None:
        """Unused: nothing is ahead of the ear but two blocks."""

    # ------------------------------------------------ on a worker thread

    def _open_input(self, loop: asyncio.AbstractEventLoop, finished: Callable[[], None]) -> _Capture:
        return self._open("input", ASR_RATE_HZ, lambda rate_hz: _Capture(loop, rate_hz), finished)

    def _open_output(self, loop: asyncio.AbstractEventLoop, finished: Callable[[], None]) -> _Speaker:
        return self._open("output", PLAY_HZ, lambda rate_hz: _Speaker(loop, rate_hz), finished)

    def _open(self, kind: str, rate_hz: int, make: Callable[[int], S], finished: Callable[[], None]) -> S:
        """Open a device at our own rate, or else at the device's."""
        sound = self._sound or _sounddevice()
        device = self._devices[kind]
        factory = sound.InputStream if kind == "input" else sound.OutputStream

        def at(rate_hz: int) -> S:
            side = make(rate_hz)
            stream = factory(
                samplerate=rate_hz,
                blocksize=round(rate_hz * BLOCK_S),
                device=device,
                channels=1,
                dtype="int16",
                latency="low",
                callback=side.on_block,
                finished_callback=finished,
            )
            self._streams.append(stream)
            return side

        try:
            try:
                return at(rate_hz)
            except sound.PortAudioError:
                return at(int(sound.query_devices(device, kind)["default_samplerate"]))
        except (sound.PortAudioError, ValueError) as error:
            raise self._failure(kind, "can't be opened", error) from error

    def _start(self, stream: Stream) -> None:
        sound = self._sound or _sounddevice()
        try:
            stream.start()
        except sound.PortAudioError as error:
            kind = "input" if stream is self._streams[0] else "output"
            raise self._failure(kind, "can't be started", error) from error

    def _failure(self, kind: str, what: str, error: Exception) -> EngineFailed:
        name = "microphone" if kind == "input" else "loudspeaker"
        device = self._devices[kind]
        which = f"no default {name}" if device is None else f"the {name} {device!r}"
        cause = " ".join(str(error).split())
        return EngineFailed(f"{which} {what}: {cause}", retryable=False)


class _Side(Protocol):
    def on_block(self, data: Frames, frames: int, time: object, status: object) -> None: ...


S = TypeVar("S", bound=_Side)


class _Capture:
    """Microphone blocks on their way to the loop. Each counter has one writer, so no lock is needed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rate_hz: int) -> None:
        self.call: Call | None = None
        self.lost = 0
        self._loop = loop
        self._resampler = Resampler(rate_hz, ASR_RATE_HZ)
        self._taken = 0  # written by the sound card's thread
        self._delivered = 0  # written by the loop

    def on_block(self, data: Frames, frames: int, time: object, status: object) -> None:
        """On the sound card's thread: hand a block over, never wait."""
        if self._taken - self._delivered >= MAX_WAITING:
            self.lost += 1
            return
        self._taken += 1
        _tell(self._loop, self._deliver, data[:, 0].copy())

    def _deliver(self, pcm: Pcm16) -> None:
        self._delivered += 1
        if self.call is not None:
            self.call.hear(self._resampler.process(pcm))


class _Speaker:
    """Blocks on their way to the loudspeaker: the loop keeps two ready, the sound card's thread takes them.

    Each counter has one writer, and a slot is filled before it is counted, so no lock is needed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, rate_hz: int) -> None:
        self.gaps = 0
        self._loop = loop
        self._size = round(rate_hz * BLOCK_S)
        self._resampler = Resampler(PLAY_HZ, rate_hz)
        self._left: Pcm16 = np.zeros(0, dtype=np.int16)  # resampled, less than a block
        self._slots: list[Pcm16] = [np.zeros(self._size, dtype=np.int16)] * (AHEAD_BLOCKS + 1)
        self._made = 0  # written by the loop
        self._taken = 0  # written by the sound card's thread
        self._call: Call | None = None

    def begin(self, call: Call) -> None:
        """From now on there is something to play."""
        self._call = call
        self._fill()

    def on_block(self, data: Frames, frames: int, time: object, status: object) -> None:
        """On the sound card's thread: play what is ready, never wait."""
        if self._taken < self._made:
            data[:, 0] = self._slots[self._taken % len(self._slots)]
            self._taken += 1
        else:
            data[:] = 0
            self.gaps += 1
        _tell(self._loop, self._fill)

    def _fill(self) -> None:
        while self._call is not None and self._made - self._taken < AHEAD_BLOCKS:
            self._slots[self._made % len(self._slots)] = self._block(self._call)
            self._made += 1

    def _block(self, call: Call) -> Pcm16:
        want = round(PLAY_HZ * BLOCK_S)
        while len(self._left) < self._size:  # twice at the start, where the resampler holds some back
            pcm = call.playout.read(want)
            if len(pcm) < want:
                pcm = np.concatenate([pcm, np.zeros(want - len(pcm), dtype=np.int16)])
            self._left = np.concatenate([self._left, self._resampler.process(pcm)])
        block, self._left = self._left[: self._size], self._left[self._size :]
        return block


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> None:
    """Call on the loop, from any thread; nothing when the loop has ended meanwhile."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *args)


def _shut(stream: Stream) -> None:
    stream.abort()
    stream.close()


def _sounddevice() -> Sound:
    """The real module.

    Raises:
        EngineFailed: It, or PortAudio, is not installed.
    """
    try:
        import sounddevice
    except ImportError as error:
        raise EngineFailed(
            "microphone and loudspeaker need the package sounddevice: pip install 'voice[microphone]'",
            retryable=False,
        ) from error
    except OSError as error:  # what the package raises where the library is missing
        raise EngineFailed(
            "microphone and loudspeaker need the PortAudio library: install libportaudio2 (Debian, Ubuntu) or "
            "portaudio (other systems)",
            retryable=False,
        ) from error
    return cast(Sound, sounddevice)
