"""The OpenAPI document against a real ``lapse up`` with things in every domain, asked by callers of every scope.

Whatever is asked, in the expected form or in another: nothing fails inside, no status is answered that the document
does not name, and every answer has the form that the document says. The examples are the same in every run.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from lapse.engine.verbs.operations import OPERATIONS
from lapse.web.api.openapi import examples as shown_examples
from lapse.web.auth.scopes import PLAIN
from tests.examples import examples
from tests.servers.lapse_server import LapseServer, lapse, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemathesis import Case
    from schemathesis.schemas import BaseSchema

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
SCOPES = [*PLAIN, "keys:7", "workspaces:ann", "none"]
MANY = 8
"""Examples of each operation."""
THERE = {
    "app": "7",
    "key": "a",
    "namespace": "default",
    "name": "lab",
    "address": "workspace/lab",
}
"""What the paths can name that is there."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LapseServer]:
    running = LapseServer.start(tmp_path_factory.mktemp("openapi"))
    try:
        seed(running)
        yield running
    finally:
        running.stop()


def seed(server: LapseServer) -> None:
    """Put something into every domain; what is deleted on the way is done anew for each scope."""
    asked = {
        "/apps/7/keys": {"items": [{"key": "a", "value": "b", "ttl_seconds": 900}]},
        "/workspaces": {"name": "lab", "owner": "ann", "command": ["sleep", "600"], "port": 9, "start": False},
        "/claims": {"metadata": {"name": "lab"}},
        "/schedules": {**shown_examples()["schedules.create"]["asked"], "metadata": {"name": "lab"}},
        "/history": shown_examples()["history.record"]["asked"],
        "/requests/vcr": {**shown_examples()["requests.create"]["asked"], "metadata": {"name": "lab"}},
    }
    with server.client() as client:
        for path, body in asked.items():
            answer = client.post(f"/api/v1{path}", json=body)
            assert answer.status_code in {200, 201, 409}, (path, answer.text)  # 409: it is there already


@pytest.fixture(scope="module")
def schema(server: LapseServer) -> BaseSchema:
    with server.client() as client:
        document = client.get("/api/v1/openapi.json").json()
    return schemathesis.openapi.from_dict(document, config=SchemathesisConfig())


def token_of(server: LapseServer, scope: str) -> str:
    if scope == "none":
        return "no-token-of-this-server"
    assert server.state_dir is not None
    name, folder = scope.replace(":", "-"), server.state_dir
    given = ["--name", name, "--scope", scope, "--state-dir", str(folder)]
    made = lapse("tokens", "create", *given, "-o", "json", state_dir=folder)
    assert made.returncode == 0, made.stderr
    return str(json.loads(made.stdout)["token"])


def harmless(case: Case[Any]) -> Case[Any]:
    """Let no example run a program: a command would be any text, and the machine has programs of many names."""
    if isinstance(case.body, dict) and "command" in case.body:
        case.body = {**case.body, "start": False}
    return case


@pytest.fixture(scope="module")
def cases(schema: BaseSchema) -> dict[str, list[Case[Any]]]:
    """Generate the requests once for all scopes: that takes longer than sending them."""
    found: list[Any] = [one.ok() for one in schema.get_all_operations() if isinstance(one, Ok)]
    assert len(found) > len(OPERATIONS)
    return {one.label: list(generated(one)) for one in found}


def generated(operation: Any) -> Iterator[Case[Any]]:  # noqa: ANN401 - an operation of any kind of schema
    """Return requests of an operation: of the form that it expects and of others, half of them about what is there."""
    made: list[Case[Any]] = []
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)

    @settings(
        max_examples=examples(MANY),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @given(case=st.one_of([operation.as_strategy(generation_mode=mode) for mode in modes]))
    def collect(case: Case[Any]) -> None:
        if len(made) % 2:
            case.path_parameters |= {name: THERE[name] for name in case.path_parameters if name in THERE}
        made.append(harmless(case))

    collect()
    # As in `harmless`: the command of a workspace may have been changed. A stream has no end, and tests of its own.
    return iter([] if operation.path.endswith(("/start", "/events")) else made)


@pytest.mark.parametrize("scope", SCOPES)
def test_whatever_is_asked_is_answered_as_the_document_says(
    server: LapseServer, cases: dict[str, list[Case[Any]]], scope: str
) -> None:
    seed(server)
    headers = {"Authorization": f"Bearer {token_of(server, scope)}"}
    failures: dict[str, str] = {}
    with requests.Session() as session:
        session.trust_env = False
        for label, asked in cases.items():
            for case in asked:
                try:
                    answer = case.call(base_url=server.http, session=session, headers=headers, timeout=30)
                    case.validate_response(answer, checks=CHECKS)
                except Exception as error:  # noqa: BLE001 - of the tool; all operations are told of at once
                    failures[label] = str(error)[:1500]
    assert "\n\n".join(f"{label}: {told}" for label, told in failures.items()) == ""
    assert server.process.poll() is None
    until(lambda: server.metric("lapse_leader") == 1)
