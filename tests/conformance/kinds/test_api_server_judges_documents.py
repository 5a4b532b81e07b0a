from __future__ import annotations

import os
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from lapse.requests.api.kinds import EXPIRES_AT, MANIFEST_CAPTURE_REQUEST, VOLUME_CAPTURE_REQUEST
from tests.conformance.kinds.documents import CAPTURE, CASES, GOOD, MANIFESTS, READY, Case, changed, nonsense

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.kube.resources import Json, Kind
    from tests.servers.kube.server import KubeServer

# Several processes of one run share the server.
OURS = f"lapse-kinds-{os.getpid()}"
FULL = [
    "capture: a final status",
    "vcr: kept for '30d'",
    "mcr: kept for '30d'",
    "restore: a snapshot",
    "restore: a claim in status",
    "manifests: one target",
    "checkpoint: chunks",
    "chunk: no objects",
    "keeper: follows an object and lasts for a time",
    "keeper: a status",
    "schedule: everything",
    "schedule: manifests",
    "record: a failure",
    "policy: everything",
]
"""Documents that have every field, taken together."""
DRY: dict[str, str] = {"dryRun": "All"}


class Server:
    """The API server, as far as this table needs it."""

    def __init__(self, client: httpx2.Client) -> None:
        self._client = client

    def refusals(self, case: Case) -> list[str]:
        """What the server finds wrong with a document, one text for each cause; nothing is left behind."""
        if case.old is None and case.document.get("status") is None:
            return causes(self._client.post(path(case.kind), json=case.document, params=DRY))
        start = without_status(case.old or case.document)
        if case.old is None and (found := causes(self._client.post(path(case.kind), json=start, params=DRY))):
            return found
        with self.holding(case.kind, start) as (place, held):
            metadata = {**held["metadata"], **case.document["metadata"], "name": OURS}
            found = causes(self._client.put(place, json={**case.document, "metadata": metadata}, params=DRY))
            if case.document.get("status") is None:
                return found
            return found + causes(self._client.patch(f"{place}/status", **status_patch(case.document), params=DRY))

    @contextmanager
    def holding(self, kind: Kind[Any], document: Json) -> Iterator[tuple[str, Json]]:
        """Store a document, with its status, for a while and under a name that is ours."""
        document = changed(document, "metadata.name", OURS)
        created = self._client.post(path(kind), json=document).raise_for_status()
        place = f"{path(kind)}/{OURS}"
        try:
            if "status" in document:
                self._client.patch(f"{place}/status", **status_patch(document)).raise_for_status()
            yield place, created.json()
        finally:
            self._client.delete(place).raise_for_status()


def without_status(document: Json) -> Json:
    return {name: part for name, part in document.items() if name != "status"}


def status_patch(document: Json) -> dict[str, Any]:
    return {"json": {"status": document["status"]}, "headers": {"Content-Type": "application/merge-patch+json"}}


def path(kind: Kind[Any]) -> str:
    within = f"namespaces/{OURS}/" if kind.namespaced else ""
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
        client.post("/api/v1/namespaces", json={"metadata": {"name": OURS}}).raise_for_status()
        yield Server(client)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_api_server_judges_as_the_table_says(server: Server, case: Case) -> None:
    refusals = server.refusals(case)
    if case.wrong is None:
        assert not refusals
    else:
        assert any(refusal.startswith(f"{case.wrong}") for refusal in refusals)
        assert any(case.says in refusal for refusal in refusals)


@pytest.mark.parametrize("name", FULL)
def test_the_api_server_and_the_validator_agree_about_nonsense(server: Server, name: str) -> None:
    case = next(case for case in GOOD if case.name == name)
    for document in nonsense(case.document):
        refusals = server.refusals(Case(name, case.kind, document))
        assert bool(refusals) == bool(case.kind.validate(document, None)), (document, refusals)


def test_kubectl_lists_a_request_with_its_outcome(server: Server, shared_kube: KubeServer) -> None:
    request = changed(CAPTURE, "status.conditions", [READY])
    request["metadata"]["annotations"] = {EXPIRES_AT: "2030-01-31T12:10:00Z"}
    with server.holding(VOLUME_CAPTURE_REQUEST, request):
        lines = shared_kube.kubectl("get", "vcr", "-n", OURS).splitlines()
    assert lines[0].split() == ["NAME", "MODE", "TARGET", "READY", "REASON", "EXPIRES", "AGE"]
    assert lines[1].split()[:6] == [OURS, "Snapshot", "data", "True", "Completed", "2030-01-31T12:10:00Z"]


def test_the_largest_requests_can_still_be_finished(server: Server) -> None:
    targets = [{"apiVersion": "v1", "kind": "ConfigMap", "name": f"settings-{number}"} for number in range(10_000)]
    request = changed(changed(MANIFESTS, "spec.targets", targets), "status.conditions", [READY])
    with server.holding(MANIFEST_CAPTURE_REQUEST, request) as (_place, held):
        assert len(held["spec"]["targets"]) == 10_000
