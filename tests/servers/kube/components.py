"""How each component is started, and how one sees that it is ready."""

from __future__ import annotations

import http.client
import ssl
from typing import TYPE_CHECKING

from tests.servers.ports import LOOPBACK
from tests.servers.programs import Program
from tests.servers.server import Launch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.servers.kube.site import Site

CONTROLLERS = (
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "clusterrole-aggregation-controller",
    "persistentvolume-binder-controller",
    "persistentvolumeclaim-protection-controller",
    "persistentvolume-protection-controller",
)
DEFAULT_ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"


def etcd(site: Site) -> Launch:
    url, peer_url = (f"http://{LOOPBACK}:{port}" for port in (site.etcd_port, site.etcd_peer_port))
    program = _program(site, "etcd")
    return Launch(
        program=program,
        folder=site.folder,
        port=site.etcd_port,
        url=url,
        argv=[
            *(program.path, "--name=tests", f"--data-dir={site.folder / 'etcd'}"),
            *(f"--listen-client-urls={url}", f"--advertise-client-urls={url}"),
            *(f"--listen-peer-urls={peer_url}", f"--initial-advertise-peer-urls={peer_url}"),
            *(f"--initial-cluster=tests={peer_url}", "--unsafe-no-fsync", "--log-level=warn"),
        ],
        answers=lambda: _status(http.client.HTTPConnection(LOOPBACK, site.etcd_port, timeout=2), "/health") == 200,
        log_name="etcd.log",
    )


def apiserver(site: Site, *, token: str, flags: Sequence[str]) -> Launch:
    program = _program(site, "kube-apiserver")
    accounts = site.pki / "service-accounts"
    return Launch(
        program=program,
        folder=site.folder,
        port=site.api_port,
        url=site.url,
        argv=[
            *(program.path, f"--etcd-servers=http://{LOOPBACK}:{site.etcd_port}"),
            f"--advertise-address={LOOPBACK}",
            *_listening(site, site.api_port),
            *(f"--client-ca-file={site.ca_file}", f"--token-auth-file={site.pki / 'tokens.csv'}"),
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={accounts.with_suffix('.crt')}",
            f"--service-account-signing-key-file={accounts.with_suffix('.key')}",
            *("--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24", "--allow-privileged=true"),
            "--endpoint-reconciler-type=none",  # it would refuse a loopback address
            *flags,
        ],
        answers=lambda: _ask(site, site.api_port, "/readyz", token) == 200,
        ca_file=site.ca_file,
        log_name="apiserver.log",
    )


def controller_manager(site: Site, *, token: str, flags: Sequence[str]) -> Launch:
    program = _program(site, "kube-controller-manager")
    return Launch(
        program=program,
        folder=site.folder,
        port=site.manager_port,
        url=f"https://{LOOPBACK}:{site.manager_port}",
        argv=[
            program.path,
            *_listening(site, site.manager_port),
            *(f"--{use}kubeconfig={site.manager_kubeconfig}" for use in ("", "authentication-", "authorization-")),
            *("--leader-elect=false", f"--controllers={','.join(CONTROLLERS)}"),
            *("--use-service-account-credentials=true", f"--root-ca-file={site.ca_file}"),
            f"--service-account-private-key-file={site.pki / 'service-accounts.key'}",
            # The default limits spare a cluster with others in it, and would slow the start.
            *("--kube-api-qps=200", "--kube-api-burst=400"),
            *flags,
        ],
        answers=lambda: (
            _ask(site, site.manager_port, "/healthz", token) == 200
            and _ask(site, site.api_port, DEFAULT_ACCOUNT, token) == 200
        ),
        log_name="controller-manager.log",
    )


def _program(site: Site, name: str) -> Program:
    return Program(name, site.program.version, site.program.source, site.program.path / name)


def _listening(site: Site, port: int) -> list[str]:
    return [
        *(f"--bind-address={LOOPBACK}", f"--secure-port={port}"),
        *(f"--tls-cert-file={site.pki / 'apiserver.crt'}", f"--tls-private-key-file={site.pki / 'apiserver.key'}"),
    ]


def _ask(site: Site, port: int, path: str, token: str) -> int:
    context = ssl.create_default_context(cafile=str(site.ca_file))
    return _status(http.client.HTTPSConnection(LOOPBACK, port, timeout=2, context=context), path, token)


def _status(connection: http.client.HTTPConnection, path: str, token: str = "") -> int:
    """Of the answer to one request; 0 when there is none."""
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
