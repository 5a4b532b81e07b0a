"""Which of the driver's errors leave the outcome of a write open. Those that a real server can be made to raise are
tested there; a disagreement of replicas takes a cluster."""

from __future__ import annotations

import pytest
from cassandra import (
    AuthenticationFailed,
    InvalidRequest,
    OperationTimedOut,
    ReadFailure,
    ReadTimeout,
    Unauthorized,
    Unavailable,
    UnresolvableContactPoints,
    WriteFailure,
    WriteTimeout,
    WriteType,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionShutdown
from cassandra.protocol import IsBootstrappingErrorMessage, OverloadedErrorMessage, ServerError

from lapse.keys.backends.cassandra.driver import explain
from lapse.keys.errors import BackendMisfitError, BackendUnavailableError, OutcomeUnknownError

NOT_DONE = [
    NoHostAvailable("none", {"h": ConnectionRefusedError()}),
    NoHostAvailable("none", {}),
    NoHostAvailable("none", {"h": AuthenticationFailed("bad")}),
    Unavailable("too few"),
    Unauthorized("no MODIFY"),
    UnresolvableContactPoints({}),
    OverloadedErrorMessage(0x1001, "busy", None),
    IsBootstrappingErrorMessage(0x1002, "young", None),
]
UNKNOWN = [
    WriteTimeout("CAS", write_type=WriteType.CAS),
    WriteTimeout("commit", write_type=WriteType.SIMPLE),
    WriteFailure("failed", write_type=WriteType.CAS),
    ReadTimeout("while preparing"),
    ReadFailure("while comparing"),
    OperationTimedOut(),
    ConnectionShutdown("lost"),
    ServerError(0x0000, "oops", None),
    ValueError("a bug of the driver"),
]


def kind(error: Exception) -> str:
    return f"{type(error).__name__} {error}"[:40]


@pytest.mark.parametrize("error", NOT_DONE, ids=kind)
def test_a_write_that_no_server_took_is_not_done(error: Exception) -> None:
    ours = explain(error, "cassandra://h/ks", writing=True)

    assert type(ours) is BackendUnavailableError


@pytest.mark.parametrize("error", UNKNOWN, ids=kind)
def test_a_write_without_an_answer_has_an_unknown_outcome(error: Exception) -> None:
    ours = explain(error, "cassandra://h/ks", writing=True)

    assert type(ours) is OutcomeUnknownError


@pytest.mark.parametrize("error", [*NOT_DONE, *UNKNOWN], ids=kind)
def test_a_read_changes_nothing_however_it_fails(error: Exception) -> None:
    ours = explain(error, "cassandra://h/ks", writing=False)

    assert type(ours) is BackendUnavailableError


def test_a_table_dropped_under_an_open_store_is_a_misfit_that_names_the_command() -> None:
    ours = explain(InvalidRequest("table lapse_keys does not exist"), "cassandra://h/ks", writing=True)

    assert type(ours) is BackendMisfitError
    assert "lapse keys init cassandra://h/ks" in str(ours)
