"""The list of the kit's cases, and a wrong choice of them."""

from __future__ import annotations

import re
import threading

import pytest

from lapse.keys.conformance import StoreTarget, UnknownCaseError, list_cases, run_conformance


def test_ids_are_unique_and_in_kebab_case() -> None:
    ids = [case.id for case in list_cases()]

    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", case_id) for case_id in ids)


def test_titles_are_unique_sentences_without_a_full_stop() -> None:
    titles = [case.title for case in list_cases()]

    assert len(titles) == len(set(titles))
    assert all(title[0].isupper() and title.count(" ") >= 3 and not title.endswith(".") for title in titles)


def test_only_the_chosen_cases_are_run() -> None:
    results = run_conformance(StoreTarget.from_url("memory://"), only=["get-live", "async-get-live"])

    assert sorted(result.case.id for result in results) == ["async-get-live", "get-live"]


def test_an_unknown_case_is_an_error_before_anything_is_run() -> None:
    with pytest.raises(UnknownCaseError, match="'get-lively'"):
        run_conformance(StoreTarget.from_url("memory://"), only=["get-live", "get-lively"])


def test_a_caller_may_stop_listening() -> None:
    results = run_conformance(StoreTarget.from_url("memory://"))

    next(results)
    results.close()

    assert not any(thread.name.startswith("lapse-conformance") for thread in threading.enumerate())
