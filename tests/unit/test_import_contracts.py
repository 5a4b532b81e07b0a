"""The layers of the architecture are contracts that can break, shown by breaking each on a copy of the source tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process  # import-linter

ROOT = Path(__file__).parents[2]
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"
DOWN_ONLY = "Arrows point down only, and domains do not import each other"
PURE_CORE = "The core does no I/O and knows no event loop"
NO_KUBERNETES = "The engine knows no type of Kubernetes"
SETTINGS = "Only cli, app and web read the settings; everything else is given its values"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Give a copy of the project, to be broken at will."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def ensure_module(tree: Path, name: str) -> Path:
    """Return the file of a module, created with its packages where the tree does not have them yet."""
    *packages, leaf = name.split(".")
    folder = tree / "src"
    for package in packages:
        folder /= package
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").touch()
    if (folder / leaf).is_dir():
        return folder / leaf / "__init__.py"
    module = folder / f"{leaf}.py"
    module.touch()
    return module


def plant(tree: Path, importer: str, imported: str) -> None:
    if imported.startswith("lapse."):
        ensure_module(tree, imported)
    module = ensure_module(tree, importer)
    module.write_text(f"{module.read_text()}\nimport {imported}\n")


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LINT, "--config", str(tree / "pyproject.toml"), "--no-cache", "--no-logo"],
        cwd=tree / "src",
        env=os.environ | {"PYTHONPATH": str(tree / "src"), "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_tree_as_it_is_keeps_every_contract(tree: Path) -> None:
    result = lint(tree)

    assert result.returncode == 0, result.stdout + result.stderr
    for contract in (DOWN_ONLY, PURE_CORE, NO_KUBERNETES, SETTINGS):
        assert f"{contract} KEPT" in result.stdout


@pytest.mark.parametrize(
    ("importer", "imported", "contract"),
    [
        pytest.param("lapse.core.planted", "asyncio", PURE_CORE, id="core imports asyncio"),
        pytest.param("lapse.core.planted", "apsw", PURE_CORE, id="core imports a database"),
        pytest.param("lapse.core.planted", "lapse.keys.planted", DOWN_ONLY, id="core imports a domain"),
        pytest.param("lapse.history.planted", "lapse.keys.planted", DOWN_ONLY, id="a domain imports another domain"),
        pytest.param("lapse.keys.planted", "lapse.web.planted", DOWN_ONLY, id="a domain imports web"),
        pytest.param("lapse.engine.planted", "lapse.keys.planted", DOWN_ONLY, id="engine imports a domain"),
        pytest.param("lapse.engine.planted", "lapse.objects.planted", DOWN_ONLY, id="engine imports objects"),
        pytest.param("lapse.engine.planted", "lapse.kube.errors", NO_KUBERNETES, id="engine imports kube"),
        pytest.param("lapse.db.planted", "lapse.engine.planted", DOWN_ONLY, id="db imports engine"),
        pytest.param("lapse.db.planted", "lapse.kube.planted", DOWN_ONLY, id="db imports kube"),
        pytest.param("lapse.app.planted", "lapse.cli.planted", DOWN_ONLY, id="a composition root imports cli"),
        pytest.param("lapse.web.planted", "lapse.proxy.planted", DOWN_ONLY, id="web imports proxy"),
        pytest.param("lapse.keys.planted", "lapse.settings", SETTINGS, id="a domain reads the settings"),
        pytest.param("lapse.proxy.planted", "lapse.settings", SETTINGS, id="the proxy reads the settings"),
    ],
)
def test_a_forbidden_import_breaks_its_contract(tree: Path, importer: str, imported: str, contract: str) -> None:
    plant(tree, importer, imported)

    result = lint(tree)

    assert result.returncode == 1, result.stdout + result.stderr
    assert f"{contract} BROKEN" in result.stdout
    assert f"{importer} -> {imported}" in result.stdout


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        pytest.param("lapse.core.clock", "asyncio", id="the clock may import asyncio"),
        pytest.param("lapse.web.planted", "lapse.settings", id="web reads the settings"),
        pytest.param("lapse.cli.planted", "lapse.settings", id="cli reads the settings"),
        pytest.param("lapse.cli.planted", "lapse.app.planted", id="cli imports a composition root"),
        pytest.param("lapse.keys.planted", "lapse.engine.planted", id="a domain imports engine"),
        pytest.param("lapse.engine.planted", "lapse.db.planted", id="engine imports db"),
    ],
)
def test_an_allowed_import_keeps_every_contract(tree: Path, importer: str, imported: str) -> None:
    plant(tree, importer, imported)

    result = lint(tree)

    assert result.returncode == 0, result.stdout + result.stderr


def test_a_new_top_level_module_without_a_layer_breaks_the_contract(tree: Path) -> None:
    ensure_module(tree, "lapse.homeless")

    result = lint(tree)

    assert result.returncode == 1, result.stdout + result.stderr
    assert f"{DOWN_ONLY} BROKEN" in result.stdout
    assert "homeless" in result.stdout
