"""What `lapse crds` says when it cannot do its work: one line, and no traceback."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from lapse.cli import main
from lapse.kube.crd.installation import compare_specs, read_version

if TYPE_CHECKING:
    from pathlib import Path

UNUSED = "http://127.0.0.1:9"


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
