"""``lapse proxy``: the workspace proxy as a process of its own, as many as are needed. A composition root.

It shares workspaces, activity and keys with ``lapse up``, so all of them must be where both can reach them; and the
state folder, whose tokens it accepts and whose secret signs its sessions. Ends as ``lapse up`` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lapse.app.process import believed_clock, probes_listener, stay
from lapse.core.errors import UsageError

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from lapse.app.workspaces import WorkspaceParts
    from lapse.engine.running.coordinator import Coordinator
    from lapse.engine.running.metrics import Metrics
    from lapse.settings import LoadedSettings, Settings
    from lapse.web.server.listener import Endpoint


class ActivityNotSharedError(UsageError):
    """A separate proxy needs activity_url, as in redis://HOST:6379: no other process can count its connections."""


def run(loaded: LoadedSettings) -> int:
    """Serve until a signal comes."""
    return stay("lapse.proxy", loaded, _Process.open)


@dataclass(frozen=True)
class _Process:
    """Everything that is open, and what is built from it."""

    settings: Settings
    metrics: Metrics
    parts: WorkspaceParts
    probes: Endpoint
    coordinator: Coordinator

    @classmethod
    async def open(cls, loaded: LoadedSettings, stack: AsyncExitStack) -> _Process:
        """Open it all; ``stack`` closes it, last opened first."""
        from lapse import __version__
        from lapse.app import record as records
        from lapse.app.workspaces import WorkspaceParts, demand_shared_tickets, proxy_endpoint
        from lapse.core.clock import SystemClock
        from lapse.engine.running.coordinator import Coordinator
        from lapse.engine.running.logins import LoginAudit, LoginFailures
        from lapse.engine.running.metrics import Metrics
        from lapse.keys.aio import open_keys_async
        from lapse.web.auth.state import StateDatabase
        from lapse.web.server.listener import Endpoint
        from lapse.workspaces.model import DOMAIN

        settings, metrics = loaded.settings, Metrics(__version__)
        if not settings.activity_url:
            raise ActivityNotSharedError
        demand_shared_tickets(settings, "Name a store that both can reach")
        metrics.expect_errors(DOMAIN)
        endpoint = proxy_endpoint(settings, stack)
        probes = Endpoint(settings.probes_host, settings.probes_port, setting="probes")
        stack.callback(probes.close)
        state = stack.enter_context(StateDatabase(settings.state_dir))
        keys = await stack.enter_async_context(open_keys_async(settings.keys_url, sweep=False))
        machine = SystemClock()
        clock = believed_clock(settings, machine, metrics)
        objects = records.open_store(settings.state_dir, clock=clock)
        stack.push_async_callback(objects.close)
        server = await records.open_server(settings, stack)
        record = await records.open_shared_record(settings, objects, server)
        failures = LoginFailures(machine, metrics)
        audit = LoginAudit(failures, record.journal, domain=DOMAIN)
        stack.push_async_callback(audit.close)
        parts = await WorkspaceParts.open(
            settings,
            stack,
            endpoint=endpoint,
            store=await records.open_workspace_store(settings, server),
            keys=keys,
            state=state,
            clock=clock,
            failures=failures,
            metrics=metrics,
        )
        coordinator = Coordinator(clock=parts.clock, metrics=metrics, loops=[*parts.loops, audit])
        return cls(settings, metrics, parts, probes, coordinator)

    async def run(self) -> None:
        """Serve until the coordinator is told to stop."""
        import asyncio

        loop = asyncio.get_running_loop()
        probes = probes_listener(self, {"workspaces": lambda: self.parts.check(loop)})
        await self.coordinator.run([*self.parts.services, probes])

    def announce(self) -> None:
        """Tell where it listens."""
        from lapse.core.log import get_logger

        get_logger("lapse.proxy").info(
            "listening",
            proxy=self.parts.endpoint.url,
            suffix=self.settings.proxy_suffix,
            probes=self.probes.url,
        )
