"""Whatever stands in a document, it is judged and told, and never an exception that nobody expects."""

from __future__ import annotations

import datetime as dt
import json
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY
from lapse.history.policy.documents import DocumentError, read_document
from lapse.history.policy.lint import lint
from lapse.history.policy.policies import read_document as read_policy
from lapse.history.policy.policy import RetentionPolicyError
from lapse.history.records import record
from tests.examples import examples
from tests.odd_documents import ODD, POLICY, RUN, odd_documents

NOT_JSON: list[Any] = [dt.datetime(2026, 1, 31, tzinfo=dt.UTC), dt.date(2026, 1, 31), b"x", {7: "x"}]
"""What YAML and TOML make of some texts."""
ANYTHING = st.recursive(
    st.sampled_from([*ODD[:-2], *NOT_JSON]) | st.text(st.characters(), max_size=8) | st.integers() | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def judge(document: Any) -> None:  # noqa: ANN401 - that is the point
    found = lint([document])
    json.dumps([one.as_json() for one in found], ensure_ascii=False).encode()
    with suppress(RetentionPolicyError):
        read_policy(document if isinstance(document, dict) else {"spec": document})


def test_every_odd_policy_is_linted_and_what_is_found_can_be_printed() -> None:
    for where, document in odd_documents(POLICY, [*ODD, *NOT_JSON]):
        try:
            judge(document)
        except Exception as error:
            raise AssertionError(where) from error


def test_every_odd_run_is_a_record_or_a_clear_error() -> None:
    for where, document in odd_documents(RUN, [*ODD, *NOT_JSON]):
        metadata = document["metadata"]
        named = {**document, "metadata": {"name": "x", **metadata} if isinstance(metadata, dict) else metadata}
        try:
            record(read_document(CHAOS_EXPERIMENT_HISTORY, named).spec, namespace="chaos-system")
        except DocumentError as error:
            str(error).encode()
        except Exception as error:
            raise AssertionError(where) from error


@settings(max_examples=examples(200))
@given(ANYTHING, st.sampled_from(["spec", "metadata", "kind", "apiVersion", "status"]))
def test_anything_at_all_is_judged(anything: Any, place: str) -> None:  # noqa: ANN401 - that is the point
    judge(anything)
    judge({**POLICY, place: anything})
