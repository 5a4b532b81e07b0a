"""Old names of documented modules and classes: they keep working for this version, with a DeprecationWarning.

An old module name is the new module itself, so that classes are the same whichever name they were imported by. The
tables hold what the documentation has shown, and nothing else. Installed by `lapse`, at no cost until an old name is
asked for.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

MODULES: Final[Mapping[str, str]] = {
    "lapse.cli.state_folder": "lapse.app.record",
    "lapse.engine.holds": "lapse.engine.safety.holds",
    "lapse.engine.leadership": "lapse.engine.running.election",
    "lapse.engine.metrics": "lapse.engine.running.metrics",
    "lapse.history.configured": "lapse.history.policy.default_policy",
    "lapse.history.recording": "lapse.history.records",
}
NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "lapse.engine.journal": {"SQLiteJournal": "lapse.engine.journal.sqlite.SQLiteJournal"},
    "lapse.keys.conformance": {
        "Kind": "lapse.keys.conformance.CaseKind",
        "Outcome": "lapse.keys.conformance.CaseOutcome",
        "Rule": "lapse.keys.conformance.ContractRule",
        "Target": "lapse.keys.conformance.StoreTarget",
    },
    "lapse.keys.port": {"SweepReport": "lapse.keys.port.CleanupReport"},
}
"""By module: what it no longer holds under this name, and where that is now."""


def old_names(module: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module that finds `NAMES` under their new ones."""

    def find(name: str) -> Any:  # noqa: ANN401 - whatever has had that name
        new = NAMES[module].get(name)
        if new is None:
            message = f"module {module!r} has no attribute {name!r}"
            raise AttributeError(message)
        warnings.warn(f"{module}.{name} is {new} now", DeprecationWarning, stacklevel=2)
        home, _, new_name = new.rpartition(".")
        return getattr(import_module(home), new_name)

    return find


class _Loader:
    """Gives the new module under its old name, as it is."""

    def __init__(self, new: str) -> None:
        self._new = new
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._new)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # which the import has replaced by that of the old name


class OldModules:
    """A finder of `sys.meta_path` for `MODULES`."""

    @staticmethod
    def find_spec(name: str, *_: object) -> ModuleSpec | None:
        """Return how an old name is imported; None for all others."""
        new = MODULES.get(name)
        if new is None:
            return None
        warnings.warn(f"{name} is {new} now", DeprecationWarning, stacklevel=2)
        return ModuleSpec(name, _Loader(new))  # type: ignore[arg-type]  # a loader by its methods


def install() -> None:
    """Let old module names be imported, after everything that is there by itself."""
    if OldModules not in sys.meta_path:
        sys.meta_path.append(OldModules)
