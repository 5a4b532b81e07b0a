"""Domains of other distributions, run by this process: their settings, what they are built from, and their loops.

Each has a section ``[domains.NAME]`` in the settings. Three of its keys mean the same for all of them and are read here
(`Section`); the rest is the domain's own. A section for a domain that is not installed is an error, because somebody
counts on it.

They are swept as all others: by one `SweepLoop` each, where the process leads, through the `Executor`, with the same
freezes, budgets, clock guard and journal. Holds and extensions of their things are kept by the engine.
"""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, get_args

import msgspec
from msgspec.structs import replace

from lapse.core.clock import UnixNs
from lapse.core.decision import Due
from lapse.core.duration import Duration
from lapse.core.errors import LapseError, UsageError
from lapse.domains import REGISTRY
from lapse.engine.domain import DELETE, Candidate, policy_hash
from lapse.engine.executor import Executor
from lapse.engine.explanation import Grounds, single_rule, words
from lapse.engine.registry import DomainContext, DomainParts, Registration
from lapse.engine.safety.budget import OFF, Budget
from lapse.engine.safety.extensions import ExtendedDomain
from lapse.engine.safety.holds import HeldTarget, PlacedExtension, PlacedHold
from lapse.engine.sweep import Sweep, SweepLoop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence

    from lapse.core.address import Address
    from lapse.core.clock import Clock
    from lapse.core.decision import Decision
    from lapse.engine.domain import Consequence, Target
    from lapse.engine.journal.port import Journal
    from lapse.engine.registry import BrokenDomainError
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.blast_radius import PolicyChecks
    from lapse.engine.safety.gate import Gate
    from lapse.engine.safety.holds import Hold, HoldStore
    from lapse.settings import Settings

_METHODS_OF_A_DOMAIN: Final = (
    "due", "next_deadline", "decide", "refresh", "policy", "policy_name", "policies", "governed", "details", "settle",
    "find",
)  # fmt: skip
_METHODS_OF_A_TARGET: Final = ("holds_over", "apply", "is_in_doubt")
T = TypeVar("T")
_NOT_UNDOABLE: Final = "its domain has no trash"
ACTOR: Final = "lapse"
"""Who ends things, as the journal names it."""


class DomainSettingsError(UsageError):
    """The section domains.{name} of the settings cannot be used: {problem}."""


class DomainSettingsMissingError(DomainSettingsError):
    """The domain {name}, which {distribution} has installed, needs settings that are not there: {keys}.

    Uninstall {distribution}, or write this, with values of your own, into ~/.config/lapse/lapse.toml or a file that
    --config names:{example}
    """


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """What the section of every domain may say."""

    enabled: bool = True
    """Whether it is swept; otherwise only commands about it work."""
    interval: Duration = Duration.of_seconds(60)
    """How often it is swept."""
    deletion_budget: Budget = OFF


class OwnDomain(NamedTuple):
    """A domain of another distribution, ready to be swept."""

    registration: Registration
    section: Section
    parts: DomainParts
    policy: str = ""
    """A hash of what its own section says: the policy of a domain that names none."""

    async def find(self, address: Address) -> Candidate[Any] | None:
        """Return the thing of an address, None where there is none; raises `BrokenDomainError`."""
        found: object = await self.guarded("find", self.parts.domain.find(address))
        if found is not None and not isinstance(found, Candidate):
            problem = f"its find returned {type(found).__name__} for {address}; expected a Candidate, or None"
            raise REGISTRY.broken(self.registration.name, problem)
        return found

    def decide(self, candidate: Candidate[Any], now: UnixNs) -> Decision:
        """Return what it decides about a thing, for people; the sweep does not ask here."""
        try:
            return self.parts.domain.decide(candidate, now)
        except LapseError:
            raise
        except Exception as error:
            raise self._broken("decide", error) from error

    async def guarded(self, method: str, call: Awaitable[T]) -> T:
        """Return what a method of the domain answers; what it raises beside errors of Lapse is its defect."""
        try:
            return await call
        except LapseError:
            raise
        except Exception as error:
            raise self._broken(method, error) from error

    def _broken(self, method: str, error: Exception) -> BrokenDomainError:
        return REGISTRY.broken(self.registration.name, f"its {method} has failed ({type(error).__name__}: {error})")

    def loop(self, *, journal: Journal, gate: Gate, clock: Clock, metrics: Metrics, holds: HoldStore) -> SweepLoop:
        """Return the loop that sweeps it, where this process leads."""
        executor = Executor(
            HeldTarget(self.parts.target, holds, clock=clock),
            journal,
            clock=clock,
            metrics=metrics,
            actor=ACTOR,
            gate=gate,
        )
        kinds = [kind.name for kind in self.registration.kinds]
        sweep = Sweep(
            ExtendedDomain(self.parts.domain, holds),
            executor,
            journal=journal,
            clock=clock,
            metrics=metrics,
            kinds=kinds,
            settings=self.policy,
        )
        return SweepLoop(sweep, name=self.registration.name, interval=self.section.interval.seconds)


class ManagedOwnDomain:
    """A domain of another distribution as people see and steer it: `lapse.engine.domain.ManagedDomain`.

    The engine keeps its holds and extensions. It needs a domain of its own, beside that of a sweep: a generator may
    have a place of its own there.
    """

    def __init__(self, own: OwnDomain, holds: HoldStore, *, clock: Clock) -> None:
        """Steer things of a domain that is built."""
        self._own, self._holds, self._clock = own, holds, clock
        self.name: str = own.registration.name
        self.target: Target = HeldTarget(own.parts.target, holds, clock=clock)
        self.is_indexed: bool = own.parts.domain.is_indexed
        self.not_undoable: str | None = _NOT_UNDOABLE

    async def find(self, address: Address) -> Candidate[Any] | None:
        """See `ManagedDomain`."""
        found = await self._own.find(address)
        return None if found is None else (await self._steered([found]))[0]

    async def find_all(self, addresses: Sequence[Address]) -> Sequence[Candidate[Any] | None]:
        """See `ManagedDomain`."""
        return [await self.find(one) for one in addresses]

    async def refresh(self, candidates: Sequence[Candidate[Any]]) -> Sequence[Candidate[Any] | None]:
        """See `ManagedDomain`."""
        found = await self._own.guarded("refresh", self._own.parts.domain.refresh(candidates))
        fresh = {one.uid: one for one in await self._steered([one for one in found if one is not None])}
        return [None if one is None else fresh[one.uid] for one in found]

    async def upcoming(self, until: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[Any]], None]:
        """See `ManagedDomain`: what the domain itself would look at by then."""
        async with aclosing(self._own.parts.domain.due(until, size=size)) as pages:
            while (page := await self._own.guarded("due", anext(pages, None))) is not None:
                yield await self._steered(page)

    async def _steered(self, candidates: Sequence[Candidate[Any]]) -> list[Candidate[Any]]:
        """Return them with the holds and extensions that the engine keeps."""
        uids = [one.uid for one in candidates]
        if not uids:
            return []
        holds, later = await self._holds.held(self.name, uids), await self._holds.extended(self.name, uids)
        return [
            replace(one, hold=holds.get(one.uid, one.hold), extended=later.get(one.uid, one.extended))
            for one in candidates
        ]

    def decide(self, candidate: Candidate[Any], now: UnixNs) -> Decision:
        """See `ManagedDomain`."""
        return self._own.decide(candidate, now)

    def policy(self, candidate: Candidate[Any]) -> str:
        """See `ManagedDomain`."""
        return self._own.parts.domain.policy(candidate)

    def policy_name(self, candidate: Candidate[Any]) -> str:
        """See `ManagedDomain`."""
        return self._own.parts.domain.policy_name(candidate)

    def policies(self) -> Mapping[str, str] | None:
        """See `ManagedDomain`."""
        return self._own.parts.domain.policies()

    def governed(self, *, size: int) -> AsyncGenerator[Sequence[Candidate[Any]], None]:
        """See `ManagedDomain`."""
        return self._own.parts.domain.governed(size=size)

    async def look_at_policies(self, guard: PolicyChecks) -> None:
        """See `ManagedDomain`."""
        await guard.look(self, settings=self._own.policy)

    def details(self, candidate: Candidate[Any]) -> dict[str, Any] | None:
        """See `ManagedDomain`."""
        return self._own.parts.domain.details(candidate)

    def explain(self, candidate: Candidate[Any], decision: Decision, now: UnixNs) -> Grounds:
        """See `ManagedDomain`: by the decision alone, unless the domain has an ``explain`` of its own."""
        own = getattr(self._own.parts.domain, "explain", None)
        if own is not None:
            found: Grounds = own(candidate, decision, now)
            return replace(found, not_undoable=found.not_undoable or self.not_undoable)
        verdict = decision.verdict
        action = verdict.action if isinstance(verdict, Due) else DELETE
        rule = single_rule(decision, f"the rules of {self.name}", action=action)
        return Grounds(rules=(rule,), because=words(verdict.reason.value), not_undoable=self.not_undoable)

    async def takes_along(self, candidate: Candidate[Any]) -> Sequence[str]:
        """See `ManagedDomain`: nothing that is known."""
        return ()

    async def leads_to(self, candidate: Candidate[Any], end: UnixNs) -> Sequence[Consequence]:
        """See `ManagedDomain`: nothing that is known."""
        return ()

    async def deletion_target(self, candidate: Candidate[Any]) -> Target:
        """See `ManagedDomain`."""
        return self.target

    async def hold(self, candidate: Candidate[Any], hold: Hold, *, replace: bool) -> None:
        """See `ManagedDomain`."""
        placed = PlacedHold(self.name, candidate.uid, str(candidate.address), hold, UnixNs(self._clock.wall_ns()))
        await self._holds.hold(placed, replace=replace)

    async def release(self, candidate: Candidate[Any], *, by: str, legal: bool, only: str | None = None) -> Hold | None:
        """See `ManagedDomain`."""
        address = str(candidate.address)
        return await self._holds.release(self.name, candidate.uid, by=by, legal=legal, only=only, address=address)

    async def extend(self, candidate: Candidate[Any], until: UnixNs, *, by: str) -> None:
        """See `ManagedDomain`."""
        now = UnixNs(self._clock.wall_ns())
        await self._holds.extend(PlacedExtension(self.name, candidate.uid, str(candidate.address), until, now, by))


def section_of(settings: Settings, name: str) -> Section:
    """Return what a domain's section says of what means the same for all; raises `DomainSettingsError`."""
    common = {field: settings.domains.get(name, {}).get(field) for field in Section.__struct_fields__}
    section: Section = _convert(name, {key: value for key, value in common.items() if value is not None}, Section)
    if section.interval.nanoseconds is None or section.interval.nanoseconds <= 0:
        raise DomainSettingsError(name=name, problem="interval: expected a duration such as 1m")
    return section


def own_domains(settings: Settings, clock: Clock) -> list[OwnDomain]:
    """Build the domains of other distributions; raises `DomainSettingsError`, `BrokenDomainError` and their errors."""
    known = REGISTRY.installed_names()
    for name in settings.domains:
        if name not in known:
            problem = f"no distribution that is installed has such a domain (installed: {', '.join(known) or 'none'})"
            raise DomainSettingsError(name=name, problem=problem)
    return [own_domain(one, settings, clock) for one in REGISTRY.installed()]


def own_domain(registration: Registration, settings: Settings, clock: Clock) -> OwnDomain:
    """Build one of them."""
    name, section = registration.name, section_of(settings, registration.name)
    given = settings.domains.get(name, {})
    own = own_section = {key: value for key, value in given.items() if key not in Section.__struct_fields__}
    if "dry_run" in own:
        problem = f'it has no key dry_run; name the domain in dry_run_domains, as in dry_run_domains = ["{name}"]'
        raise DomainSettingsError(name=name, problem=problem)
    if registration.settings is not None:
        own = _convert(name, own, registration.settings)
    elif own:
        raise DomainSettingsError(name=name, problem=f"it has no key {next(iter(own))}")
    context = DomainContext(clock, settings.state_dir, own or None)
    try:
        parts = DomainParts(*registration.build(context)) if registration.build is not None else None
        missing = () if parts is None else _missing(parts)
        built = None if parts is None or missing else parts.domain.name
    except LapseError:
        raise
    except Exception as error:
        raise REGISTRY.broken(name, f"it cannot be built ({type(error).__name__}: {error})") from error
    if missing:
        raise REGISTRY.broken(name, f"what it builds has no {', '.join(missing)}")
    if parts is None or built != name:
        raise REGISTRY.broken(name, f"what it builds is called {built!r}")
    return OwnDomain(registration, section, parts, policy_hash(sorted(own_section.items())))


_WRITTEN: Final[dict[type[Duration | Budget], str]] = {Duration: '"5m"', Budget: '"1000/1h"'}
"""What is written as text, with an example."""


def _missing(parts: DomainParts) -> list[str]:
    """Return what the interface asks for and the parts do not have; a class in place of an object has nothing."""
    wanted = [
        (parts.domain, ("name", "reasons", "is_indexed"), _METHODS_OF_A_DOMAIN),
        (parts.target, ("batch", "database"), _METHODS_OF_A_TARGET),
    ]
    missing: set[str] = set()
    for part, values, methods in wanted:
        missing |= {one for one in values if isinstance(part, type) or not hasattr(part, one)}
        missing |= {one for one in methods if isinstance(part, type) or not callable(getattr(part, one, None))}
    return sorted(missing)


def _convert(name: str, given: dict[str, Any], into: type[Any]) -> Any:  # noqa: ANN401 - of the type that was asked for
    fields = {one.name: one for one in msgspec.structs.fields(into)}
    missing = [field for field, one in fields.items() if one.required and field not in given]
    unknown = [f"it has no key {key}" for key in given if key not in fields]
    if unknown:
        raise DomainSettingsError(name=name, problem="; ".join([*unknown, *(f"{key} is missing" for key in missing)]))
    if missing:
        example = [f"[domains.{name}]", *(f"{key} = {_example(fields[key].type)}" for key in missing)]
        raise DomainSettingsMissingError(
            name=name,
            distribution=REGISTRY.distribution(name),
            keys=", ".join(missing),
            example="".join(f"\n{line}" for line in example),
        )
    values: dict[str, Any] = {}
    for key, value in given.items():
        try:
            values[key] = _value(fields[key].type, value)
        except ValueError as error:  # what msgspec raises is one, too
            raise DomainSettingsError(name=name, problem=f"{key}: {str(error).rstrip('.')}") from error
    return into(**values)


def _example(wanted: Any) -> str:  # noqa: ANN401 - a type, or several that are possible
    """Return a value as it is written in TOML."""
    possible = get_args(wanted) or (wanted,)
    known: dict[Any, str] = {Path: '"/absolute/path"', **_WRITTEN, str: '"text"', bool: "true", int: "1", float: "1.0"}
    return next((example for kind, example in known.items() if kind in possible), "...")


def _value(wanted: Any, given: object) -> object:  # noqa: ANN401 - a type, or several that are possible
    """Read a value: TOML has no type for some, which are texts there."""
    if isinstance(given, str):
        possible = get_args(wanted) or (wanted,)
        if Path in possible:
            return _path(given)
        for one in _WRITTEN:
            if one in possible:
                return one.parse(given)
    for one, example in _WRITTEN.items():
        if wanted is one:
            raise ValueError(f"{given!r} is no {one.__name__.lower()}; expected a text such as {example}")
    return msgspec.convert(given, wanted)


def _path(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_absolute():
        raise ValueError("expected an absolute path: a relative one depends on the working directory")
    return path
