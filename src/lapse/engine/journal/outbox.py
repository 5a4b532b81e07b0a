"""The outbox: delivers the events of a journal to webhooks, at least once, in their order for each thing.

There is no table of events that wait: the journal is the queue, and a webhook is a position in it, which is stored
beside the journal after the rows before it were delivered. So a receiver that is down for days costs neither memory nor
storage, and a process that is killed between a delivery and its position delivers again, under the same id.

Each webhook is a loop of its own, of the leader. It reads a page of rows, sends those that the webhook wants, several
at once but for rows about one thing, and goes on. A receiver that fails stops its own webhook, with a growing, bounded
wait, and no other; meanwhile one event at a time is tried. An event that was tried for ``give_up_after`` is left out:
a row of the journal tells so (`Outcome.UNDELIVERED`), beside a metric and a line in the log. How long it was tried is
counted by a clock that does not jump, while a process tries.

A webhook begins with what happens after its first start. Not guaranteed: that an event is delivered once only; an order
between things; that rows are still there which ``journal_ttl`` has removed before a receiver took them; and, where the
wall clock was set back before a state folder joined a database, that the rows of that time are delivered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from lapse.core.decision import Reason
from lapse.core.jitter import Chance, backoff, chance
from lapse.core.log import current_work, get_logger
from lapse.engine.journal.events import event_id, event_of, item_of
from lapse.engine.journal.port import BEGINNING, Entry, Outcome, RowPosition, domain_about
from lapse.engine.journal.webhook import DeliveryError, WebhookSecretError
from lapse.engine.running.metrics import DeliveryResult
from lapse.engine.view import Moment

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lapse.core.clock import Clock
    from lapse.engine.journal.port import Journal, Row
    from lapse.engine.journal.webhook import Receiver, Webhook
    from lapse.engine.running.coordinator import Turn
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.freeze import Notes

Store = Literal["folder", "database"]
"""Where the things are that rows are about: in a state folder, or in the database of the record."""
DOMAIN: Final = "webhooks"
"""A label of metrics, and the domain of rows about events that were not delivered. Nothing of it lapses."""
INTERVAL_SECONDS: Final = 1.0
"""How often the journal is asked for new rows."""
PAGE: Final = 128
WIDTH: Final = 8
"""Deliveries at once to one webhook."""
_FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 600.0
_LONGEST_ASKED_SECONDS: Final = 3_600.0
"""The longest wait that a receiver may ask for."""
_NS: Final = 1_000_000_000
_log = get_logger("lapse.engine.journal.outbox")


class DeliveryReason(Reason):
    """Why an event is left out."""

    NOT_TAKEN = "not_taken"
    """It was tried for as long as the webhook's ``give_up_after`` says."""


class FailingEvent(msgspec.Struct, frozen=True):
    """The first event that a webhook has not taken."""

    id: str
    attempts: int = 1
    tried_ns: int = 0
    """For how long it has been tried."""


class WebhookPosition(msgspec.Struct, frozen=True):
    """How far a webhook is in a journal, as it is stored."""

    record: str
    """The name of the record that has the journal; in another one the same rows have other places."""
    after: str
    """A `RowPosition`: all rows up to it were delivered, or need not be."""
    time_ns: int
    """The time of that row, or of the first start."""
    failing: FailingEvent | None = None


class WebhookView(msgspec.Struct, frozen=True):
    """A webhook, as the leader knows it."""

    name: str
    state: Literal["delivering", "failing", "gone"]
    since: Moment | None
    """The time of the first row that waits for it; None where none does."""
    attempts: int
    """How often the first event that waits was tried."""
    problem: str


def loop_name(name: str, store: Store) -> str:
    """Return the name of a loop about a store: a process may have one for each."""
    return name if store == "folder" else f"{store}-{name}"


def note_of(webhook: str) -> str:
    """Return the name of the note with the position of a webhook."""
    return f"webhook {webhook}"


class Outbox:
    """A journal as a webhook reads it: the rows of one record, or of one store in it."""

    def __init__(
        self,
        journal: Journal,
        notes: Notes,
        *,
        record: str,
        source: str,
        store: Store = "folder",
        without: Collection[str] = (),
    ) -> None:
        """Read nothing yet.

        ``record`` is the name of the record that has the rows, ``source`` that of the ``store`` which they are about.
        Rows of the domains ``without`` are left to another outbox, that of the store which has them.
        """
        self.journal, self.source, self.store, self._record = journal, source, store, record
        self._notes, self._without = notes, frozenset(without)

    def has(self, row: Row) -> bool:
        """Whether a row is one of this store."""
        return domain_about(row) not in self._without

    async def position(self, webhook: str, now: int) -> WebhookPosition:
        """Return where a webhook goes on: behind all rows, the first time."""
        text = await self._notes.read_note(note_of(webhook))
        end = await self.journal.end()
        if not text:
            return await self.write(webhook, WebhookPosition(self._record, str(end), now))
        found = msgspec.json.decode(text, type=WebhookPosition)
        if found.record == self._record:
            return found
        # The rows were moved here. What was delivered last is delivered again, rather than something never.
        first = await self.journal.entries(after=BEGINNING, since_ns=found.time_ns, limit=1)
        after = first[0].place._replace(id=first[0].id - 1) if first else end
        return await self.write(webhook, WebhookPosition(self._record, str(after), found.time_ns))

    async def write(self, webhook: str, position: WebhookPosition) -> WebhookPosition:
        """Store how far a webhook is, and return it. One that is too early only repeats."""
        await self._notes.write_note(note_of(webhook), msgspec.json.encode(position).decode())
        return position


class WebhookLoop:
    """A `lapse.engine.running.coordinator.Loop` that delivers to one webhook. One at a time, wherever it runs."""

    domain: Final = DOMAIN
    leader_only: Final = True
    interval: Final = INTERVAL_SECONDS

    def __init__(
        self,
        webhook: Webhook,
        receiver: Receiver,
        outbox: Outbox,
        *,
        clock: Clock,
        metrics: Metrics,
        chance: Chance = chance,
    ) -> None:
        """Set every metric of the webhook to zero; nothing is read before a tick."""
        self.name = loop_name(f"webhook-{webhook.name}", outbox.store)
        self._webhook, self._receiver, self._outbox = webhook, receiver, outbox
        self._clock, self._metrics, self._chance = clock, metrics, chance
        self._turn: Turn | None = None
        self._position: WebhookPosition | None = None
        self._ahead: set[str] = set()
        """Events behind the position that were delivered already: at most those of a page."""
        self._failed_at_ns: int | None = None
        self._problem: Exception | None = None
        self._waiting_since: Moment | None = None
        metrics.webhooks.expect(webhook.name, outbox.store)

    def begin(self, turn: Turn) -> None:
        """See `lapse.engine.running.coordinator.Steered`: what another leader has delivered is read anew."""
        self._turn, self._position, self._failed_at_ns = turn, None, None
        self._ahead.clear()

    def view(self) -> WebhookView:
        """Return how it goes."""
        failing = None if self._position is None else self._position.failing
        is_gone = isinstance(self._problem, DeliveryError) and self._problem.is_gone
        return WebhookView(
            self._webhook.name,
            "delivering" if failing is None else "gone" if is_gone else "failing",
            self._waiting_since,
            0 if failing is None else failing.attempts,
            "" if self._problem is None else str(self._problem),
        )

    async def tick(self) -> float | None:
        """Deliver a page; return the seconds to the next one."""
        position = self._position
        if position is None:
            position = await self._outbox.position(self._webhook.name, self._clock.wall_ns())
        self._position = position
        rows = await self._outbox.journal.entries(after=RowPosition.parse(position.after), limit=PAGE)
        waiting = [row for row in rows if self._is_waiting(row)]
        self._tell_lag(waiting)
        failure = await self._send(waiting, width=1 if position.failing is not None else WIDTH) if waiting else None
        done = next((place for place, row in enumerate(rows) if self._is_waiting(row)), len(rows))
        if failure is not None:
            return await self._failed(rows, done, failure, position)
        if done:
            await self._go_on(position, rows[:done])
        return 0.0 if rows else None

    def _is_waiting(self, row: Row) -> bool:
        """Whether a row is still to be sent."""
        return self._outbox.has(row) and self._webhook.wants(row) and event_id(row) not in self._ahead

    async def _send(self, rows: Sequence[Row], *, width: int) -> DeliveryError | WebhookSecretError | None:
        """Send rows, so many at once, until one fails; return how the first one failed."""
        try:
            secrets = await asyncio.to_thread(self._webhook.secrets)
        except WebhookSecretError as error:
            return error
        things: dict[str, list[Row]] = {}
        for row in rows:
            things.setdefault(item_of(row), []).append(row)
        queue, failures = deque(things.values()), list[DeliveryError]()

        async def work() -> None:
            while queue:
                for row in queue.popleft():
                    if failures or not (self._turn is None or self._turn.proceed()):
                        return
                    try:
                        await self._receiver.deliver(event_of(row, record=self._outbox.source), secrets)
                    except DeliveryError as error:
                        failures.append(error)
                        return
                    self._ahead.add(event_id(row))
                    self._count(DeliveryResult.DELIVERED)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(width, len(things))):
                group.create_task(work())
        return failures[0] if failures else None

    async def _go_on(self, position: WebhookPosition, rows: Sequence[Row], failing: FailingEvent | None = None) -> None:
        """Go on behind rows, which may be none, and store that."""
        after, time_ns = position.after, position.time_ns
        if rows:
            after, time_ns = str(rows[-1].place), rows[-1].time_ns
            self._ahead.difference_update(map(event_id, rows))
        if failing is None:
            self._problem, self._failed_at_ns = None, None
        changed = WebhookPosition(position.record, after, time_ns, failing)
        self._position = await self._outbox.write(self._webhook.name, changed)

    def _count(self, result: DeliveryResult) -> None:
        self._metrics.webhooks.count(self._webhook.name, self._outbox.store, result)

    def _tell_lag(self, waiting: Sequence[Row]) -> None:
        """Tell since when something waits for the receiver."""
        first_ns = waiting[0].time_ns if waiting else None
        self._waiting_since = Moment.of(first_ns)
        lag_ns = 0 if first_ns is None else max(0, self._clock.wall_ns() - first_ns)
        self._metrics.webhooks.lag(self._webhook.name, self._outbox.store, lag_ns / _NS)

    async def _failed(
        self, rows: Sequence[Row], done: int, error: DeliveryError | WebhookSecretError, position: WebhookPosition
    ) -> float:
        """Remember a failure, and leave an event out that was tried for too long; return the seconds to wait."""
        self._count(DeliveryResult.FAILED)
        failing = self._failing(rows[done], position.failing)
        self._problem, self._failed_at_ns = error, self._clock.monotonic_ns()
        tell = _log.warning if failing.attempts == 1 else _log.debug
        tell("webhook_failing", webhook=self._webhook.name, attempts=failing.attempts, reason=str(error))
        limit_ns = self._webhook.give_up_after.nanoseconds
        if limit_ns is not None and failing.tried_ns >= limit_ns:
            await self._leave_out(rows[done], failing, error)
            await self._go_on(position, rows[: done + 1])
            return 0.0
        await self._go_on(position, rows[:done], failing)
        wait = backoff(failing.attempts - 1, first=_FIRST_SECONDS, longest=LONGEST_SECONDS, chance=self._chance)
        if isinstance(error, DeliveryError):
            wait = max(wait, min(error.retry_after, _LONGEST_ASKED_SECONDS), LONGEST_SECONDS if error.is_gone else 0.0)
        return wait

    def _failing(self, row: Row, before: FailingEvent | None) -> FailingEvent:
        """Return the first event that was not taken, with what it has cost so far."""
        event = event_id(row)
        if before is None or before.id != event:
            return FailingEvent(event)
        # Only what this process has waited: nobody tried while none ran.
        passed_ns = 0 if self._failed_at_ns is None else self._clock.monotonic_ns() - self._failed_at_ns
        return FailingEvent(event, before.attempts + 1, before.tried_ns + passed_ns)

    async def _leave_out(self, row: Row, failing: FailingEvent, error: Exception) -> None:
        """Tell that an event is not sent again: before it is passed by, so that this never happens in silence."""
        told = {
            "webhook": self._webhook.name,
            "event_id": failing.id,
            "attempts": failing.attempts,
            "problem": str(error),
        }
        entry = Entry(
            time_ns=self._clock.wall_ns(),
            domain=DOMAIN,
            address=row.address,
            uid=row.uid,
            version=row.version,
            verdict="",
            reason=DeliveryReason.NOT_TAKEN,
            anchor_ns=None,
            policy="",
            actor=self.name,
            outcome=Outcome.UNDELIVERED,
            details=told,
            tick=current_work(),
        )
        await self._outbox.journal.append(entry)
        _log.error("event_undelivered", address=row.address, **told)
        self._count(DeliveryResult.UNDELIVERED)
