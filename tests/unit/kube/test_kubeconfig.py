"""Where the server is and who we are: kubeconfig files, their mistakes, and the service account of a pod."""

from __future__ import annotations

import base64
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lapse.kube.auth.config import Cluster, KubeConfig, User, in_cluster, load_config
from lapse.kube.auth.kubeconfig import read_kubeconfig
from lapse.kube.errors import KubeConfigError

SECRET = "sesame-open"
EXEC_V1 = "client.authentication.k8s.io/v1"


def document(
    *, name: str = "a", cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None, **more: object
) -> dict[str, Any]:
    return {
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}.example", **(cluster or {})}}],
        "users": [{"name": name, "user": user or {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
        **more,
    }


def write(folder: Path, content: object, name: str = "config") -> Path:
    file = folder / name
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def read(folder: Path, **parts: Any) -> KubeConfig:  # noqa: ANN401 - of document
    return load_config(file=write(folder, document(**parts)), environ={})


# --- what is read -----------------------------------------------------------------------------------------------------


def test_the_current_context_says_where_and_who(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
apiVersion: v1
kind: Config
preferences: {}
current-context: two
clusters:
- {name: one, cluster: {server: "https://one.example"}}
- name: two
  cluster: {server: "https://two.example:6443/prefix/", tls-server-name: inner, disable-compression: true}
users:
- {name: me, user: {token: abc}}
contexts:
- {name: one, context: {cluster: one, user: me}}
- {name: two, context: {cluster: two, user: me, namespace: work}}
""",
    )
    found = load_config(file=file, environ={})
    assert found.cluster.server == "https://two.example:6443/prefix"
    assert found.cluster.server_name == "inner"
    assert not found.cluster.compress
    assert found.user.token == b"abc"
    assert found.namespace == "work"
    assert found.origin == f"context two of {file}"
    assert load_config(file=file, context="one", environ={}).namespace == "default"


def test_data_in_place_wins_over_files_and_files_count_from_their_kubeconfig(tmp_path: Path) -> None:
    data = base64.b64encode(b"PEM").decode()
    found = read(
        tmp_path,
        cluster={"certificate-authority": "pki/ca.crt"},
        user={
            "client-certificate": "/absolute.crt",
            "client-key": "ignored",
            "client-key-data": data,
            "tokenFile": "token",
            "token": "ignored",
        },
    )
    assert found.cluster.ca == tmp_path / "pki" / "ca.crt"
    assert found.user.certificate == Path("/absolute.crt")
    assert found.user.key == b"PEM"
    assert found.user.token == tmp_path / "token"


def test_files_of_a_list_are_merged_and_the_first_wins(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first = write(tmp_path, {**document(name="a", user={"tokenFile": "t"}), "current-context": ""}, "first")
    second = document(name="a", cluster={"server": "https://late.example"})
    second["contexts"].append({"name": "b", "context": {"cluster": "b", "user": "a"}})
    second["clusters"].append({"name": "b", "cluster": {"server": "https://b.example", "certificate-authority": "ca"}})
    second["current-context"] = "b"
    other = write(tmp_path / "other", second, "second")
    environ = {"KUBECONFIG": f"{tmp_path}/missing::{first}:{other}", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    merged = load_config(environ=environ)
    assert merged.cluster.server == "https://b.example"
    assert merged.cluster.ca == tmp_path / "other" / "ca"
    assert merged.user.token == tmp_path / "t"
    assert load_config(environ=environ, context="a").cluster.server == "https://a.example"


def test_a_person_has_a_file_at_home(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube", document())
    assert load_config(environ={"HOME": str(tmp_path)}).cluster.server == "https://a.example"


def test_empty_lists_and_a_user_without_anything_are_taken(tmp_path: Path) -> None:
    content = document(users=None)
    content["contexts"][0]["context"]["user"] = ""
    assert not load_config(file=write(tmp_path, content), environ={}).user.shows_something


def test_impersonation_is_kept_as_headers(tmp_path: Path) -> None:
    found = read(tmp_path, user={"as": "jane", "as-uid": "7", "as-groups": ["a", "b"]}).user
    assert found.impersonation == {"Impersonate-User": "jane", "Impersonate-Uid": "7"}
    assert found.groups == ("a", "b")


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_plugin_is_found_on_path_or_beside_the_file(tmp_path: Path, version: str) -> None:
    login = {
        "apiVersion": f"client.authentication.k8s.io/{version}",
        "command": "./bin/login",
        "args": ["--quiet"],
        "env": [{"name": "A", "value": "b"}],
        "interactiveMode": "IfAvailable",
        "provideClusterInfo": True,
        "installHint": "get it\n here",
    }
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    found = read(tmp_path, user={"exec": login}, cluster={"extensions": [extension]})
    config = found.user.exec_config
    assert config is not None
    assert config.command == f"{tmp_path}/bin/login"
    assert (config.args, config.env, config.install_hint) == (("--quiet",), {"A": "b"}, "get it here")
    assert config.wants_cluster
    assert found.cluster.exec_extension == {"audience": "x"}
    on_path = read(tmp_path, user={"exec": {**login, "command": "login"}}).user.exec_config
    assert on_path is not None
    assert on_path.command == "login"


LOGIN = {"apiVersion": EXEC_V1, "command": "login"}


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_plugin_of_a_file_that_others_may_write_is_not_run(tmp_path: Path, mode: int) -> None:
    file = write(tmp_path, document(user={"exec": LOGIN}))
    file.chmod(mode)
    with pytest.raises(KubeConfigError, match=r"names an exec plugin, and .* can be written by other users"):
        load_config(file=file, environ={})
    harmless = write(tmp_path, document(user={"token": "x"}), "harmless")
    harmless.chmod(mode)
    assert load_config(file=harmless, environ={}).user.exec_config is None


def test_a_plugin_of_another_user_s_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, document(user={"exec": LOGIN}))
    if os.geteuid() == 0:
        os.chown(file, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(KubeConfigError, match=r"names an exec plugin, and .* belongs to another user"):
        load_config(file=file, environ={})
    with pytest.raises(KubeConfigError, match="belongs to another user"):
        load_config(environ={"KUBECONFIG": str(file)})


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster", "user", "problem"),
    [
        ({"server": ""}, {}, "address does not begin with https"),
        ({"server": "ftp://x"}, {}, "address does not begin with https"),
        ({"server": f"https://me:{SECRET}@x"}, {}, "address holds a password"),
        ({"server": "http://far.example"}, {"token": SECRET}, r"go to http://far\.example unencrypted"),
        (
            {"insecure-skip-tls-verify": True, "certificate-authority": "ca"},
            {},
            "insecure-skip-tls-verify; use only one",
        ),
        ({"certificate-authority-data": "a"}, {}, "certificate-authority-data is not base64"),
        ({"proxy-url": f"socks5://u:{SECRET}@x"}, {}, "only proxies by http"),
        ({}, {"client-certificate": "c"}, "certificate needs its key"),
        ({}, {"client-key-data": base64.b64encode(SECRET.encode()).decode()}, "certificate needs its key"),
        ({}, {"auth-provider": {"name": "gcp", "config": {"access-token": SECRET}}}, "use an exec plugin"),
        ({}, {"as-groups": ["a"]}, "need as"),
        ({}, {"as": "a\r\nX-Evil: 1"}, "no header may have"),
        ({}, {"as": "a", "as-user-extra": {"b": ["c"]}}, "as-user-extra is not supported"),
        ({}, {"token": {"a": SECRET}}, r"Expected `str \| null`, got `object` - at `\$\.users\[0\]\.user\.token`"),
        (
            {},
            {"exec": {"command": "x", "apiVersion": "client.authentication.k8s.io/v1alpha1"}},
            "must be v1 or v1beta1",
        ),
        ({}, {"exec": {"command": "x"}}, "speaks no version"),
        ({}, {"exec": {"command": "x", "apiVersion": EXEC_V1, "interactiveMode": "Always"}}, "ask a person"),
    ],
)
def test_a_mistake_is_named_and_no_secret(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], problem: str
) -> None:
    with pytest.raises(KubeConfigError, match=problem) as failure:
        read(tmp_path, cluster=cluster, user=user)
    assert SECRET not in str(failure.value)
    assert failure.value.__cause__ is None


def test_what_is_no_yaml_is_not_quoted(tmp_path: Path) -> None:
    file = write(tmp_path, f"users:\n- name: me\n  user: {{token: {SECRET}\n]\n")
    with pytest.raises(KubeConfigError, match=r"config is not YAML \(line 4\)") as failure:
        load_config(file=file, environ={})
    assert SECRET not in str(failure.value)
    assert failure.value.__cause__ is None
    assert failure.value.__suppress_context__
    file.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(KubeConfigError, match="is not YAML"):
        load_config(file=file, environ={})


def test_names_that_lead_nowhere_are_answered_with_those_there_are(tmp_path: Path) -> None:
    content = document()
    content["contexts"] += [
        {"name": "lost", "context": {"cluster": "nowhere", "user": "a"}},
        {"name": "nobody", "context": {"cluster": "a", "user": "ghost"}},
    ]
    file = write(tmp_path, content)
    for context, problem in (
        ("c", "no context c; there are: a, lost, nobody"),
        ("lost", "no cluster nowhere"),
        ("nobody", "no user ghost"),
    ):
        with pytest.raises(KubeConfigError, match=problem):
            load_config(file=file, context=context, environ={})
    with pytest.raises(KubeConfigError, match="none is the current one; there are: a"):
        load_config(file=write(tmp_path, {**document(), "current-context": ""}), environ={})
    with pytest.raises(KubeConfigError, match="no context was named and none is the current one; there are: none"):
        load_config(file=write(tmp_path, ""), environ={})


def test_a_file_that_is_not_there_or_not_ours_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeConfigError, match="absent cannot be read: No such file"):
        load_config(file=tmp_path / "absent", environ={})
    with pytest.raises(KubeConfigError, match=r"there is no file .*absent"):
        load_config(environ={"KUBECONFIG": f"{tmp_path}/absent"})
    with pytest.raises(KubeConfigError, match="cannot be read: Is a directory"):
        read_kubeconfig([tmp_path], must_exist=True)
    with pytest.raises(KubeConfigError, match="KUBECONFIG is not set"):
        load_config(environ={"HOME": str(tmp_path)})


def test_no_secret_is_part_of_a_repr() -> None:
    found = KubeConfig(
        cluster=Cluster(server="https://x", ca=SECRET.encode()),
        user=User(token=SECRET.encode(), password=SECRET, certificate=SECRET.encode(), key=SECRET.encode()),
    )
    assert SECRET not in repr(found)


# --- in a pod ---------------------------------------------------------------------------------------------------------


def pod(folder: Path) -> dict[str, str]:
    for name, content in (("token", SECRET), ("ca.crt", "PEM"), ("namespace", "lapse-system\n")):
        (folder / name).write_text(content)
    return {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def test_a_pod_is_its_service_account(tmp_path: Path) -> None:
    found = in_cluster(pod(tmp_path), folder=tmp_path)
    assert found.cluster.server == "https://10.96.0.1:443"
    assert found.cluster.ca == tmp_path / "ca.crt"
    assert found.user.token == tmp_path / "token"
    assert found.namespace == "lapse-system"


def test_a_pod_with_only_ipv6_is_one_too(tmp_path: Path) -> None:
    environ = {**pod(tmp_path), "KUBERNETES_SERVICE_HOST": "fd00::1"}
    assert in_cluster(environ, folder=tmp_path).cluster.server == "https://[fd00::1]:443"


def test_the_service_account_comes_before_a_file_at_home_and_after_kubeconfig(tmp_path: Path) -> None:
    environ = {**pod(tmp_path), "HOME": str(tmp_path)}
    (tmp_path / ".kube").mkdir()
    file = write(tmp_path / ".kube", document())
    find = partial(load_config, service_account=tmp_path)
    assert find(environ=environ).origin == "the pod's service account"
    assert find(environ=environ, context="a").cluster.server == "https://a.example"
    assert find(environ={**environ, "KUBECONFIG": str(file)}).cluster.server == "https://a.example"


def test_what_a_pod_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeConfigError, match="is this a pod"):
        in_cluster({}, folder=tmp_path)
    environ = pod(tmp_path)
    (tmp_path / "token").unlink()
    with pytest.raises(KubeConfigError, match="has no token; is automountServiceAccountToken off"):
        in_cluster(environ, folder=tmp_path)
