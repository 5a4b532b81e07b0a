"""The conformance kit of keys: one suite that shows, on any store, which rules of the contract hold.

    for result in run_conformance(StoreTarget.from_url("file:///var/lib/app/keys.db")):
        print(result.outcome, result.case.title, result.detail)

It is part of the product: run it on your own backend, and on the store you are going to trust. On a store
that is in use it leaves nothing behind and touches no record of others: see `lapse.keys.conformance.fixture`.
"""

from __future__ import annotations

import warnings
from typing import Final

from lapse.keys.conformance.case import Case, CaseKind, CaseOutcome, CaseResult, ContractRule
from lapse.keys.conformance.fixture import KIT_APPS, NoEmptyApplicationError
from lapse.keys.conformance.kit import UnknownCaseError, list_cases, run_conformance
from lapse.keys.conformance.target import StoreTarget

__all__ = [
    "KIT_APPS",
    "Case",
    "CaseKind",
    "CaseOutcome",
    "CaseResult",
    "ContractRule",
    "NoEmptyApplicationError",
    "StoreTarget",
    "UnknownCaseError",
    "list_cases",
    "run_conformance",
]

_OLD_NAMES: Final = {
    "Kind": CaseKind,
    "Outcome": CaseOutcome,
    "Rule": ContractRule,
    "Target": StoreTarget,
}
"""Names of versions before 0.3, for programs that examine a backend of their own."""


def __getattr__(name: str) -> object:
    """Return what has had another name, with a warning."""
    found = _OLD_NAMES.get(name)
    if found is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    warnings.warn(f"{__name__}.{name} is called {found.__name__} now", DeprecationWarning, stacklevel=2)
    return found
