"""A real ``lapse webhook`` that the shared control plane asks about one namespace, and about no other."""

from __future__ import annotations

import base64
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
import yaml

from lapse.core.identity import uuid
from tests.servers.certificate import Authority, make_authority
from tests.servers.kube.server import KubectlError
from tests.servers.lapse_server import LapseServer, until
from tests.servers.progress import tell_stderr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import KubeServer

Json = dict[str, Any]
DEPLOY = Path(__file__).parents[3] / "deploy"
COMPONENT = DEPLOY / "components" / "webhook"
LABEL = "test.lapse.dev/harness"
MCR = "manifestcapturerequests.state-snapshotter.deckhouse.io"


class Webhook(LapseServer):
    """A running ``lapse webhook``."""

    @classmethod
    def launch(cls, folder: Path, *flags: str) -> Self:
        """Start it with the pair in ``folder``, and wait until it says where it listens; of a flag the last counts."""
        usual = ["--webhook-port=0"]
        usual += [f"--webhook-cert-file={folder / 'tls.crt'}", f"--webhook-key-file={folder / 'tls.key'}"]
        given = {flag.partition("=")[0]: flag for flag in (*usual, *flags)}
        return cls.spawn(folder, "webhook", *given.values())

    @property
    def url(self) -> str:
        event = self.event("listening")
        assert event is not None
        return str(event["webhook"])


@dataclass
class Harness:
    """One namespace, the account of a webhook, and what the API server is told about it."""

    kube: KubeServer
    folder: Path
    authority: Authority
    name: str = field(default_factory=lambda: f"webhook-{uuid()}")
    jane: str = field(init=False)
    configurations: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.jane = f"jane-{self.name}"

    def apply(self, *objects: Json) -> None:
        everything = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kube.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(everything))

    # --- the cluster --------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the namespace, what is in it, and the webhook's account with exactly the rights of the component."""
        role, _binding = component("cluster-role.yaml")
        meta = {"namespace": self.name}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}})
        self.apply(
            {**role, "metadata": {**role["metadata"], "name": self.name}},
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**meta, "name": "webhook"}},
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**meta, "name": "settings"}},
            {"apiVersion": "v1", "kind": "Secret", "metadata": {**meta, "name": "password"}},
        )
        self.bind()

    def bind(self) -> None:
        """Give the webhook's account its rights."""
        account = {"kind": "ServiceAccount", "name": "webhook", "namespace": self.name}
        self.apply(binding("ClusterRoleBinding", self.name, "ClusterRole", self.name, account))

    def allow(self, subject: Json, *rules: Json) -> None:
        """Give somebody rights in the namespace, and that of making captures of manifests."""
        group, resource = "state-snapshotter.deckhouse.io", "manifestcapturerequests"
        making = {"apiGroups": [group], "resources": [resource], "verbs": ["create", "delete"]}
        name = f"r-{uuid()}"
        meta = {"name": name, "namespace": self.name}
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta}
        self.apply(
            {**role, "rules": [making, *rules]},
            binding("RoleBinding", name, "Role", name, subject, namespace=self.name),
        )

    def give(self, user: str, role: Json, *, everywhere: bool = False) -> None:
        """Give a user a copy of a ClusterRole, in the namespace or in the whole cluster."""
        name = f"{self.name}-{uuid()}"
        kind, place = ("ClusterRoleBinding", None) if everywhere else ("RoleBinding", self.name)
        bound = binding(kind, name, "ClusterRole", name, {"kind": "User", "name": user}, namespace=place)
        for one in (copy := {**role, "metadata": {"name": name}}), bound:
            one["metadata"]["labels"] = {LABEL: self.name}
        self.apply(copy, bound)

    def kubeconfig(self) -> Path:
        """Write one for the webhook's account."""
        token = self.kube.kubectl("create", "token", "webhook", "-n", self.name).strip()
        config = json.loads(self.kube.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        path = self.folder / "webhook.kubeconfig"
        path.write_text(json.dumps(config))
        return path

    # --- the webhook --------------------------------------------------------------------------------------------------

    def place_certificate(self, name: str) -> None:
        """Put a new pair where the webhook looks."""
        place_certificate(self.authority, name, self.folder)

    def launch(self, *flags: str) -> Webhook:
        return Webhook.launch(self.folder, f"--kube-config={self.kubeconfig()}", *flags)

    def configure(self, url: str, name: str) -> None:
        """Tell the API server to ask there, as the component does, but about this namespace only."""
        (configuration,) = component("webhook-configuration.yaml")
        hook, _policies = configuration["webhooks"]
        configuration["webhooks"] = [hook]
        hook["name"] = f"{name}.lapse.dev"
        hook["clientConfig"] = {"url": url, "caBundle": ca_bundle(self.authority)}
        hook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": self.name}}
        hook["timeoutSeconds"] = 30  # a busy machine
        self.apply({**configuration, "metadata": {"name": f"{self.name}-{name}"}})
        self.configurations.append(f"{self.name}-{name}")
        asked = f'admission webhook "{name}.lapse.dev" denied the request'
        until(lambda: asked in (self.complaint("Gadget no-such", dry_run=True) or ""))

    def forget(self, name: str) -> None:
        """Let the API server ask there no longer."""
        self.kube.kubectl("delete", "validatingwebhookconfiguration", f"{self.name}-{name}")

    def remove(self) -> None:
        hooks = self.configurations
        self.kube.kubectl("delete", "validatingwebhookconfiguration", "--ignore-not-found", "none", *hooks)
        for kind in ("clusterrolebinding", "clusterrole"):
            self.kube.kubectl("delete", kind, self.name, "--ignore-not-found")
            self.kube.kubectl("delete", kind, "-l", f"{LABEL}={self.name}")
        self.kube.kubectl("delete", "namespace", self.name, "--wait=false")

    # --- people -------------------------------------------------------------------------------------------------------

    def capture(
        self,
        *targets: str,
        api_version: str = "v1",
        as_: str | None = None,
        groups: tuple[str, ...] = (),
        dry_run: bool = False,
    ) -> str:
        """Create a capture of targets such as ``Secret password``; return what kubectl says. Raises `KubectlError`."""
        named = [dict(zip(("kind", "name"), target.split(), strict=True)) for target in targets]
        spec = {"targets": [{"apiVersion": api_version, **one} for one in named]}
        flags = [f"--as={as_ or self.jane}", *(f"--as-group={group}" for group in groups)]
        flags += ["--dry-run=server"] if dry_run else []
        return self.create("state-snapshotter.deckhouse.io", "ManifestCaptureRequest", spec, *flags)

    def create(self, group: str, kind: str, spec: Json, *flags: str) -> str:
        """Create a request; return what kubectl says. Raises `KubectlError`."""
        meta = {"generateName": "request-", "namespace": self.name}
        body = {"apiVersion": f"{group}/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}
        return self.kube.kubectl("create", "-f", "-", *flags, stdin=json.dumps(body))

    def complaint(self, *targets: str, api_version: str = "v1", dry_run: bool = False) -> str | None:
        """Return what kubectl complains of, None when the capture was created."""
        try:
            self.capture(*targets, api_version=api_version, dry_run=dry_run)
        except KubectlError as error:
            return str(error)
        return None

    def captures(self) -> int:
        return len(self.kube.kubectl("get", MCR, "-n", self.name, "-o", "name").split())


def place_certificate(authority: Authority, name: str, folder: Path) -> None:
    """Put a new pair for loopback into a folder."""
    made = authority.issue(name, subject="/CN=webhook", extensions="subjectAltName=IP:127.0.0.1,DNS:localhost")
    shutil.copy(made.key_file, folder / "tls.key")
    shutil.copy(made.certificate_file, folder / "tls.crt")


def ca_bundle(authority: Authority) -> str:
    """What a webhook configuration calls caBundle."""
    return base64.b64encode(authority.ca_file.read_bytes()).decode()


def component(file: str) -> list[Json]:
    return documents(COMPONENT / file)


def documents(path: Path) -> list[Json]:
    return list(yaml.safe_load_all(path.read_text()))


def binding(kind: str, name: str, role_kind: str, role: str, subject: Json, *, namespace: str | None = None) -> Json:
    group = "rbac.authorization.k8s.io"
    subject = subject if subject["kind"] == "ServiceAccount" else {"apiGroup": group, **subject}
    return {
        "apiVersion": f"{group}/v1",
        "kind": kind,
        "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}),
        "roleRef": {"apiGroup": group, "kind": role_kind, "name": role},
        "subjects": [subject],
    }


@pytest.fixture(scope="module")
def harness(shared_kube: KubeServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """A namespace in which jane may make captures and read ConfigMaps; no webhook yet."""
    folder = tmp_path_factory.mktemp("webhook")
    made = Harness(shared_kube, folder, make_authority(folder / "authority", tell_stderr))
    try:
        made.prepare()
        reading = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}
        made.allow({"kind": "User", "name": made.jane}, reading)
        made.place_certificate("first")
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def webhook(harness: Harness) -> Iterator[Webhook]:
    """A webhook that the API server asks."""
    running = harness.launch()
    try:
        harness.configure(running.url, "requests")
        yield running
    finally:
        running.stop()
