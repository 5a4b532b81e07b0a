"""Every noun of the command line has the same verbs, the same flags and the same list: a new one cannot miss it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

import pytest
import yaml

from lapse.cli import app, main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cyclopts import App

OUTPUT: Final = {"--output", "-o"}
NO_NOUNS: Final = {
    "config": "settings: nothing is kept",
    "crds": "definitions of kinds, which kubectl lists and shows",
    "db": "tables of a database: made once",
    "demo": "there is one: it is started and stopped",
    "requests manifests": "what a checkpoint holds; checkpoints are listed by lapse requests list",
}
"""Groups of commands that are about no things of their own, with the reason."""


@dataclass(frozen=True)
class Noun:
    """What a noun has besides `list` and `show`."""

    makes: tuple[str, ...] = ("create",)
    ends: tuple[str, ...] = ("delete",)
    shows: str = "show"
    place: frozenset[str] = frozenset({"--server", "--state-dir"})
    has_namespaces: bool = False
    is_on_cluster: bool = False
    is_long: bool = True
    """Whether there may be more of them than one wants to see."""
    needs: tuple[str, ...] = ()
    """What a list of them cannot do without."""
    are_there: tuple[str, ...] = ()
    """Names of those that are there from the start."""


HERE: Final = frozenset({"--state-dir"})
"""Of what no server gives away."""
NOUNS: Final = {
    "keys": Noun(makes=("insert", "put"), needs=("--app", "7")),
    "requests": Noun(makes=("capture", "restore", "capture-manifests"), has_namespaces=True, is_on_cluster=True),
    "requests schedule": Noun(has_namespaces=True, is_on_cluster=True),
    "history": Noun(makes=("record",), is_on_cluster=True),
    # Made by kubectl, or in the settings, which always have one.
    "retention": Noun(makes=(), ends=(), is_on_cluster=True, are_there=("history",)),
    "workspaces": Noun(),
    "trash": Noun(makes=(), ends=("empty",), shows="list", is_on_cluster=True),  # what is there is shown by why
    "plans": Noun(makes=(), ends=(), is_on_cluster=True),
    "tokens": Noun(ends=("revoke",), place=HERE, is_long=False),
}


def groups(parent: App, *chain: str) -> Iterator[tuple[str, App]]:
    """Give every group of commands, those within others included."""
    for name in commands(parent):
        if commands(parent[name]):
            yield " ".join((*chain, name)), parent[name]
            yield from groups(parent[name], *chain, name)


def commands(parent: App) -> list[str]:
    return [name for name in parent if not name.startswith("-")]


@cache
def group(noun: str) -> App:
    return dict(groups(app))[noun]


def options(noun: str, command: str) -> set[str]:
    found = group(noun)[command].assemble_argument_collection()
    return {name for one in found for name in one.names if name.startswith("-")}


def verbs(noun: Noun) -> list[str]:
    return list(dict.fromkeys(["list", noun.shows, *noun.makes, *noun.ends]))


EACH = pytest.mark.parametrize(("name", "noun"), NOUNS.items(), ids=list(NOUNS))


def test_every_group_of_commands_is_a_noun_or_says_why_not() -> None:
    assert set(dict(groups(app))) == {*NOUNS, *NO_NOUNS}


@EACH
def test_a_noun_has_list_and_show_and_what_makes_and_ends_its_things(name: str, noun: Noun) -> None:
    assert set(verbs(noun)) <= set(commands(group(name)))
    assert not {"get", "scan", "status"} & set(commands(group(name))) - ({"get"} if name == "keys" else set()), (
        "list and show; lapse keys get prints the bare value"
    )


@EACH
def test_each_command_of_a_noun_takes_the_format_and_the_place(name: str, noun: Noun) -> None:
    for verb in verbs(noun):
        assert options(name, verb) >= OUTPUT | noun.place, verb
        if noun.is_on_cluster:
            assert options(name, verb) >= {"--cluster", "--kube-config", "--kube-context"}, verb


@EACH
def test_a_list_that_may_be_long_comes_in_pages(name: str, noun: Noun) -> None:
    if noun.is_long:
        assert options(name, "list") >= {"--limit", "--after"}


@EACH
def test_what_ends_something_asks_unless_told_not_to(name: str, noun: Noun) -> None:
    for verb in noun.ends:
        assert options(name, verb) >= {"--yes", "-y"}, verb


@EACH
def test_where_there_are_namespaces_one_is_named_in_one_way(name: str, noun: Noun) -> None:
    for verb in verbs(noun) if noun.has_namespaces else []:
        assert options(name, verb) >= {"--namespace", "-n"}, verb
    if noun.has_namespaces or "--namespace" in options(name, "list"):
        assert options(name, "list") >= {"--namespace", "-n", "--all-namespaces", "-A"}


@EACH
@pytest.mark.parametrize("output", ["json", "yaml"])
def test_a_list_is_items_and_next(
    name: str,
    noun: Noun,
    output: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("LAPSE_SERVER", raising=False)
    assert main([*name.split(), "list", *noun.needs, "--state-dir", str(tmp_path / "state"), "-o", output]) == 0
    told = capsys.readouterr().out

    found = json.loads(told) if output == "json" else yaml.safe_load(told)
    assert list(found) == ["items", "next"]
    assert tuple(one["name"] for one in found["items"]) == noun.are_there
    assert found["next"] is None


@EACH
def test_a_list_of_nothing_says_so_on_stderr(
    name: str, noun: Noun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("LAPSE_SERVER", raising=False)
    assert main([*name.split(), "list", *noun.needs, "--state-dir", str(tmp_path / "state")]) == 0
    told = capsys.readouterr()

    if noun.are_there:
        assert noun.are_there[0] in told.out
        return
    assert told.out == ""
    assert told.err.endswith(".\n")
