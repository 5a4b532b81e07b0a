"""Views of requests, their keepers, artifacts and claims: whether each is ready, when it goes, what it is related to.

When something goes is told as the engine would decide it, but nothing is decided here: holds on related objects and
what is followed are not looked at. `view_of` is pure; the others read the store, each object at a moment of its own.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from msgspec import Meta, Struct, ValidationError
from msgspec.structs import replace

from lapse.core.clock import UnixNs
from lapse.core.decision import Unknown
from lapse.core.duration import Duration, DurationError, short
from lapse.core.timestamps import from_timestamp
from lapse.engine.safety.extensions import extension_of
from lapse.engine.safety.holds import hold_of
from lapse.engine.view import Expiry, Moment, fill, known
from lapse.kube.errors import ForbiddenError, InvalidError, NotFoundError
from lapse.kube.resources import ConditionStatus, ObjectKey, ready_condition
from lapse.objects.trash.rules import first_uid, is_in_trash
from lapse.requests.addresses import ARTIFACT_KINDS, Located, keeper_name, locate, short_name
from lapse.requests.api.conditions import is_final
from lapse.requests.api.kinds import (
    CAPTURE_SCHEDULE,
    MANIFEST_CAPTURE_REQUEST,
    MANIFEST_CHECKPOINT,
    OBJECT_KEEPER,
    REQUEST_KINDS,
    RUN,
    VOLUME_CAPTURE_REQUEST,
    VOLUME_RESTORE_REQUEST,
    KeeperMode,
)
from lapse.requests.api.upstream import (
    ALL_KINDS,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    VOLUME_SNAPSHOT_CONTENT,
)
from lapse.requests.controllers.ownership import requested_from
from lapse.requests.controllers.provisioning import PROVISIONING_FAILED
from lapse.requests.expiry import decide, finished
from lapse.requests.lifecycle.keeper import Followed, is_for_ever
from lapse.requests.lifecycle.keeper import decide as decide_keeper
from lapse.requests.lifecycle.keeper import state_of as state_of_keeper
from lapse.requests.local.places import DIRECTORY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from lapse.engine.view import Columns, DetailRow
    from lapse.kube.resources import Condition, Json, Kind, Object
    from lapse.objects.port import Reader
    from lapse.requests.api.kinds import ObjectKeeper
    from lapse.requests.api.upstream import ClaimStatus, SnapshotContentStatus
    from lapse.requests.lifecycle.policy import TTLRule

SHOWN_KINDS: Final[tuple[Kind[Any], ...]] = (*REQUEST_KINDS, OBJECT_KEEPER, *ARTIFACT_KINDS)
"""Requests and what they made: what a list shows unless kinds are named."""
WITH_KEEPER: Final = "with its keeper"
IN_TRASH: Final = "lies in the trash"


class ReadyState(NamedTuple):
    """Whether something is ready, and why; ``ready`` is None while nobody can say."""

    ready: bool | None = None
    reason: str = ""
    message: str = ""


class ObjectView(Struct, frozen=True):
    """A request, keeper, artifact or claim."""

    address: str
    kind: str
    namespace: str | None
    name: str
    uid: str
    ready: Annotated[bool | None, Meta(description="null while nobody can say")]
    reason: str | None
    message: str | None
    created_at: Moment | None
    completed_at: Moment | None
    expires_at: Annotated[Moment | None, Meta(description="When it goes, if that is known")]
    expires: Annotated[str | None, Meta(description="When it goes, in words, if no moment is known")]
    held: Annotated[bool, Meta(description="Whether it is held itself; what it owns or follows is not looked at")]
    keeper: Annotated[str | None, Meta(description="Its controller owner, if that is a keeper")]

    @property
    def place(self) -> Located:
        """Where it is."""
        return locate(self.address)

    def expiry(self, now: int) -> str:
        """Say for people when it goes."""
        return Expiry(self.expires_at, self.expires or "").words(now, held=self.held)


class ObjectDetails(ObjectView, frozen=True):
    """An object at a glance and whole."""

    object: Annotated[dict[str, Any] | None, Meta(description="The document; null where the token shows no values")]

    @property
    def etag(self) -> str | None:
        """Its version as HTTP has it, for If-Match; None where the document is not shown."""
        return None if self.object is None else f'"{self.object["metadata"]["resourceVersion"]}"'


class Manifests(Struct, frozen=True):
    """The manifests of a checkpoint in the order of their capture."""

    checkpoint: str
    items: list[dict[str, Any]]


COLUMNS: Final[Columns] = {
    "namespace": "namespace",
    "name": "name",
    "kind": lambda one, _: short_name(one.place.kind),
    "ready": "ready",
    "reason": lambda one, _: one.reason,
    "expires": lambda one, now: one.expiry(now) or None,
    "age": lambda one, now: None if one.created_at is None else short(now - one.created_at),
}


def view_of(kind: Kind[Any], obj: Any, *, now: int, rule: TTLRule) -> ObjectView:  # noqa: ANN401 - an object of ``kind``
    """Return the view of one object."""
    meta, state, expiry = obj.metadata, state_of(kind, obj), _expiry(kind, obj, rule, UnixNs(now))
    hold, keeper = hold_of(meta.annotations), _keeper(obj)
    status = getattr(obj, "status", None)
    return ObjectView(
        address=str(Located(kind, meta.key).address),
        kind=kind.kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        ready=state.ready,
        reason=state.reason or None,
        message=state.message or None,
        created_at=Moment.of(from_timestamp(meta.creation_timestamp or "")),
        completed_at=Moment.of(from_timestamp(getattr(status, "completion_timestamp", None) or "")),
        expires_at=Moment.of(expiry.at),
        expires=expiry.instead or None,
        held=hold is not None and hold.active(UnixNs(now)),
        keeper=None if keeper is None else str(keeper.address),
    )


def details_of(kind: Kind[Any], body: Json, *, now: int, rule: TTLRule, with_object: bool = True) -> ObjectDetails:
    """Return the view of one object with its document, as it is stored. Raises `InvalidError`."""
    view = view_of(kind, typed(kind, body), now=now, rule=rule)
    return fill(ObjectDetails, view, object=body if with_object else None)


def state_of(kind: Kind[Any], obj: Any) -> ReadyState:  # noqa: ANN401 - an object of ``kind``
    """Say whether an object is ready, in the words of its reporter."""
    status = getattr(obj, "status", None)
    if status is None:
        return ReadyState()
    if kind in REQUEST_KINDS or kind in {MANIFEST_CHECKPOINT, CAPTURE_SCHEDULE}:
        return _ready_state(status.conditions)
    if kind is VOLUME_SNAPSHOT_CONTENT:
        return _snapshot_state(status)
    if kind is PERSISTENT_VOLUME_CLAIM:
        return _claim_state(status)
    return ReadyState(None, getattr(status, "phase", None) or "")


def _ready_state(conditions: Sequence[Condition]) -> ReadyState:
    """Say nothing of an outcome that is not final, only of the reason."""
    ready = ready_condition(conditions)
    if ready is None:
        return ReadyState()
    outcome = ready.status == ConditionStatus.TRUE if is_final(conditions) else None
    return ReadyState(outcome, ready.reason, ready.message)


def _snapshot_state(status: SnapshotContentStatus) -> ReadyState:
    if status.error is not None:
        return ReadyState(False, "Failed", status.error.message or "")
    return ReadyState(True, "ReadyToUse") if status.ready_to_use else ReadyState()


def _claim_state(status: ClaimStatus) -> ReadyState:
    failed = next((one for one in status.conditions or () if one.type == PROVISIONING_FAILED), None)
    if failed is not None and failed.status == ConditionStatus.TRUE:
        return ReadyState(False, failed.reason, failed.message)
    return ReadyState(True if status.phase == "Bound" else None, status.phase or "")


def _expiry(kind: Kind[Any], obj: Any, rule: TTLRule, now: UnixNs) -> Expiry:  # noqa: ANN401 - an object of ``kind``
    extended = extension_of(obj.metadata.annotations)
    if kind in REQUEST_KINDS:
        return _request_expiry(obj, rule, now).extended(extended)
    if kind is OBJECT_KEEPER:
        return _keeper_expiry(obj, now).extended(extended)
    if is_in_trash(kind.kind, obj.metadata):
        return Expiry(instead=IN_TRASH)
    return Expiry(instead=WITH_KEEPER if _keeper(obj) is not None else "")


def _request_expiry(request: Any, rule: TTLRule, now: UnixNs) -> Expiry:  # noqa: ANN401 - a request of any kind
    state = finished(request, rule.ttl(request.metadata.annotations))
    if not state.final:
        return Expiry()
    decision = decide(state, now)
    if decision.deadline is not None:
        return Expiry(decision.deadline)
    verdict = decision.verdict
    return Expiry(instead=f"unknown ({verdict.reason})" if isinstance(verdict, Unknown) else "never")


def _keeper_expiry(keeper: ObjectKeeper, now: UnixNs) -> Expiry:
    at = from_timestamp((keeper.status.expires_at if keeper.status is not None else None) or "")
    if at is not None:
        return Expiry(at)
    match keeper.spec.mode:
        case KeeperMode.FOLLOW_OBJECT:
            return Expiry(instead=f"with {followed(keeper)}")
        case KeeperMode.FOLLOW_OBJECT_WITH_TTL if not is_for_ever(keeper):
            return Expiry(instead=f"{keeper.spec.ttl} after {followed(keeper)}")
        case KeeperMode.TTL if not is_for_ever(keeper):  # it has been made just now
            return Expiry(decide_keeper(state_of_keeper(keeper, Followed.UNKNOWN), now).deadline)
        case _:
            return Expiry(instead="never" if is_for_ever(keeper) else "")


def followed(keeper: ObjectKeeper) -> str:
    """Name what a keeper follows."""
    ref = keeper.spec.follow_object_ref
    if ref is None:
        return "nothing"
    return next((str(place) for _, place in _named("", ref, ref.namespace)), f"{ref.kind} {ref.name}")


def _keeper(obj: Object) -> Located | None:
    owner = obj.metadata.controller
    if owner is None or (owner.api_version, owner.kind) != (OBJECT_KEEPER.api_version, OBJECT_KEEPER.kind):
        return None
    return Located(OBJECT_KEEPER, ObjectKey(None, owner.name))


def consequence(keeper: ObjectKeeper | None, *, keeps: bool) -> str:
    """Say what happens after a request is deleted; ``keeps`` tells whether its keeper owns what it has made."""
    if keeper is None:
        return "Nothing that it made is left."
    name = f"keeper/{keeper.metadata.name}"
    if RUN in keeper.metadata.annotations:
        return f"{name} and what it keeps stay as long as {followed(keeper)} keeps them."
    if is_for_ever(keeper):
        return f"{name} and what it keeps stay until somebody deletes the keeper: lapse requests delete {name}."
    when = "now" if keeper.spec.mode == KeeperMode.FOLLOW_OBJECT else f"{_printed(keeper.spec.ttl)} from now"
    return f"{name} and what it keeps go {when}." if keeps else f"{name} goes {when}; what was restored stays."


def _printed(ttl: str | None) -> str:
    try:
        return str(Duration.parse(ttl or ""))
    except DurationError:
        return "some time"


# --- reading ----------------------------------------------------------------------------------------------------------


async def read_views(
    store: Reader, kinds: Sequence[Kind[Any]], namespace: str | None, *, now: int, rule: TTLRule
) -> list[ObjectView]:
    """Return the views of all objects of some kinds that a list shows; without ``kinds`` of `SHOWN_KINDS`."""
    found = []
    for kind in kinds or SHOWN_KINDS:
        page = await store.list(kind, namespace=namespace if kind.namespaced else None)
        listed = [one for one in page.items if is_listed(kind, one, kinds, namespace)]
        found += [view_of(kind, one, now=now, rule=rule) for one in listed]
    return found


def with_held_keepers(views: Sequence[ObjectView]) -> list[ObjectView]:
    """Return the views of a list, in which an artifact says that its keeper is held, where that is in the list."""
    held, said = {one.address for one in views if one.held}, f"{WITH_KEEPER}, which is held"
    return [replace(one, expires=said) if one.expires == WITH_KEEPER and one.keeper in held else one for one in views]


def is_listed(kind: Kind[Any], obj: Any, kinds: Sequence[Kind[Any]], namespace: str | None) -> bool:  # noqa: ANN401 - an object of ``kind``
    """Whether a list of ``kinds`` in ``namespace`` shows an object; None stands for all namespaces.

    Keepers and artifacts count as being in the namespace of the request that they were made for. Without ``kinds``, a
    volume that no keeper owns is not an artifact, and what lies in the trash is not shown.
    """
    if not kinds and is_in_trash(kind.kind, obj.metadata):
        return False
    if namespace is not None and namespace != (obj.metadata.namespace or requested_from(kind, obj)):
        return False
    return bool(kinds) or kind is not PERSISTENT_VOLUME or _keeper(obj) is not None


async def read_or_none(store: Reader, kind: Kind[Any], key: ObjectKey) -> Any:  # noqa: ANN401 - an object of ``kind``
    """Return one object, None if it is not there."""
    try:
        return await store.get(kind, key)
    except NotFoundError:
        return None


def typed(kind: Kind[Any], body: Json) -> Any:  # noqa: ANN401 - an object of ``kind``
    """Return a document as an object of its kind. Raises `InvalidError`."""
    try:
        return kind.convert(body)
    except ValidationError as error:
        raise InvalidError(kind=kind.kind, name=body["metadata"]["name"], problem=str(error)) from error


async def keeper_of(store: Reader, kind: Kind[Any], uid: str) -> ObjectKeeper | None:
    """Return the keeper of a request; None if there is none, and for what is no request."""
    if kind not in REQUEST_KINDS:
        return None
    found: ObjectKeeper | None = await read_or_none(store, OBJECT_KEEPER, ObjectKey(None, keeper_name(kind.short, uid)))
    return found


async def detail_rows(
    store: Reader, place: Located, view: ObjectDetails, *, now: int, rule: TTLRule
) -> list[DetailRow]:
    """Return everything about one object that a person may ask for, its keeper and artifact included."""
    obj = typed(place.kind, view.object or {})
    at = f" ({view.expires_at})" if view.expires_at is not None else ""
    reason = f"({view.reason})" if view.reason else ""
    return known(
        [
            ("address", str(place)),
            ("ready", f"{'-' if view.ready is None else view.ready} {reason}".rstrip()),
            ("message", view.message or ""),
            ("created", "" if view.created_at is None else view.created_at.and_age(now)),
            ("completed", "" if view.completed_at is None else view.completed_at.and_age(now)),
            ("expires", f"{view.expiry(now)}{at}" if view.expiry(now) else ""),
            *[fact async for fact in _related(store, place, obj, now=now, rule=rule)],
            ("uid", view.uid),
        ]
    )


async def _related(store: Reader, place: Located, obj: Any, *, now: int, rule: TTLRule) -> AsyncIterator[DetailRow]:  # noqa: ANN401 - as above
    for fact in _own(place.kind, obj):
        yield fact
    related = list(_references(place, obj))
    with suppress(ForbiddenError):  # it is in no namespace, and many people may read nothing outside of theirs
        keeper = await keeper_of(store, place.kind, first_uid(obj.metadata))
        if keeper is not None:
            related.append(("keeper", Located(OBJECT_KEEPER, keeper.metadata.key)))
    for kind in ARTIFACT_KINDS if place.kind is OBJECT_KEEPER else ():
        owned = (one.metadata for one in (await store.list(kind)).items)
        related += [
            ("keeps", Located(kind, one.key))
            for one in owned
            if any(owner.uid == obj.metadata.uid for owner in one.owner_references)
        ]
    for name, other in related:
        yield name, await _with_state(store, other, now=now, rule=rule)


def _own(kind: Kind[Any], obj: Any) -> Iterator[DetailRow]:  # noqa: ANN401 - an object of ``kind``
    if kind is VOLUME_CAPTURE_REQUEST:
        yield "mode", obj.spec.mode
    elif kind is VOLUME_RESTORE_REQUEST:
        yield "progress", (obj.status.progress if obj.status is not None else None) or ""
    elif kind is OBJECT_KEEPER:
        yield "mode", obj.spec.mode
        yield "follows", followed(obj)
        yield "lost", (obj.status.lost_at if obj.status is not None else None) or ""
    elif kind is PERSISTENT_VOLUME_CLAIM:
        yield "directory", obj.metadata.annotations.get(DIRECTORY, "")
    elif kind is PERSISTENT_VOLUME:
        yield "handle", (obj.spec.csi.volume_handle if obj.spec.csi is not None else None) or ""


def _references(place: Located, obj: Any) -> Iterator[tuple[str, Located]]:  # noqa: ANN401 - as above
    kind, namespace, status = place.kind, place.key.namespace, getattr(obj, "status", None)
    if kind is VOLUME_CAPTURE_REQUEST:
        yield "target", Located(PERSISTENT_VOLUME_CLAIM, ObjectKey(namespace, obj.spec.target.name))
        if status is not None and status.artifact_ref is not None:
            yield from _named("artifact", status.artifact_ref)
    elif kind is VOLUME_RESTORE_REQUEST:
        yield from _named("source", obj.spec.source_ref)
        yield "claim", Located(PERSISTENT_VOLUME_CLAIM, ObjectKey(namespace, obj.spec.pvc_template.metadata.name))
    elif kind is MANIFEST_CAPTURE_REQUEST:
        for target in obj.spec.targets:
            yield from _named("target", target, namespace)
        if status is not None and status.checkpoint_name:
            yield "artifact", Located(MANIFEST_CHECKPOINT, ObjectKey(None, status.checkpoint_name))
    elif kind is PERSISTENT_VOLUME_CLAIM and obj.spec.volume_name:
        yield "volume", Located(PERSISTENT_VOLUME, ObjectKey(None, obj.spec.volume_name))
    owner = obj.metadata.controller
    if owner is not None:
        yield from _named("owner", owner)


def _named(name: str, ref: Any, namespace: str | None = None) -> Iterator[tuple[str, Located]]:  # noqa: ANN401 - any reference
    for kind in ALL_KINDS:
        if (kind.api_version, kind.kind) == (ref.api_version, ref.kind):
            yield name, Located(kind, ObjectKey(namespace if kind.namespaced else None, ref.name))


async def _with_state(store: Reader, place: Located, *, now: int, rule: TTLRule) -> str:
    """Name an object and say how it is, if that may be read."""
    try:
        found = await read_or_none(store, place.kind, place.key)
    except ForbiddenError:
        return str(place)
    if found is None:
        return f"{place} (not there)"
    view = view_of(place.kind, found, now=now, rule=rule)
    directory = found.metadata.annotations.get(DIRECTORY, "") if place.kind is PERSISTENT_VOLUME_CLAIM else ""
    told = ", ".join(filter(None, (view.reason, view.message, directory, view.expiry(now))))
    return f"{place} ({told})" if told else str(place)
