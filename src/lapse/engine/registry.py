"""The domain registry: one entry for each domain, from which everything outside the domain's own folder is made.

A `Registration` says what a domain is called, how its things are addressed, which verbs it supports, and how a process
runs it. Addresses, freezes, budgets, metrics, scopes of tokens, settings and nouns of the command line come from it, so
nothing else has to know which domains there are.

The domains of Lapse itself are given to `Registry`. Others come from installed distributions, by an entry point of the
group `GROUP` whose name is that of the domain and whose object is a `Registration`. Their *names* are read from the
metadata of the distributions, which runs nothing of theirs; they are imported when they are needed. One that cannot be
used is a `BrokenDomainError`, which names the distribution; nothing of it is ended.

Not guaranteed: protection from a domain that means harm. Its code runs in the process, with all rights of the process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

from lapse.core.address import Address, AddressKind
from lapse.core.errors import LapseError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from importlib.metadata import EntryPoint
    from pathlib import Path

    from lapse.core.clock import Clock
    from lapse.core.decision import Reason
    from lapse.engine.domain import FindableDomain, Target
    from lapse.engine.running.metrics import Metrics

GROUP: Final = "lapse.domains"
"""The group of entry points."""
NOT_EXPLAINED: Final = "This command does not explain it yet. For others see lapse requests show and lapse history show"
"""Why a domain has no `DomainVerb.WHY`, as long as that is so."""
_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,62}")
_RESERVED: Final = frozenset({"all", "clock"})
"""Every domain together, and the note about the clock, in the tables of what is frozen."""


class BrokenDomainError(LapseError):
    """The domain {name} of {distribution} cannot be used: {problem}. Repair {distribution}, or uninstall it."""


class NoSuchDomainError(UsageError):
    """There is no domain {given}. Expected {known}."""


class UnsupportedVerbError(UsageError):
    """{problem}."""


class DomainVerb(StrEnum):
    """What people can do to a domain or to a thing of it, whatever the domain."""

    FREEZE = "freeze"
    PLAN = "plan"
    APPLY = "apply"
    WHY = "why"
    HOLD = "hold"
    EXTEND = "extend"
    DELETE = "delete"
    UNDO = "undo"


class DomainContext(NamedTuple):
    """What a domain is built with."""

    clock: Clock
    state_dir: Path
    """The folder of the process, in which a domain may keep a folder of its own name."""
    settings: Any
    """The domain's own section, read as `Registration.settings`; None where that is None."""


class DomainParts(NamedTuple):
    """A domain that is ready to be swept; one object may be both parts."""

    domain: FindableDomain[Any]
    target: Target


@dataclass(frozen=True, slots=True)
class ScopeForm:
    """A scope of tokens that is about a part of the domain, written as ``DOMAIN:ARGUMENT``."""

    argument: str
    """What stands after the colon, in capitals, for messages."""
    example: str
    is_valid: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Noun:
    """The commands of a domain: ``lapse NAME ...``."""

    commands: str
    """Where they are, as ``module:application``; imported when one of them is used."""
    help: str


def _none() -> tuple[()]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Registration:
    """Everything about a domain that others need. What would cost an import is asked for by a call."""

    name: str
    """Lower-case letters, digits and dashes: a label of metrics, a column of the journal, a word of commands."""
    reasons: Callable[[], Iterable[Reason]]
    """For which something can be ended: labels of metrics that start at zero."""
    kinds: Sequence[AddressKind] = ()
    """How its things are addressed."""
    has_foreign_kinds: bool = False
    """Whether addresses of the kinds of Kubernetes (``KIND.GROUP/...``) are its own."""
    unsupported: Mapping[DomainVerb, str] = field(default_factory=dict)
    """Verbs that make no sense for it, each with the reason: sentences, without the last period."""
    is_on_cluster: bool = False
    """Whether it is also swept by the operator of a cluster."""
    is_in_database: bool = False
    """Whether its things are in the database that ``database_url`` names, where that is set, and so all machines'."""
    object_kinds: Callable[[], Iterable[Any]] = _none
    """Kinds of objects that it owns in the object store (`lapse.kube.resources.Kind`)."""
    definitions: Callable[[], Iterable[Any]] = _none
    """Definitions of the kinds that it brings to a cluster, as documents."""
    errors: Callable[[], tuple[type[LapseError], ...]] = _none
    """Roots of its errors: a request of the API that fails with one of them is counted for the domain."""
    budget_setting: str = ""
    """The setting with its deletion budget; where there is none, its section may have ``deletion_budget``."""
    settings: type[Any] | None = None
    """What its section ``[domains.NAME]`` of the settings is read as: a `msgspec.Struct`. None: it has none."""
    scope: ScopeForm | None = None
    routes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Which routes of the API a scope opens beside admin and read, as ``METHOD PATH``; under `LISTS` those that only
    list."""
    noun: Noun | None = None
    build: Callable[[DomainContext], DomainParts] | None = None
    """Makes what the engine sweeps; None where a process of Lapse puts the domain together itself."""

    LISTS: Final = "lists"

    def expect_series(self, metrics: Metrics) -> None:
        """Set the series of what is ended, and of what fails, to zero."""
        metrics.expect_domain(self.name, reasons=self.reasons())

    def supports(self, verb: DomainVerb) -> bool:
        """Whether a verb makes sense for it."""
        return verb not in self.unsupported


def _of_the_group() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # not needed for help, and it reads every distribution

    return entry_points(group=GROUP)


class Registry:
    """The domains of a process: its own, and those of installed distributions."""

    def __init__(
        self,
        built_in: Sequence[Registration],
        *,
        installed: Callable[[], Iterable[EntryPoint]] = _of_the_group,
    ) -> None:
        """Read nothing yet; ``installed`` finds the entry points, when something is asked that needs them."""
        self.built_in = tuple(built_in)
        self._installed = installed
        self._loaded: dict[str, Registration] = {}

    @cached_property
    def _entry_points(self) -> Mapping[str, Sequence[EntryPoint]]:
        found: dict[str, list[EntryPoint]] = {}
        for point in sorted(self._installed(), key=lambda point: (point.name, _distribution(point))):
            found.setdefault(point.name, []).append(point)
        return found

    def installed_names(self) -> list[str]:
        """Return the names of the domains of other distributions; imports none of them."""
        own = {one.name for one in self.built_in}
        return [name for name in self._entry_points if name not in own]

    def freezable(self, *, cluster: bool = False) -> tuple[str, ...]:
        """Return what can be frozen and has a deletion budget, in a state folder or on a cluster; imports nothing."""
        own = [one for one in self.built_in if one.supports(DomainVerb.FREEZE) and (one.is_on_cluster or not cluster)]
        return (*(one.name for one in own), *(() if cluster else self.installed_names()))

    def installed(self) -> list[Registration]:
        """Import the domains of other distributions; raises `BrokenDomainError` for the first that cannot be used."""
        for name, (point, *_) in self._entry_points.items():
            if any(one.name == name for one in self.built_in):
                raise _broken(point, "the name is that of a domain of Lapse itself")
        return [self.get(name) for name in self.installed_names()]

    def get(self, name: str) -> Registration:
        """Return the domain of a name; raises `NoSuchDomainError` and `BrokenDomainError`."""
        found = next((one for one in self.built_in if one.name == name), self._loaded.get(name))
        if found is None:
            if name not in self._entry_points:
                raise no_such_domain(name, [*(one.name for one in self.built_in), *self.installed_names()])
            found = self._loaded[name] = self._load(*self._entry_points[name])
        return found

    def distribution(self, name: str) -> str:
        """Return the name of the distribution that has an installed domain."""
        return _distribution(self._entry_points[name][0])

    def broken(self, name: str, problem: str) -> BrokenDomainError:
        """Return what tells that an installed domain cannot be used."""
        return _broken(self._entry_points[name][0], problem)

    def _load(self, point: EntryPoint, *others: EntryPoint) -> Registration:
        if others:
            raise _broken(point, f"{_distribution(others[0])} has a domain of the same name")
        if not _NAME.fullmatch(point.name) or point.name in _RESERVED:
            raise _broken(point, "its name must be lower-case letters, digits and dashes, and neither all nor clock")
        try:
            found = point.load()
        except (Exception, SystemExit) as error:  # whatever it is, it is of code that is not ours
            raise _broken(point, f"it cannot be imported ({type(error).__name__}: {error})") from error
        if not isinstance(found, Registration):
            raise _broken(point, f"{point.value} is no lapse.engine.registry.Registration")
        if found.name != point.name:
            raise _broken(point, f"it is registered as {found.name!r}, which must be the name of the entry point")
        if found.build is None:
            raise _broken(point, "its registration has no build")
        problem = self._problem_of(found)
        if problem is not None:
            raise _broken(point, problem)
        return found

    def _problem_of(self, found: Registration) -> str | None:
        """Say what is wrong with a registration; None when nothing is."""
        settings: object = found.settings
        if settings is not None and not (isinstance(settings, type) and issubclass(settings, Struct)):
            return f"its settings are {settings!r}; expected a class that derives from msgspec.Struct, or None"
        kinds: Sequence[object] = found.kinds
        for kind in kinds:
            if not isinstance(kind, AddressKind):
                return f"it has the kind {kind!r}; expected an AddressKind"
            if not _NAME.fullmatch(kind.name):
                return f"it has the kind {kind.name!r}; expected lower-case letters, digits and dashes"
            for owner in (*self.built_in, *self._loaded.values()):
                if any(kind.name == one.name for one in owner.kinds):
                    return f"the domain {owner.name} has addresses of the kind {kind.name}, too; one must change"
        return None

    # --- addresses ----------------------------------------------------------------------------------------------------

    def parse(self, text: str) -> Address:
        """Read an address of any domain; raises `AddressError`, and `BrokenDomainError` for a kind that is not ours.

        A domain that is broken is in the way of no other, as long as somebody else has the kind.
        """
        known, asked, broken = dict(_kinds(self.built_in)), text.partition("/")[0], None
        if asked not in known and not asked[:1].isupper():
            for name in self.installed_names():
                try:
                    known |= _kinds([self.get(name)])
                except BrokenDomainError as error:
                    broken = broken or error
            if asked not in known and broken is not None:
                raise broken
        return Address.parse(text, known)

    def owner_of(self, kind: str) -> Registration | None:
        """Return the domain that has addresses of a kind that was parsed; None when there is none."""
        everybody = (*self.built_in, *self._loaded.values())
        named = next((one for one in everybody if any(kind == known.name for known in one.kinds)), None)
        return named or next((one for one in everybody if one.has_foreign_kinds), None)

    def demand(self, verb: DomainVerb, address: Address) -> Registration:
        """Return the domain of an address that was parsed; raises `UnsupportedVerbError` where a verb is none of it."""
        owner = self.owner_of(address.kind)
        if owner is None:
            raise UnsupportedVerbError(problem=f"No domain has {address}")
        if not owner.supports(verb):
            raise UnsupportedVerbError(problem=f"{address}: {owner.unsupported[verb]}")
        return owner

    def demand_applicable(self, names: Sequence[str]) -> None:
        """Raise `UnsupportedVerbError` where plans end nothing of any of these domains."""
        reasons = [self.get(name).unsupported.get(DomainVerb.APPLY) for name in names]
        if reasons and None not in reasons:
            raise UnsupportedVerbError(problem=reasons[0])

    def demand_freezable(self, name: str, known: Sequence[str]) -> None:
        """Raise `UnsupportedVerbError` or `NoSuchDomainError` unless a domain is one of ``known``."""
        if name in known:
            return
        for one in self.built_in:
            if one.name == name and not one.supports(DomainVerb.FREEZE):
                raise UnsupportedVerbError(problem=one.unsupported[DomainVerb.FREEZE])
        raise no_such_domain(name, known)

    def domain_of(self, error: LapseError, *, default: str) -> str:
        """Return the domain of Lapse itself that a failure is counted for."""
        return next((one.name for one in self.built_in if isinstance(error, one.errors())), default)


def _kinds(registrations: Iterable[Registration]) -> Iterator[tuple[str, AddressKind]]:
    return ((kind.name, kind) for one in registrations for kind in one.kinds)


def no_such_domain(given: str, known: Sequence[str]) -> NoSuchDomainError:
    """Return what tells that a name is none of those that are known."""
    return NoSuchDomainError(given=repr(given), known=f"{', '.join(known[:-1])} or {known[-1]}")


def _broken(point: EntryPoint, problem: str) -> BrokenDomainError:
    return BrokenDomainError(name=point.name, distribution=_distribution(point), problem=problem)


def _distribution(point: EntryPoint) -> str:
    return "an unknown distribution" if point.dist is None else point.dist.name
