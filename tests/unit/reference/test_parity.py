"""The verbs of the command line, of the HTTP API and of the client: the same ones, under the same names.

Commands are walked in the tree of the command line, operations in the OpenAPI document of the real application, methods
in the client, each of which is really called to see which operation it asks for. What is elsewhere, or nowhere, stands
in a table here with its reason.
"""

from __future__ import annotations

import json
from contextlib import suppress
from inspect import getmembers, isasyncgenfunction, iscoroutinefunction, signature
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.routing import Match

from lapse.cli import app as command_line
from lapse.client import AsyncClient, Client
from lapse.client.nouns import RemoteNoun
from lapse.client.transport import LapseServer, ServerAnswer
from lapse.core.errors import LapseError
from lapse.engine.verbs.operations import API, OPERATIONS
from lapse.web.api.openapi import examples
from lapse.web.app import operations
from lapse.workspaces.model import Changes
from tests.unit.reference.test_cli_page import commands

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ON_THIS_MACHINE = {
    "up": "it is what serves",
    "proxy": "a process",
    "operator": "a process",
    "webhook": "a process",
    "ttl-manager": "a process",
    "open": "its link is the right to log in, for who has the state folder",
    "login": "it keeps a token on this machine",
    "logout": "as login",
    "completion": "of a shell on this machine",
    "config show": "the settings of this machine",
    "config check": "as config show",
    "crds install": "on a cluster, with the rights of who asks",
    "crds diff": "as crds install",
    "crds print": "as crds install",
    "db init": "on a database, before anything is served",
    "db leave": "as db init",
    "keys init": "on a store, before anything is served",
    "keys conformance": "it writes to a store what no server should hold",
    "retention rbac": "it prints a document for a cluster",
    "tokens create": "a stolen token must not be able to make others: they are made where the state folder is",
    "tokens list": "as tokens create",
    "tokens show": "as tokens create",
    "tokens revoke": "as tokens create",
    "tokens owner": "as tokens create",
}
"""Commands that no server carries out."""
OTHER_NAMES = {
    "trash list": "trash",  # the list is the one thing to do with a trash but to empty it
    "trash empty": "empty_trash",
    "plans list": "plans",
    "plans show": "proposed",
    "requests manifests show": "requests.manifests",
    "requests watch": "requests.show",  # asked again and again
    "history delete": "delete",  # of any address
    "busy": "workspaces.busy",  # the command also runs a program, and renews the lease meanwhile
}
"""Commands whose verb is another one's over HTTP."""
GROUPS = {"requests schedule": "schedules"}
"""Schedules are a group of requests on the command line, and a noun of their own elsewhere."""
BY_ROUTE = {
    "keys.get": "keys.show",  # without what else is told
    "keys.insert": "keys.put",  # with If-None-Match: *
    "keys.swap": "keys.put",  # with expected
    "requests.capture": "requests.create",  # of a vcr
    "requests.restore": "requests.create",  # of a vrr
    "requests.capture_manifests": "requests.create",  # of an mcr
    "schedules.suspend": "schedules.edit",
    "schedules.resume": "schedules.edit",
    "check": "status",  # whether the token is let in
}
"""Methods that share the operation of another one."""
OTHER_ROUTES = {
    **{
        f"{noun}.{verb}": f"requests.{verb}" for noun in ("claims", "keepers", "artifacts") for verb in ("list", "show")
    },
    "claims.create": "requests.create",
    "claims.delete": "requests.delete",
}
"""Operations that the client asks for by the kind of an address."""
NOT_IN_THE_CLIENT = {
    "session.begin": "of a browser",
    "session.end": "of a browser",
    "workspaces.hold": "deprecated: hold",
    "workspaces.release": "deprecated: release",
    "workspaces.why": "deprecated: why",
}


def named(command: str) -> str:
    """Return the name that a command has elsewhere."""
    for group, noun in GROUPS.items():
        command = command.replace(f"{group} ", f"{noun} ")
    return OTHER_NAMES.get(command, command.replace(" ", ".").replace("-", "_"))


def operation_ids() -> set[str]:
    return {str(route.operation_id) for _, route, _ in operations() if route.include_in_schema}


def methods() -> dict[str, Any]:
    client = AsyncClient("http://localhost:8750", "token")
    nouns = {"": client, **{f"{name}.": noun for name, noun in vars(client).items() if isinstance(noun, RemoteNoun)}}
    return {
        f"{prefix}{name}": method
        for prefix, noun in nouns.items()
        for name, method in getmembers(noun, lambda one: iscoroutinefunction(one) or isasyncgenfunction(one))
        if not name.startswith("_")
    }


def test_every_command_has_its_verb_over_http_and_in_the_client() -> None:
    ids, known = operation_ids(), methods()
    wanted = {command: named(command) for command in commands(command_line) if command not in ON_THIS_MACHINE}

    assert {command: name for command, name in wanted.items() if name not in known} == {}
    assert {command: name for command, name in wanted.items() if BY_ROUTE.get(name, name) not in ids} == {}


def test_every_operation_has_its_method_in_the_client_and_every_method_its_operation() -> None:
    ids, known = operation_ids(), methods()

    assert {one for one in ids - NOT_IN_THE_CLIENT.keys() if OTHER_ROUTES.get(one, one) not in known} == set()
    assert {one for one in known if BY_ROUTE.get(one, one) not in ids} == set()


def test_the_tables_name_nothing_that_is_not_there() -> None:
    there, ids, known = set(commands(command_line)), operation_ids(), set(methods())

    assert set(ON_THIS_MACHINE) | set(OTHER_NAMES) <= there
    assert all(any(command.startswith(f"{group} ") for command in there) for group in GROUPS)
    assert set(BY_ROUTE) <= known
    assert set(OTHER_ROUTES) | set(NOT_IN_THE_CLIENT) <= ids


# --- what a method really asks for ------------------------------------------------------------------------------------

GIVEN: dict[str, Any] = {
    "app": 7,
    "key": "a",
    "keys": ["a"],
    "value": "b",
    "expected": "b",
    "new": "c",
    "items": [("a", "b", 900)],
    "ttl_seconds": 900,
    "kind": "vcr",
    "document": {"metadata": {"name": "x"}},
    "checkpoint": "x",
    "spec": {},
    "namespace": "default",
    "name": "x",
    "policies": [],
    "command": ["true"],
    "port": 9000,
    "changes": Changes(port=9001),
    "lease": "x",
}


class Recorder:
    """A transport that keeps what is asked, and answers nothing."""

    server = LapseServer.parse("http://localhost:8750")

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def call(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> ServerAnswer:
        self.asked.append((method, urlsplit(target).path))
        return ServerAnswer(403, b"")


def arguments(name: str, method: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any method
    verb = next((one for one in OPERATIONS if one.verb == name), None)
    for parameter in signature(method).parameters.values():
        if parameter.name == "asked":
            assert verb is not None
            given = examples().get(name, {}).get("asked", {"address": "workspace/x"} if verb.of_thing else {})
            yield (
                "asked",
                verb.asked(**({"id": "x"} if name == "proposed" else given))
                if name not in {"apply", "approve", "propose"}
                else plan_request(verb),
            )
        elif parameter.name == "address":
            yield "address", "csched/default/x" if name.startswith("schedules") else "vcr/default/x"
        elif parameter.default is parameter.empty:
            yield parameter.name, GIVEN[parameter.name]


def plan_request(verb: Any) -> Any:  # noqa: ANN401 - of apply or approve
    return verb.read(in_path=None, query=[], body=json.dumps(examples()[verb.verb]["asked"]).encode())


def operation_at(method: str, path: str) -> str | None:
    for prefix, route, _ in operations():
        scope = {"type": "http", "path": path.removeprefix(prefix), "method": method, "headers": []}
        if path.startswith(prefix) and route.matches(scope)[0] is Match.FULL:
            return route.operation_id
    return None


async def test_every_method_asks_for_the_operation_of_its_name() -> None:
    wrong = {}
    for name, method in methods().items():
        if isasyncgenfunction(method):  # what a stream asks for is in tests/unit/web/test_events_api.py
            continue
        recorder: Any = Recorder()
        owner = method.__self__
        calls = owner._calls
        calls._transport = recorder
        if isinstance(owner, AsyncClient):
            owner._transport = recorder
        with suppress(LapseError):  # nothing of use is answered
            await method(**dict(arguments(name, method)))
        asked = [operation_at(*one) for one in recorder.asked]
        if asked != [BY_ROUTE.get(name, name)]:
            wrong[name] = (recorder.asked, asked)
    assert wrong == {}
    assert API == "/api/v1"


def test_every_method_without_await_asks_for_the_same_and_returns() -> None:
    client = Client("http://localhost:8750", "token")
    nouns = {"": client, **{f"{name}.": noun for name, noun in vars(client).items() if isinstance(noun, RemoteNoun)}}
    wrong = {}
    for name, awaited in methods().items():
        if isasyncgenfunction(awaited):
            continue
        prefix, _, verb = name.rpartition(".")
        owner = nouns[f"{prefix}." if prefix else ""]
        recorder: Any = Recorder()
        working: Any = getattr(owner, "_awaited", owner)
        working._calls._transport = recorder
        if owner is client:
            working._transport = recorder
        with suppress(LapseError):  # nothing of use is answered
            getattr(owner, verb)(**dict(arguments(name, awaited)))
        asked = [operation_at(*one) for one in recorder.asked]
        if asked != [BY_ROUTE.get(name, name)]:
            wrong[name] = (recorder.asked, asked)
    assert wrong == {}
