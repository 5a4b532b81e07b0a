from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lapse.history.api.kinds import (
    CHAOS_EXPERIMENT_HISTORY,
    EXPERIMENT,
    EXPERIMENT_NAME,
    EXPERIMENT_UID,
    STATUS,
    Audit,
    Execution,
    ExperimentRef,
    HistorySpec,
    label_value,
)
from lapse.history.records import experiment_labels, is_labelled, labelled, record, record_name
from lapse.objects.metadata_rules import metadata_problems

NOON = "2030-01-31T12:00:00Z"
ANY = st.text(max_size=300) | st.text("aB1-_.", max_size=300)


def ref(name: str = "kill-pods", namespace: str = "shop", uid: str | None = "u-1") -> ExperimentRef:
    return ExperimentRef(name=name, namespace=namespace, uid=uid)


def spec(
    of: ExperimentRef, *, start_time: str = NOON, status: str = "success", end_time: str | None = None
) -> HistorySpec:
    return HistorySpec(experiment_ref=of, execution=Execution(start_time=start_time, status=status, end_time=end_time))


def name_of(of: ExperimentRef, **run: str) -> str:
    return record_name(spec(of, **run))


@given(ANY, ANY, st.none() | ANY)
@example("a" * 253, "b" * 63, "c" * 128)
@example("Ж", "-", "")
@example("", "", None)
@example("-._", "x-", "é" * 300)
def test_name_and_labels_fit_whatever_the_experiment_is_called(name: str, namespace: str, uid: str | None) -> None:
    found = CHAOS_EXPERIMENT_HISTORY.body(record(spec(ref(name, namespace, uid)), namespace="chaos-system"))
    assert [*metadata_problems(found["metadata"], namespaced=True)] == []


@given(ANY, ANY)
def test_different_names_have_different_labels(one: str, other: str) -> None:
    assert (label_value(one) == label_value(other)) is (one == other)


def test_long_names_that_begin_alike_are_told_apart_and_can_still_be_read() -> None:
    one, other = label_value("a" * 252 + "b"), label_value("a" * 252 + "c")
    assert one != other
    assert len(one) == len(other) == 63
    assert one.startswith("a" * 52)


def test_what_fits_is_a_label_as_it_is() -> None:
    labels = record(spec(ref()), namespace="chaos-system").metadata.labels
    assert (labels[EXPERIMENT_NAME], labels[EXPERIMENT_UID], labels[STATUS]) == ("kill-pods", "u-1", "success")


def test_a_record_lives_in_the_namespace_of_the_history_and_names_that_of_the_experiment() -> None:
    metadata = record(spec(ref(namespace="shop")), namespace="chaos-system").metadata
    assert (metadata.namespace, metadata.annotations[EXPERIMENT]) == ("chaos-system", "shop/kill-pods")


@pytest.mark.parametrize("other", [ref(namespace="bank"), ref(uid="u-2"), ref(uid=None), ref(name="kill")], ids=str)
def test_another_experiment_shares_neither_labels_nor_names(other: ExperimentRef) -> None:
    assert experiment_labels(other) != experiment_labels(ref())
    assert name_of(other) != name_of(ref())


def test_the_same_document_is_the_same_run() -> None:
    assert name_of(ref(), end_time=NOON) == name_of(ref(), end_time=NOON)


@pytest.mark.parametrize(
    "other",
    [
        spec(ref(), status="failure"),
        spec(ref(), end_time="2030-01-31T12:00:01Z"),
        HistorySpec(experiment_ref=ref(), execution=spec(ref()).execution, audit=Audit(retry_count=1)),
        HistorySpec(experiment_ref=ref(), execution=spec(ref()).execution, experiment_spec={"pods": 2}),
    ],
    ids=["status", "end", "audit", "spec"],
)
def test_a_second_run_of_the_same_second_is_a_second_record(other: HistorySpec) -> None:
    assert record_name(other) != name_of(ref())


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("2030-01-31T12:00:00+00:00", "2030-01-31T12:00:05.25Z"),
        ("2030-01-31T12:00:00.000Z", "2030-01-31T12:00:05.250Z"),
        ("2030-01-31T12:00:00.000000000Z", "2030-01-31T12:00:05.250000000Z"),
        ("2030-01-31T14:00:00+02:00", "2030-01-31T05:00:05.25-07:00"),
        ("2030-01-31T11:15:00.0-00:45", "2030-01-31T11:15:05.25-00:45"),
    ],
)
def test_one_instant_is_one_run_however_it_is_written(start: str, end: str) -> None:
    one = name_of(ref(), start_time=NOON, end_time="2030-01-31T12:00:05.25Z")
    assert name_of(ref(), start_time=start, end_time=end) == one


@pytest.mark.parametrize("start", ["2030-01-31T12:00:00.000000001Z", "2030-01-31T12:00:00.000000002Z"])
def test_runs_that_are_a_nanosecond_apart_are_two(start: str) -> None:
    assert name_of(ref(), start_time=start) not in {name_of(ref()), name_of(ref(), start_time=f"{start[:-2]}3Z")}


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (NOON, "2030-01-31T12:00:01Z"),
        (NOON, "2030-01-31T12:00:00.5Z"),
        ("2030-01-31T12:00:00.25Z", "2030-01-31T12:00:00.5Z"),
        ("2030-01-31T12:00:00.5Z", "2030-01-31T12:00:01Z"),
        ("2030-01-31T12:00:00.49Z", "2030-01-31T12:00:00.5Z"),
        ("2030-01-31T12:00:00.5Z", "2030-01-31T12:00:00.500000001Z"),
        ("2030-01-31T13:59:00+02:00", NOON),
    ],
)
def test_of_one_experiment_the_later_run_has_the_greater_name(earlier: str, later: str) -> None:
    assert name_of(ref(), start_time=earlier) < name_of(ref(), start_time=later)


@pytest.mark.parametrize("text", ["", "yesterday", "2030-02-31T12:00:00Z", "2030-01-31T12:00:00"])
def test_a_start_that_cannot_be_read_still_makes_a_name(text: str) -> None:
    assert name_of(ref(), start_time=text).startswith("kill-pods-0-")


# --- records of other operators ---------------------------------------------------------------------------------------


def test_labels_that_are_missing_are_made_of_the_spec_and_those_that_are_there_stay() -> None:
    ours = CHAOS_EXPERIMENT_HISTORY.body(record(spec(ref()), namespace="a"))
    theirs = {**ours, "metadata": {"name": "x", "labels": {STATUS: "odd", "app": "b"}}}
    found = labelled(theirs)["metadata"]["labels"]

    assert found == {**ours["metadata"]["labels"], STATUS: "odd", "app": "b"}
    assert is_labelled(found)
    assert not is_labelled(theirs["metadata"]["labels"])
    assert labelled({**theirs, "metadata": {"name": "x", "labels": None}})["metadata"]["labels"][STATUS] == "success"


@pytest.mark.parametrize(
    "spec",
    [
        None,
        {},
        {"experimentRef": "kill", "execution": {"status": "success"}},
        {"experimentRef": {"name": "kill"}, "execution": {"status": "success"}},
        {"experimentRef": {"name": "kill", "namespace": "shop"}},
        {"experimentRef": {"name": "kill", "namespace": "shop"}, "execution": {"status": None}},
    ],
    ids=str,
)
def test_a_record_that_does_not_say_which_experiment_it_is_of_stays_without_labels(spec: object) -> None:
    body = {"metadata": {"name": "x"}, "spec": spec}
    assert labelled(body) == body
