"""A ConfigMap as an approval: it counts where the person who carries the plan out could not have made it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import UnixNs
from lapse.engine.plans.approvals import Approvals, ApprovalUnreadableError
from lapse.engine.verbs.contract import Approval
from lapse.engine.view import Moment, encode, to_json
from lapse.kube.errors import NotFoundError
from lapse.kube.resources import ObjectMeta
from lapse.objects.approvals import APPROVED_BY, ConfigMapApprovals, UnprovenApprovalError
from lapse.objects.config_map_gate import ConfigMap

if TYPE_CHECKING:
    from lapse.kube.auth.access import Right
    from lapse.kube.resources import ObjectKey

AT = Moment(UnixNs(10**18))
PLAN: Any = SimpleNamespace(id="7f3c", digest="d1", created_at=AT, expires_at=AT)
"""What an approval looks at of a plan."""


class Cluster:
    """One ConfigMap, or none, and what one person may do."""

    def __init__(self, digest: str | None, *, rights: tuple[str, ...] = ()) -> None:
        self._digest, self._rights = digest, rights
        self.asked: list[str] = []

    async def get(self, _kind: object, key: ObjectKey) -> ConfigMap:
        if self._digest is None or str(key) != "lapse-system/lapse-plan-7f3c":
            raise NotFoundError(kind="ConfigMap", name=key)
        meta = ObjectMeta(name=key.name, namespace=key.namespace, annotations={APPROVED_BY: "ben"})
        return ConfigMap(meta, {"digest": self._digest})

    async def may(self, right: Right) -> bool:
        self.asked.append(str(right))
        return right.verb in self._rights

    @property
    def source(self) -> ConfigMapApprovals:
        reader: Any = self
        return ConfigMapApprovals(reader, "lapse-system", may=self.may)


async def test_one_that_the_person_who_applies_could_not_make_counts() -> None:
    cluster = Cluster("d1", rights=("get", "list"))
    source = cluster.source
    for _ in range(2):
        found = await source.find(PLAN)
        assert found is not None
        assert (found.by, found.digest) == ("ben", "d1")
    what = "configmaps lapse-plan-7f3c in lapse-system"
    assert cluster.asked == [f"create {what}", f"update {what}", f"patch {what}"], "of one plan it is asked once"


@pytest.mark.parametrize("verb", ["create", "update", "patch"])
async def test_one_that_the_same_person_may_have_made_is_refused_whomever_it_names(verb: str) -> None:
    with pytest.raises(UnprovenApprovalError, match=f"you may {verb} configmaps lapse-plan-7f3c in lapse-system"):
        await Cluster("d1", rights=(verb,)).source.find(PLAN)


@pytest.mark.parametrize("digest", [None, "", "another"])
async def test_none_and_one_of_another_plan_approve_nothing(digest: str | None) -> None:
    assert await Cluster(digest, rights=("create",)).source.find(PLAN) is None


@pytest.mark.parametrize("end", ["expires_at", "expires"])
async def test_an_approval_by_a_command_needs_no_config_map(end: str) -> None:
    approval = Approval(plan="7f3c", digest="d1", by="ann", at=AT, expires_at=AT)

    notes = _noted(encode(approval).decode().replace('"expires_at"', f'"{end}"'))  # as stored now, and as it once was
    cluster = Cluster("d1", rights=("create",))
    assert await Approvals(notes, cluster.source).find(PLAN) == approval
    assert cluster.asked == []


@pytest.mark.parametrize(("end", "former"), [(0, 1), (1, 0)])
async def test_of_two_ends_of_an_approval_the_earlier_one_counts(end: int, former: int) -> None:
    approval = Approval(plan="7f3c", digest="d1", by="ann", at=AT, expires_at=Moment(AT + end * 10**9))
    stored = {**to_json(approval), "expires": str(Moment(AT + former * 10**9))}
    found = await Approvals(_noted(json.dumps(stored))).find(PLAN)
    assert found is not None
    assert found.expires_at == AT


@pytest.mark.parametrize("end", ["null", "5", "[]", "{}", '"soon"', "[" * 5000 + "]" * 5000])
@pytest.mark.parametrize("name", ["expires_at", "expires"])
async def test_an_approval_with_another_end_than_a_time_is_told_of(name: str, end: str) -> None:
    text = f'{{"plan":"7f3c","digest":"d1","by":"ann","at":"2030-01-31T12:00:00Z","{name}":{end}}}'
    with pytest.raises(ApprovalUnreadableError, match="Approve it again"):
        await Approvals(_noted(text)).find(PLAN)


def _noted(text: str) -> Any:  # noqa: ANN401 - stands for notes
    async def read_note(_name: str) -> str:
        return text

    return SimpleNamespace(read_note=read_note)
