"""The proxy's ports on real stores: SQLite, keys in memory, tokens in a state folder, virtual time. No sockets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from lapse.app.workspaces import ticket_records
from lapse.core.clock import VirtualClock
from lapse.engine.running.logins import LoginFailures
from lapse.engine.running.metrics import Metrics
from lapse.keys.aio import open_keys_async
from lapse.proxy.auth import SESSION_SECONDS, ProxyAuthenticator, Sessions
from lapse.proxy.directory import REMEMBERED_SECONDS, SETTLED_SECONDS, StoreDirectory, StoreWaker
from lapse.proxy.ports import DirectResponse, GoingDownError, Proof, UpstreamAddress, Visit, Visitor, WorkspaceReadiness
from lapse.workspaces.model import (
    DesiredBy,
    DesiredState,
    Ms,
    NewWorkspace,
    ObservedStatus,
    Operation,
    OpId,
    Workspace,
    WorkspaceId,
)
from lapse.workspaces.store.sqlite import SqliteWorkspaceStore, open_sqlite_store
from lapse.workspaces.tickets import TICKET_SECONDS, Tickets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

OPEN = "/.lapse/open?ticket="


@dataclass
class AuthSetup:
    clock: VirtualClock
    store: SqliteWorkspaceStore
    directory: StoreDirectory
    tickets: Tickets
    rights: Rights
    authenticator: ProxyAuthenticator
    waker: StoreWaker
    metrics: Metrics

    @property
    def now(self) -> Ms:
        return Ms(self.clock.wall_ns() // 1_000_000)

    async def create(self, name: str, owner: str = "ann") -> Workspace:
        new = NewWorkspace(name=name, owner=owner, command=("serve",), port=9000)
        return await self.store.create(new, now=self.now)

    async def observe(self, one: Workspace, status: ObservedStatus) -> None:
        await self.store.observe({one.id: status}, now=self.now)

    async def ask(self, name: str, target: str = "/", **more: object) -> Visitor | DirectResponse:
        return await self.authenticator.identify(visit(name, target, **more))

    async def session(self, one: Workspace) -> bytes:
        """Open a workspace in a browser; return the cookie that it sends from now on."""
        reply = await self.ask(one.name, OPEN + await self.tickets.issue(one.id, "of-ann"))
        assert isinstance(reply, DirectResponse)
        assert reply.status == 303
        return dict(reply.headers)["Set-Cookie"].partition(";")[0].encode()


def visit(name: str, target: str = "/", **more: object) -> Visit:
    host = f"{name}.w.localhost:8752"
    plain = Visit(method="GET", host=host, target=target, fields={}, peer="127.0.0.1", upgrade=False)
    return replace(plain, **more)  # type: ignore[arg-type]


class Rights:
    """Tokens that are their own ids."""

    def __init__(self) -> None:
        self.owners: dict[str, set[str]] = {"of-ann": {"ann"}, "of-both": {"ann", "bob"}, "of-nobody": set()}

    def holder(self, token: str) -> str | None:
        return token if token in self.owners else None

    def opens(self, token_id: str, owner: str) -> bool:
        return owner in self.owners.get(token_id, ())


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[AuthSetup]:
    clock, store, rights = VirtualClock(), open_sqlite_store(tmp_path / "workspaces.db"), Rights()
    metrics = Metrics("test")
    directory = StoreDirectory(store, lambda one: UpstreamAddress("127.0.0.1", one.port), clock=clock)
    async with open_keys_async("memory://", clock=clock, sweep=False) as keys:
        tickets = Tickets(ticket_records(keys, clock=clock))
        authenticator = ProxyAuthenticator(
            directory=directory,
            tickets=tickets,
            sessions=Sessions(b"k" * 32),
            tokens=rights,
            clock=clock,
            suffix="w.localhost",
            failures=LoginFailures(clock, metrics),
        )
        yield AuthSetup(
            clock, store, directory, tickets, rights, authenticator, StoreWaker(store, clock=clock), metrics
        )
    await store.close()


# --- who asks ---------------------------------------------------------------------------------------------------------


async def test_a_stranger_is_asked_who_they_are_whether_there_is_such_a_workspace_or_not(setup: AuthSetup) -> None:
    await setup.create("a")
    there, nowhere = await setup.ask("a"), await setup.ask("none")

    assert there == nowhere
    assert isinstance(there, DirectResponse)
    assert there.status == 401


async def test_a_ticket_opens_a_session_once(setup: AuthSetup) -> None:
    one = await setup.create("a")
    ticket = await setup.tickets.issue(one.id, "of-ann")
    first, second = [await setup.ask("a", OPEN + ticket) for _ in range(2)]

    assert isinstance(first, DirectResponse)
    assert isinstance(second, DirectResponse)
    assert (first.status, dict(first.headers)["Location"]) == (303, "/")
    assert second.status == 403
    assert "Set-Cookie" not in dict(second.headers)


async def test_a_ticket_is_too_old_after_a_minute(setup: AuthSetup) -> None:
    one = await setup.create("a")
    ticket = await setup.tickets.issue(one.id, "of-ann")
    setup.clock.advance(TICKET_SECONDS)
    reply = await setup.ask("a", OPEN + ticket)

    assert isinstance(reply, DirectResponse)
    assert reply.status == 403


async def test_a_ticket_shown_at_another_workspace_is_refused_and_stays(setup: AuthSetup) -> None:
    one, _ = await setup.create("a"), await setup.create("b")
    ticket = await setup.tickets.issue(one.id, "of-ann")
    elsewhere, nowhere = await setup.ask("b", OPEN + ticket), await setup.ask("none", OPEN + ticket)
    here = await setup.ask("a", OPEN + ticket)

    assert elsewhere == nowhere
    assert isinstance(here, DirectResponse)
    assert here.status == 303


@pytest.mark.parametrize("target", ["/.lapse/open", "/.lapse/open?", OPEN, f"{OPEN}x", f"{OPEN}{'a' * 43}&ticket=b"])
async def test_what_is_no_ticket_is_refused(setup: AuthSetup, target: str) -> None:
    await setup.create("a")
    reply = await setup.ask("a", target)

    assert isinstance(reply, DirectResponse)
    assert reply.status == 403


async def test_a_ticket_is_taken_by_a_plain_get_only(setup: AuthSetup) -> None:
    one = await setup.create("a")
    ticket = await setup.tickets.issue(one.id, "of-ann")
    replies = [await setup.ask("a", OPEN + ticket, method="POST"), await setup.ask("a", OPEN + ticket, upgrade=True)]

    assert [one.status for one in replies if isinstance(one, DirectResponse)] == [405, 405]
    assert await setup.tickets.redeem(ticket, one.id), "it is still there"


async def test_the_cookie_of_a_session_is_its_owner(setup: AuthSetup) -> None:
    cookie = await setup.session(await setup.create("a"))

    assert await setup.ask("a", fields={b"cookie": b"theme=dark; " + cookie}) == Visitor("ann", Proof.COOKIE, "of-ann")


async def test_a_session_of_one_workspace_is_none_of_another_of_the_same_owner(setup: AuthSetup) -> None:
    cookie = await setup.session(await setup.create("a"))
    await setup.create("b")

    assert await setup.ask("b", fields={b"cookie": cookie}) == await setup.ask("b")


async def test_a_session_ends(setup: AuthSetup) -> None:
    cookie = await setup.session(await setup.create("a"))
    setup.clock.advance(SESSION_SECONDS)

    assert isinstance(await setup.ask("a", fields={b"cookie": cookie}), DirectResponse)


async def test_a_session_does_not_outlive_its_workspace(setup: AuthSetup) -> None:
    one = await setup.create("a")
    cookie = await setup.session(one)
    await setup.store.mark_deleted(one.id, now=setup.now)
    await setup.create("a", owner="ann")

    assert isinstance(await setup.ask("a", fields={b"cookie": cookie}), DirectResponse)


async def test_a_ticket_and_a_session_are_worth_what_their_token_is_worth_now(setup: AuthSetup) -> None:
    one = await setup.create("a")
    cookie, ticket = await setup.session(one), await setup.tickets.issue(one.id, "of-ann")
    visitor = await setup.ask("a", fields={b"cookie": cookie})
    assert isinstance(visitor, Visitor)
    assert setup.authenticator.still_admits(visitor)
    del setup.rights.owners["of-ann"]

    refused = await setup.ask("a", OPEN + ticket)
    assert isinstance(refused, DirectResponse)
    assert refused.status == 403
    assert await setup.ask("a", fields={b"cookie": cookie}) == await setup.ask("a")
    assert not setup.authenticator.still_admits(visitor)


async def test_a_session_ends_when_its_token_is_for_other_owners_workspaces(setup: AuthSetup) -> None:
    cookie = await setup.session(await setup.create("a"))
    setup.rights.owners["of-ann"] = {"bob"}

    assert isinstance(await setup.ask("a", fields={b"cookie": cookie}), DirectResponse)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_a_token_of_the_owner_gets_in(setup: AuthSetup, scheme: str) -> None:
    await setup.create("a")
    fields = {b"authorization": f"{scheme} of-ann".encode()}

    assert await setup.ask("a", fields=fields) == Visitor("ann", Proof.TOKEN, "of-ann")


async def test_a_token_of_somebody_else_is_nobody_here(setup: AuthSetup) -> None:
    await setup.create("a", owner="bob")
    fields = {b"authorization": b"Bearer of-ann"}

    assert (
        await setup.ask("a", fields=fields)
        == await setup.ask("none", fields=fields)
        == Visitor("", Proof.TOKEN, "of-ann")
    )
    assert await setup.ask("a", fields={b"authorization": b"Bearer of-both"}) == Visitor("bob", Proof.TOKEN, "of-both")


@pytest.mark.parametrize("value", [b"Bearer wrong", b"Bearer ", b"Bearer"])
async def test_an_unknown_token_is_refused(setup: AuthSetup, value: bytes) -> None:
    await setup.create("a")
    reply = await setup.ask("a", fields={b"authorization": value})

    assert isinstance(reply, DirectResponse)
    assert reply.status == 401


async def test_a_wrong_token_is_not_made_good_by_a_cookie(setup: AuthSetup) -> None:
    cookie = await setup.session(await setup.create("a"))

    assert isinstance(
        await setup.ask("a", fields={b"cookie": cookie, b"authorization": b"Bearer wrong"}), DirectResponse
    )


async def test_a_wrong_token_ticket_or_cookie_is_counted_and_nothing_else(setup: AuthSetup) -> None:
    cookie = await setup.session(await setup.create("a"))
    await setup.ask("a")
    await setup.ask("a", fields={b"cookie": cookie})
    await setup.ask("none", fields={b"cookie": cookie})
    for wrong in ({b"authorization": b"Bearer x"}, {b"cookie": b"lapse_session=x.y.1.z"}):
        await setup.ask("a", fields=wrong)
    await setup.ask("a", OPEN + "x" * 43)
    text = setup.metrics.exposition().decode()

    for proof in ("token", "ticket", "session"):
        assert f'lapse_login_failures_total{{proof="{proof}"}} 1.0' in text


# --- what a row means -------------------------------------------------------------------------------------------------


async def condition(setup: AuthSetup, name: str = "a") -> WorkspaceReadiness | None:
    setup.clock.advance(REMEMBERED_SECONDS)
    found = await setup.directory.find(name)
    return None if found is None else found.condition


async def test_a_running_workspace_is_ready_at_its_own_port(setup: AuthSetup) -> None:
    one = await setup.create("a")
    await setup.observe(one, ObservedStatus.RUNNING)
    found = await setup.directory.find("a")

    assert found is not None
    assert (found.workspace, found.owner, found.condition) == (one.id, "ann", WorkspaceReadiness.READY)
    assert found.address == UpstreamAddress("127.0.0.1", 9000)


async def test_one_that_is_not_there_or_deleted_is_none(setup: AuthSetup) -> None:
    one = await setup.create("a")
    await setup.store.mark_deleted(one.id, now=setup.now)

    assert await condition(setup) is None
    assert await condition(setup, "never") is None
    assert await condition(setup, "NOT-A-NAME") is None


@pytest.mark.parametrize("status", [ObservedStatus.PENDING, ObservedStatus.STANDBY])
async def test_what_does_not_run_is_asleep(setup: AuthSetup, status: ObservedStatus) -> None:
    await setup.observe(await setup.create("a"), status)

    assert await condition(setup) is WorkspaceReadiness.ASLEEP


async def test_what_is_about_to_be_stopped_counts_as_asleep_so_that_it_is_woken(setup: AuthSetup) -> None:
    one = await setup.create("a")
    await setup.observe(one, ObservedStatus.RUNNING)
    assert await condition(setup) is WorkspaceReadiness.READY
    await setup.store.set_desired(one.id, DesiredState.STANDBY, DesiredBy.TTL, now=setup.now)
    assert await condition(setup) is WorkspaceReadiness.ASLEEP
    await setup.waker.wake(one.id)
    assert await condition(setup) is WorkspaceReadiness.READY
    await setup.store.claim(one.id, Operation.STOPPING, OpId("op"), now=setup.now)
    assert await condition(setup) is WorkspaceReadiness.ASLEEP


async def test_one_that_is_being_started_is_not_ready_before_that_is_done(setup: AuthSetup) -> None:
    one = await setup.create("a")
    await setup.store.claim(one.id, Operation.STARTING, OpId("op"), now=setup.now)
    await setup.observe(one, ObservedStatus.RUNNING)
    assert await condition(setup) is WorkspaceReadiness.ASLEEP
    await setup.store.complete(one.id, OpId("op"), now=setup.now)
    assert await condition(setup) is WorkspaceReadiness.READY


async def test_one_that_failed_waits_for_a_person(setup: AuthSetup) -> None:
    one = await setup.create("a")
    await setup.store.claim(one.id, Operation.STARTING, OpId("op"), now=setup.now)
    await setup.store.fail(one.id, OpId("op"), reason="x", message="y", now=setup.now)

    assert await condition(setup) is WorkspaceReadiness.FAILED


async def failed(setup: AuthSetup, seen: ObservedStatus) -> Workspace:
    one = await setup.create("a")
    await setup.store.claim(one.id, Operation.ARCHIVING, OpId("op"), now=setup.now)
    await setup.store.fail(one.id, OpId("op"), reason="timed_out", message="no answer", now=setup.now)
    await setup.store.observe({one.id: seen}, now=setup.now)
    return one


async def test_a_visit_revives_one_that_failed_where_its_data_is_in_place(setup: AuthSetup) -> None:
    one = await failed(setup, ObservedStatus.STANDBY)
    found = await setup.directory.find("a")
    assert found is not None
    assert (found.condition, found.problem) == (WorkspaceReadiness.FAILED, "It has failed (timed_out): no answer.")
    assert not await setup.waker.revive(one.id), "a page that asks again by itself is no new visit"
    setup.clock.advance(SETTLED_SECONDS)
    assert await setup.waker.revive(one.id)
    revived = await setup.store.get(one.id)
    assert (revived.desired_state, revived.desired_by, revived.error_reason) == (
        DesiredState.RUNNING,
        DesiredBy.ACCESS,
        None,
    )
    assert await condition(setup) is WorkspaceReadiness.ASLEEP, "it comes up"


async def test_a_visit_revives_nothing_whose_data_is_not_there(setup: AuthSetup) -> None:
    one = await failed(setup, ObservedStatus.PENDING)
    setup.clock.advance(3600)
    assert not await setup.waker.revive(one.id)
    assert await condition(setup) is WorkspaceReadiness.FAILED


async def test_what_is_ready_is_remembered_for_a_moment_and_nothing_else_is(setup: AuthSetup) -> None:
    one = await setup.create("a")
    assert await condition(setup) is WorkspaceReadiness.ASLEEP
    await setup.observe(one, ObservedStatus.RUNNING)
    found = await setup.directory.find("a")
    assert found is not None
    assert found.condition is WorkspaceReadiness.READY, "somebody waits for it"
    await setup.observe(one, ObservedStatus.STANDBY)
    assert await setup.directory.find("a") == found
    assert await condition(setup) is WorkspaceReadiness.ASLEEP


# --- waking -----------------------------------------------------------------------------------------------------------


async def test_waking_wants_it_to_run_and_waking_again_changes_nothing(setup: AuthSetup) -> None:
    one = await setup.create("a")
    await setup.observe(one, ObservedStatus.STANDBY)
    await setup.store.set_desired(one.id, DesiredState.STANDBY, DesiredBy.TTL, now=setup.now)
    await setup.waker.wake(one.id)
    woken = await setup.store.get(one.id)
    await setup.waker.wake(one.id)

    assert (woken.desired_state, woken.desired_by) == (DesiredState.RUNNING, DesiredBy.ACCESS)
    assert await setup.store.get(one.id) == woken


async def test_who_waits_for_a_workspace_that_does_not_come_up_is_there(setup: AuthSetup) -> None:
    one = await setup.create("a")
    await setup.observe(one, ObservedStatus.STANDBY)
    noted: list[tuple[WorkspaceId, Ms]] = []
    waker = StoreWaker(setup.store, clock=setup.clock, access=lambda *access: noted.append(access))
    setup.clock.advance(60)
    await waker.wake(one.id)

    assert noted == [(one.id, setup.now)]


async def test_one_that_is_being_stopped_can_be_woken(setup: AuthSetup) -> None:
    one = await setup.create("a")
    await setup.observe(one, ObservedStatus.RUNNING)
    await setup.store.set_desired(one.id, DesiredState.STANDBY, DesiredBy.TTL, now=setup.now)
    await setup.store.claim(one.id, Operation.STOPPING, OpId("op"), now=setup.now)
    await setup.waker.wake(one.id)

    assert (await setup.store.get(one.id)).desired_state is DesiredState.RUNNING


async def test_who_connects_while_it_is_being_stopped_is_told_and_it_comes_up_again(setup: AuthSetup) -> None:
    one = await setup.create("a")
    await setup.observe(one, ObservedStatus.RUNNING)
    await setup.store.set_desired(one.id, DesiredState.STANDBY, DesiredBy.TTL, now=setup.now)
    await setup.store.claim(one.id, Operation.STOPPING, OpId("op"), now=setup.now)
    with pytest.raises(GoingDownError):
        await setup.waker.connected(one.id)

    assert (await setup.store.get(one.id)).desired_state is DesiredState.RUNNING


async def test_who_connects_before_a_standby_is_begun_keeps_it(setup: AuthSetup) -> None:
    one = await setup.create("a")
    await setup.observe(one, ObservedStatus.RUNNING)
    await setup.store.set_desired(one.id, DesiredState.STANDBY, DesiredBy.TTL, now=setup.now)
    planned = await setup.store.get(one.id)
    await setup.waker.connected(one.id)

    assert not await setup.store.claim(one.id, Operation.STOPPING, OpId("op"), version=planned.version, now=setup.now)


async def test_a_connection_is_written_each_time(setup: AuthSetup) -> None:
    one = await setup.create("a")
    await setup.observe(one, ObservedStatus.RUNNING)
    setup.clock.advance(5)
    for _ in range(2):
        await setup.waker.connected(one.id)
    found = await setup.store.get(one.id)

    assert found.version == one.version + 2
    assert found.last_access_at == one.last_access_at + 5000
