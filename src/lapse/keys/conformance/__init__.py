"""The conformance kit of keys: one suite that shows, on any store, which rules of the contract hold.

    for result in run_conformance(StoreTarget.from_url("file:///var/lib/app/keys.db")):
        print(result.outcome, result.case.title, result.detail)

It is part of the product: run it on your own backend, and on the store you are going to trust. On a store
that is in use it leaves nothing behind and touches no record of others: see `lapse.keys.conformance.fixture`.
"""

from __future__ import annotations

from lapse.core.moved import old_names
from lapse.keys.conformance.case import Case, CaseKind, CaseOutcome, CaseResult, ContractRule
from lapse.keys.conformance.fixture import KIT_APPS, NoEmptyApplicationError, StoreTarget
from lapse.keys.conformance.kit import UnknownCaseError, list_cases, run_conformance

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

__getattr__ = old_names(__name__)
