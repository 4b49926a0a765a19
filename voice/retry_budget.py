"""May a failed request be sent again? A budget for each kind of stage, so that retries can't double an overload.

Pure: time comes in.
"""

from __future__ import annotations

from voice.errors import BadRequest


class RetryBudget:
    """A bucket of tokens. Each call puts a part of one in, time adds a few, a retry takes one out.

    While all goes well the bucket is full and every failure may be tried again; when most calls fail, retries are
    held to ``share`` of the calls.

    Args:
        share: Retries per call in the long run, 0–1.
        reserve: Most tokens, there from the start: so many retries at once are let through whatever came before.
        reserve_per_s: Tokens that come by themselves, for stages with few calls.

    Attributes:
        spent, denied: Retries let through and refused so far.
    """

    def __init__(self, share: float = 0.1, reserve: float = 10.0, reserve_per_s: float = 0.1) -> None:
        if not 0.0 <= share <= 1.0 or reserve < 1.0 or reserve_per_s < 0.0:
            raise BadRequest("share must be 0 to 1, reserve at least 1, reserve_per_s not negative")
        self.share, self.reserve, self.reserve_per_s = share, reserve, reserve_per_s
        self.spent = self.denied = 0
        self._tokens = reserve
        self._at: float | None = None

    def called(self) -> None:
        """A call was made, first or repeated."""
        self._tokens = min(self.reserve, self._tokens + self.share)

    def spend(self, now: float) -> bool:
        """Whether a failed request may be sent again; if so, it is paid for."""
        passed_s = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        self._tokens = min(self.reserve, self._tokens + passed_s * self.reserve_per_s)
        if self._tokens < 1.0:
            self.denied += 1
            return False
        self._tokens -= 1.0
        self.spent += 1
        return True
