"""Domains of other distributions, run by this process: their settings, what they are built from, and their loops.

Each has a section ``[domains.NAME]`` in the settings. Four of its keys mean the same for all of them and are read here
(`Section`); the rest is the domain's own. A section for a domain that is not installed is an error, because somebody
counts on it.

They are swept as all others: by one `SweepLoop` each, where the process leads, through the `Executor`, with the same
freezes, budgets, clock guard and journal. Holds on their things are kept by the engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

import msgspec

from lapse.core.decision import without_unset_anchor
from lapse.core.duration import Duration
from lapse.core.errors import LapseError, UsageError
from lapse.domains import REGISTRY
from lapse.engine.domain import Candidate
from lapse.engine.executor import Executor
from lapse.engine.registry import DomainContext, DomainParts, Registration
from lapse.engine.safety.budget import OFF, Budget
from lapse.engine.safety.holds import HeldTarget
from lapse.engine.sweep import Sweep, SweepLoop

if TYPE_CHECKING:
    from lapse.core.address import Address
    from lapse.core.clock import Clock, UnixNs
    from lapse.core.decision import Decision
    from lapse.engine.journal.port import Journal
    from lapse.engine.registry import BrokenDomainError
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.gate import Gate
    from lapse.engine.safety.holds import HoldStore
    from lapse.settings import Settings

_METHODS_OF_A_DOMAIN: Final = (
    "due", "next_deadline", "decide", "refresh", "policy", "details", "settle", "find",
)  # fmt: skip
_METHODS_OF_A_TARGET: Final = ("holds_over", "apply", "is_in_doubt")
ACTOR: Final = "lapse"
"""Who ends things, as the journal names it."""


class DomainSettingsError(UsageError):
    """The section domains.{name} of the settings cannot be used: {problem}."""


class NothingThereError(LapseError):
    """There is no {address}."""


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """What the section of every domain may say."""

    enabled: bool = True
    """Whether it is swept; otherwise only commands about it work."""
    interval: Duration = Duration.of_seconds(60)
    """How often it is swept."""
    deletion_budget: Budget = OFF
    dry_run: bool = False
    """Whether to tell only what would be done."""


class OwnDomain(NamedTuple):
    """A domain of another distribution, ready to be swept."""

    registration: Registration
    section: Section
    parts: DomainParts

    async def find(self, address: Address) -> Candidate[Any]:
        """Return the thing of an address; raises `NothingThereError` and `BrokenDomainError`."""
        try:
            found: object = await self.parts.domain.find(address)
        except LapseError:
            raise
        except Exception as error:
            raise self._broken("find", error) from error
        if found is None:
            raise NothingThereError(address=address)
        if not isinstance(found, Candidate):
            problem = f"its find returned {type(found).__name__} for {address}; expected a Candidate, or None"
            raise REGISTRY.broken(self.registration.name, problem)
        return found

    def decide(self, candidate: Candidate[Any], now: UnixNs) -> Decision:
        """Return what it decides about a thing, for people; the sweep does not ask here."""
        try:
            return without_unset_anchor(self.parts.domain.decide(candidate, now))
        except LapseError:
            raise
        except Exception as error:
            raise self._broken("decide", error) from error

    def _broken(self, method: str, error: Exception) -> BrokenDomainError:
        return REGISTRY.broken(self.registration.name, f"its {method} has failed ({type(error).__name__}: {error})")

    def loop(self, *, journal: Journal, gate: Gate, clock: Clock, metrics: Metrics, holds: HoldStore) -> SweepLoop:
        """Return the loop that sweeps it, where this process leads."""
        executor = Executor(
            HeldTarget(self.parts.target, holds),
            journal,
            clock=clock,
            metrics=metrics,
            actor=ACTOR,
            gate=gate,
            dry_run=self.section.dry_run,
        )
        kinds = [kind.name for kind in self.registration.kinds]
        sweep = Sweep(self.parts.domain, executor, journal=journal, clock=clock, metrics=metrics, kinds=kinds)
        return SweepLoop(sweep, name=self.registration.name, interval=self.section.interval.seconds)


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
    own = {key: value for key, value in given.items() if key not in Section.__struct_fields__}
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
    return OwnDomain(registration, section, parts)


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
    problems = [f"it has no key {key}" for key in given if key not in fields] + [f"{key} is missing" for key in missing]
    if problems:
        raise DomainSettingsError(name=name, problem="; ".join(problems))
    values: dict[str, Any] = {}
    for key, value in given.items():
        try:
            values[key] = _value(fields[key].type, value)
        except ValueError as error:  # what msgspec raises is one, too
            raise DomainSettingsError(name=name, problem=f"{key}: {str(error).rstrip('.')}") from error
    return into(**values)


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
