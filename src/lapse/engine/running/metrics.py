"""Metrics: what a monitoring system may ask of a running process, in Prometheus' form.

Prefix ``lapse_``, base units, no object names as labels. Every combination of labels stands at zero from the start,
so that an alert on an increase sees the first event. Only what is really fed is here: a metric that is always zero
would be a promise.
"""

from __future__ import annotations

import platform
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lapse.core.decision import Reason

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# From a slice of a sweep to a round that is stuck.
_TICK_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60)
# From a sweep that keeps up to a process that was down for days.
_LAG_BUCKETS: Final = (0.5, 1, 2, 5, 10, 30, 60, 300, 1_800, 3_600, 21_600, 86_400)


class ErrorKind(StrEnum):
    """What failed."""

    TICK = "tick"
    """A round of a loop."""
    REQUEST = "request"
    """An HTTP request that was right and could not be served."""
    ITEM = "item"
    """One thing that could lapse: it could not be decided or ended, and is looked at again."""
    JOURNAL = "journal"
    """A row that could not be written."""
    RECONCILE = "reconcile"
    """A look at one object; it is looked at again."""
    EVENT = "event"
    """Something that people were to be told; they are not."""
    POLICY = "policy"
    """A pass of one policy; it is tried again with the next one."""
    RECORD = "record"
    """The record of a run; there is none."""


_VERDICTS: Final = ("due", "keep", "unknown")


class Metrics:
    """The metrics of one process, in a registry of their own. Safe to use from any thread."""

    def __init__(self, version: str) -> None:
        """Register everything that needs no label yet."""
        self._registry = CollectorRegistry()
        # `..._of`: every item that is decided and ended asks for its series, and to look one up costs more than to add.
        self._gauge("lapse_build_info", "The version that runs; always 1", "version", "python").labels(
            version, platform.python_version()
        ).set(1)
        self._deletions = self._counter("lapse_deletions", "Items that were ended, by reason", "domain", "reason")
        self._deletions_of = cache(self._deletions.labels)
        self._lag = Histogram(
            "lapse_expiry_lag_seconds",
            "How long an item had been due when it was removed: each item, or the oldest of a round",
            ["domain"],
            buckets=_LAG_BUCKETS,
            registry=self._registry,
        )
        self._lag_of = cache(self._lag.labels)
        self._decisions = self._counter(
            "lapse_decisions", "Decisions, one for each look at an item", "domain", "verdict"
        )
        self._decisions_of = cache(self._decisions.labels)
        self._held = self._gauge("lapse_held", "Items that are due and held", "domain")
        self._held_parts: dict[str, dict[str, int]] = {}
        self._frozen = self._gauge(
            "lapse_frozen", "Whether the domain is frozen: nothing of it is ended until lapse resume is run", "domain"
        )
        self._signal_up = self._gauge(
            "lapse_signal_up", "Whether a signal that decisions need was known at the last look", "source"
        )
        self._next_expiry = self._gauge(
            "lapse_next_expiry_timestamp_seconds",
            "When the next item must be looked at; 0 when there is none",
            "domain",
        )
        self._further: dict[tuple[str, str], Counter] = {}
        self._leader = self._gauge("lapse_leader", "Whether this process leads")
        self._errors = self._counter("lapse_errors", "Failures, by domain and kind", "domain", "kind")
        self._duration = Histogram(
            "lapse_loop_duration_seconds",
            "How long a tick took",
            ["loop"],
            buckets=_TICK_BUCKETS,
            registry=self._registry,
        )
        self._restarts: Counter | None = None
        self._last_success = self._gauge(
            "lapse_loop_last_success_timestamp_seconds",
            "When a tick last succeeded; 0 before the first, and while another process runs the loop",
            "loop",
        )
        self._interval = self._gauge(
            "lapse_loop_interval_seconds", "The longest time between two ticks, when nothing is due earlier", "loop"
        )

        self._login_failures = self._counter(
            "lapse_login_failures", "Tokens, tickets and sessions that were refused", "proof"
        )

    def expect_logins(self, proofs: Iterable[str]) -> None:
        """Set every series of failed log-ins to zero."""
        for proof in proofs:
            self._login_failures.labels(proof)

    def login_failed(self, proof: str) -> None:
        """Count a token, ticket or session that was refused."""
        self._login_failures.labels(proof).inc()

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(name, meaning, labels, registry=self._registry)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(name, meaning, labels, registry=self._registry)

    def expect_domain(self, domain: str, *, reasons: Iterable[Reason]) -> None:
        """Set every series of a domain to zero."""
        for reason in reasons:
            self._deletions.labels(domain, reason)
        for kind in ErrorKind:
            self._errors.labels(domain, kind)
        self._lag.labels(domain)

    def expect_passes(self, domain: str, *, reasons: Iterable[Reason]) -> None:
        """Set every series of a domain that decides item by item, at times of its own, to zero."""
        self.expect_domain(domain, reasons=reasons)
        for verdict in _VERDICTS:
            self._decisions.labels(domain, verdict)
        self._held.labels(domain)

    def expect_sweep(self, domain: str, *, reasons: Iterable[Reason]) -> None:
        """Set every series of a domain that decides item by item, when each is due, to zero."""
        self.expect_passes(domain, reasons=reasons)
        self._next_expiry.labels(domain)

    def count_also(self, name: str, help_text: str, *, domain: str, reason: Reason) -> None:
        """Count what is deleted for one reason under a second name: one that dashboards elsewhere know already."""
        if (domain, reason) in self._further:
            return
        counter = Counter(name, help_text, ["reason"], registry=self._registry)
        counter.labels(reason)
        self._further[domain, reason] = counter

    def expect_frozen(self, domains: Iterable[str]) -> None:
        """Set every series of what can be frozen to zero."""
        for domain in domains:
            self._frozen.labels(domain)

    def expect_signal(self, source: str) -> None:
        """Set the series of a signal to zero: nothing is known before the first look."""
        self._signal_up.labels(source)

    def expect_restarts(self) -> None:
        """Set the series of programs that end by themselves to zero."""
        if self._restarts is None:
            meaning = "Programs of workspaces that ended by themselves and are started again"
            self._restarts = self._counter("lapse_workspace_restarts", meaning)

    def expect_loops(self, intervals: Mapping[str, float]) -> None:
        """Set every series of these loops to zero, and tell how many seconds lie between two ticks of each."""
        for name, seconds in intervals.items():
            self._duration.labels(name)
            self._last_success.labels(name)
            self._interval.labels(name).set(seconds)

    def deleted(self, domain: str, reason: Reason, *, count: int, lags: Iterable[float] = ()) -> None:
        """Count what was let lapse; ``lags`` tell for how many seconds it had been due: all of it, or the oldest."""
        self._deletions_of(domain, reason).inc(count)
        if further := self._further.get((domain, reason)):
            further.labels(reason).inc(count)
        observe = self._lag_of(domain).observe
        for lag in lags:
            observe(lag)

    def decided(self, domain: str, verdict: str, *, count: int = 1) -> None:
        """Count decisions: due, keep or unknown."""
        self._decisions_of(domain, verdict).inc(count)

    def holding(self, domain: str, count: int, *, part: str = "") -> None:
        """Tell how many items are due and held: in a domain, or in one of its parts, which add up."""
        parts = self._held_parts.setdefault(domain, {})
        parts[part] = count
        self._held.labels(domain).set(sum(parts.values()))

    def frozen(self, domain: str, *, frozen: bool) -> None:
        """Tell whether a domain stands still until somebody resumes it."""
        self._frozen.labels(domain).set(frozen)

    def signal(self, source: str, *, up: bool) -> None:
        """Tell whether a signal that decisions need is known."""
        self._signal_up.labels(source).set(up)

    def expecting(self, domain: str, next_expiry: float | None) -> None:
        """Tell when the next item has to be looked at, in Unix time."""
        self._next_expiry.labels(domain).set(next_expiry or 0)

    def leading(self, *, leads: bool) -> None:
        """Tell whether this process leads."""
        self._leader.set(leads)

    def restarted(self) -> None:
        """Count a program that ended by itself and is started again."""
        if self._restarts is not None:
            self._restarts.inc()

    def failed(self, domain: str, kind: ErrorKind) -> None:
        """Count a failure."""
        self._errors.labels(domain, kind).inc()

    def ticked(self, loop: str, *, seconds: float, succeeded_at: float | None) -> None:
        """Record one tick; ``succeeded_at`` is Unix time, None when it failed."""
        self._duration.labels(loop).observe(seconds)
        if succeeded_at is not None:
            self._last_success.labels(loop).set(succeeded_at)

    def rested(self, loop: str) -> None:
        """Take back when a loop last succeeded: this process runs it no longer."""
        self._last_success.labels(loop).set(0)

    def exposition(self) -> bytes:
        """Print everything in the text format."""
        return generate_latest(self._registry)
