"""Tables of `lapse requests list` and `get`: rows for many objects, facts for one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from lapse.cli.context import Context
from lapse.core.clock import UnixNs
from lapse.core.duration import short
from lapse.core.timestamps import to_timestamp
from lapse.kube.errors import InvalidError
from lapse.kube.resources import Document, Json, Kind, ObjectKey
from lapse.requests.addresses import ARTIFACT_KINDS, Located, short_name
from lapse.requests.api.kinds import (
    MANIFEST_CAPTURE_REQUEST,
    MANIFEST_CHECKPOINT,
    OBJECT_KEEPER,
    REQUEST_KINDS,
    VOLUME_CAPTURE_REQUEST,
    VOLUME_RESTORE_REQUEST,
)
from lapse.requests.api.upstream import ALL_KINDS, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM
from lapse.requests.lifecycle.policy import TTLRule
from lapse.requests.local.places import DIRECTORY
from lapse.requests.submission import keeper_of, or_lapsed, read_or_none
from lapse.requests.view import ReadyState, Summary, followed, state_of, summarise

COLUMNS: Final = ("namespace", "name", "kind", "ready", "reason", "expires", "age")
SHOWN_KINDS: Final[tuple[Kind[Any], ...]] = (*REQUEST_KINDS, OBJECT_KEEPER, *ARTIFACT_KINDS)
"""What a list without further words shows: requests, and what they made."""
Fact = tuple[str, str]


def summary_of(context: Context, kind: Kind[Any], obj: Any) -> Summary:  # noqa: ANN401 - an object of ``kind``
    """Look at one object as it is now."""
    return summarise(kind, obj, now=context.clock.wall_ns(), rule=TTLRule(context.settings.request_ttl))


async def document_of(context: Context, place: Located) -> Json:
    """Return one object with everything that is stored of it, also what its type does not know."""
    rule, now = TTLRule(context.settings.request_ttl), context.clock.wall_ns()
    reading = context.store.get(replace(place.kind, type=Document), place.key)
    return place.kind.body(await or_lapsed(context.store, place, reading, rule=rule, now=now))


async def summaries(context: Context, kinds: Sequence[Kind[Any]], namespace: str | None) -> list[Summary]:
    """Look at all objects of some kinds; without ``kinds`` at requests, keepers and artifacts.

    Keepers and artifacts count as being in the namespace of the request that they were made for.
    """
    found = []
    for kind in kinds or SHOWN_KINDS:
        page = await context.store.list(kind, namespace=namespace if kind.namespaced else None)
        found += [summary_of(context, kind, one) for one in page.items]
    return [one for one in found if is_shown(one, kinds, namespace)]


def is_shown(summary: Summary, kinds: Sequence[Kind[Any]], namespace: str | None) -> bool:
    """Whether a list of ``kinds`` in ``namespace`` shows it; None stands for all namespaces.

    Without ``kinds``, a volume that no keeper owns is not an artifact.
    """
    if namespace is not None and summary.namespace != namespace:
        return False
    return bool(kinds) or summary.place.kind is not PERSISTENT_VOLUME or summary.keeper is not None


def row(summary: Summary, now: int) -> tuple[str, ...]:
    """Return the cells under `COLUMNS`."""
    key, state = summary.place.key, summary.state
    age = short(now - summary.created) if summary.created is not None else ""
    cells = (key.namespace or "", key.name, short_name(summary.place.kind), _ready(state), state.reason)
    return tuple(cell or "-" for cell in (*cells, summary.expires(now), age))


def _ready(state: ReadyState) -> str:
    return "" if state.ready is None else str(state.ready)


async def facts(context: Context, place: Located, document: Json) -> list[Fact]:
    """Tell everything about one object that a person may ask for, its keeper and artifact included."""
    obj = _typed(place.kind, document)
    now = context.clock.wall_ns()
    summary = summary_of(context, place.kind, obj)
    state = summary.state
    told = [
        ("address", str(place)),
        ("ready", " ".join(filter(None, (_ready(state) or "-", f"({state.reason})" if state.reason else "")))),
        ("message", state.message),
        ("created", _moment(summary.created, now)),
        ("completed", _moment(summary.completed, now)),
        ("expires", _expires(summary, now)),
        *[fact async for fact in _related(context, place, obj)],
        ("uid", summary.uid),
    ]
    return [(name, text) for name, text in told if text]


def _typed(kind: Kind[Any], body: Json) -> Any:  # noqa: ANN401 - an object of ``kind``
    try:
        return kind.convert(body)
    except msgspec.ValidationError as error:
        raise InvalidError(kind=kind.kind, name=body["metadata"]["name"], problem=str(error)) from error


def _moment(moment: UnixNs | None, now: int) -> str:
    return "" if moment is None else f"{to_timestamp(moment)} ({short(now - moment)} ago)"


def _expires(summary: Summary, now: int) -> str:
    at = f" ({to_timestamp(summary.expiry.at)})" if summary.expiry.at is not None else ""
    return f"{summary.expires(now)}{at}" if summary.expires(now) else ""


async def _related(context: Context, place: Located, obj: Any) -> AsyncIterator[Fact]:  # noqa: ANN401 - as above
    for fact in _own(place.kind, obj):
        yield fact
    for name, other in _references(place, obj):
        yield name, await _with_state(context, other)
    if place.kind in REQUEST_KINDS:
        keeper = await keeper_of(context.store, place, obj.metadata.uid)
        if keeper is not None:
            yield "keeper", await _with_state(context, Located(OBJECT_KEEPER, keeper.metadata.key))
    if place.kind is OBJECT_KEEPER:
        for kind in ARTIFACT_KINDS:
            for one in (await context.store.list(kind)).items:
                if any(owner.uid == obj.metadata.uid for owner in one.metadata.owner_references):
                    yield "keeps", await _with_state(context, Located(kind, one.metadata.key))


def _own(kind: Kind[Any], obj: Any) -> Iterator[Fact]:  # noqa: ANN401 - an object of ``kind``
    if kind is VOLUME_CAPTURE_REQUEST:
        yield "mode", obj.spec.mode
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


async def _with_state(context: Context, place: Located) -> str:
    """Name an object and say how it is."""
    found = await read_or_none(context.store, place.kind, place.key)
    if found is None:
        return f"{place} (not there)"
    state, expires = (
        state_of(place.kind, found),
        summary_of(context, place.kind, found).expires(context.clock.wall_ns()),
    )
    directory = found.metadata.annotations.get(DIRECTORY, "") if place.kind is PERSISTENT_VOLUME_CLAIM else ""
    told = ", ".join(filter(None, (state.reason, state.message, directory, expires)))
    return f"{place} ({told})" if told else str(place)
