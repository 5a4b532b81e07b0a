"""Which cluster a command works on, and what it says when it cannot: the same for every command that needs one."""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from lapse.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMANDS = [["crds", "install"], ["crds", "diff"], ["operator", "--probes-port=0"]]
each_command = pytest.mark.parametrize("command", COMMANDS, ids=" ".join)


class OldServer(BaseHTTPRequestHandler):
    """Knows its version, and nothing else."""

    def do_GET(self) -> None:
        found = self.path == "/version"
        content = json.dumps({"gitVersion": "v1.28.3-eks-1"}).encode() if found else b"404 page not found\n"
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def old_server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), OldServer) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def empty_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file, no setting and no cluster of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    ours = [name for name in os.environ if name.startswith("LAPSE_")]
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", *ours):
        monkeypatch.delenv(name, raising=False)


def kubeconfig(name: str, server: str = "http://127.0.0.1:9") -> str:
    content = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "contexts": [{"name": one, "context": {"cluster": "c", "user": "u"}} for one in ("home", "work")],
        "users": [{"name": "u", "user": {}}],
        "current-context": "home",
    }
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(json.dumps(content))
    return name


@each_command
def test_a_flag_wins_over_the_environment_that_over_the_file_and_that_over_what_kubectl_reads(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def named(*flags: str) -> str:
        assert main([*command, *flags]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        said, _, rest = line.partition(". It was named by context ")
        assert said.startswith("lapse: The cluster at http://127.0.0.1:9 cannot be used: no connection to")
        return rest.partition(";")[0]

    kubeconfig(".kube/config")
    assert named().endswith("/.kube/config")
    monkeypatch.setenv("KUBECONFIG", kubeconfig("for-kubectl"))
    assert named() == "home of for-kubectl"
    own = Path(os.environ["XDG_CONFIG_HOME"], "lapse", "lapse.toml")
    own.parent.mkdir(parents=True)
    own.write_text(f"kube_config = '{Path(kubeconfig('in-file')).absolute()}'\nkube_context = 'work'\n")
    assert named().endswith("/in-file")
    monkeypatch.setenv("LAPSE_KUBE_CONFIG", kubeconfig("in-environment"))
    assert named() == "work of in-environment"
    monkeypatch.setenv("LAPSE_KUBE_CONTEXT", "home")
    assert named() == "home of in-environment"
    assert named("--kube-config", kubeconfig("by-flag"), "--kube-context=work") == "work of by-flag"
    Path("other.toml").write_text("kube_context = 'work'\n")
    monkeypatch.delenv("LAPSE_KUBE_CONTEXT")
    assert named("--config=other.toml") == "work of in-environment"


@each_command
def test_without_any_cluster_it_says_where_it_looked(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 64
    assert capsys.readouterr().err == (
        "lapse: The Kubernetes configuration cannot be used: there is none: no file was named, KUBECONFIG is not set,"
        " this is not a pod with a service account, and there is no ~/.kube/config.\n"
    )


@each_command
def test_a_server_that_is_too_old_is_named_with_what_is_needed(
    command: list[str], old_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--kube-config", kubeconfig("config", old_server)]) == 1
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err == (
        f"lapse: The API server at {old_server} is of version v1.28.3-eks-1, and the definitions need 1.29 or newer;"
        " upgrade it first.\n"
    )


@each_command
def test_a_missing_library_is_named_with_what_to_install(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert main([*command, "--kube-config", kubeconfig("config")]) == 64
    assert capsys.readouterr().err == (
        "lapse: Work on a cluster needs yaml, which is not installed; run pip install 'lapse[kubernetes]'.\n"
    )
