"""Admission reviews: what an API server asks before it stores an object, and how it is answered. Pure.

What every judgement shares, whatever it is about: the request (`AdmissionRequest`), the rights to ask the cluster about
(`AccessQuestion`, which becomes a SubjectAccessReview) and the answer (`Ruling`). `lapse.kube.auth.access` asks the
questions. Each domain says which questions its own kinds raise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from lapse.core.errors import UsageError
from lapse.kube.errors import StoreUnavailableError
from lapse.kube.resources import Struct

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from lapse.kube.resources import Json, Kind

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
NO: Final = 403
WRONG: Final = 400
FAILED: Final = 500
"""Codes of a `Ruling`."""
_SHOWN: Final = 10
"""Things that a message names: more do not help."""


class NotAReviewError(UsageError):
    """The body is not an AdmissionReview of admission.k8s.io/v1: {problem}."""


# --- requests ---------------------------------------------------------------------------------------------------------


class Person(Struct, frozen=True):
    """The user who asks, as the API server knows them."""

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


class GroupVersionKind(Struct, frozen=True):
    """A kind, as an AdmissionReview names it."""

    group: str
    version: str
    kind: str

    @property
    def api_version(self) -> str:
        """Group and version, as objects name them."""
        return f"{self.group}/{self.version}" if self.group else self.version


class AdmissionRequest(Struct, frozen=True):
    """One change to judge, and the user who asks for it."""

    uid: str
    kind: GroupVersionKind
    operation: str
    user_info: Person
    namespace: str = ""
    sub_resource: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")


class _Envelope(Struct, frozen=True):
    api_version: str
    kind: str


class _Admission(Struct, frozen=True):
    request: AdmissionRequest


def read_request(body: bytes) -> AdmissionRequest:
    """Read what the API server sent; raises `NotAReviewError` for a body that cannot be answered with a ruling."""
    try:
        envelope = msgspec.json.decode(body, type=_Envelope)
        if (envelope.api_version, envelope.kind) != (API_VERSION, KIND):
            raise NotAReviewError(problem=f"its apiVersion and kind are not {API_VERSION} and {KIND}")
        request = msgspec.json.decode(body, type=_Admission).request
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotAReviewError(problem=place_of(error)) from None
    if not request.uid:
        raise NotAReviewError(problem="its request has no uid")
    return request


def place_of(error: Exception) -> str:
    """Say where a document is wrong, not what stands there."""
    return str(error) if isinstance(error, msgspec.ValidationError) else "it is not JSON"


# --- questions --------------------------------------------------------------------------------------------------------


class AccessQuestion(NamedTuple):
    """Whether a user has a right. The version is part of it: an authorizer may look at it."""

    verb: str
    group: str
    version: str
    resource: str
    namespace: str = ""
    """Empty for a kind of the whole cluster, and for all namespaces."""
    name: str = ""
    """Empty for every object of the kind."""

    @classmethod
    def about(cls, kind: Kind[Any], verb: str, *, namespace: str = "", name: str = "") -> AccessQuestion:
        """Return the question about a verb on a kind; ``namespace`` counts only for a kind that has namespaces."""
        version = kind.api_version.rpartition("/")[2]
        return cls(verb, kind.group, version, kind.plural, namespace if kind.namespaced else "", name)

    def __str__(self) -> str:
        """Print the right in the words that a role has for it, and where it is needed."""
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        named = f"/{self.name}" if self.name else ""
        return f"{self.verb} {resource}{named} in {self.namespace or 'the whole cluster'}"

    def attributes(self) -> Json:
        """Return what a SubjectAccessReview calls resourceAttributes."""
        about = {"group": self.group, "version": self.version, "resource": self.resource}
        return {"verb": self.verb, **about, "namespace": self.namespace, "name": self.name}


def access_review(person: Person, question: AccessQuestion) -> Json:
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
        """Whether the request is granted."""
        return self.code is None

    @property
    def failed(self) -> bool:
        """Whether nobody knows if it should be: a matter for the administrator of the cluster."""
        return self.code == FAILED


def decide(
    person: Person, asked: Collection[AccessQuestion], answers: Mapping[AccessQuestion, bool], *, because: str
) -> Ruling:
    """Allow it if every question was answered with yes; otherwise name the rights that are missing.

    ``because`` says why they are needed. No question at all is no yes.
    """
    if not asked or any(question not in answers for question in asked):
        return failure("not every question was answered")
    missing = [question for question in asked if not answers[question]]
    if not missing:
        return Ruling()
    return Ruling(NO, f"{person.username or 'the caller'} may not {listed(missing)}; {because}")


def failure(problem: str) -> Ruling:
    """Deny because nothing is known."""
    return Ruling(FAILED, f"the rights of the author cannot be checked: {problem.rstrip('.')}; try again later")


def unknown_kind(api_version: str, kind: str) -> Ruling:
    """Deny because nobody can be asked about a kind that the cluster does not have."""
    named = f"{kind} of {api_version}"[:200]
    return Ruling(NO, f"the cluster does not know the kind {named}, so the rights of the author cannot be checked")


def response(uid: str, ruling: Ruling) -> Json:
    """Return the AdmissionReview that answers the one with that uid."""
    answer: Json = {"uid": uid, "allowed": ruling.allowed}
    if not ruling.allowed:
        answer["status"] = {
            "code": ruling.code,
            "reason": _REASONS.get(ruling.code or FAILED, "InternalError"),
            "message": ruling.message,
        }
    return {"apiVersion": API_VERSION, "kind": KIND, "response": answer}


_REASONS: Final = {NO: "Forbidden", WRONG: "BadRequest", FAILED: "InternalError"}


def listed(things: Iterable[object]) -> str:
    """Name some things in one line, and count the rest."""
    names = [str(one) for one in things]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
