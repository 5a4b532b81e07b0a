"""Webhooks of a process: who is told of which rows, by whoever leads in the store that the rows are about.

Rows of a state folder are told by the leader of that folder, rows of things in a database by the leader of that
database: so two machines with the same settings tell each event once. Every process that may lead needs the same
webhooks; one that has none tells nobody while it leads, and the next one goes on where it was left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.app.domains import ACTOR
from lapse.core.errors import UsageError
from lapse.domains import REGISTRY
from lapse.engine.journal.port import AUDIT, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AsyncExitStack

    from lapse.app.record import ProcessRecord
    from lapse.core.clock import Clock
    from lapse.engine.journal.expiring import ExpiryWarnings, UpcomingDomain
    from lapse.engine.journal.outbox import Outbox, Store, WebhookLoop
    from lapse.engine.journal.port import Journal
    from lapse.engine.journal.webhook import Receiver, Webhook
    from lapse.engine.running.coordinator import Loop
    from lapse.engine.running.metrics import Metrics
    from lapse.objects.embedded import EmbeddedStore
    from lapse.settings import Settings

FOLDER: Final[Store] = "folder"
DATABASE: Final[Store] = "database"
_FURTHER: Final = ("all", AUDIT)
"""What rows may be about that is no domain: all of them, and what people did."""


_NO_DOMAINS: Final[Mapping[str, UpcomingDomain[Any]]] = {}
_SHARED: Final = tuple(one.name for one in REGISTRY.built_in if one.is_in_database)
"""The domains whose things are in the database, where there is one."""


class WebhookDomainError(UsageError):
    """The webhook {name} asks for the domain {given}, which does not exist. Expected {known}."""


class WebhooksInLogError(UsageError):
    """Webhooks are told what the journal says, and the journal of this process is its log, which cannot be read.

    Leave webhooks out, or run a process that keeps its journal in a database: set database_url.
    """


def check_webhooks(settings: Settings) -> None:
    """Look at what can be wrong with webhooks: domains, secrets and certificates. Raises a `UsageError`."""
    known = (*(one.name for one in REGISTRY.built_in), *REGISTRY.installed_names(), *_FURTHER)
    for webhook in settings.webhooks:
        for given in webhook.domains:
            if given not in known:
                raise WebhookDomainError(name=webhook.name, given=given, known=", ".join(known))
        webhook.secrets()


def refuse_webhooks(settings: Settings) -> None:
    """Refuse webhooks where the journal is the log; raises `WebhooksInLogError`."""
    if settings.webhooks:
        raise WebhooksInLogError


class Webhooks:
    """The webhooks of one process, which share the connections to each receiver."""

    def __init__(
        self, settings: Settings, stack: AsyncExitStack, *, machine: Clock, clock: Clock, metrics: Metrics
    ) -> None:
        """Connect to nothing yet; ``stack`` closes what is opened.

        Requests are signed with the time of ``machine``, which receivers compare with theirs; what lapses soon is
        decided by ``clock``. Raises `WebhookSecretError` and `DeliveryError`.
        """
        from lapse import __version__

        self._webhooks, self._machine, self._metrics = settings.webhooks, machine, metrics
        self._before, self._clock = settings.expiry_warning, clock
        self._receivers: Mapping[str, Receiver] = {
            one.name: _receiver(one, stack, machine, f"lapse/{__version__}") for one in settings.webhooks
        }

    async def of_folder(
        self, record: ProcessRecord, store: EmbeddedStore, domains: Mapping[str, UpcomingDomain[Any]]
    ) -> list[Loop]:
        """Return what tells of a state folder, whose objects are in ``store``; for the leader of that folder."""
        from lapse.engine.journal.outbox import Outbox

        if not self._webhooks:
            return []
        name = await record.safety.name()
        source = await type(record).in_folder(store).safety.name()
        without = () if record.server is None else _SHARED
        outbox = Outbox(record.journal, record.safety, record=name, source=source, without=without)
        own = [one for name, one in domains.items() if name not in without]
        return [*self._loops(outbox), *self._warnings(own, record.journal)]

    async def of_database(
        self, record: ProcessRecord, domains: Mapping[str, UpcomingDomain[Any]] = _NO_DOMAINS
    ) -> list[Loop]:
        """Return what tells of things in the database, if the record is in one; for the leader of that."""
        from lapse.engine.journal.outbox import Outbox

        if not self._webhooks or record.server is None:
            return []
        here = type(record).on_server(record.server)
        name = await here.safety.name()
        outbox = Outbox(here.journal, here.safety, record=name, source=name, store=DATABASE)
        shared = [one for name, one in domains.items() if name in _SHARED]
        return [*self._loops(outbox), *self._warnings(shared, record.journal, DATABASE)]

    def _warnings(
        self, domains: Sequence[UpcomingDomain[Any]], journal: Journal, store: Store = FOLDER
    ) -> list[ExpiryWarnings]:
        from lapse.engine.journal.expiring import ExpiryWarnings

        wanted = any(not one.events or Outcome.EXPIRING in one.events for one in self._webhooks)
        if not wanted or self._before.is_never or not domains:
            return []
        return [
            ExpiryWarnings(
                domains,
                store=store,
                before=self._before.seconds,
                journal=journal,
                clock=self._clock,
                metrics=self._metrics,
                actor=ACTOR,
            )
        ]

    def _loops(self, outbox: Outbox) -> list[WebhookLoop]:
        from lapse.engine.journal.outbox import WebhookLoop

        return [
            WebhookLoop(one, self._receivers[one.name], outbox, clock=self._machine, metrics=self._metrics)
            for one in self._webhooks
        ]


def _receiver(webhook: Webhook, stack: AsyncExitStack, machine: Clock, user_agent: str) -> Receiver:
    from lapse.engine.journal.webhook import Receiver

    receiver = Receiver(webhook, clock=machine, user_agent=user_agent)
    stack.callback(receiver.close)
    return receiver
