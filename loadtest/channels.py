"""What a stereo recording of a call says: when each side was audible, in 10 ms blocks above −50 dBFS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

from voice.interfaces import Pcm16

BLOCK_S = 0.01
LEVEL_DBFS = -50.0


@dataclass(frozen=True)
class Channels:
    """A recording, left the caller and right the agent, int16 at ``rate_hz``."""

    caller: Pcm16
    agent: Pcm16
    rate_hz: int

    @staticmethod
    def load(path: Path) -> Channels:
        """Read what ``voice talk --out`` wrote."""
        pcm, rate_hz = soundfile.read(path, dtype="int16", always_2d=True)
        return Channels(pcm[:, 0].copy(), pcm[:, 1].copy(), rate_hz)

    def first_agent_s(self, after_s: float, before_s: float = float("inf")) -> float | None:
        """Start of the agent's first audible block in a stretch."""
        loud = self._loud(self.agent, after_s, before_s)
        return None if loud.size == 0 else float(loud[0]) * BLOCK_S

    def last_agent_s(self, after_s: float, before_s: float = float("inf")) -> float | None:
        """End of the agent's last audible block in a stretch."""
        loud = self._loud(self.agent, after_s, before_s)
        return None if loud.size == 0 else (float(loud[-1]) + 1) * BLOCK_S

    def last_caller_s(self, after_s: float, before_s: float = float("inf")) -> float | None:
        """End of the caller's last audible block in a stretch."""
        loud = self._loud(self.caller, after_s, before_s)
        return None if loud.size == 0 else (float(loud[-1]) + 1) * BLOCK_S

    def agent_between(self, start_s: float, end_s: float) -> Pcm16:
        """The agent's audio of a stretch."""
        return self.agent[int(start_s * self.rate_hz) : int(end_s * self.rate_hz)]

    def _loud(self, pcm: Pcm16, after_s: float, before_s: float) -> npt.NDArray[np.intp]:
        size = int(self.rate_hz * BLOCK_S)
        first = int(max(0.0, after_s) / BLOCK_S + 1e-6)
        last = min(pcm.size // size, int(min(before_s, 1e6) / BLOCK_S + 1e-6))
        blocks = pcm[first * size : last * size].reshape(-1, size).astype(np.float32)
        level = 32768.0 * 10.0 ** (LEVEL_DBFS / 20.0)
        return np.flatnonzero(np.sqrt(np.mean(blocks * blocks, axis=1)) > level) + first
