from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.conformance.kinds.documents import CASES, Case

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.kube.resources import Json, Kind
    from tests.servers.kube.server import KubeServer

NAMESPACE = "lapse-kinds"
DRY: dict[str, str] = {"dryRun": "All"}
MERGE = {"Content-Type": "application/merge-patch+json"}


class Server:
    """The API server, as far as this table needs it."""

    def __init__(self, client: httpx2.Client) -> None:
        self._client = client

    def refusals(self, case: Case) -> list[str]:
        """What the server finds wrong with a document, one text for each cause; nothing is left behind."""
        start = {name: part for name, part in (case.old or case.document).items() if name != "status"}
        status = case.document.get("status")
        if case.old is None and status is None:
            return causes(self._client.post(path(case.kind), json=start, params=DRY))
        created = self._client.post(path(case.kind), json=start)
        if created.is_error:
            return causes(created)
        place = f"{path(case.kind)}/{start['metadata']['name']}"
        try:
            whole = {**case.document, "metadata": {**created.json()["metadata"], **case.document["metadata"]}}
            found = causes(self._client.put(place, json=whole, params=DRY))
            if status is not None:
                changes = {"status": status}
                found += causes(self._client.patch(f"{place}/status", json=changes, params=DRY, headers=MERGE))
            return found
        finally:
            self._client.delete(place).raise_for_status()


def path(kind: Kind[Any]) -> str:
    within = f"namespaces/{NAMESPACE}/" if kind.namespaced else ""
    return f"/apis/{kind.api_version}/{within}{kind.plural}"


def causes(response: httpx2.Response) -> list[str]:
    if response.status_code < 400:
        return []
    answer: Json = response.json()
    assert response.status_code == 422, answer
    return [f"{one['field']}: {one['message']}" for one in answer["details"]["causes"]]


@pytest.fixture(scope="module")
def server(shared_kube: KubeServer) -> Iterator[Server]:
    client = httpx2.Client(
        base_url=shared_kube.url,
        headers={"Authorization": f"Bearer {shared_kube.admin_token}"},
        verify=ssl.create_default_context(cafile=shared_kube.ca_file),
        timeout=30,
    )
    with client:
        client.post("/api/v1/namespaces", json={"metadata": {"name": NAMESPACE}}).raise_for_status()
        yield Server(client)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_api_server_judges_as_the_table_says(server: Server, case: Case) -> None:
    refusals = server.refusals(case)
    if case.wrong is None:
        assert not refusals
    else:
        assert any(refusal.startswith(f"{case.wrong}") for refusal in refusals)
        assert any(case.says in refusal for refusal in refusals)
