"""Failed log-ins: counted for everybody to see, and slowed for those who fail often.

The answer to a failure waits, longer with each failure of the same peer, up to `LONGEST_SECONDS`; a right token, ticket
or session never waits, so nobody is locked out by somebody else's failures. What keeps guesses from succeeding is that
a token has 256 random bits; this keeps them few, and seen.

Not guaranteed: that every failure waits. Beyond `MOST_WAITING` at once, answers go out at once, so that those who fail
cannot fill the process with connections that wait. Belongs to one event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from lapse.core.jitter import backoff

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.engine.running.metrics import Metrics

FREE: Final = 10
"""Failures of a peer that are answered at once: people mistype."""
FORGET_SECONDS: Final = 60.0
LONGEST_SECONDS: Final = 5.0
MOST_WAITING: Final = 64
_MOST_PEERS: Final = 1024
_NS: Final = 1_000_000_000


class LoginProof(StrEnum):
    """By what a caller wanted to get in."""

    TOKEN = "token"  # noqa: S105 - the name of a way, no secret
    TICKET = "ticket"
    SESSION = "session"


class LoginFailures:
    """See the module."""

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        """Remember nothing yet."""
        self._clock, self._metrics = clock, metrics
        metrics.expect_logins(LoginProof)
        self._peers: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """How many failures in a row, and when the last one was; the latest last."""
        self._waiting = 0

    async def failed(self, proof: LoginProof, peer: str) -> None:
        """Count a failure, and return when it may be answered."""
        self._metrics.login_failed(proof)
        seconds = self._delay(peer)
        if not seconds or self._waiting >= MOST_WAITING:
            return
        self._waiting += 1
        try:
            await self._clock.sleep(seconds)
        finally:
            self._waiting -= 1

    def _delay(self, peer: str) -> float:
        now_ns = self._clock.monotonic_ns()
        count, last_ns = self._peers.pop(peer, (0, now_ns))
        count = 1 if now_ns - last_ns > FORGET_SECONDS * _NS else count + 1
        self._peers[peer] = count, now_ns
        while len(self._peers) > _MOST_PEERS:
            self._peers.popitem(last=False)
        return 0.0 if count <= FREE else backoff(count - FREE - 1, longest=LONGEST_SECONDS)
