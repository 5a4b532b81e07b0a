"""A Kubernetes Lease (coordination.k8s.io/v1), for the election of a leader.

The lease is taken when it has no holder, or when its record has not changed for its whole duration as *this* machine
counts: the holder's clock is never compared with ours, only whether it still writes. Every write names the resource
version that it was decided on, so of two candidates one loses. ``leaseTransitions`` grows with every new holder and is
the fencing number.

Not guaranteed: that fencing numbers grow when somebody deletes the object; then they begin anew.

Read and written like any object, so it needs no more of a store than the port has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from lapse.core.errors import LapseError
from lapse.core.timestamps import to_micro_timestamp
from lapse.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from lapse.kube.resources import Kind, Object, ObjectKey, ObjectMeta, Struct

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.kube.resources import Json

T = TypeVar("T", bound=Object)
_NS: Final = 1_000_000_000


class LeaseNotHeldError(LapseError):
    """The lease has not been acquired."""


class LeaseSpec(Struct, frozen=True):
    """Who holds it, since when, and how often it has moved."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class LeaseObject(Struct, frozen=True):
    """The object."""

    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()


LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases", LeaseObject, status=False)


class LeaseStore(Protocol):
    """The part of an object store that a lease needs."""

    async def get(self, kind: Kind[T], key: ObjectKey) -> T:
        """See `lapse.objects.port.Reader`."""
        ...

    async def create(self, kind: Kind[T], obj: T | Json) -> T:
        """See `lapse.objects.port.ObjectStore`."""
        ...

    async def patch(
        self, kind: Kind[T], key: ObjectKey, changes: Json, *, uid: str | None = None, version: str | None = None
    ) -> T:
        """See `lapse.objects.port.ObjectStore`."""
        ...


class KubeLease:
    """See the module; a `lapse.engine.running.election.ElectionLease`. ``identity``: another one for every process."""

    def __init__(self, store: LeaseStore, key: ObjectKey, *, identity: str, ttl_seconds: int, clock: Clock) -> None:
        """Nothing is touched before `acquire`."""
        self._store, self._key, self._identity, self._clock = store, key, identity, clock
        self.ttl_seconds = ttl_seconds
        self.deadline_ns = 0
        self._seen: tuple[str, int] | None = None
        """The version of somebody else's record, and when we first saw it."""
        self._held: LeaseObject | None = None
        self._taken = False

    @property
    def fence(self) -> int:
        """How often the lease has moved: greater than for every earlier holder."""
        if self._held is None:
            raise LeaseNotHeldError
        return self._held.spec.lease_transitions or 0

    @property
    def lost(self) -> bool:
        """Whether it is no longer ours, or can no longer be known to be ours."""
        return self._taken or self._held is None or self._clock.boottime_ns() >= self.deadline_ns

    async def acquire(self) -> bool:
        """See `lapse.engine.running.election.ElectionLease`."""
        started_ns = self._clock.boottime_ns()
        try:
            found = await self._store.get(LEASE, self._key)
        except NotFoundError:
            return await self._make(started_ns)
        # Counted from after the answer: the record may have been written while we waited for it.
        if not self._is_free(found, self._clock.boottime_ns()):
            return False
        moved = (found.spec.lease_transitions or 0) + 1
        changes = {"spec": {**self._record(), "acquireTime": self._now(), "leaseTransitions": moved}}
        return await self._write(found, changes, started_ns)

    async def renew(self) -> bool:
        """See `lapse.engine.running.election.ElectionLease`. After an unknown outcome the record tells whose it is."""
        if self._held is None:
            return False
        started_ns = self._clock.boottime_ns()
        if await self._write(self._held, {"spec": self._record()}, started_ns):
            return True
        if await self._still_ours(started_ns):
            return True
        self._taken = True
        return False

    async def _still_ours(self, started_ns: int) -> bool:
        """Renew by the record as it is now, if it is still ours. One that is gone may be made by anybody."""
        try:
            found = await self._store.get(LEASE, self._key)
        except NotFoundError:
            return False
        ours = found.spec.holder_identity == self._identity and found.spec.lease_transitions == self.fence
        return ours and await self._write(found, {"spec": self._record()}, started_ns)

    async def release(self) -> bool:
        """See `lapse.engine.running.election.ElectionLease`."""
        if self.lost or self._held is None:
            return False
        held, self._held = self._held, None
        self.deadline_ns = self._clock.boottime_ns()
        changes = {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._now()}}
        try:
            meta = held.metadata
            await self._store.patch(LEASE, self._key, changes, uid=meta.uid, version=meta.resource_version)
        except (ConflictError, NotFoundError):
            return False
        return True

    def _is_free(self, found: LeaseObject, now_ns: int) -> bool:
        version = found.metadata.resource_version
        if found.spec.holder_identity in {None, "", self._identity}:
            return True  # ours: nobody has led since we stepped down, and what we did then has ended
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, now_ns)  # it was written since we last looked: its holder lives
        lasts = max(found.spec.lease_duration_seconds or 0, self.ttl_seconds)
        return now_ns - self._seen[1] >= lasts * _NS

    async def _make(self, started_ns: int) -> bool:
        spec = {**self._record(), "acquireTime": self._now(), "leaseTransitions": 1}
        body = {"metadata": {"name": self._key.name, "namespace": self._key.namespace}, "spec": spec}
        try:
            made = await self._store.create(LEASE, body)
        except AlreadyExistsError:
            return False
        self._keep(made, started_ns)
        return True

    async def _write(self, basis: LeaseObject, changes: dict[str, Any], started_ns: int) -> bool:
        meta = basis.metadata
        try:
            written = await self._store.patch(LEASE, self._key, changes, uid=meta.uid, version=meta.resource_version)
        except (ConflictError, NotFoundError):
            return False
        self._keep(written, started_ns)
        return True

    def _keep(self, lease: LeaseObject, started_ns: int) -> None:
        self._held, self._taken, self._seen = lease, False, None
        self.deadline_ns = started_ns + self.ttl_seconds * _NS

    def _record(self) -> dict[str, Any]:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self.ttl_seconds,
            "renewTime": self._now(),
        }

    def _now(self) -> str:
        return to_micro_timestamp(self._clock.wall_ns())
