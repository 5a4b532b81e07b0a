from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from lapse.core.errors import LapseError
from lapse.engine.plans.proposed import TooManyPlansError
from lapse.engine.service import NothingThereError
from lapse.engine.verbs.events import HEARTBEAT_SECONDS
from lapse.keys.managed import KeyOverError
from lapse.objects.approvals import UnprovenApprovalError
from lapse.objects.trash.contents import ComingBackError, HalfBackError
from lapse.web.api import errors, forms
from lapse.web.api import keys as keys_api
from lapse.web.api import requests as requests_api
from lapse.web.api.errors import RequestError
from lapse.web.api.openapi import PROBLEMS_OF_ALL
from lapse.web.app import operations
from lapse.web.live import MOST_PER_HOLDER, MOST_SUBSCRIBERS
from lapse.web.server.connections import ConnectionLimits
from lapse.web.server.security import MAX_BODY_BYTES, MAX_HEAD_BYTES, MAX_HEADER_LINES, MAX_LARGE_BODY_BYTES
from lapse.workspaces.errors import WorkspaceOutcomeUnknownError
from lapse.workspaces.model import LARGEST_PAGE
from tests.markdown import REFERENCE, table

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = REFERENCE / "http-api.md"


E = TypeVar("E", bound=LapseError)


def kinds(parent: type[E]) -> Iterator[type[E]]:
    for kind in parent.__subclasses__():
        yield kind
        yield from kinds(kind)


def routes(*, pages: bool = False) -> Iterator[tuple[str, str]]:
    """Return the routes of the application: its operations, or its pages."""
    for prefix, route, method in operations():
        if route.include_in_schema is not pages:
            yield method, prefix + route.path_format


def test_the_page_lists_exactly_the_problems_with_their_statuses() -> None:
    told = {row["code"].strip("`"): int(row["status"]) for row in table(PAGE, "code", "status", "when")}
    ours = {kind for kind in kinds(RequestError) if kind.__module__ == errors.__name__}

    assert told == {kind.__name__: kind.status for kind in ours}


def test_the_page_tells_the_statuses_of_the_errors_of_keys_and_objects() -> None:
    text = " ".join(PAGE.read_text().split())

    found = [kind for kind in kinds(LapseError) if "status" in vars(kind) and not issubclass(kind, RequestError)]
    assert {(kind.code, kind.status) for kind in found} == {
        ("UsageError", 422),
        (NothingThereError.code, 404),
        ("AnotherThingError", 412),
        ("AnotherHoldError", 412),
        ("PolicyChangedError", 412),
        ("NoSuchPlanError", 404),
        (KeyOverError.code, 404),
        ("OwnPlanError", 403),
        ("NotAuthorError", 403),
        ("NotProposedError", 404),
        (TooManyPlansError.code, 409),
        ("BackendUnavailableError", 503),
        ("BackendClosedError", 503),
        ("OutcomeUnknownError", 504),
        ("NotFoundError", 404),
        ("AlreadyExistsError", 409),
        ("HeldError", 409),
        ("WeakerHoldError", 409),
        ("LegalHoldError", 409),
        ("PassedOnHoldError", 409),
        ("DependantsHeldError", 409),
        ("SecondPersonError", 403),
        ("ManifestsUnreadableError", 409),
        ("GoneError", 410),
        ("ConflictError", 412),
        ("InvalidError", 422),
        ("StoreUnavailableError", 503),
        ("UnknownWorkspaceError", 404),
        ("WorkspaceExistsError", 409),
        ("OperationUnderWayError", 409),
        ("PortInUseError", 409),
        ("LogElsewhereError", 409),
        ("LogUnreadableError", 503),
        ("NotInTrashError", 404),
        ("PlaceTakenError", 409),
        (ComingBackError.code, 409),
        (HalfBackError.code, 409),
        (UnprovenApprovalError.code, 403),
        ("NotRunningError", 409),
        ("LeaseOverError", 409),
        ("ChangedMeanwhileError", 412),
        ("ActivityUnavailableError", 503),
        ("OutcomeUnknownError", 504),
        ("WorkspaceStoreError", 503),
    }
    assert "`BackendUnavailableError` and `BackendClosedError` with 503, `OutcomeUnknownError` with 504" in text
    assert "`NotFoundError` with 404, `AlreadyExistsError`, `HeldError` and `ManifestsUnreadableError` with 409" in text
    assert "`ComingBackError` with 409" in text
    assert "`SecondPersonError` with 403, `WeakerHoldError`, `LegalHoldError`, `PassedOnHoldError`" in text
    assert "`PassedOnHoldError` and `DependantsHeldError` with 409" in text
    assert "`GoneError` with 410, `ConflictError` with 412, `InvalidError` with 422" in text
    assert "`StoreUnavailableError` with 503" in text
    assert (
        "`UnknownWorkspaceError` with 404, `WorkspaceExistsError`, `OperationUnderWayError`, `PortInUseError`" in text
    )
    assert "`PortInUseError`, `LogElsewhereError`, `NotRunningError` and `LeaseOverError` with 409" in text
    assert (
        "`ChangedMeanwhileError` with 412, `InvalidWorkspaceError` with 422, `LogUnreadableError` and "
        "`ActivityUnavailableError` with 503" in text
    )
    assert "`WorkspaceOutcomeUnknownError` with 504 under the code `OutcomeUnknownError`" in text
    assert WorkspaceOutcomeUnknownError.code == "OutcomeUnknownError"
    assert "and any other `WorkspaceStoreError` with 503" in text


def test_no_paragraph_of_the_page_stands_twice() -> None:
    paragraphs = [one for one in PAGE.read_text().split("\n\n") if len(one) > 80]
    assert len(paragraphs) == len(set(paragraphs))


def test_the_page_lists_exactly_the_routes() -> None:
    told = {tuple(row["request"].strip("`").split(" ")) for row in table(PAGE, "request", "does", "answers")}

    assert told == set(routes())


def test_the_page_tells_the_statuses_that_each_operation_has_beside_those_of_all() -> None:
    rows = table(PAGE, "request", "does", "answers")
    numbers = {row["request"].strip("`"): re.findall(r"\b\d{3}\b", row["answers"]) for row in rows}
    told = {tuple(place.split(" ")): {int(one) for one in found} for place, found in numbers.items()}
    ours = {
        (method, prefix + route.path_format): {int(one) for one in [*route.responses, route.status_code or 200]}
        for prefix, route, method in operations()
        if route.include_in_schema
    }

    assert {place: statuses - PROBLEMS_OF_ALL for place, statuses in told.items()} == ours


def test_the_page_names_the_pages() -> None:
    text = PAGE.read_text()
    assert [path for method, path in routes(pages=True) if f"`{method} {path}`" not in text] == []


def test_the_limits_on_the_page_are_those_of_the_code() -> None:
    text = PAGE.read_text()

    assert MAX_BODY_BYTES == 1 << 20
    assert MAX_LARGE_BODY_BYTES == 64 << 20
    assert "A body is at most 1 MiB, and one with a plan 64 MiB" in text
    assert f"a head {MAX_HEAD_BYTES >> 10} KiB in {MAX_HEADER_LINES} lines" in text
    limits = ConnectionLimits()
    assert f"{limits.head_seconds:g} seconds for the head of a request and {limits.body_seconds:g} more" in text
    assert f"`limit` is 1 to {keys_api.PAGE_LIMIT}, {forms.DEFAULT_PAGE} by default" in text
    assert f"insert many, at most {keys_api.PAGE_LIMIT}" in text
    assert f"`limit` (1 to {requests_api.PAGE_LIMIT}, {forms.DEFAULT_PAGE} by default)" in text
    assert f"At most {MOST_SUBSCRIBERS} streams in all and {MOST_PER_HOLDER} of one token" in text
    assert f"at least every {HEARTBEAT_SECONDS:g} seconds" in text
    assert f"takes nothing for {ConnectionLimits().write_seconds:g} seconds" in text
    most = LARGEST_PAGE - 1
    assert f"`owner`, `limit` (1 to {most}, {forms.DEFAULT_PAGE} by default) and `after`" in text
