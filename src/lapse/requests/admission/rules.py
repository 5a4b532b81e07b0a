"""Who may capture which manifests: only what a person may read may that person have captured. Pure.

A capture is read with the rights of the controllers, so without this check whoever may create a request and read its
checkpoint reads with those rights. The way of one judgement: an AdmissionRequest becomes a `Review`; a review becomes
questions, one for each distinct target; the cluster's answers (`lapse.requests.admission.access` asks) become a `Ruling`; a
ruling becomes the body of the answer (`lapse.kube.auth.admission`).

Only the creation of a ManifestCaptureRequest is judged: its targets cannot change afterwards, because the definition
says so (``spec is immutable``). A question is about what `lapse.requests.controllers.manifests` will do: ``get`` of that name, in
the namespace of the request, or in none for a kind of the whole cluster.

Doubt denies: a kind that the cluster does not know, a name that could mean another address, an answer that did not
come, more targets than can be asked about in time. Not guaranteed: that a right which is taken away later stops a
capture under way, and who may read the checkpoint.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lapse.kube.api.wire import is_api_version, is_name
from lapse.kube.auth.admission import FAILED, NO, WRONG, Person, Question, Ruling, listed, place_of
from lapse.kube.resources import Struct
from lapse.requests.api.kinds import MANIFEST_CAPTURE_REQUEST, ManifestCaptureSpec, ObjectRef

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lapse.kube.auth.admission import AdmissionRequest
    from lapse.kube.resources import Kind

MAX_TARGETS: Final = 1000
"""How many there are time to ask about: at a few milliseconds for each, some at once, a second or two."""
_KIND_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*")


class _Capture(Struct, frozen=True):
    spec: ManifestCaptureSpec


@dataclass(frozen=True, slots=True)
class Review:
    """One creation to judge; ``problem`` says why it cannot be."""

    person: Person
    namespace: str = ""
    targets: tuple[ObjectRef, ...] = ()
    problem: str | None = None


def review_of(request: AdmissionRequest) -> Review:
    """Return what is to be judged about a request."""
    person, namespace = request.user_info, request.namespace
    if problem := _unfit(request):
        return Review(person, namespace, problem=problem)
    try:
        targets = msgspec.json.decode(request.object, type=_Capture).spec.targets
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        problem = f"its object is not a {MANIFEST_CAPTURE_REQUEST.kind}: {place_of(error)}"
        return Review(person, namespace, problem=problem)
    return Review(person, namespace, tuple(dict.fromkeys(targets)))


def _unfit(request: AdmissionRequest) -> str | None:
    kind = MANIFEST_CAPTURE_REQUEST
    asked = request.kind
    if (asked.api_version, asked.kind) != (kind.api_version, kind.kind) or request.sub_resource:
        return f"only {kind.kind} of {kind.api_version} is judged here; correct the rules of the webhook configuration"
    if request.operation != "CREATE":
        return "only CREATE is judged here (a spec cannot change later); correct the rules of the webhook configuration"
    return None if request.namespace else "the request names no namespace"


# --- questions --------------------------------------------------------------------------------------------------------


def first_look(review: Review) -> Ruling | None:
    """Judge what can be judged without the cluster; None when it must be asked."""
    if review.problem is not None:
        return Ruling(WRONG, review.problem)
    if len(review.targets) > MAX_TARGETS:
        many = f"{len(review.targets)} different targets are more than the {MAX_TARGETS} that can be checked in time"
        return Ruling(NO, f"{many}; make several requests")
    for target in review.targets:
        if not is_api_version(target.api_version) or not _KIND_NAME.fullmatch(target.kind):
            return Ruling(NO, f"{_shortened(target)} has an apiVersion or a kind that no object can have")
        if not is_name(target.name):
            return Ruling(NO, f"{_shortened(target)} has a name that no object can have")
    return None


def unknown_kind(api_version: str, kind: str) -> Ruling:
    """Deny what nobody can be asked about."""
    return Ruling(
        NO, f"the cluster does not know the kind {kind} of {api_version}, so the right to read it cannot be checked"
    )


def questions(review: Review, kinds: Mapping[tuple[str, str], Kind[Any]]) -> tuple[Question, ...]:
    """Return what must be asked, each once; ``kinds`` has the kind of every target by apiVersion and kind."""
    return tuple(
        dict.fromkeys(
            _question(review, kinds[target.api_version, target.kind], target.name) for target in review.targets
        )
    )


def _question(review: Review, kind: Kind[Any], name: str) -> Question:
    version = kind.api_version.rpartition("/")[2]
    return Question(kind.group, version, kind.plural, review.namespace if kind.namespaced else "", name, kind.kind)


# --- rulings ----------------------------------------------------------------------------------------------------------


def decide(review: Review, asked: Collection[Question], answers: Mapping[Question, bool]) -> Ruling:
    """Allow it if every question was answered with yes; otherwise name what may not be read."""
    if not asked or any(question not in answers for question in asked):
        return failure("not every question was answered")
    denied = [question for question in asked if not answers[question]]
    if not denied:
        return Ruling()
    who = review.person.username or "the caller"
    return Ruling(NO, f"{who} may not get {listed(denied)}; a capture may name only what its author may read")


def failure(problem: str) -> Ruling:
    """Deny because nothing is known."""
    return Ruling(FAILED, f"the right to read the targets cannot be checked: {problem.rstrip('.')}; try again later")


def _shortened(target: ObjectRef) -> str:
    return repr(f"{target.kind} {target.name} ({target.api_version})"[:200])
