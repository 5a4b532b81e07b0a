"""The control plane is a real one, ready for objects of our kinds at once; its parts can be hurt singly."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers import KubectlError, KubeServer, Server, ServerFailedError, kube_server, wait_until
from tests.servers.kube.server import COMPONENTS
from tests.servers.pool import Pool, PoolServer, RemotePool
from tests.servers.ports import listening

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]


def widget(name: str, *, namespace: str = "default", **metadata: object) -> str:
    return json.dumps(
        {
            "apiVersion": "test.lapse.dev/v1",
            "kind": "Widget",
            "metadata": {"name": name, "namespace": namespace, **metadata},
            "spec": {"anything": {"goes": [1, "two"]}},
        }
    )


def get(server: KubeServer, path: str, *, token: str | None = None, certificate: bool = False) -> tuple[int, Any]:
    context = ssl.create_default_context(cafile=str(server.ca_file))
    if certificate:
        context.load_cert_chain(server.client_certificate_file, server.client_key_file)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(urllib.request.Request(server.url + path, headers=headers), timeout=10) as answer:  # noqa: S310
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def create(server: KubeServer, manifest: str) -> Any:  # noqa: ANN401 - whatever JSON says
    return json.loads(server.kubectl("create", "-o", "json", "-f", "-", stdin=manifest))


def is_gone(server: KubeServer, *what: str) -> bool:
    return server.kubectl("get", *what, "--ignore-not-found", "-o", "name") == ""


# --- the shared one ---------------------------------------------------------------------------------------------------


def test_the_api_server_tells_the_version_that_was_asked_for(shared_kube: KubeServer) -> None:
    status, facts = get(shared_kube, "/version", token=shared_kube.admin_token)
    assert status == 200
    assert facts["gitVersion"] == f"v{shared_kube.version}" == "v1.35.4"


def test_the_administrator_enters_by_certificate_as_well(shared_kube: KubeServer) -> None:
    status, facts = get(shared_kube, "/api/v1/namespaces/default/serviceaccounts/default", certificate=True)
    assert (status, facts["metadata"]["name"]) == (200, "default")


def test_the_plain_user_is_known_and_may_do_nothing_until_a_binding_says_so(shared_kube: KubeServer) -> None:
    path = "/apis/test.lapse.dev/v1/namespaces/default/widgets"
    assert get(shared_kube, path, token="nobody's")[0] == 401
    status, refusal = get(shared_kube, path, token=shared_kube.user_token)
    assert status == 403
    assert f'User "{shared_kube.user}" cannot list' in refusal["message"]
    with pytest.raises(KubectlError, match="Forbidden"):
        shared_kube.kubectl("get", "widgets", user=True)
    shared_kube.kubectl("create", "clusterrole", "see-widgets", "--verb=list", "--resource=widgets.test.lapse.dev")
    shared_kube.kubectl(
        *("create", "rolebinding", "see-widgets", "-n", "default"),
        *("--clusterrole=see-widgets", f"--group={shared_kube.user_group}"),
    )
    wait_until(lambda: get(shared_kube, path, token=shared_kube.user_token)[0] == 200)


def test_a_widget_keeps_what_it_is_given_and_its_status_is_apart(shared_kube: KubeServer) -> None:
    made = create(shared_kube, widget("apart"))
    assert made["spec"] == {"anything": {"goes": [1, "two"]}}
    patch = ("patch", "widget", "apart", "--type=merge", "-p", json.dumps({"status": {"seen": True}}), "-o", "json")
    assert "status" not in json.loads(shared_kube.kubectl(*patch))
    assert json.loads(shared_kube.kubectl(*patch, "--subresource=status"))["status"] == {"seen": True}


def test_what_a_deleted_owner_leaves_is_collected_at_once(shared_kube: KubeServer) -> None:
    owner = create(
        shared_kube,
        json.dumps({"apiVersion": "test.lapse.dev/v1", "kind": "ClusterWidget", "metadata": {"name": "owner"}}),
    )
    reference = {
        "apiVersion": "test.lapse.dev/v1",
        "kind": "ClusterWidget",
        "name": "owner",
        "uid": owner["metadata"]["uid"],
    }
    create(shared_kube, widget("owned", ownerReferences=[reference]))
    shared_kube.kubectl("delete", "clusterwidget", "owner")
    wait_until(lambda: is_gone(shared_kube, "widget", "owned"), seconds=15, what="the end of the owned widget")


def test_a_deleted_namespace_takes_its_objects_with_it(shared_kube: KubeServer) -> None:
    shared_kube.kubectl("create", "namespace", "taken")
    create(shared_kube, widget("inside", namespace="taken"))
    shared_kube.kubectl("delete", "namespace", "taken", "--timeout=30s")
    assert is_gone(shared_kube, "widgets", "--all-namespaces", "--field-selector=metadata.namespace=taken")


def test_a_shared_control_plane_cannot_be_hurt_by_one_test(shared_kube: KubeServer) -> None:
    for harm in (shared_kube.kill, shared_kube.pause, lambda: shared_kube.component("etcd")):
        with pytest.raises(RuntimeError, match="shared by the whole run"):
            harm()


def test_another_process_of_the_run_gets_the_same_one(shared_kube: KubeServer) -> None:
    class OnlyThis(Pool):
        def get(self, name: str) -> Server:
            return shared_kube

    pool_server = PoolServer(OnlyThis(lambda line: None))
    try:
        other = RemotePool(pool_server.path).get("kube")
    finally:
        pool_server.close()
    assert isinstance(other, KubeServer)
    assert other.to_json() == shared_kube.to_json()
    assert other.kubectl("get", "namespace", "default", "-o", "name") == "namespace/default\n"


# --- private ones -----------------------------------------------------------------------------------------------------

private = pytest.mark.server("kube", private=True)
unhurried = pytest.mark.timeout(300)  # each start takes four seconds, or a minute on cores that others keep busy


@pytest.fixture(scope="module")
def own_kube() -> Iterator[KubeServer]:
    """One for the tests that hurt it and heal it again."""
    with kube_server() as server:
        yield server


@private
@unhurried
def test_nothing_of_it_listens_beyond_loopback(own_kube: KubeServer) -> None:
    found = [listening(own_kube.component(name).pid) for name in COMPONENTS]
    assert {address for address, _ in set.union(*found)} == {"0100007F"}  # 127.0.0.1 as /proc writes it
    assert [len(addresses) for addresses in found] == [2, 1, 1]


@private
@unhurried
def test_a_kill_of_everything_loses_no_object_and_a_start_brings_it_back(own_kube: KubeServer) -> None:
    create(own_kube, widget("kept"))
    before = own_kube.pid
    own_kube.kill()
    assert not own_kube.is_running()
    assert not any(own_kube.component(name).is_running() for name in COMPONENTS)
    own_kube.start()
    assert own_kube.is_running()
    assert own_kube.pid == own_kube.component("apiserver").pid != before
    assert own_kube.kubectl("get", "widget", "kept", "-o", "name") == "widget.test.lapse.dev/kept\n"


@private
@unhurried
def test_a_restart_in_order_keeps_the_address_and_the_objects(own_kube: KubeServer) -> None:
    create(own_kube, widget("restarted"))
    before = {name: own_kube.component(name).pid for name in COMPONENTS}
    own_kube.restart()
    assert all(own_kube.component(name).pid != pid for name, pid in before.items())
    assert own_kube.kubectl("get", "widget", "restarted", "-o", "name") == "widget.test.lapse.dev/restarted\n"


@private
@unhurried
def test_each_component_can_be_killed_on_its_own(own_kube: KubeServer) -> None:
    api, manager = own_kube.component("apiserver"), own_kube.component("controller-manager")
    manager.kill()
    assert api.is_running()
    assert not own_kube.is_running()
    manager.start()
    api.kill()
    with pytest.raises(KubectlError, match="refused"):
        own_kube.kubectl("get", "namespaces")
    api.start()
    assert own_kube.is_running()
    assert "namespace/default" in own_kube.kubectl("get", "namespaces", "-o", "name").split()


@private
@unhurried
def test_a_paused_api_server_keeps_silent_and_goes_on_afterwards(own_kube: KubeServer) -> None:
    with own_kube.component("apiserver").paused(), pytest.raises(TimeoutError):
        ssl.get_server_certificate((own_kube.host, own_kube.port), timeout=0.3)
    assert get(own_kube, "/api", token=own_kube.admin_token)[0] == 200


@private
@unhurried
def test_a_component_that_is_none_is_refused_with_the_names_of_those_there_are(own_kube: KubeServer) -> None:
    with pytest.raises(ValueError, match="no component 'scheduler', but etcd, apiserver, controller-manager"):
        own_kube.component("scheduler")


# Starts a control plane, tells its folder and processes, and waits.
HARNESS = """
import signal
from tests.servers import kube_server
from tests.servers.kube.server import COMPONENTS
with kube_server(crds=()) as server:
    print(server.folder, *(server.component(name).pid for name in COMPONENTS), flush=True)
    signal.pause()
"""


@private
@unhurried
def test_all_components_and_the_folder_go_when_the_run_is_killed() -> None:
    command = [sys.executable, "-c", HARNESS]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        folder, *pids = run.stdout.readline().split()
        assert len(pids) == 3
        run.kill()
    traces = [Path(folder), *(Path("/proc") / pid for pid in pids)]
    wait_until(lambda: not any(trace.exists() for trace in traces), what="the end of all components")


@private
@unhurried
@pytest.mark.parametrize(
    ("option", "program"), [("apiserver_flags", "kube-apiserver"), ("manager_flags", "kube-controller-manager")]
)
def test_a_component_that_does_not_start_says_which_and_why(option: str, program: str) -> None:
    options: dict[str, Any] = {option: ["--nonsense"], "crds": ()}
    with pytest.raises(ServerFailedError, match=f"{program} ended with code") as failure, kube_server(**options):
        pass
    assert "unknown flag: --nonsense" in str(failure.value)


@private
@unhurried
def test_only_the_given_definitions_are_made_and_a_wrong_one_is_refused_with_the_reason(tmp_path: Path) -> None:
    source = ROOT / "tests" / "servers" / "kube" / "crds" / "widgets.yaml"
    with kube_server(crds=[source]) as server:
        assert server.kubectl("get", "crd", "-o", "name").split() == [
            "customresourcedefinition.apiextensions.k8s.io/widgets.test.lapse.dev"
        ]
    assert not server.folder.exists()
    (tmp_path / "wrong.yaml").write_text(source.read_text().replace("scope: Namespaced", "scope: Everywhere"))
    with (
        pytest.raises(ServerFailedError, match=r"(?s)definitions were not taken.*Everywhere"),
        kube_server(crds=tmp_path),
    ):
        pass
