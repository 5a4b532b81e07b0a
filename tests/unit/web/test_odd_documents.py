"""Whatever stands in a body, the API answers with 2xx or 4xx, never with 5xx."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.odd_documents import CAPTURE, POLICY, RUN, odd_documents

if TYPE_CHECKING:
    from tests.unit.web.conftest import API


@pytest.mark.parametrize(
    ("path", "good"),
    [
        ("/api/v1/history", RUN),
        ("/api/v1/retention/lint", POLICY),
        ("/api/v1/requests/vcr", CAPTURE),
        ("/api/v1/claims", CAPTURE),
    ],
    ids=["history", "lint", "requests", "claims"],
)
async def test_every_odd_body_is_taken_or_refused_and_nothing_breaks(path: str, good: dict[str, Any], api: API) -> None:
    for where, document in odd_documents(good):
        body = {"policies": [document]} if path.endswith("lint") else document
        answer = await api.client.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
        assert answer.status_code < 500, where
        answer.json()
    for text in ("[" * 100_000, '{"a":' * 5_000, "1" * 100_000, '"\\ud800"', "NaN", "\0", '{"spec": {"a": 1e999}}'):
        answer = await api.client.post(path, content=text, headers={"Content-Type": "application/json"})
        assert 400 <= answer.status_code < 500, text[:20]
