"""Requests as people submit them: checked, then created, with a claim for the directory that is captured.

A claim is made here, in the person's name, because no controller ever makes one. Everything that can be known to be
wrong is refused before anything is written. Not guaranteed: that a request will succeed; its controller says.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from lapse.core.duration import Duration, DurationError
from lapse.core.errors import LapseError, UsageError
from lapse.kube.errors import AlreadyExistsError, ForbiddenError, NotFoundError
from lapse.kube.resources import Json, Kind, ObjectKey
from lapse.objects.metadata_rules import name_problems, namespace_problems
from lapse.objects.trash.rules import BROUGHT_BACK
from lapse.requests.addresses import Located, find_target_kind, locate
from lapse.requests.api.kinds import (
    CAPTURE_SCHEDULE,
    MANIFEST_CAPTURE_REQUEST,
    OBJECT_KEEPER,
    REQUEST_KINDS,
    RUN,
    VOLUME_CAPTURE_REQUEST,
    VOLUME_RESTORE_REQUEST,
    CaptureMode,
    ObjectKeeper,
    ObjectRef,
    VolumeCaptureRequest,
)
from lapse.requests.api.upstream import (
    ALL_KINDS,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    VOLUME_SNAPSHOT_CONTENT,
    PersistentVolumeClaim,
)
from lapse.requests.controllers.claims import restored_by
from lapse.requests.controllers.ownership import is_followed, is_kept_by, is_made_for
from lapse.requests.expiry import NotDeletableError, demand_unheld
from lapse.requests.lifecycle.keeper import is_for_ever
from lapse.requests.local.places import DIRECTORY
from lapse.requests.schedules.cron import Cron
from lapse.requests.schedules.runs import claim_of_runs
from lapse.requests.view import followed, keeper_of, read_or_none, state_of, view_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from lapse.objects.port import HoldLookup, ObjectStore
    from lapse.requests.api.kinds import CaptureSchedule
    from lapse.requests.lifecycle.policy import TTLRule

SOURCE_KINDS: Final[tuple[Kind[Any], ...]] = (VOLUME_SNAPSHOT_CONTENT, PERSISTENT_VOLUME)
T = TypeVar("T")
_LONGEST_DERIVED: Final = 60
_DIGITS: Final = 6
_MOST_OF_A_TIER: Final = 1000
_ANY_TIME: Final = "0 0 * * *"


class NotValidError(UsageError):
    """{what} is not valid: {problem}."""


class NothingToCaptureError(UsageError):
    """Say what to capture: --directory PATH, or --claim NAME for a claim that exists."""


class NoDirectoryError(UsageError):
    """{path} is not a directory. Name one that exists, with a path in UTF-8."""


class DestinationError(UsageError):
    """{path} exists and is not an empty directory. Name one that does not exist yet."""


class TargetError(UsageError):
    """{given!r} is not a target; expected KIND/NAME as in pvc/data or VERSION:KIND/NAME as in v1:ConfigMap/settings."""


class RequestExistsError(AlreadyExistsError):
    """There is a {kind} {name} already. Use another name, or delete it first: lapse requests delete {place}."""


class ClaimTakenError(LapseError):
    """The claim {claim} stands for {other}, not for {directory}. Choose another name with --claim."""


class ClaimExistsError(LapseError):
    """There is a claim {claim} already, and a restore makes a new one. Choose another name with --claim."""


class ClaimFailedError(LapseError):
    """The claim {claim} has no volume: {problem}. Delete it with lapse requests delete {claim}, and try again."""


class LapsedError(LapseError):
    """{place} has lapsed. {keeper} still keeps what it made, and goes {expires}.

    To keep the data for longer, restore it: lapse requests restore NAME --from {place} --to PATH. To have it go before
    its time, delete the keeper: lapse requests delete {keeper}.
    """


class NoRequestError(LapseError):
    """There is no request {name} in the namespace {namespace}. lapse requests list -A shows all that there is."""


class SeveralRequestsError(UsageError):
    """Several requests in the namespace {namespace} are called {name}. Name one by its address: {addresses}."""


class SourceError(LapseError):
    """{source} cannot be restored: {problem}."""


def check_name(name: str, what: str) -> str:
    """Return the name of an object; raises a usage error for what the store would refuse."""
    for problem in name_problems(name):
        raise NotValidError(what=what, problem=problem.removeprefix("metadata."))
    return name


def check_namespace(namespace: str) -> str:
    """Return a namespace; raises a usage error for what the store would refuse."""
    for problem in namespace_problems(namespace, namespaced=True):
        raise NotValidError(what="The namespace", problem=problem.removeprefix("metadata."))
    return namespace


# --- capture ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """A capture as a person asks for it, checked."""

    key: ObjectKey
    directory: Path | None
    claim: str | None
    mode: CaptureMode
    keep: Json
    """The part of the spec that says how long, or nothing."""

    @classmethod
    def checked(
        cls,
        name: str,
        *,
        namespace: str,
        directory: str | None,
        claim: str | None,
        mode: CaptureMode,
        keep: str | None = None,
    ) -> Capture:
        """Check everything that can be checked without the store."""
        if directory is None and claim is None:
            raise NothingToCaptureError
        key = ObjectKey(check_namespace(namespace), check_name(name, "NAME"))
        if claim is not None:
            check_name(claim, "--claim")
        path = None if directory is None else _existing(directory)
        return cls(key=key, directory=path, claim=claim, mode=mode, keep=_kept_for(keep))

    async def ask(self, store: ObjectStore) -> Located:
        """Make the request, and the claim if there is none."""
        place = Located(VOLUME_CAPTURE_REQUEST, self.key)
        await _demand_new(store, place)
        claim = await self._claim(store)
        state = state_of(PERSISTENT_VOLUME_CLAIM, claim)
        if state.ready is False:
            raise ClaimFailedError(
                claim=Located(PERSISTENT_VOLUME_CLAIM, claim.metadata.key), problem=state.message.rstrip(".")
            )
        target = _reference(PERSISTENT_VOLUME_CLAIM, claim.metadata.name, claim.metadata.uid)
        await _create(store, place, {"mode": str(self.mode), "target": target, **self.keep})
        return place

    async def _claim(self, store: ObjectStore) -> PersistentVolumeClaim:
        if self.directory is None:
            return await store.get(PERSISTENT_VOLUME_CLAIM, ObjectKey(self.key.namespace, self.claim or ""))
        if self.claim is None:
            page = await store.list(PERSISTENT_VOLUME_CLAIM, namespace=self.key.namespace)
            known = [claim for claim in page.items if _stands_for(claim) == str(self.directory)]
            if known:
                return known[0]
        names = [self.claim] if self.claim is not None else derived_names(self.directory)
        for name in names[:-1]:
            found = await read_or_none(store, PERSISTENT_VOLUME_CLAIM, ObjectKey(self.key.namespace, name))
            if found is None:
                return await self._make_claim(store, name)
        return await self._make_claim(store, names[-1])

    async def _make_claim(self, store: ObjectStore, name: str) -> PersistentVolumeClaim:
        key = ObjectKey(self.key.namespace, name)
        metadata = {"name": name, "namespace": key.namespace, "annotations": {DIRECTORY: str(self.directory)}}
        try:
            return await store.create(PERSISTENT_VOLUME_CLAIM, {"metadata": metadata, "spec": {}})
        except AlreadyExistsError:
            found = await store.get(PERSISTENT_VOLUME_CLAIM, key)
        if _stands_for(found) != str(self.directory):
            other = _stands_for(found) or "something else"
            claim = Located(PERSISTENT_VOLUME_CLAIM, key)
            raise ClaimTakenError(claim=claim, other=other, directory=self.directory)
        return found


def _kept_for(keep: str | None) -> Json:
    """Return the part of a spec that says how long artifacts are kept; raises a usage error for what is no TTL."""
    return {} if keep is None else {"artifactTTL": _duration("--keep", keep, such_as="30d")}


def _duration(option: str, text: str, *, such_as: str) -> str:
    """Return a duration above zero as documents have it; raises a usage error that names the option."""
    expected = f"expected a duration above zero, such as {such_as}, or never"
    try:
        duration = Duration.parse(text)
    except DurationError as error:
        problem = f"{error.details['text']!r} is not a duration: {error.details['problem']}; {expected}"
        raise NotValidError(what=option, problem=problem) from error
    if duration.nanoseconds is not None and duration.nanoseconds <= 0:
        raise NotValidError(what=f"{option} {text}", problem=expected)
    return str(duration)


def _stands_for(claim: PersistentVolumeClaim) -> str | None:
    return claim.metadata.annotations.get(DIRECTORY)


def derived_names(directory: Path) -> list[str]:
    """Return names for the claim of a directory: its own, as far as a name may be that, and one that is unique."""
    plain = re.sub(r"[^a-z0-9]+", "-", directory.name.lower())[:_LONGEST_DERIVED].strip("-") or "directory"
    return [plain, f"{plain}-{sha256(str(directory).encode()).hexdigest()[:_DIGITS]}"]


def _existing(text: str) -> Path:
    path = Path(text).expanduser()
    if not _is_utf8(text) or not path.is_dir():
        raise NoDirectoryError(path=ascii(text)[1:-1])
    return path.resolve()


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return bool(text) and "\0" not in text


# --- restore ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """A restore as a person asks for it, checked."""

    key: ObjectKey
    source: Located | str
    """Where the data comes from: an address, or the bare name of a snapshot or volume."""
    directory: Path | None
    claim: str

    @classmethod
    def checked(cls, name: str, *, namespace: str, source: str, to: str | None, claim: str | None) -> Restore:
        """Check everything that can be checked without the store."""
        key = ObjectKey(check_namespace(namespace), check_name(name, "NAME"))
        found = locate(source, namespace) if "/" in source else check_name(source, "--from")
        if isinstance(found, Located) and found.kind not in {VOLUME_CAPTURE_REQUEST, *SOURCE_KINDS}:
            problem = "expected a capture (vcr/NAMESPACE/NAME), a snapshot (vsc/NAME) or a volume (pv/NAME)"
            raise NotValidError(what=f"--from {found}", problem=problem)
        directory = None if to is None else _destination(to)
        return cls(key=key, source=found, directory=directory, claim=check_name(claim or name, "--claim"))

    async def ask(self, store: ObjectStore) -> Located:
        """Make the request."""
        place = Located(VOLUME_RESTORE_REQUEST, self.key)
        await _demand_new(store, place)
        claim = ObjectKey(self.key.namespace, self.claim)
        if await read_or_none(store, PERSISTENT_VOLUME_CLAIM, claim) is not None:
            raise ClaimExistsError(claim=Located(PERSISTENT_VOLUME_CLAIM, claim))
        source = await _resolved(store, self.source)
        metadata: Json = {"name": self.claim}
        if self.directory is not None:
            metadata["annotations"] = {DIRECTORY: str(self.directory)}
        await _create(store, place, {"sourceRef": source, "pvcTemplate": {"metadata": metadata}})
        return place


def _destination(text: str) -> Path:
    path = Path(text).expanduser()
    if not _is_utf8(text):
        raise NoDirectoryError(path=ascii(text)[1:-1])
    try:
        free = not path.exists() or (path.is_dir() and not any(path.iterdir()))
    except OSError:
        free = False
    if not free:
        raise DestinationError(path=path)
    return path.absolute()


async def restored_to(store: ObjectStore, place: Located) -> str | None:
    """Return the directory that a finished restore has made; None if its claim is not there or somewhere else."""
    claim = await _restored(store, place)
    return None if claim is None else _stands_for(claim)


async def keeps_what_was_made(store: ObjectStore, place: Located, keeper: ObjectKeeper) -> bool:
    """Whether the keeper of a request owns what it made; a restored claim is the user's unless it was given away."""
    if place.kind is not VOLUME_RESTORE_REQUEST:
        return True
    claim = await _restored(store, place)
    return claim is not None and any(one.uid == keeper.metadata.uid for one in claim.metadata.owner_references)


async def _restored(store: ObjectStore, place: Located) -> PersistentVolumeClaim | None:
    request = await store.get(place.kind, place.key)
    key = ObjectKey(place.key.namespace, request.spec.pvc_template.metadata.name)
    claim: PersistentVolumeClaim | None = await read_or_none(store, PERSISTENT_VOLUME_CLAIM, key)
    if claim is None or request.metadata.uid not in restored_by(claim):
        return None
    return claim


async def _resolved(store: ObjectStore, source: Located | str) -> Json:
    if isinstance(source, str):
        for kind in SOURCE_KINDS:
            found = await read_or_none(store, kind, ObjectKey(None, source))
            if found is not None:
                return _reference(kind, found.metadata.name, found.metadata.uid)
        raise SourceError(source=source, problem="there is no snapshot and no volume of this name")
    if source.kind is not VOLUME_CAPTURE_REQUEST:
        found = await store.get(source.kind, source.key)
        return _reference(source.kind, found.metadata.name, found.metadata.uid)
    request: VolumeCaptureRequest | None = await read_or_none(store, source.kind, source.key)
    if request is None:
        return await _kept(store, source)
    state = state_of(source.kind, request)
    ref = request.status.artifact_ref if request.status is not None else None
    if state.ready is None:
        raise SourceError(source=source, problem="it has not finished yet")
    if not state.ready or ref is None:
        raise SourceError(source=source, problem=f"it has failed ({state.reason}): {state.message.rstrip('.')}")
    await _demand_its_own(store, source, request, ref)
    return {"apiVersion": ref.api_version, "kind": ref.kind, "name": ref.name, **({"uid": ref.uid} if ref.uid else {})}


async def _demand_its_own(store: ObjectStore, source: Located, request: VolumeCaptureRequest, ref: ObjectRef) -> None:
    """Refuse what a status names and the capture's keeper does not keep: a status can be written by others."""
    kind = next((one for one in SOURCE_KINDS if one.kind == ref.kind), None)
    found = None if kind is None else await read_or_none(store, kind, ObjectKey(None, ref.name))
    keeper = await keeper_of(store, source.kind, request.metadata.uid)
    if found is not None and BROUGHT_BACK in request.metadata.annotations and is_made_for(request, found):
        return  # its keeper may be another one by now
    if kind is None or (found is not None and not is_kept_by(keeper, found.metadata)):
        raise SourceError(source=source, problem=f"its status names {ref.kind} {ref.name}, which was not made for it")


async def find_request(store: ObjectStore, name: str, namespace: str, *, rule: TTLRule, now: int) -> Located:
    """Return the one request of a name in a namespace, whatever its kind; raises `LapsedError` for one that was.

    Kinds that the caller may not read are left out, unless there is none in the others.
    """
    key = ObjectKey(namespace, check_name(name, "NAME"))
    places = [Located(kind, key) for kind in REQUEST_KINDS]
    found, refused = [], None
    for one in places:
        try:
            found += [one] if await read_or_none(store, one.kind, key) is not None else []
        except ForbiddenError as error:
            refused = error
    if not found and refused is not None:
        raise refused
    if len(found) > 1:
        raise SeveralRequestsError(name=name, namespace=namespace, addresses=", ".join(map(str, found)))
    if found:
        return found[0]
    for one in places:
        with suppress(NotFoundError):
            await or_lapsed(store, one, store.get(one.kind, key), rule=rule, now=now)
    raise NoRequestError(name=name, namespace=namespace)


async def or_lapsed(store: ObjectStore, place: Located, reading: Awaitable[T], *, rule: TTLRule, now: int) -> T:
    """Return what is read; for a request that has lapsed raise `LapsedError`, which says where its data is."""
    try:
        return await reading
    except NotFoundError as absent:
        try:
            keepers = await _keepers_of(store, place)
        except ForbiddenError:
            raise absent from None
        for keeper in keepers:
            expires = view_of(OBJECT_KEEPER, keeper, now=now, rule=rule).expiry(now)
            name = f"keeper/{keeper.metadata.name}"
            raise LapsedError(place=place, keeper=name, expires=expires or "later") from None
        raise


class KeeperInUseError(NotDeletableError):
    """{address} goes by itself: {expires}. What it follows is still there, so it is not deleted by hand.

    If what it keeps is not wanted, delete {followed} first, and then the keeper: what it keeps goes with it.
    """


class RunKeptError(NotDeletableError):
    """{address} keeps a run of {followed}, as long as that has a place for it, so it is not deleted by hand.

    To keep fewer runs, change what it keeps: lapse requests schedule edit {followed}.
    """


class KeeperWaitsError(NotDeletableError):
    """{address} goes by itself: {expires}. It follows nothing that could be gone, so it is not deleted by hand."""


async def demand_unfollowing(
    store: ObjectStore, place: Located, keeper: ObjectKeeper, *, holds: HoldLookup, rule: TTLRule, now: int
) -> None:
    """Refuse to delete a keeper by hand that goes by itself, as long as what it follows is there.

    Nobody else counts on it then: what is left is a copy that a person may end sooner. Of one that is held, that is the
    reason that is told: it does not go by itself either.
    """
    if is_for_ever(keeper):
        return
    await demand_unheld(keeper, holds, address=place, now=now)
    expires = view_of(OBJECT_KEEPER, keeper, now=now, rule=rule).expiry(now) or "later"
    ref = keeper.spec.follow_object_ref
    if ref is None:
        raise KeeperWaitsError(address=place, expires=expires)
    kind = next((one for one in ALL_KINDS if (one.api_version, one.kind) == (ref.api_version, ref.kind)), None)
    found = None if kind is None else await read_or_none(store, kind, ObjectKey(ref.namespace, ref.name))
    if kind is None or (found is not None and (not ref.uid or is_followed(ref, found.metadata))):
        error = RunKeptError if kind is CAPTURE_SCHEDULE else KeeperInUseError
        raise error(address=place, expires=expires, followed=followed(keeper))


async def _keepers_of(store: ObjectStore, place: Located) -> list[ObjectKeeper]:
    keepers = (await store.list(OBJECT_KEEPER)).items
    return [one for one in keepers if _is_of(one, place)]


async def _kept(store: ObjectStore, source: Located) -> Json:
    """Find what a capture left that has lapsed itself: its keeper still knows its name."""
    owners = {one.metadata.uid for one in await _keepers_of(store, source)}
    left = [
        _reference(kind, one.metadata.name, one.metadata.uid)
        for kind in SOURCE_KINDS
        for one in (await store.list(kind)).items
        if one.metadata.controller is not None and one.metadata.controller.uid in owners
    ]
    if not left:
        raise NotFoundError(kind=source.kind.kind, name=f"{source.key}, and no snapshot or volume of it is left")
    if len(left) > 1:
        names = ", ".join(one["name"] for one in left)
        raise SourceError(
            source=source, problem=f"several snapshots or volumes of it are left: {names}. Name one of them"
        )
    return left[0]


def _is_of(keeper: ObjectKeeper, request: Located) -> bool:
    """Whether a keeper follows a request, or is that of a run of a schedule, which says so."""
    ref = keeper.spec.follow_object_ref
    follows = ref is not None and (ref.kind, ref.namespace, ref.name) == (request.kind.kind, *request.key)
    return follows or keeper.metadata.annotations.get(RUN) == str(request)


# --- manifests --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureManifests:
    """A capture of manifests as a person asks for it, checked."""

    key: ObjectKey
    targets: list[Json]
    keep: Json
    """As of `Capture`."""

    @classmethod
    def checked(cls, name: str, *, namespace: str, targets: list[str], keep: str | None = None) -> CaptureManifests:
        """Check everything that can be checked without the store."""
        key = ObjectKey(check_namespace(namespace), check_name(name, "NAME"))
        return cls(key=key, targets=[_target(text) for text in targets], keep=_kept_for(keep))

    async def ask(self, store: ObjectStore) -> Located:
        """Make the request."""
        place = Located(MANIFEST_CAPTURE_REQUEST, self.key)
        await _demand_new(store, place)
        await _create(store, place, {"targets": self.targets, **self.keep})
        return place


# --- schedules --------------------------------------------------------------------------------------------------------


class NoScheduleError(NotFoundError):
    """There is no CaptureSchedule {schedule}. See lapse requests schedule list --all-namespaces."""


class ScheduleExistsError(AlreadyExistsError):
    """There is a {kind} {name} already.

    Change it with lapse requests schedule edit {place}, delete it with lapse requests schedule delete {place}, or use
    another name.
    """


class NoScheduleChangeError(UsageError):
    """Say what to change, as in --schedule "0 4 * * *" or --keep-daily 14."""


class TemplateError(UsageError):
    """Say what to capture: either --claim NAME, or --target KIND/NAME, which may be given several times."""


class KeepError(UsageError):
    """Say what stays, as in --keep-daily 7 --keep-weekly 4.

    Expected at least one of --keep-last, --keep-hourly, --keep-daily, --keep-weekly and --keep-monthly, above zero.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchedule:
    """A schedule as a person asks for it, checked."""

    key: ObjectKey
    spec: Json

    @classmethod
    def checked(
        cls,
        name: str,
        *,
        namespace: str,
        schedule: str,
        time_zone: str | None,
        claim: str | None,
        targets: list[str],
        keep: Mapping[str, int | None],
        starting_deadline: str | None,
    ) -> NewSchedule:
        """Check everything that can be checked without the store."""
        key = ObjectKey(check_namespace(namespace), check_name(name, "NAME"))
        Cron.parse(schedule, time_zone)
        if (claim is None) == (not targets):
            raise TemplateError
        tiers = _tiers(keep)
        if not any(tiers.values()):
            raise KeepError
        spec: Json = {"schedule": schedule, "template": _template(claim, targets), "keep": tiers}
        if time_zone is not None:
            spec["timeZone"] = time_zone
        if starting_deadline is not None:
            spec["startingDeadline"] = _duration("--starting-deadline", starting_deadline, such_as="6h")
        return cls(key=key, spec=spec)

    async def ask(self, store: ObjectStore) -> CaptureSchedule:
        """Make the schedule."""
        metadata = {"name": self.key.name, "namespace": self.key.namespace}
        try:
            return await store.create(CAPTURE_SCHEDULE, {"metadata": metadata, "spec": self.spec})
        except AlreadyExistsError as error:
            place = Located(CAPTURE_SCHEDULE, self.key)
            raise ScheduleExistsError(kind=CAPTURE_SCHEDULE.kind, name=self.key, place=place) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleChanges:
    """Changes of a schedule as a person asks for them, checked."""

    spec: Json
    """What is to be merged into the spec."""

    @classmethod
    def checked(
        cls,
        *,
        schedule: str | None,
        time_zone: str | None,
        claim: str | None,
        targets: list[str],
        keep: Mapping[str, int | None],
        starting_deadline: str | None,
    ) -> ScheduleChanges:
        """Check everything that can be checked without the store."""
        Cron.parse(schedule or _ANY_TIME, time_zone)
        if claim is not None and targets:
            raise TemplateError
        spec: Json = {}
        if schedule is not None:
            spec["schedule"] = schedule
        if time_zone is not None:
            spec["timeZone"] = time_zone
        if claim is not None or targets:
            spec["template"] = _template(claim, targets)
        if tiers := _tiers(keep):
            spec["keep"] = tiers
        if starting_deadline is not None:
            spec["startingDeadline"] = _duration("--starting-deadline", starting_deadline, such_as="6h")
        if not spec:
            raise NoScheduleChangeError
        return cls(spec=spec)

    async def make(self, store: ObjectStore, found: CaptureSchedule) -> CaptureSchedule:
        """Change a schedule as it was read."""
        changes, meta = dict(self.spec), found.metadata
        if "keep" in changes and not any((msgspec.to_builtins(found.spec.keep) | changes["keep"]).values()):
            raise KeepError
        if "template" in changes:  # one for the other, with nothing left of a target's uid
            before: Json = msgspec.to_builtins(found.spec.template)
            changes["template"] = _replacing(before, changes["template"])
        return await store.patch(
            CAPTURE_SCHEDULE, meta.key, {"spec": changes}, uid=meta.uid, version=meta.resource_version
        )


def _replacing(before: Any, after: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return what makes ``after`` of ``before`` when it is merged: what is not in it any more becomes null."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return after
    gone = {key: None for key in before if key not in after}
    return gone | {key: _replacing(before.get(key), value) for key, value in after.items()}


def _template(claim: str | None, targets: list[str]) -> Json:
    if claim is None:
        return {"manifestCapture": {"targets": [_target(text) for text in targets]}}
    target = _reference(PERSISTENT_VOLUME_CLAIM, check_name(claim, "--claim"))
    return {"volumeCapture": {"mode": str(CaptureMode.SNAPSHOT), "target": target}}


def _tiers(keep: Mapping[str, int | None]) -> dict[str, int]:
    """Return the tiers that are given; raises a usage error that names the option."""
    given = {tier: count for tier, count in keep.items() if count is not None}
    for tier, count in given.items():
        if not 0 <= count <= _MOST_OF_A_TIER:
            problem = f"expected a number from 0 to {_MOST_OF_A_TIER}"
            raise NotValidError(what=f"--keep-{tier} {count}", problem=problem)
    return given


async def missing_claim(store: ObjectStore, schedule: CaptureSchedule) -> str | None:
    """Return the claim that a schedule captures, if it is known that there is none now."""
    key = claim_of_runs(schedule)
    try:
        if key is None or await read_or_none(store, PERSISTENT_VOLUME_CLAIM, key) is not None:
            return None
    except ForbiddenError:
        return None
    return str(Located(PERSISTENT_VOLUME_CLAIM, key))


# --- all --------------------------------------------------------------------------------------------------------------


def _target(text: str) -> Json:
    # The version may hold a slash, the name may not.
    word, slash, name = text.rpartition("/")
    if not (word and slash and name):
        raise TargetError(given=text)
    return _reference(find_target_kind(word), check_name(name, f"The target {text}"))


def _reference(kind: Kind[Any], name: str, uid: str | None = None) -> Json:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "name": name, **({"uid": uid} if uid else {})}


async def _demand_new(store: ObjectStore, place: Located) -> None:
    """Refuse before anything is written; the creation itself would, but a claim would then have been made."""
    if await read_or_none(store, place.kind, place.key) is not None:
        raise RequestExistsError(kind=place.kind.kind, name=place.key, place=place)


async def _create(store: ObjectStore, place: Located, spec: Json) -> None:
    metadata = {"name": place.key.name, "namespace": place.key.namespace}
    try:
        await store.create(place.kind, {"metadata": metadata, "spec": spec})
    except AlreadyExistsError as error:
        raise RequestExistsError(kind=place.kind.kind, name=place.key, place=place) from error
