"""Servers that are away, slow, restarted or hold a bad row: nobody is stopped in doubt, and the rest goes on."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis

from lapse.core.clock import SystemClock
from lapse.engine.sweep import SweepReport
from lapse.workspaces.activity.redis import RedisActivity
from lapse.workspaces.errors import WorkspaceStoreUnavailableError
from lapse.workspaces.model import DesiredBy, DesiredState
from tests.conformance.activity.registry import LEASE
from tests.conformance.ttl_manager.harness import STANDBY_TTL
from tests.conformance.workspaces.worlds import postgres_database
from tests.integration.ttl_manager.conftest import HASTY, SHORT, A, believe
from tests.servers import Relay, postgres_server, redis_server

if TYPE_CHECKING:
    from lapse.workspaces.model import Workspace, WorkspaceId
    from tests.conformance.ttl_manager.harness import Harness
    from tests.integration.ttl_manager.conftest import Open
    from tests.servers import Server

RUNNING, STANDBY, PENDING = DesiredState.RUNNING, DesiredState.STANDBY, DesiredState.PENDING
PATIENCE = 60
SIGNAL = 'lapse_signal_up{source="activity"}'
pytestmark = pytest.mark.server("redis", private=True)


async def two(harness: Harness) -> tuple[Workspace, Workspace]:
    """Make one that is due for standby and one that is due for the archive."""
    runs, rests = await harness.running("runs"), await harness.running("rests", archive=60)
    await harness.store.set_desired(rests.id, STANDBY, DesiredBy.USER, now=harness.now)
    await harness.stopped(rests)
    harness.clock.advance(STANDBY_TTL + 61)
    return runs, rests


async def in_time(harness: Harness) -> SweepReport:
    """Tick, bounded; return what became of the standby check."""
    async with asyncio.timeout(PATIENCE):
        return (await harness.tick()).standby


async def recovers(harness: Harness) -> None:
    """Tick until activity is known again."""
    clock = SystemClock()
    async with asyncio.timeout(PATIENCE):
        while harness.metric(SIGNAL) != 1:
            await harness.tick()
            await clock.sleep(0.05)


# --- the activity store -----------------------------------------------------------------------------------------------


async def test_while_redis_is_down_nobody_is_stopped_and_archives_go_on(opened: Open, database: str) -> None:
    with redis_server() as server:
        async with opened(database, server, wait=HASTY) as harness:
            runs, rests = await two(harness)
            await asyncio.to_thread(server.kill)
            assert await in_time(harness) == SweepReport(looked=1, unknown=1)
            assert harness.metric(SIGNAL) == 0
            assert (await harness.desired(runs), await harness.desired(rests)) == (RUNNING, PENDING)
            await asyncio.to_thread(server.start)
            believe(server)
            await recovers(harness)
            assert await harness.desired(runs) is STANDBY


async def test_redis_that_was_started_again_empty_is_not_believed(opened: Open, database: str) -> None:
    with redis_server() as server:
        async with opened(database, server) as harness:
            runs, rests = await two(harness)
            await harness.activity.connect(runs.id, A, lease_seconds=LEASE)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            for _ in range(3):
                assert (await in_time(harness)).unknown == 1
            assert harness.metric(SIGNAL) == 0
            assert (await harness.desired(runs), await harness.desired(rests)) == (RUNNING, PENDING)


async def test_a_redis_that_is_slow_or_silent_is_waited_for_as_long_as_its_url_says(
    opened: Open, database: str
) -> None:
    with redis_server() as server, Relay(server.port) as relay:
        async with opened(database, server, port=relay.port, wait=HASTY) as harness:
            runs, rests = await two(harness)
            relay.delay(2)
            assert (await in_time(harness)).unknown == 1
            relay.delay(0)
            relay.silence()
            assert (await in_time(harness)).unknown == 1
            assert (await harness.desired(runs), await harness.desired(rests)) == (RUNNING, PENDING)
            relay.cut()
            relay.speak()
            await recovers(harness)
            assert await harness.desired(runs) is STANDBY


async def test_one_workspace_whose_entry_is_spoilt_is_skipped_and_the_others_are_not(
    opened: Open, database: str
) -> None:
    with redis_server() as server, redis.Redis.from_url(server.url) as raw:
        async with opened(database, server) as harness:
            bad = await harness.running("bad")
            good, rests = await two(harness)
            raw.set(f"ws_leases:{bad.id}", "not a sorted set")
            assert await in_time(harness) == SweepReport(looked=2, ended=1, unknown=1)
            states = [await harness.desired(one) for one in (bad, good, rests)]
            assert states == [RUNNING, STANDBY, PENDING]
            raw.delete(f"ws_leases:{bad.id}")
            assert await in_time(harness) == SweepReport(looked=1, ended=1)


async def test_the_plain_counter_of_other_proxies_is_honoured(opened: Open, database: str) -> None:
    with redis_server() as server, redis.Redis.from_url(server.url) as raw:
        async with opened(database, server) as harness:
            one = await harness.running()
            harness.clock.advance(STANDBY_TTL + 1)
            raw.incr(f"ws_conn:{one.id}")
            assert await in_time(harness) == SweepReport(looked=1, kept=1)
            raw.decr(f"ws_conn:{one.id}")
            raw.set(f"idle_timer:{one.id}", "1", ex=300)
            harness.clock.advance(STANDBY_TTL)
            assert await in_time(harness) == SweepReport(looked=1, kept=1)
            raw.delete(f"idle_timer:{one.id}")
            harness.clock.advance(301)
            assert await in_time(harness) == SweepReport(looked=1, ended=1)


PROXY = """
import asyncio, sys
from lapse.core.clock import SystemClock
from lapse.workspaces.activity.redis import RedisActivity

async def hold(url, workspace):
    activity = RedisActivity.at(url, lease_seconds=6)
    await activity.connect(workspace, "a", lease_seconds=6)
    print("connected", flush=True)
    while True:
        await SystemClock().sleep(0.5)
        await activity.renew({"a": workspace}, 6)

asyncio.run(hold(*sys.argv[1:]))
"""


async def renewed(server: Server, workspace: WorkspaceId) -> None:
    """Wait until a lease has been made longer twice."""
    with redis.Redis.from_url(server.url) as raw:
        ends: set[object] = set()
        async with asyncio.timeout(PATIENCE):
            while len(ends) < 3:
                ends.add(raw.zscore(f"ws_leases:{workspace}", "a"))
                await SystemClock().sleep(0.05)


async def test_a_proxy_killed_with_sigkill_stops_counting_after_its_lease(opened: Open, database: str) -> None:
    with redis_server() as server:
        async with opened(database, server) as harness:
            one = await harness.running(standby=1)
            harness.clock.advance(2)
            activity = RedisActivity.at(server.url, lease_seconds=6)
            arguments = (sys.executable, "-c", PROXY, server.url, one.id)
            proxy = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
            try:
                assert proxy.stdout is not None
                assert await proxy.stdout.readline() == b"connected\n"
                await renewed(server, one.id)
                believe(server)
                assert (await harness.tick(activity=activity)).standby.kept == 1, "it renews"
                proxy.send_signal(signal.SIGKILL)
                await proxy.wait()
                async with asyncio.timeout(PATIENCE):
                    while await harness.desired(one) is RUNNING:
                        harness.clock.advance(0.1)
                        await harness.tick(activity=activity)
                        await SystemClock().sleep(0.1)
            finally:
                if proxy.returncode is None:
                    proxy.kill()
                await proxy.communicate()
                await activity.close()


# --- the database -----------------------------------------------------------------------------------------------------


@pytest.mark.server("postgres", private=True)
async def test_postgresql_that_is_down_and_back_is_used_at_the_next_tick(opened: Open) -> None:
    with redis_server() as server, postgres_server() as postgres, postgres_database(postgres) as url:
        async with opened(url, server, patience=SHORT) as harness:
            runs, rests = await two(harness)
            await asyncio.to_thread(postgres.kill)
            async with asyncio.timeout(PATIENCE):
                with pytest.raises(WorkspaceStoreUnavailableError):
                    await harness.tick()
            await asyncio.to_thread(postgres.start)
            clock = SystemClock()
            async with asyncio.timeout(PATIENCE):
                while True:
                    try:
                        await harness.tick()
                    except WorkspaceStoreUnavailableError:
                        await clock.sleep(0.1)
                    else:
                        break
            assert (await harness.desired(runs), await harness.desired(rests)) == (STANDBY, PENDING)


async def test_a_row_that_the_database_refuses_to_change_does_not_stop_the_others(opened: Open, database: str) -> None:
    with redis_server() as server:
        async with opened(database, server) as harness:
            made = [await harness.running(f"w{number}") for number in range(100)]
            harness.clock.advance(STANDBY_TTL + 1)
            with psycopg.connect(database, autocommit=True) as connection:
                connection.execute(
                    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
                    "$$ BEGIN IF new.name = 'w42' THEN RAISE 'no'; END IF; RETURN new; END $$"
                )
                connection.execute(
                    "CREATE TRIGGER t BEFORE UPDATE ON workspaces FOR EACH ROW EXECUTE FUNCTION refuse()"
                )
            assert await in_time(harness) == SweepReport(looked=100, ended=99, failed=1)
            assert [one.name for one in made if await harness.desired(one) is RUNNING] == ["w42"]


async def test_a_row_that_cannot_be_read_does_not_stop_the_others(opened: Open, database: str) -> None:
    with redis_server() as server:
        async with opened(database, server) as harness:
            bad, good = await harness.running("bad"), await harness.running("good")
            harness.clock.advance(STANDBY_TTL + 1)
            with psycopg.connect(database, autocommit=True) as connection:
                connection.execute("UPDATE workspaces SET command = ARRAY[NULL] WHERE name = 'bad'")
                assert await in_time(harness) == SweepReport(looked=1, ended=1)
                connection.execute("UPDATE workspaces SET command = ARRAY['serve'] WHERE name = 'bad'")
            assert (await harness.desired(bad), await harness.desired(good)) == (RUNNING, STANDBY)


async def test_a_row_that_somebody_holds_is_left_to_them_and_the_others_go_on(opened: Open, database: str) -> None:
    with redis_server() as server:
        async with opened(database, server) as harness:
            made = [await harness.running(f"w{number}") for number in range(16)]
            harness.clock.advance(STANDBY_TTL + 1)
            async with await psycopg.AsyncConnection.connect(database) as other:
                await other.execute("SELECT 1 FROM workspaces WHERE name = 'w5' FOR UPDATE")
                assert await in_time(harness) == SweepReport(looked=16, ended=15, failed=1)
            assert await harness.desired(made[5]) is RUNNING
            assert await in_time(harness) == SweepReport(looked=1, ended=1)
