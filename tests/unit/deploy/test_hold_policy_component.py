"""The admission policy of holds, without a cluster: it names the accounts and the annotations that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from lapse.engine.safety.holds import HELD_DEPENDENTS, HOLD, HOLD_BY, HOLD_REASON, HOLD_UNTIL, LEGAL
from lapse.objects.holds.passed_on import PASSED_ON, REPLACED

DEPLOY = Path(__file__).parents[3] / "deploy"
COMPONENT = DEPLOY / "components" / "hold-policy"
POLICY: dict[str, Any] = yaml.safe_load((COMPONENT / "policy.yaml").read_text())
TEXT = (COMPONENT / "policy.yaml").read_text()


def accounts() -> set[str]:
    """The accounts of the base under which something is ended."""
    found = []
    for name in ("service-account.yaml", "retention-account.yaml"):
        found += list(yaml.safe_load_all((DEPLOY / "base" / name).read_text()))
    return {
        f"system:serviceaccount:{one['metadata']['namespace']}:{one['metadata']['name']}"
        for one in found
        if one["kind"] == "ServiceAccount"
    }


def test_the_component_lists_every_file() -> None:
    listed = yaml.safe_load((COMPONENT / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(one.name for one in COMPONENT.iterdir() if one.name != "kustomization.yaml")


def test_the_policy_lets_exactly_the_accounts_of_the_base_pass() -> None:
    (condition,) = [one for one in POLICY["spec"]["matchConditions"] if one["name"] == "is-not-lapse"]
    assert set(re.findall(r"'(system:[^']+)'", condition["expression"])) == accounts()


def test_the_policy_knows_the_annotations_by_their_names() -> None:
    expressions = TEXT.partition("\nspec:")[2]
    named = {HOLD, HOLD_BY, HOLD_REASON, HOLD_UNTIL, HELD_DEPENDENTS, PASSED_ON, REPLACED}
    assert set(re.findall(r"'(lapse\.dev/[a-z-]+)'", expressions)) == named
    assert f"'{LEGAL}'" in expressions


def test_doubt_denies_and_the_policy_is_bound() -> None:
    binding = yaml.safe_load((COMPONENT / "binding.yaml").read_text())
    assert POLICY["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"] == {"policyName": POLICY["metadata"]["name"], "validationActions": ["Deny"]}
