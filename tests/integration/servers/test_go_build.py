"""Programs are built from Go modules once for each list of modules, flags and Go, and people see that it goes on."""

from __future__ import annotations

import dataclasses
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.servers.cache import cached, fetched
from tests.servers.errors import FetchError
from tests.servers.kube import build
from tests.servers.kube.build import KUBE, KUBE_CSI, GoBuild, GoModule, ModuleFiles, find_go

if TYPE_CHECKING:
    from pathlib import Path

needs_go = pytest.mark.skipif(find_go() is None, reason="no go on PATH")


@pytest.fixture
def hello(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GoBuild:
    """A program that needs nothing but Go, to be built into a cache of its own."""
    monkeypatch.setenv("LAPSE_SERVERS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "hello"
    folder.mkdir()
    (folder / "go.mod").write_text("module example.test/hello\n\ngo 1.21\n", encoding="ascii")
    (folder / "go.sum").touch()
    source = "package main\n\nvar word string\n\nfunc main() { println(word) }\n"
    (folder / "main.go").write_text(source, encoding="ascii")
    module = GoModule(folder, ("example.test/hello",), linker=("-X main.word=moin",), output="greet")
    return GoBuild("hello", "1.0", (module,), size=0)


@needs_go
def test_a_program_is_built_once_with_its_flags_and_found_afterwards(
    hello: GoBuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(build, "TELL_EVERY_SECONDS", 0)
    folder = fetched(hello, told.append)
    assert [path.name for path in folder.iterdir()] == ["greet"]
    assert subprocess.run([folder / "greet"], capture_output=True, check=True).stderr == b"moin\n"
    assert any(line.startswith("hello, hello: 0 modules were missing, ") for line in told)
    before = len(told)
    assert fetched(hello, told.append) == folder == cached(hello)
    assert len(told) == before


@needs_go
def test_tags_choose_what_is_built_and_make_it_another_build(hello: GoBuild) -> None:
    (module,) = hello.modules
    main = module.folder / "main.go"
    main.write_text("package main\n\nfunc main() { println(word) }\n", encoding="ascii")
    for name, condition in (("tagged", "tagged"), ("plain", "!tagged")):
        source = f'//go:build {condition}\n\npackage main\n\nvar word = "{name}"\n'
        (module.folder / f"{name}.go").write_text(source, encoding="ascii")
    plain = dataclasses.replace(hello, modules=(dataclasses.replace(module, linker=()),))
    tagged = dataclasses.replace(hello, modules=(dataclasses.replace(module, linker=(), tags=("tagged",)),))

    said = [subprocess.run([fetched(one, print) / "greet"], capture_output=True, check=True) for one in (plain, tagged)]
    assert [one.stderr for one in said] == [b"plain\n", b"tagged\n"]


def with_files(hello: GoBuild, pattern: str) -> GoBuild:
    (module,) = hello.modules
    files = ModuleFiles("example.test/hello", pattern, "texts")
    return dataclasses.replace(hello, modules=(dataclasses.replace(module, files=(files,)),))


@needs_go
def test_files_of_a_module_are_kept_beside_the_programs(hello: GoBuild) -> None:
    source = hello.modules[0].folder / "words" / "one.txt"
    source.parent.mkdir()
    source.write_text("moin\n", encoding="ascii")
    source.chmod(0o444)
    folder = fetched(with_files(hello, "words/*.txt"), lambda line: None)
    assert sorted(path.name for path in folder.iterdir()) == ["greet", "texts"]
    (folder / "texts" / "one.txt").write_text("may be changed\n", encoding="ascii")
    with pytest.raises(FetchError, match=r"example\.test/hello has no \*\.yaml"):
        fetched(with_files(hello, "*.yaml"), lambda line: None)


def test_whatever_a_build_is_made_from_makes_it_another_one(hello: GoBuild) -> None:
    recipes = [hello.recipe]
    (module,) = hello.modules
    recipes.append(dataclasses.replace(hello, modules=(dataclasses.replace(module, linker=()),)).recipe)
    recipes.append(with_files(hello, "*.txt").recipe)
    (module.folder / "go.sum").write_text("# other\n", encoding="ascii")
    recipes.append(hello.recipe)
    (module.folder / "go.mod").write_text("module example.test/other\n", encoding="ascii")
    recipes.append(hello.recipe)
    assert len(set(recipes)) == 5


@needs_go
def test_a_build_that_fails_says_what_go_said_and_leaves_nothing(hello: GoBuild, tmp_path: Path) -> None:
    (hello.modules[0].folder / "main.go").write_text("package main\n\nfunc main() { nonsense() }\n", encoding="ascii")
    with pytest.raises(FetchError, match=r"go ended with code 1: .*undefined: nonsense"):
        fetched(hello, lambda line: None)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["hello.lock"]


def test_without_go_the_reason_says_how_to_get_it(hello: GoBuild, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FetchError, match=r"no go on PATH: install Go .* from https://go\.dev/dl"):
        fetched(hello, lambda line: None)


def test_the_modules_are_those_of_the_release_that_the_programs_tell() -> None:
    lists = [(module.folder / "go.mod").read_text(encoding="utf-8") for module in KUBE.modules]
    assert "go.etcd.io/etcd/server/v3 v3.6.16" in lists[0]
    assert f"k8s.io/kubernetes v{KUBE.release}" in lists[1]
    lists = [(module.folder / "go.mod").read_text(encoding="utf-8") for module in KUBE_CSI.modules]
    assert "kubernetes-csi/csi-driver-host-path v1.7.2" in lists[0]
    assert "kubernetes-csi/external-provisioner/v5 v5.1.0" in lists[1]
    for module in ("external-snapshotter/v8", "external-snapshotter/client/v8"):
        assert f"kubernetes-csi/{module} v{KUBE_CSI.release}" in lists[2]
