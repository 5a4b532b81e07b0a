from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, Execution, ExperimentRef, HistorySpec
from lapse.history.api.labels import EXPERIMENT, EXPERIMENT_NAME, EXPERIMENT_UID, STATUS, label_value
from lapse.history.records import experiment_labels, record, record_name
from lapse.objects.metadata_rules import metadata_problems

NOON = "2030-01-31T12:00:00Z"
ANY = st.text(max_size=300) | st.text("aB1-_.", max_size=300)


def ref(name: str = "kill-pods", namespace: str = "shop", uid: str | None = "u-1") -> ExperimentRef:
    return ExperimentRef(name=name, namespace=namespace, uid=uid)


def spec(of: ExperimentRef, *, start_time: str = NOON, status: str = "success") -> HistorySpec:
    return HistorySpec(experiment_ref=of, execution=Execution(start_time=start_time, status=status))


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
    assert record_name(other, start_time=NOON) != record_name(ref(), start_time=NOON)


def test_the_same_run_has_the_same_name_whatever_became_of_it() -> None:
    one, again = spec(ref()), spec(ref(), status="failure")
    assert record(one, namespace="a").metadata.name == record(again, namespace="a").metadata.name


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (NOON, "2030-01-31T12:00:01Z"),
        (NOON, "2030-01-31T12:00:00.5Z"),
        ("2030-01-31T12:00:00.25Z", "2030-01-31T12:00:00.5Z"),
        ("2030-01-31T12:00:00.5Z", "2030-01-31T12:00:01Z"),
        ("2030-01-31T13:59:00+02:00", NOON),
    ],
)
def test_of_one_experiment_the_later_run_has_the_greater_name(earlier: str, later: str) -> None:
    assert record_name(ref(), start_time=earlier) < record_name(ref(), start_time=later)


@pytest.mark.parametrize("text", ["", "yesterday", "2030-02-31T12:00:00Z", "2030-01-31T12:00:00"])
def test_a_start_that_cannot_be_read_still_makes_a_name(text: str) -> None:
    assert record_name(ref(), start_time=text).startswith("kill-pods-0-")
