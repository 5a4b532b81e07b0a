"""Freezes and spent budgets in a ConfigMap: for replicas that share nothing but the cluster.

``data`` holds one key ``frozen.DOMAIN`` (or ``frozen.all``) for each freeze, one key ``note.NAME`` for each note, and
``spent``, the ledger. A person may freeze with kubectl by writing any text to a freeze's key, which is taken for the
reason; an empty text or ``false`` freezes nothing, as with holds. Everything else that is not understood is doubt, and
doubt means keep: a freeze of a domain that does not exist freezes all of them, and a key of another name or a ledger
that cannot be read makes the whole thing unreadable, until ``lapse resume all`` writes it anew.

What was spent is compared and written in one step, on the version that was read, so that two leaders, one of which does
not know yet that it is none, cannot spend the same twice. Not guaranteed: anything after somebody deletes the
ConfigMap; that is a new beginning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from lapse.core.identity import uuid
from lapse.core.jitter import Chance, backoff, chance
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.engine.safety.budget import TOTAL, Ledger
from lapse.engine.safety.freeze import (
    ABOUT_CLOCK,
    ALL,
    CLOCK,
    Freeze,
    GateConflictError,
    GateState,
    GateStore,
    GateUnreadableError,
    Notes,
)
from lapse.engine.safety.holds import LONGEST_REASON
from lapse.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from lapse.kube.resources import Kind, ObjectMeta, Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lapse.core.clock import Clock
    from lapse.engine.journal.port import Entry, Journal
    from lapse.engine.safety.budget import Reservation
    from lapse.kube.resources import ObjectKey
    from lapse.objects.port import ObjectStore

NAME: Final = "lapse-brakes"
RUN: Final = "lapse resume --cluster"
"""What a person runs to let something go on."""
_FROZEN: Final = "frozen."
_SPENT: Final = "spent"
_NOTE: Final = "note."
_RESUMED: Final = _NOTE + "resumed"
"""Another text whenever somebody has resumed: what was taken before does not count any more."""
_NOT_FROZEN: Final = frozenset({"", "false"})
_ATTEMPTS: Final = 10


class ConfigMap(Struct, frozen=True):
    """The object, as far as it matters here."""

    metadata: ObjectMeta
    data: dict[str, str] | None = None


CONFIG_MAP: Final = Kind("v1", "ConfigMap", "configmaps", ConfigMap, status=False)


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    """A freeze as we write it."""

    since: str
    reason: str
    by: str


class ConfigMapGateStore:
    """See the module; a `GateStore` with `Notes`."""

    keeps_spending: Final = True

    def __init__(
        self,
        store: ObjectStore,
        key: ObjectKey,
        *,
        domains: Iterable[str],
        clock: Clock,
        journal: Journal | None = None,
        chance: Chance = chance,
    ) -> None:
        """Nothing is read yet. Rows go to ``journal``, after what they tell of has happened."""
        self._store, self._key, self._journal = store, key, journal
        self._names = {ALL, *domains}
        self._clock, self._chance = clock, chance

    async def load(self, now: int, *, holder: str = "") -> GateState:
        """See `GateStore`; the ConfigMap is made if there is none."""
        return self._state(await self._found())

    async def spend(
        self, state: GateState, spent: Ledger, *, holder: str, mine: Sequence[Reservation], now: int
    ) -> GateState:
        """See `GateStore`."""
        changes = {"data": {_SPENT: msgspec.json.encode(spent).decode()}}
        try:
            return self._state(await self._store.patch(CONFIG_MAP, self._key, changes, version=state.version))
        except (NotFoundError, ConflictError) as error:
            raise self._conflict(str(error)) from error

    async def release(self, holder: str, mine: Sequence[Reservation], *, now: int) -> None:
        """See `GateStore`: what was taken stands in the ledger, and stays there when it is done."""

    async def freeze(self, name: str, freeze: Freeze, row: Entry) -> None:
        """See `GateStore`."""
        await self._found()
        since = to_timestamp(freeze.since or row.time_ns)
        note = _Note(since=since, reason=freeze.reason[:LONGEST_REASON], by=freeze.by)
        changes = {"data": {_FROZEN + name: msgspec.json.encode(note).decode()}}
        await self._store.patch(CONFIG_MAP, self._key, changes)
        await self._tell(row)

    async def resume(self, name: str, row: Entry, *, mark: str | None = None) -> list[str]:
        """See `GateStore`; with `ALL`, what cannot be read is cleared away as well.

        ``mark`` is of no use here: who resumes is on another machine than the operator, which asks the API server.
        """
        for attempt in range(_ATTEMPTS):
            found = await self._found()
            changes, resumed = self._without(found, name)
            if not changes:
                return []
            data = {**changes, _RESUMED: uuid()}
            try:
                await self._store.patch(CONFIG_MAP, self._key, {"data": data}, version=found.metadata.resource_version)
            except ConflictError:
                await self._clock.sleep(backoff(attempt, chance=self._chance))
                continue
            await self._tell(row)
            return resumed
        raise self._conflict(f"other writers were faster {_ATTEMPTS} times")

    async def read_note(self, name: str) -> str | None:
        """See `Notes`."""
        return ((await self._found()).data or {}).get(_NOTE + name)

    async def find_note(self, name: str) -> str | None:
        """Return a note, and make nothing: None as well where there is no ConfigMap."""
        try:
            return ((await self._store.get(CONFIG_MAP, self._key)).data or {}).get(_NOTE + name)
        except NotFoundError:
            return None

    async def write_note(self, name: str, text: str) -> None:
        """See `Notes`."""
        await self._found()
        await self._store.patch(CONFIG_MAP, self._key, {"data": {_NOTE + name: text}})

    async def list_notes(self, prefix: str) -> dict[str, str]:
        """See `Notes`."""
        data = (await self._found()).data or {}
        return {key.removeprefix(_NOTE): text for key, text in data.items() if key.startswith(_NOTE + prefix)}

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _found(self) -> ConfigMap:
        try:
            return await self._store.get(CONFIG_MAP, self._key)
        except NotFoundError:
            meta = {"name": self._key.name, "namespace": self._key.namespace}
            labels = {"app.kubernetes.io/name": "lapse"}
            try:
                return await self._store.create(CONFIG_MAP, {"metadata": {**meta, "labels": labels}, "data": {}})
            except AlreadyExistsError:
                return await self._store.get(CONFIG_MAP, self._key)

    async def _tell(self, row: Entry) -> None:
        if self._journal is not None:
            await self._journal.append(row)

    def _state(self, found: ConfigMap) -> GateState:
        data = found.data or {}
        unknown = sorted(key for key in data if key != _SPENT and not key.startswith((_FROZEN, _NOTE)))
        if unknown:
            self._unreadable(f"it has the key {unknown[0]}, expected {_FROZEN}DOMAIN or {_SPENT}")
        try:
            spent = msgspec.json.decode(data.get(_SPENT) or "{}", type=dict[str, dict[int, int]])
        except (msgspec.MsgspecError, UnicodeError) as error:
            self._unreadable(f"{_SPENT} is not a ledger ({error})")
        if any(count < 0 for slices in spent.values() for count in slices.values()):
            self._unreadable(f"{_SPENT} holds a number below zero")
        epoch, version = data.get(_RESUMED, ""), found.metadata.resource_version
        return GateState(self._frozen(data), spent, epoch=epoch, version=version)

    def _frozen(self, data: Mapping[str, str]) -> dict[str, Freeze]:
        frozen = {}
        for key, text in sorted(data.items()):
            if key.startswith(_FROZEN) and text.strip().lower() not in _NOT_FROZEN:
                frozen[key.removeprefix(_FROZEN)] = freeze = _read(text)
                if key.removeprefix(_FROZEN) not in self._names:
                    about = f"{key} in the ConfigMap {self._key} names no domain, so all are frozen: {freeze.reason}"
                    frozen.setdefault(ALL, Freeze(freeze.since, about, freeze.by))
        return frozen

    def _without(self, found: ConfigMap, name: str) -> tuple[dict[str, Any], list[str]]:
        """Return what a patch of the data has to say, and which domains that resumes."""
        data = found.data or {}
        if name == ALL:
            frozen = sorted(key.removeprefix(_FROZEN) for key in data if key.startswith(_FROZEN))
            gone = [*(key for key in data if not key.startswith(_NOTE)), *_clock_note(data, frozen)]
            return (dict.fromkeys(gone) if frozen or not self._is_readable(found) else {}), frozen
        state = self._state(found)
        if _FROZEN + name not in data:
            return {}, []
        spent = {account: slices for account, slices in state.spent.items() if account not in {name, TOTAL}}
        forgotten = dict.fromkeys([_FROZEN + name, *_clock_note(data, [name])])
        return {**forgotten, _SPENT: msgspec.json.encode(spent).decode()}, [name]

    def _is_readable(self, found: ConfigMap) -> bool:
        try:
            self._state(found)
        except GateUnreadableError:
            return False
        return True

    def _conflict(self, problem: str) -> GateConflictError:
        return GateConflictError(place=f"the ConfigMap {self._key}", problem=problem)

    def _unreadable(self, problem: str) -> NoReturn:
        raise GateUnreadableError(place=f"the ConfigMap {self._key}", problem=problem, run=RUN)


def _clock_note(data: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """Return the key of what was believed of the clock, if one of these was frozen for it."""
    is_about_clock = any(_read(data[_FROZEN + name]).reason.startswith(ABOUT_CLOCK) for name in names)
    return [_NOTE + CLOCK] if is_about_clock else []


def _read(text: str) -> Freeze:
    """Read a freeze; what is not of our making is taken for its reason."""
    try:
        note = msgspec.json.decode(text, type=_Note)
    except (msgspec.MsgspecError, UnicodeError):
        return Freeze(None, text.strip()[:LONGEST_REASON], "")
    return Freeze(from_timestamp(note.since), note.reason, note.by)


if TYPE_CHECKING:
    _conforms: type[GateStore] = ConfigMapGateStore
    _keeps: type[Notes] = ConfigMapGateStore
