"""Old names of documented modules and classes: they are the new ones, and say so."""

from __future__ import annotations

import subprocess
import sys
import warnings
from importlib import import_module

import pytest

from lapse.core.moved import MODULES, NAMES

OLD_NAMES = [(module, old, new) for module, names in NAMES.items() for old, new in names.items()]


@pytest.mark.parametrize(("old", "new"), MODULES.items())
def test_an_old_module_name_is_the_new_module_and_warns(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, old, raising=False)
    module = import_module(new)
    spec = module.__spec__

    with pytest.warns(DeprecationWarning, match=new):
        assert import_module(old) is module
    assert module.__spec__ is spec
    assert module.__name__ == new


@pytest.mark.parametrize(("module", "old", "new"), OLD_NAMES)
def test_an_old_name_of_a_class_is_the_new_one_and_warns(module: str, old: str, new: str) -> None:
    home, _, name = new.rpartition(".")

    with pytest.warns(DeprecationWarning, match=new):
        found = getattr(import_module(module), old)
    assert found is getattr(import_module(home), name)


@pytest.mark.parametrize("module", NAMES)
def test_what_was_never_there_is_missing_as_anywhere(module: str) -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = import_module(module).Nonsense


def test_a_module_that_was_never_there_is_missing_as_anywhere() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_module("lapse.engine.nonsense")


def test_new_names_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for new in MODULES.values():
            import_module(new)


@pytest.mark.process
def test_an_import_statement_of_a_program_finds_old_names_and_is_named_by_the_warning() -> None:
    program = """from lapse.engine.leadership import Term
from lapse.engine.journal import SQLiteJournal
print(Term.__module__)
"""

    done = subprocess.run([sys.executable, "-W", "always", "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "lapse.engine.running.election\n"
    assert "<string>:1: DeprecationWarning: lapse.engine.leadership is lapse.engine.running.election now" in done.stderr
    assert "<string>:2: DeprecationWarning: lapse.engine.journal.SQLiteJournal is" in done.stderr
