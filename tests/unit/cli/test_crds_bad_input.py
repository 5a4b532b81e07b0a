"""What `lapse crds` says when it cannot do its work: one line, and no traceback."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from lapse.cli import main
from lapse.kube.definitions import compare_specs, read_version

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNUSED = "http://127.0.0.1:9"


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


def kubeconfig(folder: Path, server: str) -> str:
    file = folder / "config"
    content = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "contexts": [{"name": "home", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "home",
    }
    file.write_text(json.dumps(content))
    return str(file)


@pytest.mark.parametrize("command", ["install", "diff"])
def test_a_server_that_is_too_old_is_named_with_what_is_needed(
    command: str, old_server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["crds", command, "--kube-config", kubeconfig(tmp_path, old_server)]) == 1
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err == (
        "lapse: The API server is of version v1.28.3-eks-1, and the definitions need 1.29 or newer."
        " Upgrade the cluster first.\n"
    )


@pytest.mark.parametrize("command", [["install", "-o", "json"], ["diff", "--detailed-exitcode"]])
def test_without_a_cluster_it_says_where_it_looked(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = kubeconfig(tmp_path, UNUSED)
    assert main(["crds", *command, "--kube-config", file]) == 1
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith(f"lapse: No API server can be used with context home of {file}: no connection to")
    assert written.err.endswith("Check that file and that the cluster is up.\n")
    assert written.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kube-config", "/nowhere/config"], "/nowhere/config"),
        (["--kube-context", "work"], "there is no context work; there are: home"),
        (["--timeout", "soon"], "--timeout is 'soon'. Expected a duration such as 30s or 2m."),
        (["--timeout", "never"], "--timeout is 'never'."),
        (["--timeout", "0s"], "--timeout is '0s'."),
    ],
)
def test_a_wrong_option_is_wrong_usage(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path, UNUSED))
    assert main(["crds", "install", *arguments]) == 64
    written = capsys.readouterr()
    assert said in written.err
    assert written.err.count("\n") == 1


def test_a_missing_library_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("lapse.kube.")]:
        if name.rpartition(".")[2] in {"client", "transport", "tls"}:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert main(["crds", "diff", "--kube-config", kubeconfig(tmp_path, UNUSED)]) == 1
    assert capsys.readouterr().err == (
        "lapse: A Kubernetes cluster needs a library that is not installed (aiohttp). Install lapse[kubernetes].\n"
    )


@pytest.mark.parametrize(
    ("text", "version"),
    [("v1.35.4", (1, 35)), ("1.29", (1, 29)), ("v1.28.3-eks-1+x", (1, 28)), ("v2.0.0", (2, 0)), ("", None)],
)
def test_versions_are_read_as_servers_write_them(text: str, version: tuple[int, int] | None) -> None:
    assert read_version(text) == version


def test_what_a_server_adds_by_itself_is_no_difference_but_another_conversion_is() -> None:
    wanted = {"scope": "Cluster", "versions": [{"name": "v1"}]}
    assert not list(compare_specs({**wanted, "conversion": {"strategy": "None"}}, wanted))
    (found,) = compare_specs({**wanted, "conversion": {"strategy": "Webhook"}}, wanted)
    assert (found.path, found.cluster, found.wanted) == ("spec.conversion.strategy", "Webhook", "None")


def test_a_list_of_another_length_is_shown_as_a_whole() -> None:
    (found,) = compare_specs({"a": [1], "conversion": {"strategy": "None"}}, {"a": [1, 2]})
    assert (found.path, found.cluster, found.wanted) == ("spec.a", [1], [1, 2])
