"""Real servers in pytest.

Shared servers, one of each kind per run (also with `-n`), by fixture; the marker is implied:

    def test_something(shared_redis: Server) -> None: ...

    @pytest.mark.parametrize("shared_server", each("redis", "valkey"), indirect=True)
    def test_on_each(shared_server: Server) -> None: ...

A private one, by a context manager of `tests.servers`; the marker says that it can be had, and is not started for all:

    @pytest.mark.server("redis", private=True)
    def test_password() -> None:
        with redis_server(requirepass="secret") as server: ...

Servers are fetched and started after collection, those that the selected tests need and all at once, so that no test's
timeout counts it. What cannot be had skips its tests with the reason; `LAPSE_REQUIRE_SERVERS=all`, or some names, turns
that into a failure. A server that is there and does not start is a failure always. What one test writes to a shared
server the next one sees: use names of your own, or a private server.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers.errors import ServerFailedError, ServerMissingError
from tests.servers.kube.server import KubeServer
from tests.servers.pool import STARTERS, Pool, PoolServer, RemotePool, Servers, prepare
from tests.servers.programs import NAMES
from tests.servers.progress import tell_stderr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _pytest.mark.structures import ParameterSet

    from tests.servers.progress import Tell
    from tests.servers.server import Server

POOL = pytest.StashKey[Servers]()
POOL_SERVER = pytest.StashKey[PoolServer]()
REQUIRED = pytest.StashKey[frozenset[str]]()
WORKER_INPUT = "lapse_servers"
FIXTURES = {f"shared_{name}": name for name in STARTERS}


def each(*names: str) -> list[ParameterSet]:
    """Parameters for the fixture `shared_server`, each marked with the server it needs."""
    return [pytest.param(name, marks=pytest.mark.server(name), id=name) for name in names]


def required_servers(value: str) -> frozenset[str]:
    """What `LAPSE_REQUIRE_SERVERS` asks for. Raises `ValueError` for a name that is none."""
    words = value.replace(",", " ").split()
    unknown = sorted(set(words) - {*NAMES, "all"})
    if unknown:
        expected = f"'all' or a list of {', '.join(NAMES)}"
        raise ValueError(f"LAPSE_REQUIRE_SERVERS names {', '.join(unknown)}; expected {expected}")
    return frozenset(NAMES if "all" in words else words)


# --- hooks ------------------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    try:
        config.stash[REQUIRED] = required_servers(os.environ.get("LAPSE_REQUIRE_SERVERS", ""))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    worker_input: dict[str, Any] | None = getattr(config, "workerinput", None)
    config.stash[POOL] = Pool(_teller(config)) if worker_input is None else RemotePool(worker_input[WORKER_INPUT])


def _teller(config: pytest.Config) -> Tell:
    reporter = config.pluginmanager.get_plugin("terminalreporter")

    def tell(line: str) -> None:
        if reporter is None:
            tell_stderr(f"servers: {line}")
        else:
            reporter.ensure_newline()
            reporter.write_line(f"servers: {line}")

    return tell


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401 - a type of pytest-xdist, which need not be there
    """Tell a worker of pytest-xdist where to ask."""
    pool = node.config.stash[POOL]
    if POOL_SERVER not in node.config.stash:
        node.config.stash[POOL_SERVER] = PoolServer(pool)
    node.workerinput[WORKER_INPUT] = node.config.stash[POOL_SERVER].path


def pytest_unconfigure(config: pytest.Config) -> None:
    pool_server = config.stash.get(POOL_SERVER, None)
    if pool_server is not None:
        pool_server.close()
    pool = config.stash.get(POOL, None)
    if pool is not None:
        pool.close()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that asks for the fixture needs the server: mark it, so that `-m server` finds it."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in FIXTURES:
                item.add_marker(pytest.mark.server(FIXTURES[fixture]))


def _needs(item: pytest.Item) -> Iterator[tuple[str, bool]]:
    """Name and whether a private one is meant, for each server that a test needs."""
    for marker in item.iter_markers("server"):
        for name in marker.args:
            if name not in NAMES:
                raise pytest.UsageError(f"{item.nodeid} is marked with server({name!r}); there are {', '.join(NAMES)}")
            yield name, bool(marker.kwargs.get("private"))


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.collectonly:
        return
    needs = {need for item in session.items for need in _needs(item)}
    if needs:
        shared = {name for name, private in needs if not private}
        only_private = {name for name, _ in needs} - shared
        prepare(session.config.stash[POOL], shared=sorted(shared), private=sorted(only_private))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for name, private in _needs(item):
        _obtain(item.config, name, private=private)


def _obtain(config: pytest.Config, name: str, *, private: bool = False) -> Server | None:
    """The shared server, or None when only the program is wanted; skips or fails the test when it is not there."""
    try:
        if private:
            config.stash[POOL].check(name)
            return None
        return config.stash[POOL].get(name)
    except ServerMissingError as error:
        if name in config.stash[REQUIRED]:
            pytest.fail(f"{error} (required by LAPSE_REQUIRE_SERVERS)", pytrace=False)
        pytest.skip(str(error))
    except ServerFailedError as error:
        pytest.fail(str(error), pytrace=False)


# --- fixtures ---------------------------------------------------------------------------------------------------------


def _shared(config: pytest.Config, name: str) -> Server:
    server = _obtain(config, name)
    assert server is not None
    return server


@pytest.fixture(scope="session")
def shared_server(request: pytest.FixtureRequest) -> Server:
    """The server named by the parameter: see `each`."""
    return _shared(request.config, request.param)


@pytest.fixture(scope="session")
def shared_redis(pytestconfig: pytest.Config) -> Server:
    return _shared(pytestconfig, "redis")


@pytest.fixture(scope="session")
def shared_valkey(pytestconfig: pytest.Config) -> Server:
    return _shared(pytestconfig, "valkey")


@pytest.fixture(scope="session")
def shared_cassandra(pytestconfig: pytest.Config) -> Server:
    return _shared(pytestconfig, "cassandra")


@pytest.fixture(scope="session")
def shared_dynamodb(pytestconfig: pytest.Config) -> Server:
    return _shared(pytestconfig, "dynamodb")


@pytest.fixture(scope="session")
def shared_postgres(pytestconfig: pytest.Config) -> Server:
    return _shared(pytestconfig, "postgres")


@pytest.fixture(scope="session")
def shared_kube(pytestconfig: pytest.Config) -> KubeServer:
    """With the definitions of `deploy/crds` and `tests/servers/kube/crds`, and with a CSI driver and its sidecars.

    Work in namespaces of your own.
    """
    server = _shared(pytestconfig, "kube")
    assert isinstance(server, KubeServer)
    return server
