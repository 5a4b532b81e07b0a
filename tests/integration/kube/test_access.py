"""Who we are to a real API server: tokens, certificates, plugins, rights, and what happens without them."""

from __future__ import annotations

import base64
import json
import sys
from typing import TYPE_CHECKING

import pytest

from lapse.kube.api.client import KubeClient
from lapse.kube.api.transport import CallLimits
from lapse.kube.auth.config import Cluster, KubeConfig, User, load_config
from lapse.kube.errors import ForbiddenError, KubeConfigError, StoreUnavailableError, UnauthenticatedError
from lapse.kube.resources import ObjectKey
from tests.conformance.objects.registry import WIDGET, widget
from tests.servers import Relay
from tests.servers.certificate import make_authority

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.servers import KubeServer

    Clients = Callable[..., KubeClient]

pytestmark = pytest.mark.server("kube")


async def works(client: KubeClient) -> bool:
    return bool((await client.list(WIDGET, limit=1)).resource_version)


async def test_a_token_and_its_file_are_known(shared_kube: KubeServer, clients: Clients, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{shared_kube.admin_token}\n")
    assert await works(clients(token=shared_kube.admin_token.encode()))
    assert await works(clients(token=tmp_path / "token"))


async def test_a_certificate_in_place_is_known(shared_kube: KubeServer, clients: Clients, tmp_path: Path) -> None:
    content = json.loads(shared_kube.kubeconfig.read_text())
    data = {
        "client-certificate-data": base64.b64encode(shared_kube.client_certificate_file.read_bytes()).decode(),
        "client-key-data": base64.b64encode(shared_kube.client_key_file.read_bytes()).decode(),
    }
    content["users"][0]["user"] = data
    assert shared_kube.ca_file is not None
    ca = base64.b64encode(shared_kube.ca_file.read_bytes()).decode()
    content["clusters"][0]["cluster"] = {"server": shared_kube.url, "certificate-authority-data": ca}
    (tmp_path / "config").write_text(json.dumps(content))
    assert await works(clients(load_config(file=tmp_path / "config", environ={})))


async def test_what_a_user_may_not_do_is_forbidden_with_the_reason(shared_kube: KubeServer, clients: Clients) -> None:
    client = clients(load_config(file=shared_kube.user_kubeconfig, environ={}))
    reason = f'User "{shared_kube.user}" cannot {{}} resource "widgets"'
    with pytest.raises(ForbiddenError, match=reason.format("list")):
        await client.list(WIDGET)
    with pytest.raises(ForbiddenError, match=reason.format("watch")):
        await anext(client.watch(WIDGET, since="1"))
    with pytest.raises(ForbiddenError, match=reason.format("create")):
        await client.create(WIDGET, widget("default", "a"))
    with pytest.raises(ForbiddenError, match=reason.format("delete")):
        await client.delete(WIDGET, ObjectKey("default", "a"))


async def test_the_administrator_can_act_as_somebody_else(shared_kube: KubeServer, clients: Clients) -> None:
    token = shared_kube.admin_token.encode()
    as_jane = clients(token=token, impersonation={"Impersonate-User": "jane"})
    with pytest.raises(ForbiddenError, match='User "jane"'):
        await as_jane.list(WIDGET)
    in_group = {"impersonation": {"Impersonate-User": "jane"}, "groups": ("anybody", "system:masters")}
    assert await works(clients(token=token, **in_group))


async def test_a_wrong_token_is_not_known_and_not_shown(clients: Clients) -> None:
    client = clients(token=b"sesame-open")
    for call in (client.list(WIDGET), anext(client.watch(WIDGET, since="1"))):
        with pytest.raises(UnauthenticatedError, match="does not accept the credentials: Unauthorized") as failure:
            await call
        assert "sesame" not in str(failure.value)


async def test_a_token_that_is_replaced_is_taken_up(shared_kube: KubeServer, clients: Clients, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("out-of-date")
    client = clients(token=file)
    with pytest.raises(UnauthenticatedError):
        await works(client)
    file.write_text(shared_kube.admin_token)
    assert await works(client)


async def test_a_server_that_another_authority_vouches_for_is_not_trusted(
    shared_kube: KubeServer, clients: Clients, tmp_path: Path
) -> None:
    other = make_authority(tmp_path / "pki", lambda line: None)
    cluster = Cluster(server=shared_kube.url, ca=other.ca_file)
    client = clients(KubeConfig(cluster=cluster, user=User(token=shared_kube.admin_token.encode())))
    with pytest.raises(StoreUnavailableError, match=r"the certificate of https://127\.0\.0\.1:\d+ is not trusted: "):
        await works(client)


async def test_the_name_in_the_certificate_counts_unless_another_is_asked_for(
    shared_kube: KubeServer, clients: Clients
) -> None:
    token = User(token=shared_kube.admin_token.encode())
    for name, known in (("kubernetes.default.svc", True), ("elsewhere.example", False)):
        cluster = Cluster(server=shared_kube.url, ca=shared_kube.ca_file, server_name=name)
        client = clients(KubeConfig(cluster=cluster, user=token))
        if known:
            assert await works(client)
        else:
            with pytest.raises(StoreUnavailableError, match=r"is not trusted: .*elsewhere"):
                await works(client)


async def test_whoever_says_so_trusts_anybody(shared_kube: KubeServer, clients: Clients) -> None:
    token = User(token=shared_kube.admin_token.encode())
    assert await works(clients(KubeConfig(cluster=Cluster(server=shared_kube.url, insecure=True), user=token)))
    with pytest.raises(StoreUnavailableError, match="is not trusted"):
        await works(clients(KubeConfig(cluster=Cluster(server=shared_kube.url), user=token)))


# --- plugins ----------------------------------------------------------------------------------------------------------


def with_plugin(server: KubeServer, folder: Path, code: str, version: str = "v1") -> KubeConfig:
    """A kubeconfig whose user runs a program that lies beside it."""
    program = folder / "login"
    program.write_text(f"#!{sys.executable}\nimport json, os, pathlib\n{code}\n")
    program.chmod(0o755)
    login = {
        "apiVersion": f"client.authentication.k8s.io/{version}",
        "command": "./login",
        "interactiveMode": "Never",
        "env": [{"name": "TOKEN", "value": server.admin_token}],
    }
    content = json.loads(server.kubeconfig.read_text())
    content["users"][0]["user"] = {"exec": login}
    (folder / "config").write_text(json.dumps(content))
    return load_config(file=folder / "config", environ={})


PRINT = """
asked = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
print(json.dumps({"apiVersion": asked["apiVersion"], "kind": "ExecCredential", "status": STATUS}))
"""


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_a_plugin_that_prints_a_token_lets_us_in(
    shared_kube: KubeServer, clients: Clients, tmp_path: Path, version: str
) -> None:
    code = PRINT.replace("STATUS", '{"token": os.environ["TOKEN"]}')
    assert await works(clients(with_plugin(shared_kube, tmp_path, code, version)))


async def test_a_plugin_that_prints_a_certificate_lets_us_in(
    shared_kube: KubeServer, clients: Clients, tmp_path: Path
) -> None:
    pair = {
        "clientCertificateData": shared_kube.client_certificate_file.read_text(),
        "clientKeyData": shared_kube.client_key_file.read_text(),
    }
    assert await works(clients(with_plugin(shared_kube, tmp_path, PRINT.replace("STATUS", repr(pair)))))


async def test_a_plugin_that_fails_or_prints_a_wrong_token_is_told_apart(
    shared_kube: KubeServer, clients: Clients, tmp_path: Path
) -> None:
    wrong = clients(with_plugin(shared_kube, tmp_path, PRINT.replace("STATUS", '{"token": "sesame-open"}')))
    with pytest.raises(UnauthenticatedError) as refused:
        await works(wrong)
    failing = clients(with_plugin(shared_kube, tmp_path, "print(os.environ['TOKEN']); raise SystemExit(4)"))
    with pytest.raises(StoreUnavailableError, match="plugin login ended with code 4; run it by hand") as failed:
        await works(failing)
    assert "sesame" not in str(refused.value)
    assert shared_kube.admin_token not in str(failed.value)


# --- the way there ----------------------------------------------------------------------------------------------------


async def test_a_connection_that_is_cut_or_silent_proves_nothing_and_comes_back(shared_kube: KubeServer) -> None:
    with Relay(shared_kube.port) as relay:
        cluster = Cluster(server=f"https://127.0.0.1:{relay.port}", ca=shared_kube.ca_file)
        config = KubeConfig(cluster=cluster, user=User(token=shared_kube.admin_token.encode()))
        client = KubeClient(config, environ={}, limits=CallLimits(connect_seconds=1.0, request_seconds=1.0))
        assert await works(client)
        relay.silence()
        with pytest.raises(StoreUnavailableError, match="within 1 s"):
            await works(client)
        relay.speak()
        assert await works(client)
        relay.cut(refuse=True)
        with pytest.raises(StoreUnavailableError, match="no connection to https"):
            await works(client)
        relay.accept()
        assert await works(client)
        await client.close()


def test_an_authority_that_is_no_certificate_is_refused_before_anything_is_sent(
    shared_kube: KubeServer, tmp_path: Path
) -> None:
    (tmp_path / "ca").write_text("nonsense")
    with pytest.raises(KubeConfigError, match="holds no certificate"):
        KubeClient(KubeConfig(cluster=Cluster(server=shared_kube.url, ca=tmp_path / "ca")), environ={})
