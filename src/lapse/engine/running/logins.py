"""Refused log-ins: counted for everybody to see, told in the journal, and put off for those who fail often.

A *source* is the address of a peer, and of IPv6 its network of 64 bits, which one machine may have to itself. After
`FREE` failures a source is told to come back later, and later each time (`LoginFailures.failed`); what it sends sooner
is refused without making the wait longer. A right token, ticket or session is never put off, whatever its source has
sent before: so nobody is locked out by somebody else, also on loopback and behind a reverse proxy, where all are one
source. What keeps guesses from succeeding is that a token has 256 random bits; this keeps them few, and seen.

`LoginAudit` writes at most one row for each source and minute, with a count, and one for all sources beyond
`MOST_TOLD`. Memory is bounded, however many sources there are.

Not guaranteed: that a source is still known when very many others have failed since, nor that failures of the last
minute before a crash are told. Belongs to one event loop.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Final

from lapse.core.address import Address
from lapse.core.jitter import backoff
from lapse.core.log import get_logger
from lapse.engine.journal.port import AuditReason, Outcome, audit_row

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.engine.journal.port import Entry, Journal
    from lapse.engine.running.metrics import Metrics

FREE: Final = 10
"""Failures of a source that are answered as such: people mistype."""
FORGET_SECONDS: Final = 300.0
LONGEST_SECONDS: Final = 60.0
MOST_TOLD: Final = 256
"""Sources with a row of their own in one minute."""
OTHERS: Final = "others"
"""Instead of a source: all that have no row of their own."""
_MOST_SOURCES: Final = 1024
_NETWORK_BITS: Final = 64
_NS: Final = 1_000_000_000
_log = get_logger("lapse.engine.running.logins")


class LoginProof(StrEnum):
    """By what a caller wanted to get in."""

    TOKEN = "token"  # noqa: S105 - the name of a way, no secret
    TICKET = "ticket"
    SESSION = "session"


@dataclass(slots=True)
class RefusedLogins:
    """What one source has failed with since it was last told."""

    source: str
    first_ns: int
    last_ns: int
    counts: Counter[LoginProof] = field(default_factory=Counter)

    def row(self) -> Entry:
        """Return the row of the audit; it names the source, and nothing of what was sent."""
        count = self.counts.total()
        details = {"count": count, **{proof.value: number for proof, number in sorted(self.counts.items())}}
        return audit_row(
            AuditReason.LOGIN_REFUSED,
            address=str(Address("login", None, self.source)),
            actor=f"peer {self.source}",
            time_ns=self.last_ns,
            outcome=Outcome.REFUSED,
            details={**details, "first_ns": self.first_ns},
        )


@dataclass(slots=True)
class _Patience:
    """How often a source has failed, and until when it is put off, on the monotonic clock."""

    failures: int = 0
    steps: int = 0
    last_ns: int = 0
    until_ns: int = 0


class LoginFailures:
    """See the module."""

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        """Remember nothing yet."""
        self._clock, self._metrics = clock, metrics
        metrics.expect_logins(LoginProof)
        self._sources: OrderedDict[str, _Patience] = OrderedDict()
        """The latest last."""
        self._untold: dict[str, RefusedLogins] = {}

    def failed(self, proof: LoginProof, peer: str) -> int | None:
        """Count a failure; return after how many seconds the peer may try again, None where that is at once."""
        source = source_of(peer)
        self._metrics.login_failed(proof)
        now = self._clock.wall_ns()
        self._add(RefusedLogins(source, now, now, Counter({proof: 1})))
        return self._put_off(source)

    def take(self) -> list[RefusedLogins]:
        """Return what is to be told, and take it for told."""
        untold, self._untold = self._untold, {}
        return list(untold.values())

    def give_back(self, refused: list[RefusedLogins]) -> None:
        """Take note that these could not be told."""
        for one in refused:
            self._add(one)

    def _add(self, more: RefusedLogins) -> None:
        source = more.source if more.source in self._untold or len(self._untold) < MOST_TOLD else OTHERS
        known = self._untold.setdefault(source, RefusedLogins(source, more.first_ns, more.last_ns))
        known.first_ns, known.last_ns = min(known.first_ns, more.first_ns), max(known.last_ns, more.last_ns)
        known.counts += more.counts

    def _put_off(self, source: str) -> int | None:
        now = self._clock.monotonic_ns()
        known = self._sources.pop(source, None)
        if known is None or now - max(known.last_ns, known.until_ns) > FORGET_SECONDS * _NS:
            known = _Patience()
        self._sources[source] = known
        if len(self._sources) > _MOST_SOURCES:
            self._sources.popitem(last=False)
        known.failures, known.last_ns = known.failures + 1, now
        if known.failures <= FREE:
            return None
        if now >= known.until_ns:
            known.until_ns = now + round(backoff(known.steps, first=1.0, longest=LONGEST_SECONDS) * _NS)
            known.steps += 1
        return max(1, math.ceil((known.until_ns - now) / _NS))


class LoginAudit:
    """A `lapse.engine.running.coordinator.Loop` that writes down who was refused."""

    name: Final = "login-audit"
    interval: Final = 60.0
    leader_only: Final = False
    of_engine: Final = True

    def __init__(self, failures: LoginFailures, journal: Journal, *, domain: str) -> None:
        """Write what ``failures`` counts; what goes wrong with that is a failure of ``domain``."""
        self._failures, self._journal, self.domain = failures, journal, domain

    async def tick(self) -> float | None:
        """Write a row for each source; what cannot be written is told with the next ones. Never sooner than that."""
        refused = self._failures.take()
        try:
            if refused:
                await self._journal.append(*(one.row() for one in refused))
        except BaseException:
            self._failures.give_back(refused)
            raise
        return self.interval

    async def close(self) -> None:
        """Write what is left, when the process ends."""
        try:
            await self.tick()
        except Exception as error:  # noqa: BLE001 - the process ends, and the metric has counted it
            _log.warning("refused_logins_not_told", error=type(error).__name__)


def source_of(peer: str) -> str:
    """Return what the failures of a peer are counted under."""
    try:
        found = ip_address(peer.partition("%")[0])
    except ValueError:
        return peer or "unknown"
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(found) if found.is_loopback else str(ip_network((found, _NETWORK_BITS), strict=False))
