"""Who may capture which manifests: only what a person may read may that person have captured. Pure.

A capture is read with the rights of the controllers, so without this check whoever may create a request and read its
checkpoint reads with those rights. The way of one judgement: a body becomes a `Review`; a review becomes questions, one
for each distinct target; the cluster's answers (`lapse.requests.access` asks) become a `Ruling`; a ruling becomes the
body of the answer.

Only the creation of a ManifestCaptureRequest is judged: its targets cannot change afterwards, because the definition
says so (``spec is immutable``). A question is about what `lapse.requests.manifests` will do: ``get`` of that name, in
the namespace of the request, or in none for a kind of the whole cluster.

Doubt denies: a kind that the cluster does not know, a name that could mean another address, an answer that did not
come, more targets than can be asked about in time. Not guaranteed: that a right which is taken away later stops a
capture under way, and who may read the checkpoint.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from lapse.core.errors import UsageError
from lapse.kube.errors import StoreUnavailableError
from lapse.kube.resources import Struct
from lapse.kube.wire import is_api_version, is_name
from lapse.requests.api.kinds import MANIFEST_CAPTURE_REQUEST, ManifestCaptureSpec, ObjectRef

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from lapse.kube.resources import Json, Kind

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
MAX_TARGETS: Final = 1000
"""How many there are time to ask about: at a few milliseconds for each, some at once, a second or two."""
_SHOWN: Final = 10
"""Targets that a message names: more do not help."""
_KIND_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_NO: Final = 403
_WRONG: Final = 400
_FAILED: Final = 500


class NotAReviewError(UsageError):
    """The body is no AdmissionReview of admission.k8s.io/v1: {problem}."""


# --- what is asked ----------------------------------------------------------------------------------------------------


class Person(Struct, frozen=True):
    """Who is asking, as the API server knows them."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] | None = None
    extra: dict[str, tuple[str, ...] | None] | None = None

    def subject(self) -> Json:
        """Return the fields of a SubjectAccessReview that say whose rights are meant."""
        found = {
            "user": self.username,
            "uid": self.uid,
            "groups": list(self.groups or ()),
            "extra": {key: list(values or ()) for key, values in (self.extra or {}).items()},
        }
        return {field: value for field, value in found.items() if value}


class _GroupVersionKind(Struct, frozen=True):
    group: str
    version: str
    kind: str


class _Request(Struct, frozen=True):
    uid: str
    kind: _GroupVersionKind
    operation: str
    user_info: Person
    namespace: str = ""
    sub_resource: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")


class _Envelope(Struct, frozen=True):
    api_version: str
    kind: str


class _Admission(Struct, frozen=True):
    request: _Request


class _Capture(Struct, frozen=True):
    spec: ManifestCaptureSpec


@dataclass(frozen=True, slots=True)
class Review:
    """One creation to judge; ``problem`` says why it cannot be."""

    uid: str
    person: Person
    namespace: str = ""
    targets: tuple[ObjectRef, ...] = ()
    problem: str | None = None


def read_review(body: bytes) -> Review:
    """Read what the API server sent; raises `NotAReviewError` when there is not even somebody to answer to."""
    try:
        envelope = msgspec.json.decode(body, type=_Envelope)
        if (envelope.api_version, envelope.kind) != (API_VERSION, KIND):
            raise NotAReviewError(problem=f"its apiVersion and kind are not {API_VERSION} and {KIND}")
        request = msgspec.json.decode(body, type=_Admission).request
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotAReviewError(problem=_place(error)) from None
    if not request.uid:
        raise NotAReviewError(problem="its request has no uid")
    review = Review(request.uid, request.user_info, request.namespace)
    if problem := _unfit(request):
        return _with(review, problem=problem)
    try:
        targets = msgspec.json.decode(request.object, type=_Capture).spec.targets
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return _with(review, problem=f"its object is no {MANIFEST_CAPTURE_REQUEST.kind}: {_place(error)}")
    return _with(review, targets=tuple(dict.fromkeys(targets)))


def _with(review: Review, *, targets: tuple[ObjectRef, ...] = (), problem: str | None = None) -> Review:
    return Review(review.uid, review.person, review.namespace, targets, problem)


def _place(error: Exception) -> str:
    """Say where it is wrong, not what stands there."""
    return str(error) if isinstance(error, msgspec.ValidationError) else "it is not JSON"


def _unfit(request: _Request) -> str | None:
    kind = MANIFEST_CAPTURE_REQUEST
    asked = request.kind
    if (f"{asked.group}/{asked.version}", asked.kind) != (kind.api_version, kind.kind) or request.sub_resource:
        return f"only {kind.kind} of {kind.api_version} is judged here; correct the rules of the webhook configuration"
    if request.operation != "CREATE":
        return "only CREATE is judged here (a spec cannot change later); correct the rules of the webhook configuration"
    return None if request.namespace else "the request names no namespace"


# --- questions --------------------------------------------------------------------------------------------------------


class Question(NamedTuple):
    """Whether somebody may ``get`` one object. The version is part of it: an authorizer may look at it."""

    group: str
    version: str
    resource: str
    namespace: str
    """Empty for a kind of the whole cluster."""
    name: str
    kind: str
    """As people call the resource, for messages."""

    def __str__(self) -> str:
        """Print as the request names it, with the place where it is looked for."""
        place = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind} {place} ({f'{self.group}/' if self.group else ''}{self.version})"

    def attributes(self) -> Json:
        """Return what a SubjectAccessReview calls resourceAttributes."""
        about = {"group": self.group, "version": self.version, "resource": self.resource}
        return {"verb": "get", **about, "namespace": self.namespace, "name": self.name}


def first_look(review: Review) -> Ruling | None:
    """Judge what can be judged without the cluster; None when it must be asked."""
    if review.problem is not None:
        return Ruling(_WRONG, review.problem)
    if len(review.targets) > MAX_TARGETS:
        many = f"{len(review.targets)} different targets are more than the {MAX_TARGETS} that can be checked in time"
        return Ruling(_NO, f"{many}; make several requests")
    for target in review.targets:
        if not is_api_version(target.api_version) or not _KIND_NAME.fullmatch(target.kind):
            return Ruling(_NO, f"{_shortened(target)} has an apiVersion or a kind that no object can have")
        if not is_name(target.name):
            return Ruling(_NO, f"{_shortened(target)} has a name that no object can have")
    return None


def unknown_kind(api_version: str, kind: str) -> Ruling:
    """Deny what nobody can be asked about."""
    return Ruling(_NO, f"the cluster knows no kind {kind} of {api_version}, so nobody can tell who may read it")


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


def access_review(person: Person, question: Question) -> Json:
    """Return the SubjectAccessReview that asks it."""
    return {"metadata": {}, "spec": {**person.subject(), "resourceAttributes": question.attributes()}}


def read_answer(body: Json) -> bool:
    """Read an answered SubjectAccessReview; raises `StoreUnavailableError` for what is no answer."""
    status = body.get("status")
    if not isinstance(status, dict) or not isinstance(status.get("allowed"), bool):
        raise StoreUnavailableError(problem="it answered a SubjectAccessReview without saying yes or no")
    return status["allowed"] is True and not status.get("denied", False)


# --- rulings ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ruling:
    """What becomes of a request; ``code`` is None when it is allowed, else an HTTP status."""

    code: int | None = None
    message: str = ""

    @property
    def allowed(self) -> bool:
        """Whether the request may be created."""
        return self.code is None

    @property
    def failed(self) -> bool:
        """Whether nobody knows if it should be: a matter for whoever runs the cluster."""
        return self.code == _FAILED


def decide(review: Review, asked: Collection[Question], answers: Mapping[Question, bool]) -> Ruling:
    """Allow it if every question was answered with yes; otherwise name what may not be read."""
    if not asked or any(question not in answers for question in asked):
        return failure("not every question was answered")
    denied = [question for question in asked if not answers[question]]
    if not denied:
        return Ruling()
    who = review.person.username or "the caller"
    return Ruling(_NO, f"{who} may not get {_listed(denied)}; a capture may name only what its author may read")


def failure(problem: str) -> Ruling:
    """Deny because nothing is known."""
    return Ruling(_FAILED, f"it cannot be found out who may read the targets: {problem.rstrip('.')}; try again later")


def response(uid: str, ruling: Ruling) -> Json:
    """Return the AdmissionReview that answers the one with that uid."""
    answer: Json = {"uid": uid, "allowed": ruling.allowed}
    if not ruling.allowed:
        answer["status"] = {
            "code": ruling.code,
            "reason": _REASONS.get(ruling.code or _FAILED, "InternalError"),
            "message": ruling.message,
        }
    return {"apiVersion": API_VERSION, "kind": KIND, "response": answer}


_REASONS: Final = {_NO: "Forbidden", _WRONG: "BadRequest", _FAILED: "InternalError"}


def _listed(denied: Iterable[Question]) -> str:
    names = [str(question) for question in denied]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _shortened(target: ObjectRef) -> str:
    return repr(f"{target.kind} {target.name} ({target.api_version})"[:200])
