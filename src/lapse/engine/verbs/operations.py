"""Operations: the verbs of people as requests of HTTP, each with its method, path, request and answer.

One table, from which the server makes its routes and the client its calls, so that neither can have an operation, a
field or a path that the other has not. What only reads is a GET: its fields are the query, and an id or an address
stands in the path; an address as it is written everywhere, percent-encoding included. The others are POSTs, and their
fields the JSON body.

Pure: nothing is sent or received here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeVar, get_args, get_origin
from urllib.parse import quote, urlencode

import msgspec

from lapse.engine.explanation import Explanation
from lapse.engine.journal.view import JournalRowView
from lapse.engine.plans.plan import Plan
from lapse.engine.trash import TrashEntry
from lapse.engine.verbs.contract import (
    AppliedPlan,
    ApplyRequest,
    Approval,
    ApproveRequest,
    DeleteRequest,
    EmptiedTrash,
    EmptyTrashRequest,
    ExtendRequest,
    Forecast,
    ForecastRequest,
    FreezeRequest,
    FrozenView,
    HoldRequest,
    JournalRequest,
    PlanRequest,
    PlansRequest,
    ProposedPlan,
    ProposedRequest,
    ProposeRequest,
    ReleaseRequest,
    ResumeRequest,
    StatusView,
    SteeredView,
    TrashRequest,
    UndoneView,
    UndoRequest,
    VerbRequest,
    WhyRequest,
)
from lapse.engine.view import ViewPage, decode, encode, to_json

if TYPE_CHECKING:
    from collections.abc import Iterable

A = TypeVar("A", bound=VerbRequest)
T = TypeVar("T")
API: Final = "/api/v1"
"""Where the operations are."""
_ADDRESS: Final = "address"
_FIELD: Final = re.compile(r"\{(\w+)\}")
_SAFE: Final = "/%-_.~:@+=,"
"""What an address may hold and a path as well; the percent sign, because an address is encoded already."""


class StatusRequest(VerbRequest, frozen=True):
    """What runs: there is nothing to say."""


class TrashPage(ViewPage[TrashEntry], frozen=True):
    """What can be brought back; pass ``next`` as ``after`` for the following page."""


class JournalPage(ViewPage[JournalRowView], frozen=True):
    """Rows of the journal; pass ``next`` as ``before`` for the following page, or as ``after`` to follow."""


class PlansPage(ViewPage[ProposedPlan], frozen=True):
    """Plans that are kept; pass ``next`` as ``after`` for the following page."""


@dataclass(frozen=True)
class VerbOperation(Generic[A, T]):
    """One verb over HTTP."""

    verb: str
    """The method of `lapse.engine.verbs.contract.Verbs`."""
    method: str
    path: str
    """Under `API`; with ``{address}`` or ``{id}`` where that field stands in it."""
    asked: type[A]
    told: type[T]
    of_thing: bool = False
    """Whether it is about one thing, which may be the caller's own."""
    problems: tuple[int, ...] = ()
    """Statuses of the errors that it has beside those of every operation."""

    @property
    def route(self) -> str:
        """The path as a pattern of the server's routes: an address has slashes of its own."""
        return self.path.replace(f"{{{_ADDRESS}}}", f"{{{_ADDRESS}:path}}")

    @property
    def reads(self) -> bool:
        """Whether it changes nothing, and so may be sent again."""
        return self.method == "GET"

    @cached_property
    def query(self) -> dict[str, bool]:
        """The fields of the query by name, each with whether it may be given several times; empty but for a GET."""
        fields = msgspec.structs.fields(self.asked) if self.reads else ()
        return {one.encode_name: _is_list(one.type) for one in fields if one.encode_name != self.in_path}

    @cached_property
    def in_path(self) -> str | None:
        """The name of the field that stands in the path; None where none does."""
        found = _FIELD.search(self.path)
        return None if found is None else found[1]

    def write(self, asked: A) -> tuple[str, bytes | None]:
        """Return the target of the request under `API`, query included, and its body."""
        if not self.reads:
            return self.path, encode(asked)
        fields = to_json(asked)
        path, name = self.path, self.in_path
        if name is not None:
            safe = _SAFE if name == _ADDRESS else ""
            path = path.replace(f"{{{name}}}", quote(fields[name], safe=safe, errors="surrogatepass"))
        given = {name: fields[name] for name in self.query if fields[name] is not None}
        return f"{path}?{urlencode(given, doseq=True)}" if given else path, None

    def read(self, *, in_path: str | None, query: Iterable[tuple[str, str]], body: bytes) -> A:
        """Return what is asked, of a request that was received; raises `msgspec.DecodeError` for what has another form.

        ``in_path`` is what stands in the path, an address as it came; the last of several values counts where one is
        expected.
        """
        if not self.reads:
            return decode(body, self.asked)
        fields: dict[str, Any] = {} if self.in_path is None else {self.in_path: in_path}
        for name, value in query:
            if self.query.get(name):
                fields.setdefault(name, []).append(value)
            else:
                fields[name] = value
        return msgspec.convert(fields, self.asked, strict=False)


def _is_list(kind: Any) -> bool:  # noqa: ANN401 - any annotation
    return get_origin(get_args(kind)[0] if get_origin(kind) is Annotated else kind) is list


_STEERING: Final = (404, 409, 412)
PLAN: Final = VerbOperation("plan", "GET", "/plan", PlanRequest, Plan)
FORECAST: Final = VerbOperation("forecast", "GET", "/forecast", ForecastRequest, Forecast)
APPLY: Final = VerbOperation("apply", "POST", "/apply", ApplyRequest, AppliedPlan)
APPROVE: Final = VerbOperation("approve", "POST", "/approve", ApproveRequest, Approval)
PROPOSE: Final = VerbOperation("propose", "POST", "/plans", ProposeRequest, ProposedPlan, problems=(409,))
PLANS: Final = VerbOperation("plans", "GET", "/plans", PlansRequest, PlansPage)
PROPOSED: Final = VerbOperation("proposed", "GET", "/plans/{id}", ProposedRequest, Plan, problems=(404,))
WHY: Final = VerbOperation("why", "GET", "/why/{address}", WhyRequest, Explanation, of_thing=True, problems=(404,))
HOLD: Final = VerbOperation("hold", "POST", "/hold", HoldRequest, SteeredView, of_thing=True, problems=_STEERING)
RELEASE: Final = VerbOperation(
    "release", "POST", "/release", ReleaseRequest, SteeredView, of_thing=True, problems=_STEERING
)
EXTEND: Final = VerbOperation(
    "extend", "POST", "/extend", ExtendRequest, SteeredView, of_thing=True, problems=_STEERING
)
DELETE: Final = VerbOperation(
    "delete", "POST", "/delete", DeleteRequest, SteeredView, of_thing=True, problems=_STEERING
)
UNDO: Final = VerbOperation("undo", "POST", "/undo", UndoRequest, UndoneView, of_thing=True, problems=_STEERING)
TRASH: Final = VerbOperation("trash", "GET", "/trash", TrashRequest, TrashPage)
EMPTY_TRASH: Final = VerbOperation(
    "empty_trash", "POST", "/trash/empty", EmptyTrashRequest, EmptiedTrash, problems=(404, 409, 412)
)
FREEZE: Final = VerbOperation("freeze", "POST", "/freeze", FreezeRequest, FrozenView)
RESUME: Final = VerbOperation("resume", "POST", "/resume", ResumeRequest, FrozenView, problems=(412,))
JOURNAL: Final = VerbOperation("journal", "GET", "/journal", JournalRequest, JournalPage)
STATUS: Final = VerbOperation("status", "GET", "/status", StatusRequest, StatusView)
OPERATIONS: Final[tuple[VerbOperation[Any, Any], ...]] = (
    *(PLAN, APPLY, APPROVE, WHY, HOLD, RELEASE, EXTEND, DELETE, UNDO, TRASH, EMPTY_TRASH, FREEZE, RESUME, JOURNAL),
    *(FORECAST, STATUS, PROPOSE, PLANS, PROPOSED),
)
