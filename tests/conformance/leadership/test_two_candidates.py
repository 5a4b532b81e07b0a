"""Two candidates on each real backend, one of them behind a connection that goes silent.

The worst case for an election: the leader's store neither answers nor refuses. Its work must stop before the other's
can start, although nobody tells it anything. Real time, because it is the server's clock that decides.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import lapse
from lapse.app.record import folder_election, open_store
from lapse.core.clock import SystemClock
from lapse.core.identity import uuid
from lapse.engine.running.database_lease import PostgresLease
from lapse.engine.running.election import LeaseElection
from lapse.keys.election import Election
from lapse.keys.url import init_store
from lapse.kube.api.client import KubeClient
from lapse.kube.auth.config import load_config
from lapse.kube.controller.lease import KubeLease
from lapse.kube.resources import ObjectKey
from tests.conformance.workspaces.worlds import postgres_database
from tests.servers import Relay, wait_until
from tests.servers.pytest_plugin import each

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lapse.engine.running.election import Leadership, Term
    from tests.servers import KubeServer, Server

TTL = 4
CLOCK = SystemClock()


class Candidate:
    """Notes from when to when its work ran."""

    def __init__(self, leadership: Leadership) -> None:
        self.leadership = leadership
        self.terms: list[tuple[int, int]] = []
        self.fences: list[int] = []
        self.started: int | None = None

    async def work(self, term: Term) -> None:
        self.started = SystemClock.monotonic_ns()
        self.fences.append(term.fence)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.terms.append((self.started, SystemClock.monotonic_ns()))
            self.started = None

    async def until_working(self) -> None:
        await asyncio.to_thread(wait_until, lambda: self.started is not None, seconds=60)

    async def until_idle(self) -> None:
        await asyncio.to_thread(wait_until, lambda: self.started is None, seconds=60)


async def play(silent_url: str, open_url: str, silence: Callable[[], None]) -> tuple[Candidate, Candidate]:
    """Let the first candidate lead behind ``silent_url``, cut it off, and wait until the second leads."""
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(lapse.open_keys_async(url)) for url in (silent_url, open_url)]
        one, other = (Candidate(Election(keys, "two", ttl_seconds=TTL, clock=clock, app_id=42)) for keys in stores)
        await compete(one, other, silence)
    return one, other


async def compete(one: Candidate, other: Candidate, silence: Callable[[], None]) -> None:
    elections = [asyncio.create_task(one.leadership.campaign(one.work))]
    await one.until_working()
    elections.append(asyncio.create_task(other.leadership.campaign(other.work)))
    silence()
    await one.until_idle()
    assert not one.leadership.leading
    await other.until_working()
    for election in elections:
        election.cancel()
        with suppress(asyncio.CancelledError):
            await election


def expect_one_leader_at_a_time(one: Candidate, other: Candidate) -> None:
    assert max(end for _, end in one.terms) <= min(start for start, _ in other.terms), "two leaders worked at once"
    assert max(one.fences) < min(other.fences)


@pytest.mark.parametrize("shared_server", each("redis", "valkey", "cassandra", "dynamodb"), indirect=True)
async def test_a_leader_behind_a_silent_connection_stops_before_the_next_one_starts(shared_server: Server) -> None:
    await asyncio.to_thread(init_store, shared_server.keys_url("lapse_election"), SystemClock())
    with Relay(shared_server.port) as relay:
        silent_url = shared_server.keys_url("lapse_election", port=relay.port)
        one, other = await play(silent_url, shared_server.keys_url("lapse_election"), relay.silence)
        relay.speak()
    expect_one_leader_at_a_time(one, other)


async def test_a_leader_behind_a_silent_api_server_stops_before_the_next_one_starts(shared_kube: KubeServer) -> None:
    direct = load_config(file=shared_kube.kubeconfig, environ={})
    key = ObjectKey("default", f"two-{uuid()}")
    with Relay(shared_kube.port) as relay:
        cluster = replace(direct.cluster, server=f"https://127.0.0.1:{relay.port}")
        clients = [KubeClient(replace(direct, cluster=cluster)), KubeClient(direct)]
        one, other = (
            Candidate(LeaseElection(KubeLease(client, key, identity=name, ttl_seconds=TTL, clock=CLOCK), clock=CLOCK))
            for client, name in zip(clients, ("one", "other"), strict=True)
        )
        await compete(one, other, relay.silence)
        relay.speak()
        for client in clients:
            await client.close()
    expect_one_leader_at_a_time(one, other)


async def test_a_leader_behind_a_silent_database_stops_before_the_next_one_starts(shared_postgres: Server) -> None:
    from lapse.db.postgres.pool import Postgres  # `make test` has no driver

    with postgres_database(shared_postgres) as direct, Relay(shared_postgres.port) as relay:
        databases = [Postgres(direct.replace(f":{shared_postgres.port}/", f":{relay.port}/"), connections=1)]
        databases.append(Postgres(direct, connections=1))
        for database in databases:
            await database.open()
        one, other = (
            Candidate(LeaseElection(PostgresLease(database, clock=CLOCK, ttl_seconds=TTL), clock=CLOCK))
            for database in databases
        )
        await compete(one, other, relay.silence)
        relay.speak()
        for database in databases:
            await database.close()
    expect_one_leader_at_a_time(one, other)


async def hand_over(one: Candidate, other: Candidate) -> None:
    """Let the first candidate lead, end it, and wait until the second leads."""
    leading = asyncio.create_task(one.leadership.campaign(one.work))
    await one.until_working()
    waiting = asyncio.create_task(other.leadership.campaign(other.work))
    leading.cancel()
    with suppress(asyncio.CancelledError):
        await leading
    await other.until_working()
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting


async def test_two_openings_of_one_file_elect_one_leader_at_a_time(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/keys.db"
    clock = SystemClock()
    async with lapse.open_keys_async(url) as first, lapse.open_keys_async(url) as second:
        one, other = (Candidate(Election(keys, "two", ttl_seconds=TTL, clock=clock)) for keys in (first, second))
        await hand_over(one, other)
    expect_one_leader_at_a_time(one, other)


async def test_two_openings_of_one_state_folder_elect_one_leader_at_a_time(tmp_path: Path) -> None:
    stores = [open_store(tmp_path, clock=CLOCK) for _ in range(2)]
    one, other = (Candidate(folder_election(store, CLOCK)) for store in stores)
    await hand_over(one, other)
    for store in stores:
        await store.close()
    expect_one_leader_at_a_time(one, other)
