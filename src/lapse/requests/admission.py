"""Admission of manifest captures: people may capture only what they may read. And the rights that controllers need.

A capture is read with the rights of the controllers, so without this check somebody who may create a request and read
its checkpoint would read with those rights. The way of one judgement: an AdmissionRequest becomes a `RequestReview`; a
review becomes questions, one SubjectAccessReview for each distinct target; the cluster's answers become a `Ruling`; a
ruling becomes the body of the answer (`lapse.kube.auth.admission`). All but the asking is pure.

Only the creation of a ManifestCaptureRequest is judged: its targets cannot change afterwards, because the definition
says so (``spec is immutable``). A question is about what `lapse.requests.controllers.manifests` will do: ``get`` of
that name, in the namespace of the request, or in none for a kind of the whole cluster. One question for each name and
not one for the whole kind, although that would often do: somebody who may read all of a kind but one must be asked
about that one, and some authorizers know such rules.

Bounded in every direction: so many questions at once, so many in all (`MAX_TARGETS`), so many seconds. Doubt denies: a
kind that the cluster does not know, a name that could mean another address, an answer that did not come, more targets
than can be asked about in time. What goes wrong on the way is a ruling that denies, never an exception and never a yes.
Not guaranteed: that a right which is taken away later stops a capture under way, and who may read the checkpoint.

A start-up check asks for the rights of the controllers, so that a missing right is one line at the start and not an
error in the middle of a capture. Left out: reading what manifest captures name, which may be any kind, and so is given
by the administrator.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lapse.core.log import get_logger
from lapse.kube.api.wire import is_api_version, is_name
from lapse.kube.auth.access import AccessReviews, Right, rights_on
from lapse.kube.auth.admission import FAILED, NO, WRONG, AccessQuestion, Person, Ruling, listed, place_of
from lapse.kube.controller.lease import LEASE
from lapse.kube.errors import ObjectError, UnknownKindError
from lapse.kube.events.event import EVENT
from lapse.kube.resources import Struct
from lapse.objects.config_map_gate import CONFIG_MAP
from lapse.requests.api.kinds import (
    CAPTURE_SCHEDULE,
    MANIFEST_CAPTURE_REQUEST,
    MANIFEST_CHECKPOINT,
    MANIFEST_CHUNK,
    OBJECT_KEEPER,
    REQUEST_KINDS,
    VOLUME_CAPTURE_REQUEST,
    ManifestCaptureSpec,
    ObjectRef,
)
from lapse.requests.api.upstream import (
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    STORAGE_CLASS,
    VOLUME_SNAPSHOT_CLASS,
    VOLUME_SNAPSHOT_CONTENT,
)
from lapse.requests.expiry import DOMAIN

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lapse.kube.api.client import Client
    from lapse.kube.auth.admission import AdmissionRequest
    from lapse.kube.resources import Kind

_WATCHED: Final = ("get", "list", "watch")

SHARED: Final = ("get", "create", "patch")
"""What replicas do with what they share: the Lease, and the ConfigMap that says what is frozen."""


NEEDED: Final[tuple[Right, ...]] = (
    *(right for kind in REQUEST_KINDS for right in rights_on(kind, *_WATCHED, "patch", "delete")),
    *(right for kind in REQUEST_KINDS for right in rights_on(kind, "patch", subresource="status")),
    *(right for kind in (VOLUME_CAPTURE_REQUEST, MANIFEST_CAPTURE_REQUEST) for right in rights_on(kind, "create")),
    *rights_on(CAPTURE_SCHEDULE, *_WATCHED),
    *rights_on(CAPTURE_SCHEDULE, "patch", subresource="status"),
    *rights_on(OBJECT_KEEPER, *_WATCHED, "create", "patch", "delete"),
    *rights_on(OBJECT_KEEPER, "patch", subresource="status"),
    *rights_on(MANIFEST_CHECKPOINT, *_WATCHED, "create"),
    *rights_on(MANIFEST_CHECKPOINT, "patch", subresource="status"),
    *rights_on(MANIFEST_CHUNK, *_WATCHED, "create"),
    *rights_on(VOLUME_SNAPSHOT_CONTENT, *_WATCHED, "create", "patch"),
    *rights_on(PERSISTENT_VOLUME_CLAIM, *_WATCHED, "patch", "delete"),
    *rights_on(PERSISTENT_VOLUME, *_WATCHED, "patch"),
    *rights_on(POD, "list"),
    *rights_on(STORAGE_CLASS, "get"),
    *rights_on(VOLUME_SNAPSHOT_CLASS, "get"),
    *rights_on(EVENT, "create", "patch", "list"),
)

HOLDING: Final = _WATCHED
"""What is done with the kinds that hold_kinds names: their metadata is watched, and read before something is ended."""

REVIEWING: Final[tuple[Right, ...]] = (Right("create", "authorization.k8s.io", "subjectaccessreviews"),)
"""What the admission webhook needs. It reads no object itself."""


def rights_on_lease(namespace: str | None) -> list[Right]:
    """Return what leading takes, beside `NEEDED`; only in the namespace of the Lease."""
    return rights_on(LEASE, *SHARED, namespace=namespace)


def rights_on_gate(namespace: str | None) -> list[Right]:
    """Return what it takes to freeze and to be frozen; in the same namespace."""
    return rights_on(CONFIG_MAP, *SHARED, namespace=namespace)


MAX_TARGETS: Final = 1000
"""How many there are time to ask about: at a few milliseconds for each, some at once, a second or two."""
_KIND_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*")


class _Capture(Struct, frozen=True):
    spec: ManifestCaptureSpec


@dataclass(frozen=True, slots=True)
class RequestReview:
    """One creation to judge; ``problem`` says why it cannot be."""

    person: Person
    namespace: str = ""
    targets: tuple[ObjectRef, ...] = ()
    problem: str | None = None


def review_of(request: AdmissionRequest) -> RequestReview:
    """Return what is to be judged about a request."""
    person, namespace = request.user_info, request.namespace
    if problem := _unfit(request):
        return RequestReview(person, namespace, problem=problem)
    try:
        targets = msgspec.json.decode(request.object, type=_Capture).spec.targets
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        problem = f"its object is not a {MANIFEST_CAPTURE_REQUEST.kind}: {place_of(error)}"
        return RequestReview(person, namespace, problem=problem)
    return RequestReview(person, namespace, tuple(dict.fromkeys(targets)))


def _unfit(request: AdmissionRequest) -> str | None:
    kind = MANIFEST_CAPTURE_REQUEST
    asked = request.kind
    if (asked.api_version, asked.kind) != (kind.api_version, kind.kind) or request.sub_resource:
        return f"only {kind.kind} of {kind.api_version} is judged here; correct the rules of the webhook configuration"
    if request.operation != "CREATE":
        return "only CREATE is judged here (a spec cannot change later); correct the rules of the webhook configuration"
    return None if request.namespace else "the request names no namespace"


# --- questions --------------------------------------------------------------------------------------------------------


def first_look(review: RequestReview) -> Ruling | None:
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


def questions(review: RequestReview, kinds: Mapping[tuple[str, str], Kind[Any]]) -> tuple[AccessQuestion, ...]:
    """Return what must be asked, each once; ``kinds`` has the kind of every target by apiVersion and kind."""
    return tuple(
        dict.fromkeys(
            _question(review, kinds[target.api_version, target.kind], target.name) for target in review.targets
        )
    )


def _question(review: RequestReview, kind: Kind[Any], name: str) -> AccessQuestion:
    version = kind.api_version.rpartition("/")[2]
    return AccessQuestion(
        kind.group, version, kind.plural, review.namespace if kind.namespaced else "", name, kind.kind
    )


# --- rulings ----------------------------------------------------------------------------------------------------------


def decide(review: RequestReview, asked: Collection[AccessQuestion], answers: Mapping[AccessQuestion, bool]) -> Ruling:
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


_log = get_logger("lapse.requests.admission")


class RequestJudge:
    """See the module. Belongs to one event loop."""

    domain = DOMAIN

    def __init__(self, client: Client) -> None:
        """Ask by ``client``, which may create SubjectAccessReviews."""
        self._reviews = AccessReviews(client)

    async def judge(self, request: AdmissionRequest, *, seconds: float) -> Ruling:
        """Say within ``seconds`` whether the request may be created."""
        return await self.judge_capture(review_of(request), seconds=seconds)

    async def judge_capture(self, review: RequestReview, *, seconds: float) -> Ruling:
        """Say the same of a request that was read."""
        ruling = await self._ruling(review, seconds)
        about = {"user": review.person.username, "namespace": review.namespace, "targets": len(review.targets)}
        if ruling.failed:
            _log.warning("capture_not_judged", reason=ruling.message, **about)
        elif not ruling.allowed:
            _log.info("capture_denied", reason=ruling.message, **about)
        else:
            _log.debug("capture_allowed", **about)
        return ruling

    async def _ruling(self, review: RequestReview, seconds: float) -> Ruling:
        try:
            async with asyncio.timeout(seconds):
                return first_look(review) or await self._asked(review)
        except TimeoutError:
            return failure(f"the cluster did not answer everything within {seconds:g} s")
        except ObjectError as error:
            return failure(str(error.details.get("problem", error)))

    async def _asked(self, review: RequestReview) -> Ruling:
        kinds: dict[tuple[str, str], Kind[Any]] = {}
        for target in review.targets:
            named = (target.api_version, target.kind)
            if named not in kinds:
                try:
                    kinds[named] = await self._reviews.kind(*named)
                except UnknownKindError:
                    return unknown_kind(*named)  # the first is enough: who makes up a thousand causes one question
        asked = questions(review, kinds)
        return decide(review, asked, await self._reviews.answers(review.person, asked))
