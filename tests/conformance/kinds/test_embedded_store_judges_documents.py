from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import VirtualClock
from lapse.db.sqlite.file import Synchronous
from lapse.history.api import kinds as history
from lapse.kube.errors import InvalidError
from lapse.kube.resources import ObjectKey
from lapse.objects.embedded import EmbeddedStore, open_embedded
from lapse.requests.api import kinds as requests
from tests.conformance.kinds.documents import BAD, CASES, CHANGES, GOOD, Case

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.kube.resources import Json

NAMESPACE = "lapse-kinds"
OUR_KINDS = (*requests.OUR_KINDS, *history.OUR_KINDS)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    path = tmp_path / "objects.db"
    store = open_embedded(path, kinds=OUR_KINDS, clock=VirtualClock(), synchronous=Synchronous.NORMAL)
    yield store
    await store.close()


async def refusal(store: EmbeddedStore, case: Case) -> str:
    """What the store finds wrong with a document; nothing when it takes it."""
    kind, document = case.kind, deepcopy(case.document)
    namespace = NAMESPACE if kind.namespaced else None
    start = deepcopy(case.old or document)
    start["metadata"]["namespace"] = namespace
    try:
        await store.create(kind, start)
        key = ObjectKey(namespace, start["metadata"]["name"])
        if case.old is not None:
            await store.patch(kind, key, merge_patch(case.old, document))
        if document.get("status") is not None:
            await store.patch_status(kind, key, document["status"])
    except InvalidError as error:
        return str(error)
    return ""


def merge_patch(old: Json, new: Json) -> Json:
    """What makes ``new`` of ``old``."""
    changes: Json = dict.fromkeys(old.keys() - new.keys())
    for name, value in new.items():
        before = old.get(name)
        both = isinstance(before, dict) and isinstance(value, dict)
        changes[name] = merge_patch(before or {}, value) if both else value
    return changes


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_the_embedded_store_judges_as_the_table_says(store: EmbeddedStore, case: Case) -> None:
    problem = await refusal(store, case)
    if case.wrong is None:
        assert not problem
    else:
        assert case.wrong in problem
        assert case.says in problem
        assert problem


@pytest.mark.parametrize("case", [case for case in CASES if case.wrong is None], ids=lambda case: case.name)
def test_what_is_accepted_can_be_read(case: Case) -> None:
    assert case.kind.convert(case.document).metadata.name == case.document["metadata"]["name"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_validator_leaves_its_documents_as_they_are(case: Case) -> None:
    before = deepcopy((case.document, case.old))
    case.kind.validate(case.document, case.old)
    assert (case.document, case.old) == before


def test_the_table_has_good_bad_and_changed_documents_of_every_kind() -> None:
    for cases in (GOOD, BAD, CHANGES):
        assert {case.kind for case in cases} == set(OUR_KINDS)


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
