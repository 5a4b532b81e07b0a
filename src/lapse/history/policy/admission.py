"""Admission of retention policies: a policy may select only what its author may list and delete.

A policy acts with the rights of the account for policies (`lapse.history.policy.rbac`), so without this check everybody
who may create policies deletes with the rights that were granted for the policies of others. Both the creation and
every change of a spec are judged; a change of metadata alone grants nothing, and is allowed. The questions: ``list``
and ``delete`` on the kind, in each namespace that the policy names, or in all of them where it names none.

A person who may impersonate the account for policies has all its rights anyway, and so may write any policy: that is
how the operator publishes the history's own. Doubt denies: an unknown kind, an answer that did not come, more
namespaces than can be asked about in time. Not guaranteed: that a right which is taken from the author later stops the
policy; take it from the account for policies then.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lapse.core.log import get_logger
from lapse.history.api.kinds import RETENTION, RETENTION_POLICY
from lapse.kube.auth.access import AccessReviews
from lapse.kube.auth.admission import NO, WRONG, AccessQuestion, Ruling, decide, failure, place_of, unknown_kind
from lapse.kube.errors import ObjectError, UnknownKindError

if TYPE_CHECKING:
    from lapse.history.api.kinds import Selector
    from lapse.kube.api.client import KubeClient
    from lapse.kube.auth.access import Right
    from lapse.kube.auth.admission import AdmissionRequest, Person
    from lapse.kube.resources import Kind

VERBS: Final = ("list", "delete")
BECAUSE: Final = "a policy may select only what its author may list and delete"
MAX_QUESTIONS: Final = 1000
"""The most questions that there is time for: at a few milliseconds for each, some at once, a second or two."""
_WRITES: Final = frozenset({"CREATE", "UPDATE"})
_log = get_logger("lapse.history.policy.admission")


@dataclass(frozen=True, slots=True)
class PolicyReview:
    """One policy to judge; without a selector there is nothing to judge, and ``problem`` says why if that is wrong."""

    name: str
    person: Person
    selector: Selector | None = None
    problem: str | None = None


def review_of(request: AdmissionRequest) -> PolicyReview:
    """Return what is to be judged about a request."""
    kind, asked = RETENTION_POLICY, request.kind
    if (asked.api_version, asked.kind) != (kind.api_version, kind.kind) or request.sub_resource:
        problem = f"only {kind.kind} of {kind.api_version} is judged here; correct the rules of the webhook"
        return PolicyReview("", request.user_info, problem=problem)
    if request.operation not in _WRITES:
        return PolicyReview("", request.user_info, problem="only CREATE and UPDATE are judged here; correct the rules")
    try:
        body, before = (msgspec.json.decode(one, type=dict | None) for one in (request.object, request.old_object))
        policy = kind.convert(body or {})
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return PolicyReview("", request.user_info, problem=f"its object is not a {kind.kind}: {place_of(error)}")
    is_same = request.operation == "UPDATE" and body is not None and _spec(body) == _spec(before)
    return PolicyReview(policy.metadata.name, request.user_info, None if is_same else policy.spec.selector)


def _spec(body: dict[str, Any] | None) -> object:
    return None if body is None else body.get("spec")


def questions(selector: Selector, kind: Kind[Any]) -> tuple[AccessQuestion, ...]:
    """Return what must be asked, each once."""
    places = selector.namespaces if kind.namespaced and selector.namespaces else ("",)
    return tuple(AccessQuestion.about(kind, verb, namespace=place) for place in dict.fromkeys(places) for verb in VERBS)


def impersonating(right: Right) -> AccessQuestion:
    """Return the question whether somebody has all rights of the account for policies."""
    return AccessQuestion(right.verb, right.group, "v1", right.resource, right.namespace or "", right.name)


class PolicyJudge:
    """Asks the cluster, and rules. Belongs to one event loop."""

    domain = RETENTION

    def __init__(self, client: KubeClient, *, impersonation: Right) -> None:
        """Ask by ``client``; ``impersonation`` is the right to act as the account for policies."""
        self._reviews, self._impersonation = AccessReviews(client), impersonating(impersonation)

    async def judge(self, request: AdmissionRequest, *, seconds: float) -> Ruling:
        """Say within ``seconds`` whether the policy may be stored."""
        review = review_of(request)
        ruling = await self._ruling(review, seconds)
        about = {"user": review.person.username, "policy": review.name}
        if ruling.failed:
            _log.warning("policy_not_judged", reason=ruling.message, **about)
        elif not ruling.allowed:
            _log.info("policy_denied", reason=ruling.message, **about)
        else:
            _log.debug("policy_allowed", **about)
        return ruling

    async def _ruling(self, review: PolicyReview, seconds: float) -> Ruling:
        if review.problem is not None:
            return Ruling(WRONG, review.problem)
        if review.selector is None:
            return Ruling()
        try:
            async with asyncio.timeout(seconds):
                return await self._asked(review, review.selector)
        except TimeoutError:
            return failure(f"the cluster did not answer everything within {seconds:g} s")
        except ObjectError as error:
            return failure(str(error.details.get("problem", error)))

    async def _asked(self, review: PolicyReview, selector: Selector) -> Ruling:
        try:
            kind = await self._reviews.kind(selector.api_version, selector.kind)
        except UnknownKindError:
            return unknown_kind(selector.api_version, selector.kind)
        asked = questions(selector, kind)
        if len(asked) > MAX_QUESTIONS:
            many = f"{len(selector.namespaces)} namespaces are more than can be checked in time"
            return Ruling(NO, f"{many}; write several policies, or one for all namespaces")
        ruling = decide(review.person, asked, await self._reviews.answers(review.person, asked), because=BECAUSE)
        if ruling.allowed:
            return ruling
        has_all = await self._reviews.answers(review.person, (self._impersonation,))
        return Ruling() if has_all[self._impersonation] else ruling
