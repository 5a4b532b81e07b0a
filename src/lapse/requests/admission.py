"""Admission of requests: people may ask only for what they may do themselves. And the rights that controllers need.

A request is carried out with the rights of the controllers, so without this check somebody who may create requests
would act with those rights. The author of a request must be allowed

- ``get`` on each target of a ManifestCaptureRequest: a checkpoint is a copy of it;
- ``get`` on the claim of a VolumeCaptureRequest with mode Snapshot, and ``delete`` with mode Detach, which deletes it;
- ``get`` on the source of a VolumeRestoreRequest. This only refuses more: a controller cannot see that it was asked;
- for a CaptureSchedule, what the requests take that it makes: those are made by the operator, so whoever writes the
  template is judged, when it is created and whenever its spec changes.

The way of one judgement: an AdmissionRequest becomes a `Demand`, made from namespace and spec by the function of its
kind; a demand becomes questions, one SubjectAccessReview for each distinct object; the cluster's answers become a
`Ruling`; a ruling becomes the body of the answer (`lapse.kube.auth.admission`). All but the asking is pure. Another
kind that asks for the same is one more row of `_JUDGED`.

Of requests only the creation is judged: a spec cannot change afterwards, because the definitions say so (``spec is
immutable``). A question is about what the controllers will do, with the object that the request names, in the namespace
of the request, or in none for a kind of the whole cluster. One question for each name and not one for the whole kind,
although that would often do: somebody who may read all of a kind but one must be asked about that one, and some
authorizers know such rules.

Bounded in every direction: so many questions at once, so many in all (`MAX_TARGETS`), so many seconds. Doubt denies: a
kind that the cluster does not know or that the request cannot be about, a mode that does not exist, a name that could
mean another address, an answer that did not come, more targets than can be asked about in time. What goes wrong on the
way is a ruling that denies, never an exception and never a yes. Not guaranteed: that a right which is taken away later
stops a request under way, that the object is still the same when the request is carried out, and who may read the
result.

A start-up check asks for the rights of the controllers, so that a missing right is one line at the start and not an
error in the middle of a capture. Left out: reading what manifest captures name, which may be any kind, and so is given
by the administrator.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from lapse.core.log import get_logger
from lapse.kube.api.wire import is_api_version, is_name
from lapse.kube.auth.access import AccessReviews, Right, rights_on
from lapse.kube.auth.admission import NO, WRONG, AccessQuestion, Ruling, decide, failure, place_of, unknown_kind
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
    VOLUME_RESTORE_REQUEST,
    CaptureMode,
    CaptureSpec,
    ManifestCaptureSpec,
    RestoreSpec,
    ScheduleSpec,
)
from lapse.requests.api.upstream import (
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    STORAGE_CLASS,
    VOLUME_SNAPSHOT,
    VOLUME_SNAPSHOT_CLASS,
    VOLUME_SNAPSHOT_CONTENT,
)
from lapse.requests.expiry import DOMAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lapse.kube.api.client import KubeClient
    from lapse.kube.auth.admission import AdmissionRequest, Person
    from lapse.kube.resources import Kind
    from lapse.requests.api.kinds import ObjectRef

_WATCHED: Final = ("get", "list", "watch")

SHARED: Final = ("get", "create", "patch")
"""What replicas do with what they share: the Lease, and the ConfigMap that says what is frozen."""


NEEDED: Final[tuple[Right, ...]] = (
    *(right for kind in REQUEST_KINDS for right in rights_on(kind, *_WATCHED, "patch", "delete")),
    *(right for kind in REQUEST_KINDS for right in rights_on(kind, "patch", subresource="status")),
    *(right for kind in (VOLUME_CAPTURE_REQUEST, MANIFEST_CAPTURE_REQUEST) for right in rights_on(kind, "create")),
    *rights_on(CAPTURE_SCHEDULE, *_WATCHED, "patch"),
    *rights_on(CAPTURE_SCHEDULE, "patch", subresource="status"),
    *rights_on(OBJECT_KEEPER, *_WATCHED, "create", "patch", "delete"),
    *rights_on(OBJECT_KEEPER, "patch", subresource="status"),
    *rights_on(MANIFEST_CHECKPOINT, *_WATCHED, "create", "patch"),
    *rights_on(MANIFEST_CHECKPOINT, "patch", subresource="status"),
    *rights_on(MANIFEST_CHUNK, *_WATCHED, "create", "patch"),
    *rights_on(VOLUME_SNAPSHOT_CONTENT, *_WATCHED, "create", "patch"),
    *rights_on(PERSISTENT_VOLUME_CLAIM, *_WATCHED, "patch", "delete"),
    *rights_on(PERSISTENT_VOLUME, *_WATCHED, "patch"),
    *rights_on(POD, "list"),
    *rights_on(STORAGE_CLASS, "get"),
    *rights_on(VOLUME_SNAPSHOT_CLASS, "get"),
    *rights_on(EVENT, "create", "patch", "list"),
)

NEEDED_BY_BRIDGE: Final[tuple[Right, ...]] = (
    *rights_on(VOLUME_SNAPSHOT, *_WATCHED, "create", "delete"),
    *rights_on(VOLUME_SNAPSHOT_CONTENT, "delete"),
    *rights_on(PERSISTENT_VOLUME_CLAIM, "create"),
    *rights_on(STORAGE_CLASS, "list"),
)
"""What restores take beside `NEEDED` where Lapse carries them out. No secrets, and no volumes are made."""

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
_log = get_logger("lapse.requests.admission")


# --- demands: what the author of each kind must be allowed ------------------------------------------------------------


class Need(NamedTuple):
    """A verb on one object, with the kind as a request names it: the cluster says what resource that is."""

    verb: str
    api_version: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Demand:
    """What an author must be allowed, each once; ``because`` says why, as the end of the sentence that refuses."""

    namespace: str
    """Where the objects are, but for kinds of the whole cluster."""
    needs: tuple[Need, ...]
    because: str


_READS: Final = "a capture may name only what its author may read"
_CAPTURING: Final[Mapping[str, tuple[str, str]]] = {
    CaptureMode.SNAPSHOT: ("get", _READS),
    CaptureMode.DETACH: ("delete", "a Detach deletes the claim, so its author must be allowed to"),
}
"""The verb on the claim that a mode takes, and why."""


def manifest_capture(namespace: str, spec: ManifestCaptureSpec) -> Demand | Ruling:
    """Return what it takes to capture manifests of a namespace: to read each of them."""
    needs = tuple(dict.fromkeys(_need("get", target) for target in spec.targets))
    return Demand(namespace, needs, _READS)


def volume_capture(namespace: str, spec: CaptureSpec) -> Demand | Ruling:
    """Return what it takes to capture a volume: to read its claim, or to delete it where the mode does that."""
    if spec.mode not in _CAPTURING:
        return Ruling(NO, f"there is no mode {spec.mode[:63]!r}: expected {' or '.join(_CAPTURING)}")
    verb, because = _CAPTURING[spec.mode]
    return _wrong_kind(spec.target, PERSISTENT_VOLUME_CLAIM) or Demand(namespace, (_need(verb, spec.target),), because)


def volume_restore(namespace: str, spec: RestoreSpec) -> Demand | Ruling:
    """Return what it takes to restore a volume: to read the snapshot or volume that it comes from."""
    because = "a restore may name only a source that its author may read"
    wrong = _wrong_kind(spec.source_ref, VOLUME_SNAPSHOT_CONTENT, PERSISTENT_VOLUME)
    return wrong or Demand(namespace, (_need("get", spec.source_ref),), because)


def capture_schedule(namespace: str, spec: ScheduleSpec) -> Demand | Ruling:
    """Return what it takes to let captures be made by schedule: what each of them takes."""
    volume, manifests = spec.template.volume_capture, spec.template.manifest_capture
    if volume is not None and manifests is None:
        return volume_capture(namespace, CaptureSpec(mode=volume.mode, target=volume.target))
    if manifests is not None and volume is None:
        return manifest_capture(namespace, manifests)
    return Ruling(NO, "its template must have exactly one of volumeCapture and manifestCapture")


def _wrong_kind(named: ObjectRef, *kinds: Kind[Any]) -> Ruling | None:
    if any((named.api_version, named.kind) == (kind.api_version, kind.kind) for kind in kinds):
        return None
    expected = " or ".join(f"a {kind.kind} of {kind.api_version}" for kind in kinds)
    return Ruling(NO, f"{_shortened(named)} is of the wrong kind: expected {expected}")


def _need(verb: str, named: ObjectRef) -> Need:
    return Need(verb, named.api_version, named.kind, named.name)


def _shortened(named: ObjectRef | Need) -> str:
    return repr(f"{named.kind} {named.name} ({named.api_version})"[:200])


# --- requests ---------------------------------------------------------------------------------------------------------


_Spec = TypeVar("_Spec")


class _Object(Struct, Generic[_Spec], frozen=True):
    spec: _Spec


class _Judged(NamedTuple):
    """A kind that is judged: how its object is read, and what it takes."""

    kind: Kind[Any]
    form: Any
    demand: Callable[[str, Any], Demand | Ruling]
    operations: tuple[str, ...] = ("CREATE",)


_JUDGED: Final = {
    (one.kind.api_version, one.kind.kind): one
    for one in (
        _Judged(MANIFEST_CAPTURE_REQUEST, _Object[ManifestCaptureSpec], manifest_capture),
        _Judged(VOLUME_CAPTURE_REQUEST, _Object[CaptureSpec], volume_capture),
        _Judged(VOLUME_RESTORE_REQUEST, _Object[RestoreSpec], volume_restore),
        _Judged(CAPTURE_SCHEDULE, _Object[ScheduleSpec], capture_schedule, ("CREATE", "UPDATE")),
    )
}


def demand_of(request: AdmissionRequest) -> Demand | Ruling:
    """Return what a request or a schedule takes, or the ruling where that is known without asking."""
    judged = _JUDGED.get((request.kind.api_version, request.kind.kind))
    if judged is None or request.sub_resource:
        kinds = ", ".join(f"{kind} of {api_version}" for api_version, kind in _JUDGED)
        return Ruling(WRONG, f"only {kinds} are judged here; correct the rules of the webhook configuration")
    if request.operation not in judged.operations:
        only = f"only {' and '.join(judged.operations)} of {judged.kind.kind} is judged here"
        return Ruling(WRONG, f"{only}; correct the rules of the webhook configuration")
    if not request.namespace:
        return Ruling(WRONG, "the request names no namespace")
    try:
        spec = msgspec.json.decode(request.object, type=judged.form).spec
        if request.operation == "UPDATE" and _spec_of(request.object) == _spec_of(request.old_object):
            return Ruling()  # a label, or a finalizer that garbage collection takes away
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return Ruling(WRONG, f"its object is not a {judged.kind.kind}: {place_of(error)}")
    demand = judged.demand(request.namespace, spec)
    return demand if isinstance(demand, Ruling) else _first_look(demand) or demand


def _spec_of(document: msgspec.Raw) -> object:
    return (msgspec.json.decode(document, type=dict | None) or {}).get("spec")


def _first_look(demand: Demand) -> Ruling | None:
    """Refuse what cannot be asked about: too much of it, or what could mean another address."""
    if len(demand.needs) > MAX_TARGETS:
        many = f"{len(demand.needs)} different targets are more than the {MAX_TARGETS} that can be checked in time"
        return Ruling(NO, f"{many}; make several requests")
    for need in demand.needs:
        if not is_api_version(need.api_version) or not _KIND_NAME.fullmatch(need.kind):
            return Ruling(NO, f"{_shortened(need)} has an apiVersion or a kind that no object can have")
        if not is_name(need.name):
            return Ruling(NO, f"{_shortened(need)} has a name that no object can have")
    return None


def questions(demand: Demand, kinds: Mapping[tuple[str, str], Kind[Any]]) -> tuple[AccessQuestion, ...]:
    """Return what must be asked, each once; ``kinds`` has the kind of every need by apiVersion and kind."""
    return tuple(
        dict.fromkeys(
            AccessQuestion.about(
                kinds[need.api_version, need.kind], need.verb, namespace=demand.namespace, name=need.name
            )
            for need in demand.needs
        )
    )


# --- the judge --------------------------------------------------------------------------------------------------------


class RequestJudge:
    """See the module. Belongs to one event loop."""

    domain = DOMAIN

    def __init__(self, client: KubeClient) -> None:
        """Ask by ``client``, which may create SubjectAccessReviews."""
        self._reviews = AccessReviews(client)

    async def judge(self, request: AdmissionRequest, *, seconds: float) -> Ruling:
        """Say within ``seconds`` whether the request may be created."""
        ruling = await self._ruling(request.user_info, demand_of(request), seconds)
        about = {"user": request.user_info.username, "kind": request.kind.kind, "namespace": request.namespace}
        if ruling.failed:
            _log.warning("request_not_judged", reason=ruling.message, **about)
        elif not ruling.allowed:
            _log.info("request_denied", reason=ruling.message, **about)
        else:
            _log.debug("request_allowed", **about)
        return ruling

    async def _ruling(self, person: Person, demand: Demand | Ruling, seconds: float) -> Ruling:
        if isinstance(demand, Ruling):
            return demand
        try:
            async with asyncio.timeout(seconds):
                return await self._asked(person, demand)
        except TimeoutError:
            return failure(f"the cluster did not answer everything within {seconds:g} s")
        except ObjectError as error:
            return failure(str(error.details.get("problem", error)))

    async def _asked(self, person: Person, demand: Demand) -> Ruling:
        kinds: dict[tuple[str, str], Kind[Any]] = {}
        for need in demand.needs:
            named = (need.api_version, need.kind)
            if named not in kinds:
                try:
                    kinds[named] = await self._reviews.kind(*named)
                except UnknownKindError:
                    return unknown_kind(*named)  # the first is enough: who makes up a thousand causes one question
        asked = questions(demand, kinds)
        return decide(person, asked, await self._reviews.answers(person, asked), because=demand.because)
