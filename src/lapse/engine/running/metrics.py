"""Metrics: what a monitoring system may ask of a running process, in Prometheus' form.

Prefix ``lapse_``, base units, no object names as labels. Every combination of labels stands at zero from the start,
so that an alert on an increase sees the first event. Labels are bounded: whatever clients send, no series is added.
Only what is really fed is here: a metric that is always zero would be a promise. So a process has the series of its
own parts only, and what is known for nothing (the clock, budgets, open websockets) is read when somebody asks.

Beside them stand the ``process_`` metrics that other programs have as well: processor time, memory, files. They are
there on Linux only.
"""

from __future__ import annotations

import platform
from enum import StrEnum
from functools import cache, cached_property
from http import HTTPMethod
from typing import TYPE_CHECKING, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from lapse.engine.journal.port import DeletionReason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from lapse.core.decision import Reason

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# From a slice of a sweep to a round that is stuck.
_TICK_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60)
# From a sweep that keeps up to a process that was down for days.
_LAG_BUCKETS: Final = (0.5, 1, 2, 5, 10, 30, 60, 300, 1_800, 3_600, 21_600, 86_400)
# From a key that is read to a capture that somebody waits for.
_ANSWER_BUCKETS: Final = (0.005, 0.025, 0.1, 0.5, 2.5, 10)
# When each counter began is known to who scrapes; as series of their own these were a quarter of all that is sent.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's own


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
        ProcessCollector(registry=self._registry)
        # `..._of`: every item that is decided and ended asks for its series, and to look one up costs more than to add.
        self._gauge("lapse_build_info", "The version that runs; always 1", "version", "python").labels(
            version, platform.python_version()
        ).set(1)
        self._deletions = self._counter("lapse_deletions", "Items that were ended, by reason", "domain", "reason")
        self._deletions_of = cache(self._deletions.labels)
        meaning = "How long an item had been due when it was removed: each item, or the oldest of a round"
        self._lag = self._histogram("lapse_expiry_lag_seconds", meaning, "domain", buckets=_LAG_BUCKETS)
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
        self._waiting = self._gauge("lapse_policies_waiting", "Policies that end nothing until approved", "domain")
        self.signals: dict[str, bool] = {}
        """By source, whether it was known at the last look."""
        self._signal_up = self._gauge(
            "lapse_signal_up", "Whether a signal that decisions need was known at the last look", "source"
        )
        self._next_expiry = self._gauge(
            "lapse_next_expiry_timestamp_seconds",
            "When the next item must be looked at, of history and retention the next pass; 0 when there is none",
            "domain",
        )
        self._further: dict[tuple[str, str], Counter] = {}
        self._errors = self._counter("lapse_errors", "Failures, by domain and kind", "domain", "kind")
        self._duration = self._histogram(
            "lapse_loop_duration_seconds", "How long a tick took", "loop", buckets=_TICK_BUCKETS
        )
        self._last_success = self._gauge(
            "lapse_loop_last_success_timestamp_seconds",
            "When a tick last succeeded; 0 before the first, and while another process runs the loop",
            "loop",
        )
        self._interval = self._gauge(
            "lapse_loop_interval_seconds", "The longest time between two ticks, when nothing is due earlier", "loop"
        )
        self._budget = self._gauge(
            "lapse_deletion_budget", "Most acts in a window; all: of every domain together", "domain"
        )
        self._budget_remaining = self._gauge(
            "lapse_deletion_budget_remaining",
            "Acts that may still be done now; the domain is frozen when there are none",
            "domain",
        )
        self._workspaces = self._gauge("lapse_workspaces", "Workspaces that there are, by what was last seen", "status")
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

    def _histogram(self, name: str, meaning: str, *labels: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, meaning, labels, buckets=buckets, registry=self._registry)

    def http(self, routes: Iterable[tuple[str, str]]) -> HTTPMetrics:
        """Return the metrics of the listener that a process has beside its probes, by methods and routes; once."""
        return HTTPMetrics(self._registry, routes)

    @cached_property
    def proxy(self) -> ProxyMetrics:
        """The metrics of the workspace proxy, in processes that have one."""
        return ProxyMetrics(self._registry)

    @cached_property
    def webhooks(self) -> WebhookMetrics:
        """The metrics of deliveries, in processes that have webhooks."""
        self._errors.labels("webhooks", ErrorKind.TICK)
        return WebhookMetrics(self._registry)

    # Without labels a metric is shown as soon as it is made: these are made by the processes that feed them.

    @cached_property
    def _leader(self) -> Gauge:
        return self._gauge("lapse_leader", "Whether this process leads")

    @cached_property
    def _clock_in_doubt(self) -> Gauge:
        return self._gauge("lapse_clock_in_doubt", "Whether it is not known what time it is; nothing is ended then")

    @cached_property
    def _keys_stored(self) -> Gauge:
        return self._gauge("lapse_keys_stored", "Keys that are stored, expired ones that are not removed yet included")

    @cached_property
    def _restarts(self) -> Counter:
        meaning = "Programs of workspaces that ended by themselves and are started again"
        return self._counter("lapse_workspace_restarts", meaning)

    def expect_domain(self, domain: str, *, reasons: Iterable[Reason]) -> None:
        """Set every series of a domain to zero."""
        self.expect_errors(domain)
        for reason in reasons:
            self._deletions.labels(domain, reason)
        self._lag.labels(domain)

    def expect_errors(self, domain: str) -> None:
        """Set the series of failures to zero: all that a process has of a domain of which it ends nothing."""
        for kind in ErrorKind:
            self._errors.labels(domain, kind)

    def expect_passes(self, domain: str, *, reasons: Iterable[Reason]) -> None:
        """Set every series of a domain that decides item by item to zero."""
        self.expect_domain(domain, reasons=[*reasons, DeletionReason.BY_PERSON])
        for verdict in _VERDICTS:
            self._decisions.labels(domain, verdict)
        self._held.labels(domain)

    def expect_sweep(self, domain: str, *, reasons: Iterable[Reason]) -> None:
        """Set every series of a domain that decides item by item, and knows its next time to look, to zero."""
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

    def expect_waiting(self, domains: Iterable[str]) -> None:
        """Set every series of policies that wait to zero."""
        for domain in domains:
            self._waiting.labels(domain)

    def expect_signal(self, source: str) -> None:
        """Set the series of a signal to zero: nothing is known before the first look."""
        self._signal_up.labels(source)
        self.signals.setdefault(source, False)

    def expect_restarts(self) -> None:
        """Set the series of programs that end by themselves to zero."""
        self._restarts.inc(0)

    def watch_clock(self, in_doubt: Callable[[], bool]) -> None:
        """Ask whether the clock is in doubt, at each scrape."""
        self._clock_in_doubt.set_function(in_doubt)

    def watch_budget(self, domain: str, most: int, remaining: Callable[[], int]) -> None:
        """Tell a deletion budget, and ask what is left of it at each scrape."""
        self._budget.labels(domain).set(most)
        self._budget_remaining.labels(domain).set_function(remaining)

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

    def waiting(self, domain: str, count: int) -> None:
        """Tell how many policies of a domain wait for a person's word."""
        self._waiting.labels(domain).set(count)

    def signal(self, source: str, *, up: bool) -> None:
        """Tell whether a signal that decisions need is known."""
        self._signal_up.labels(source).set(up)
        self.signals[source] = up

    def expecting(self, domain: str, next_expiry: float | None) -> None:
        """Tell when the next item has to be looked at, in Unix time."""
        self._next_expiry.labels(domain).set(next_expiry or 0)

    def leading(self, *, leads: bool) -> None:
        """Tell whether this process leads."""
        self._leader.set(leads)

    def restarted(self) -> None:
        """Count a program that ended by itself and is started again."""
        self._restarts.inc()

    def keys_stored(self, count: int) -> None:
        """Tell how many keys are stored."""
        self._keys_stored.set(count)

    def workspaces(self, counts: Iterable[tuple[str, int]]) -> None:
        """Tell how many workspaces there are, by status."""
        for status, count in counts:
            self._workspaces.labels(status).set(count)

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


def status_class(status: int) -> str:
    """Return the class of an HTTP status, such as ``4xx``."""
    return f"{status // 100}xx"


_STATUS_CLASSES: Final = ("2xx", "3xx", "4xx", "5xx")
UNMATCHED: Final = "unmatched"
"""The route of requests that reach none: there is no such route, or the request is refused before."""
OTHER: Final = "other"
"""The method of requests whose method is none of HTTP."""
_METHODS: Final = (*map(str, HTTPMethod), OTHER)


class HTTPMetrics:
    """Requests to one listener and how long they waited for their answers, by the templates of routes."""

    def __init__(self, registry: CollectorRegistry, routes: Iterable[tuple[str, str]]) -> None:
        """Set every series to zero: those of ``routes``, each with its method, and of requests that reach none."""
        requests = Counter(
            "lapse_http_requests",
            "HTTP requests that were answered, by method, route and class of the status",
            ["method", "route", "status"],
            registry=registry,
        )
        duration = Histogram(
            "lapse_http_request_duration_seconds",
            "From the head of an HTTP request to the head of its answer",
            ["method", "route"],
            buckets=_ANSWER_BUCKETS,
            registry=registry,
        )
        known = dict.fromkeys([*routes, *((method, UNMATCHED) for method in _METHODS)])
        self._requests = {(*one, status): requests.labels(*one, status) for one in known for status in _STATUS_CLASSES}
        self._duration = {one: duration.labels(*one) for one in known}

    def answered(self, method: str, route: str, status: int, *, seconds: float) -> None:
        """Count a request; one with a method and a route that are not known is counted as unmatched."""
        one = (method, route)
        if one not in self._duration:
            one = (method if method in _METHODS else OTHER, UNMATCHED)
        self._requests[(*one, status_class(status))].inc()
        self._duration[one].observe(seconds)


class UpstreamFailure(StrEnum):
    """Why a workspace's answer could not be passed on."""

    UNREACHABLE = "unreachable"
    """Its program takes no connection."""
    SILENT = "silent"
    """It does not answer in time."""
    CUT = "cut"
    """It ends the connection before its answer, or in the middle of it."""
    INVALID = "invalid"
    """Its answer is not one that may be passed on."""


class ProxyMetrics:
    """Requests to the workspace proxy, by classes of status: which workspace was asked for is not told."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Set every series to zero."""
        requests = Counter(
            "lapse_proxy_requests",
            "Requests that the workspace proxy answered, by class of the status; 1xx: a websocket began",
            ["status"],
            registry=registry,
        )
        self._requests = {status: requests.labels(status) for status in ("1xx", *_STATUS_CLASSES)}
        failures = Counter(
            "lapse_proxy_upstream_failures",
            "Answers of workspaces that the proxy could not pass on",
            ["reason"],
            registry=registry,
        )
        self._failures = {reason: failures.labels(reason) for reason in UpstreamFailure}
        self._websockets = Gauge(
            "lapse_proxy_websockets", "Websockets that are open through this process", registry=registry
        )

    def answered(self, status: int) -> None:
        """Count an answer; those of a status that HTTP does not have are counted as 5xx."""
        self._requests.get(status_class(status), self._requests["5xx"]).inc()

    def failed(self, reason: UpstreamFailure) -> None:
        """Count an answer that could not be passed on."""
        self._failures[reason].inc()

    def connected(self, websockets: int) -> None:
        """Tell how many websockets are open."""
        self._websockets.set(websockets)


class DeliveryResult(StrEnum):
    """What came of an event for a webhook."""

    DELIVERED = "delivered"
    FAILED = "failed"
    """An attempt; it is tried again."""
    UNDELIVERED = "undelivered"
    """It is not tried again."""


class WebhookMetrics:
    """Deliveries to webhooks, by their names in the settings, and by the store that events are about."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register them; a webhook has its series after `expect`."""
        told = "Events: delivered, attempts that failed, and events that were left out"
        labels = ["webhook", "store", "result"]
        self._deliveries = Counter("lapse_webhook_deliveries", told, labels, registry=registry)
        waited = "How long the first event has waited that a webhook has not taken"
        self._lag = Gauge("lapse_webhook_lag_seconds", waited, ["webhook", "store"], registry=registry)

    def expect(self, webhook: str, store: str) -> None:
        """Set every series of a webhook to zero."""
        for result in DeliveryResult:
            self._deliveries.labels(webhook, store, result)
        self._lag.labels(webhook, store)

    def count(self, webhook: str, store: str, result: DeliveryResult) -> None:
        """Count an event, or an attempt."""
        self._deliveries.labels(webhook, store, result).inc()

    def lag(self, webhook: str, store: str, seconds: float) -> None:
        """Tell how long the first event has waited that a webhook has not taken."""
        self._lag.labels(webhook, store).set(seconds)


class GaugeLoop:
    """A `lapse.engine.running.coordinator.Loop` that reads what a gauge shows: not at each scrape, as that costs."""

    leader_only: Final = False

    def __init__(self, name: str, read: Callable[[], Awaitable[None]], *, domain: str, interval: float) -> None:
        """Let ``read`` look and set the gauge; failures are those of ``domain``."""
        self.name, self.domain, self.interval = name, domain, interval
        self._read = read

    async def tick(self) -> float | None:
        """Look once."""
        await self._read()
        return None
