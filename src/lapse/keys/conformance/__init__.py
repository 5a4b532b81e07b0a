"""The conformance kit of keys: one suite that shows, on any store, which rules of the contract hold.

    for result in run_conformance(Target.from_url("file:///var/lib/app/keys.db")):
        print(result.outcome, result.case.title, result.detail)

It is part of the product: run it on your own backend, and on the store you are going to trust. What it does to a
store that is in use is said in `lapse.keys.conformance.fixture`: it leaves nothing behind and touches no record of
others.
"""

from __future__ import annotations

from lapse.keys.conformance.case import Case, CaseResult, Kind, Outcome, Rule
from lapse.keys.conformance.fixture import KIT_APPS, NoEmptyApplicationError
from lapse.keys.conformance.kit import UnknownCaseError, list_cases, run_conformance
from lapse.keys.conformance.target import Target

__all__ = [
    "KIT_APPS",
    "Case",
    "CaseResult",
    "Kind",
    "NoEmptyApplicationError",
    "Outcome",
    "Rule",
    "Target",
    "UnknownCaseError",
    "list_cases",
    "run_conformance",
]
