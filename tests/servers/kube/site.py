"""The ports and files of one control plane: certificates, tokens and the configurations of its clients."""

from __future__ import annotations

import csv
import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.servers.certificate import make_authority
from tests.servers.kube.server import USER, USER_GROUP
from tests.servers.ports import LOOPBACK

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.certificate import Authority
    from tests.servers.programs import Program
    from tests.servers.progress import Tell

API_NAMES = "IP:127.0.0.1,IP:10.0.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default.svc"
FOR_CLIENTS = "extendedKeyUsage=clientAuth"


@dataclass(frozen=True)
class Tokens:
    """By which the API server knows who asks: one who may do everything, and one who may do nothing yet."""

    admin: str
    user: str


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where everything of one control plane is. `prepare` writes the files."""

    program: Program
    folder: Path
    api_port: int
    manager_port: int
    etcd_port: int
    etcd_peer_port: int

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def ca_file(self) -> Path:
        return self.pki / "ca.crt"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.folder / "kubeconfig"

    @property
    def manager_kubeconfig(self) -> Path:
        return self.folder / "controller-manager.kubeconfig"

    @property
    def url(self) -> str:
        return f"https://{LOOPBACK}:{self.api_port}"

    def prepare(self, tell: Tell) -> Tokens:
        """Write all that the components and their clients read."""
        authority = make_authority(self.pki, tell)
        for_server = f"subjectAltName={API_NAMES}\nextendedKeyUsage=serverAuth"
        authority.issue("apiserver", subject="/CN=kube-apiserver", extensions=for_server)
        authority.issue("service-accounts", subject="/CN=service-accounts", extensions=FOR_CLIENTS)
        self._admit(authority, "admin", subject="/O=system:masters/CN=admin", config=self.kubeconfig)
        name = "controller-manager"
        self._admit(authority, name, subject=f"/CN=system:kube-{name}", config=self.manager_kubeconfig)
        return self._make_tokens()

    def _admit(self, authority: Authority, name: str, *, subject: str, config: Path) -> None:
        made = authority.issue(name, subject=subject, extensions=FOR_CLIENTS)
        self._configure(config, {"client-certificate": str(made.certificate_file), "client-key": str(made.key_file)})

    def _make_tokens(self) -> Tokens:
        tokens = Tokens(admin=secrets.token_hex(16), user=secrets.token_hex(16))
        with (self.pki / "tokens.csv").open("w", newline="", encoding="ascii") as file:
            rows = csv.writer(file)
            rows.writerow([tokens.admin, "token-admin", "token-admin", "system:masters"])
            rows.writerow([tokens.user, USER, USER, USER_GROUP])
        self._configure(self.folder / "user.kubeconfig", {"token": tokens.user})
        return tokens

    def _configure(self, file: Path, login: dict[str, str]) -> None:
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "me", "user": login}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "me", "namespace": "default"}}],
            "current-context": "tests",
        }
        # JSON is YAML as well.
        file.write_text(json.dumps(content, indent=1), encoding="ascii")
