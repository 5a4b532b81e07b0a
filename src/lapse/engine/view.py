"""Views: the one form of everything that people and programs are shown.

A view is a msgspec struct; its fields are the fields of the JSON, in their order. The JSON of the command line and of
the HTTP API, the schemas of the OpenAPI document and the tables are all made from it, so that a field is written once.
A moment is kept exactly and printed as RFC 3339; a field that is `UNSET` is left out of the JSON.

Pure. Not guaranteed: that what a view tells is still so a moment after it was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from lapse.core.decision import UNREADABLE_EXTENSION, Keep, KeepReason, UnknownReason
from lapse.core.duration import short
from lapse.core.timestamps import from_timestamp, to_timestamp

if TYPE_CHECKING:
    from lapse.core.address import Address
    from lapse.core.clock import UnixNs
    from lapse.core.decision import Decision
    from lapse.engine.safety.freeze import Freeze
    from lapse.engine.safety.holds import Hold

T = TypeVar("T")
View = TypeVar("View", bound=msgspec.Struct)
DetailRow = tuple[str, str]
"""A name, and what is told of it."""
Columns = Mapping[str, str | Callable[[Any, int], object]]
"""Headings with what stands under them: the field of that name, or what is made of the view at a time."""
SCHEMAS: Final = "#/components/schemas/"


class Moment(int):
    """A point in time, in nanoseconds since 1970; in JSON a time in whole seconds, rounded up."""

    __slots__ = ()

    @classmethod
    def of(cls, nanoseconds: int | None) -> Moment | None:
        """Return the moment, None for none."""
        return None if nanoseconds is None else cls(nanoseconds)

    def __str__(self) -> str:
        """Print it as in JSON."""
        return to_timestamp(self)

    def and_age(self, now: int) -> str:
        """Print it, and how long ago it was at ``now``."""
        return f"{self} ({short(now - self)} ago)"


class Expiry(NamedTuple):
    """When something goes: at a moment, or as ``instead`` says, where the moment is only that since which it is due."""

    at: int | None = None
    instead: str = ""

    def words(self, now: int, *, held: bool) -> str:
        """Say for people when it goes; empty where nothing is known."""
        if held:
            return "held"
        if self.instead or self.at is None:
            return self.instead
        return f"in {short(self.at - now)}" if self.at > now else "now"

    def extended(self, until: int | None) -> Expiry:
        """Return when it goes where a person has given it time until then; None: nobody has."""
        if until is None or self.at is None:
            return self
        if until == UNREADABLE_EXTENSION:
            return Expiry(instead=f"unknown ({UnknownReason.UNREADABLE_SIGNAL})")
        return Expiry(max(self.at, until), self.instead)


class ViewPage(msgspec.Struct, Generic[T], frozen=True):
    """Some of many, in an order that pages do not change."""

    items: list[T]
    next: str | None


class FreezeView(msgspec.Struct, frozen=True):
    """What stops a domain: until it is over, Lapse ends nothing of it by itself."""

    since: Moment | None
    reason: str
    by: Annotated[str, msgspec.Meta(description="Who froze it; empty where that is not known")]

    def __str__(self) -> str:
        """Print it for people."""
        since = "" if self.since is None else f"since {self.since}"
        by = f"by {self.by}" if self.by else ""
        return ": ".join(filter(None, (" ".join(filter(None, (since, by))), self.reason))) or "yes"


class DecisionView(msgspec.Struct, frozen=True):
    """What a domain decides about a thing, the hold on it, and what stops the domain."""

    verdict: Annotated[str, msgspec.Meta(description="keep, due or unknown")]
    reason: str
    anchor: Moment | None
    deadline: Moment | None
    hold: Annotated[str | None, msgspec.Meta(description="Why it is held; null where it is not")]
    frozen: FreezeView | None


class HoldEnd(msgspec.Struct, frozen=True):
    """Why a thing is held, and until when."""

    reason: str
    until: Moment | None


class HoldView(msgspec.Struct, frozen=True):
    """A thing whose hold is kept by the engine."""

    address: str
    domain: str
    uid: str
    hold: HoldEnd | None


def freeze_view(freeze: Freeze | None) -> FreezeView | None:
    """Return the view of what stops a domain, None for nothing."""
    return None if freeze is None else FreezeView(Moment.of(freeze.since), freeze.reason, freeze.by)


def decision_view(decision: Decision, hold: Hold | None, now: UnixNs, frozen: Freeze | None = None) -> DecisionView:
    """Return the view of a decision about a thing; what is held is kept, and a hold that is over is left out."""
    held = hold if hold is not None and hold.active(now) else None
    verdict = decision.verdict if held is None else Keep(KeepReason.HELD)
    return DecisionView(
        verdict=type(verdict).__name__.lower(),
        reason=verdict.reason.value,
        anchor=Moment.of(decision.anchor),
        deadline=Moment.of(decision.deadline),
        hold=None if held is None else held.reason or "yes",
        frozen=freeze_view(frozen),
    )


def decision_rows(told: DecisionView) -> list[DetailRow]:
    """Return a decision for people."""
    return known((name, "" if value is None else str(value)) for name, value in msgspec.structs.asdict(told).items())


def hold_view(address: Address, domain: str, uid: str, hold: Hold | None) -> HoldView:
    """Return the view of a thing with its hold, None for none."""
    end = None if hold is None else HoldEnd(hold.reason, Moment.of(hold.until))
    return HoldView(str(address), domain, uid, end)


def fill(kind: type[View], source: object, /, **given: object) -> View:
    """Return a view of ``given`` and, for its other fields, of the attributes that ``source`` has under their names."""
    taken = {name: getattr(source, name) for name in kind.__struct_fields__ if name not in given}
    return kind(**taken, **given)


def to_json(view: object) -> Any:  # noqa: ANN401 - a document
    """Return the JSON form of views and of what contains them, as dictionaries and lists."""
    return msgspec.to_builtins(view, enc_hook=_printed)


def encode(view: object) -> bytes:
    """Return the JSON form as bytes, in UTF-8 and without spaces."""
    return msgspec.json.encode(view, enc_hook=_printed)


def decode(text: bytes, kind: type[T]) -> T:
    """Read the JSON form of a view; raises `msgspec.DecodeError`, of which a wrong field is a kind."""
    try:
        return msgspec.json.decode(text, type=kind, dec_hook=_read)
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error


def schemas(kinds: Iterable[type]) -> dict[str, Any]:
    """Return the JSON schemas of views and of the views in them, by their names."""
    _, components = msgspec.json.schema_components(kinds, schema_hook=_schema, ref_template=f"{SCHEMAS}{{name}}")
    return components


def row(view: object, columns: Columns, now: int = 0) -> list[str]:
    """Return the cells of a view in a table, a dash for None."""
    found = (getattr(view, cell) if isinstance(cell, str) else cell(view, now) for cell in columns.values())
    return ["-" if one is None else str(one) for one in found]


def known(rows: Iterable[DetailRow]) -> list[DetailRow]:
    """Return the rows that tell something."""
    return [(name, text) for name, text in rows if text]


def _printed(value: object) -> str:
    if isinstance(value, Moment):
        return to_timestamp(value)
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


def _read(kind: type, value: Any) -> Any:  # noqa: ANN401 - of the kind that is asked for
    if kind is Moment:
        found = from_timestamp(value) if isinstance(value, str) else None
        if found is None:
            raise ValueError(f"{value!r} is not a time")
        return Moment(found)
    raise NotImplementedError(f"{kind.__name__} is not read from JSON")


def _schema(kind: type) -> dict[str, Any]:
    if kind is Moment:
        return {"type": "string", "format": "date-time"}
    raise NotImplementedError(f"{kind.__name__} has no schema")
