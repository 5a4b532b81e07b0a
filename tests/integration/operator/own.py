"""A control plane of one's own that may be hurt, and one operator on it, behind a relay, as `deploy/base` runs it."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from lapse.kube.api.client import KubeClient
from lapse.kube.auth.config import load_config
from lapse.kube.controller.lease import LEASE
from lapse.objects.kubernetes import KubernetesStore
from lapse.requests.api.upstream import ALL_KINDS
from tests.integration.operator.audit import Audit
from tests.integration.operator.deployed import ACCOUNT, NAMESPACE, apply_base, start_operator
from tests.servers import Relay, kube_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.operator.conftest import Operator
    from tests.servers import KubeServer

BINDING = "lapse"
"""What gives the ServiceAccount all its rights but that to the Lease."""
CAPTURED = "captured"
"""What lets it read what these tests capture the manifests of: that is for whoever runs a cluster to say."""
CAPTURED_KINDS = (
    "configmaps,secrets,serviceaccounts,roles.rbac.authorization.k8s.io,rolebindings.rbac.authorization.k8s.io,"
    "widgets.test.lapse.dev"
)


class Own:
    """See the module."""

    def __init__(self, kube: KubeServer, relay: Relay, audit: Audit, folder: Path) -> None:
        self.kube, self.relay, self.audit = kube, relay, audit
        self._folder = folder
        apply_base(kube)
        kube.kubectl("create", "clusterrole", CAPTURED, "--verb=get", f"--resource={CAPTURED_KINDS}")
        self._bind(CAPTURED)
        self._policy: tuple[str, ...] = ()
        self._operator: Operator | None = None

    def operator(self, *policy: str) -> Operator:
        """The one operator, under this policy; the one before it has another policy, and is stopped."""
        if self._operator is None or policy != self._policy:
            self.stop()
            behind = self.kube.url.replace(f":{self.kube.port}", f":{self.relay.port}")
            self._operator, self._policy = start_operator(self.kube, self._folder, *policy, url=behind), policy
        return self._operator

    def stop(self) -> None:
        if self._operator is not None:
            self._operator.stop()
            self._operator = None

    def _bind(self, role: str) -> None:
        account = f"--serviceaccount={NAMESPACE}:{ACCOUNT}"
        self.kube.kubectl("create", "clusterrolebinding", role, f"--clusterrole={role}", account)

    def store(self) -> KubernetesStore:
        """The cluster as its administrator sees it, past the relay."""
        client = KubeClient(load_config(file=self.kube.kubeconfig, environ={}))
        return KubernetesStore(client, kinds=[*ALL_KINDS, LEASE])

    def deny(self) -> None:
        """Take all rights from the operator but that to its Lease."""
        self.kube.kubectl("delete", "clusterrolebinding", BINDING, CAPTURED)

    def allow(self) -> None:
        """Give them back."""
        for role in (BINDING, CAPTURED):
            self._bind(role)


@contextlib.contextmanager
def own_cluster() -> Iterator[Own]:
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="lapse-operator-"))
        stack.callback(shutil.rmtree, folder)
        audit = Audit(folder)
        # When it is told to end, it waits so long for its watches.
        flags = (*audit.flags, "--request-timeout=6s")
        kube = stack.enter_context(kube_server(csi=True, apiserver_flags=flags))
        relay = stack.enter_context(Relay(kube.port))
        own = Own(kube, relay, audit, folder)
        stack.callback(own.stop)
        yield own


def log_events(operator: Operator, name: str) -> list[dict[str, object]]:
    """What it logged under a name so far."""
    events = (json.loads(line) for line in list(operator.log) if line.startswith("{"))
    return [event for event in events if event["event"] == name]
