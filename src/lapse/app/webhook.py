"""``lapse webhook``: the admission webhook of requests and policies on a Kubernetes cluster. A composition root.

A process of its own beside the operator: it needs one right and no caches, every replica answers, and it must be there
also while no operator leads. Ends as ``lapse up`` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lapse.app.process import probes_listener, stay
from lapse.core.errors import UsageError

if TYPE_CHECKING:
    import asyncio
    from contextlib import AsyncExitStack

    from lapse.engine.running.coordinator import Coordinator
    from lapse.engine.running.metrics import Metrics
    from lapse.kube.api.client import KubeClient
    from lapse.settings import LoadedSettings, Settings
    from lapse.web.server.listener import Certificate, Endpoint


class NoCertificateError(UsageError):
    """An admission webhook needs a certificate: set {setting} (or --{flag}) to a file in PEM form."""


def run(loaded: LoadedSettings) -> int:
    """Serve until a signal comes."""
    return stay("lapse.webhook", loaded, _Process.open)


@dataclass(frozen=True)
class _Process:
    """Everything that is open, and what is built from it."""

    settings: Settings
    metrics: Metrics
    client: KubeClient
    certificate: Certificate
    endpoint: Endpoint
    probes: Endpoint
    coordinator: Coordinator

    @classmethod
    async def open(cls, loaded: LoadedSettings, stack: AsyncExitStack) -> _Process:
        """Open it all, and ask whether the cluster would answer; ``stack`` closes it, last opened first."""
        from lapse import __version__
        from lapse.app.cluster import look_over_for_webhook, open_client
        from lapse.core.clock import SystemClock
        from lapse.engine.running.coordinator import Coordinator
        from lapse.engine.running.metrics import Metrics
        from lapse.history.retention.passes import RETENTION
        from lapse.requests.expiry import DOMAIN
        from lapse.web.server.listener import Endpoint

        settings, clock, metrics = loaded.settings, SystemClock(), Metrics(__version__)
        for domain in (DOMAIN, RETENTION):
            metrics.expect_errors(domain)
        certificate = _certificate(settings, domain=DOMAIN)
        endpoint = Endpoint(settings.webhook_host, settings.webhook_port, setting="webhook", scheme="https")
        stack.callback(endpoint.close)
        probes = Endpoint(settings.probes_host, settings.probes_port, setting="probes")
        stack.callback(probes.close)
        client = open_client(settings, clock=clock)
        stack.push_async_callback(client.close)
        await look_over_for_webhook(client)
        coordinator = Coordinator(clock=clock, metrics=metrics, loops=[certificate])
        return cls(settings, metrics, client, certificate, endpoint, probes, coordinator)

    async def run(self) -> None:
        """Answer until the coordinator is told to stop."""
        import asyncio

        from lapse.history.policy.admission import PolicyJudge
        from lapse.history.policy.rbac import impersonation
        from lapse.requests.admission import RequestJudge
        from lapse.web.api.webhook import IDLE_SECONDS, POLICIES, REQUESTS, create_webhook
        from lapse.web.api.webhook import Judge as Judged
        from lapse.web.server.listener import Listener

        loop, settings = asyncio.get_running_loop(), self.settings
        account = impersonation(settings.lease_namespace, settings.retention_account)
        judges: dict[str, Judged] = {
            REQUESTS: RequestJudge(self.client),
            POLICIES: PolicyJudge(self.client, impersonation=account),
        }
        listener = Listener(
            "webhook",
            create_webhook(judges, self.metrics),
            self.endpoint,
            tls=self.certificate.context,
            idle_seconds=IDLE_SECONDS,
        )
        probes = probes_listener(self, {"cluster": lambda: self.check(loop)})
        await self.coordinator.run([listener, probes])

    def check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raise a `LapseError` unless the API server answers. Blocks, beside ``loop``."""
        import asyncio

        from lapse.web.server.probes import CHECK_SECONDS

        # Bounded, because a process that ends waits for its threads.
        asyncio.run_coroutine_threadsafe(self.client.check(), loop).result(CHECK_SECONDS)

    def announce(self) -> None:
        """Tell where it listens, and which cluster it asks."""
        from lapse.core.log import get_logger
        from lapse.web.api.webhook import POLICIES, REQUESTS

        get_logger("lapse.webhook").info(
            "listening",
            webhook=self.endpoint.url + REQUESTS,
            policies=self.endpoint.url + POLICIES,
            probes=self.probes.url,
            cluster=self.client.config.cluster.place,
        )


def _certificate(settings: Settings, *, domain: str) -> Certificate:
    from pathlib import Path

    from lapse.web.server.listener import Certificate

    for setting in ("webhook_cert_file", "webhook_key_file"):
        if not getattr(settings, setting):
            raise NoCertificateError(setting=setting, flag=setting.replace("_", "-"))
    files = (Path(name).expanduser() for name in (settings.webhook_cert_file, settings.webhook_key_file))
    return Certificate(*files, domain=domain)
