"""The contract of `lapse.workspaces.activity.port.Activity`, case by case."""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise

import pytest

from lapse.workspaces.activity.port import (
    ActivityDoubt,
    ActivityUnavailableError,
    ActivityUnknown,
    Connected,
    ConnectionId,
    InvalidPeriodError,
    Quiet,
    Timer,
)
from lapse.workspaces.model import WorkspaceId
from tests.conformance.activity.registry import (
    IDLE,
    LEASE,
    SLACK,
    A,
    B,
    C,
    V,
    W,
    World,
    case,
    connect,
    disconnect,
    server_case,
    settled,
    signal,
)


def is_timer(found: object, seconds: float) -> bool:
    """Whether it is a timer of about that length: the moments that a case takes may be gone from it."""
    return isinstance(found, Timer) and seconds - SLACK < found.seconds_left <= seconds


# --- connections and the idle timer -----------------------------------------------------------------------------------


@case
async def a_workspace_that_nobody_ever_opened_is_quiet(world: World) -> None:
    await settled(world)
    assert await signal(world) == Quiet()


@case
async def connections_are_counted_and_the_first_is_told_so(world: World) -> None:
    await settled(world)
    assert await connect(world, A) is True
    assert await signal(world) == Connected(1)
    assert await world.other.connect(W, B, lease_seconds=LEASE) is False
    assert await signal(world) == Connected(2)
    assert await signal(world, V) == Quiet()


@case
async def a_connect_removes_the_idle_timer(world: World) -> None:
    await settled(world)
    await connect(world, A)
    await disconnect(world, A, idle=4 * LEASE)
    assert is_timer(await signal(world), 4 * LEASE)
    assert await world.other.connect(W, B, lease_seconds=LEASE) is True
    assert await signal(world) == Connected(1)
    await world.elapse(LEASE)
    assert await signal(world) == Quiet(), "the timer was removed, not only hidden by the connection"


@case
async def the_last_disconnect_sets_the_idle_timer_and_no_other_does(world: World) -> None:
    await settled(world)
    await connect(world, A)
    await connect(world, B)
    assert await disconnect(world, A) is False
    assert await signal(world) == Connected(1)
    assert await world.other.disconnect(W, B, idle_seconds=IDLE) is True
    assert is_timer(await signal(world), IDLE)
    assert await signal(world, V) == Quiet()


@case
async def a_disconnect_that_is_not_the_last_leaves_no_timer_behind(world: World) -> None:
    await settled(world)
    await connect(world, A, lease=LEASE / 2)
    await connect(world, B)
    await disconnect(world, B, idle=2 * LEASE)
    await world.elapse(LEASE / 2)
    assert await signal(world) == Quiet()


@case
async def the_idle_timer_runs_out(world: World) -> None:
    await settled(world)
    await connect(world, A)
    await disconnect(world, A, idle=2 * SLACK)
    await world.elapse(SLACK)
    assert is_timer(await signal(world), SLACK)
    await world.elapse(SLACK)
    assert await signal(world) == Quiet()


@case
async def every_last_disconnect_starts_the_timer_anew(world: World) -> None:
    await settled(world)
    for _ in range(3):
        await connect(world, A)
        await disconnect(world, A)
        await world.elapse(IDLE - SLACK)
    assert is_timer(await signal(world), SLACK)


@case
async def without_an_idle_time_there_is_no_timer_and_none_stays(world: World) -> None:
    await settled(world)
    await connect(world, A)
    await disconnect(world, A)
    assert await disconnect(world, A, idle=0) is True
    assert await signal(world) == Quiet()


@case
async def the_same_connection_twice_is_one_and_still_the_first(world: World) -> None:
    await settled(world)
    assert await connect(world, A) is True
    assert await connect(world, A) is True, "who got no answer asks again, and must not miss that it is the first"
    assert await signal(world) == Connected(1)
    assert await connect(world, B) is False
    assert await connect(world, A) is False
    assert await disconnect(world, A) is False
    assert await disconnect(world, B) is True


@case
async def a_disconnect_may_be_repeated(world: World) -> None:
    await settled(world)
    await connect(world, A)
    assert await disconnect(world, A) is True
    assert await disconnect(world, A) is True
    assert is_timer(await signal(world), IDLE)
    await connect(world, B)
    assert await disconnect(world, A) is False
    assert await signal(world) == Connected(1)


@case
async def a_disconnect_of_one_that_was_never_there_is_no_error(world: World) -> None:
    await settled(world)
    assert await disconnect(world, C) is True
    assert is_timer(await signal(world), IDLE)


@case
async def one_connection_id_in_two_workspaces_is_two_connections(world: World) -> None:
    await settled(world)
    assert await connect(world, A, W) is True
    assert await connect(world, A, V) is True
    assert await world.one.read([W, V]) == dict.fromkeys([W, V], Connected(1))
    assert await disconnect(world, A, V) is True
    assert await signal(world, W) == Connected(1)
    assert is_timer(await signal(world, V), IDLE)


@case
async def ids_are_taken_as_they_are(world: World) -> None:
    await settled(world)
    odd = [ConnectionId(text) for text in ("", " ", "0", "a b\n", "ws_leases:", "(1", "+inf", "кириллица", "x" * 1000)]
    for connection in odd:
        await connect(world, connection)
    assert await signal(world) == Connected(len(odd))
    assert await world.one.renew(dict.fromkeys(odd, W), LEASE) == set()
    for connection in odd:
        await disconnect(world, connection)
    assert is_timer(await signal(world), IDLE)


# --- leases -----------------------------------------------------------------------------------------------------------


@case
async def a_lease_that_nobody_renews_ends(world: World) -> None:
    await settled(world)
    await connect(world, A)
    await world.elapse(LEASE - SLACK)
    assert await signal(world) == Connected(1)
    await world.elapse(SLACK)
    assert await signal(world) == Quiet()


@case
async def a_renewed_lease_lives_on(world: World) -> None:
    await settled(world)
    await connect(world, A)
    for _ in range(4):
        await world.elapse(LEASE - SLACK)
        assert await world.one.renew({A: W}, LEASE) == set()
        assert await signal(world) == Connected(1)
    await world.elapse(LEASE)
    assert await signal(world) == Quiet()


@case
async def a_renewal_never_shortens(world: World) -> None:
    await settled(world)
    await connect(world, A)
    await world.one.renew({A: W}, SLACK)
    await connect(world, A, lease=SLACK)
    await world.elapse(LEASE - SLACK)
    assert await signal(world) == Connected(1)


@case
async def a_crashed_proxy_stops_counting_and_the_others_do_not(world: World) -> None:
    await settled(world)
    await world.one.connect(W, A, lease_seconds=LEASE)
    await world.one.connect(W, B, lease_seconds=LEASE)
    await world.other.connect(W, C, lease_seconds=LEASE)
    await world.elapse(LEASE / 2)
    assert await world.other.renew({C: W}, LEASE) == set()
    await world.elapse(LEASE / 2)
    assert await signal(world) == Connected(1)


@case
async def who_is_over_is_not_there(world: World) -> None:
    await settled(world)
    await connect(world, A, lease=SLACK)
    await world.elapse(SLACK)
    assert await connect(world, B) is True, "the only other one is over"
    await connect(world, C, lease=SLACK)
    await world.elapse(SLACK)
    assert await disconnect(world, B) is True, "the only other one is over"
    assert is_timer(await signal(world), IDLE)


@case
async def a_renewal_tells_what_was_lost(world: World) -> None:
    await settled(world)
    await connect(world, A)
    await connect(world, B, lease=SLACK)
    await connect(world, C)
    await disconnect(world, C)
    await world.elapse(SLACK)
    never, elsewhere = ConnectionId("never"), ConnectionId("elsewhere")
    await connect(world, elsewhere, V)
    given = {A: W, B: W, C: W, never: V, elsewhere: W}
    assert await world.one.renew(given, LEASE) == {B, C, never, elsewhere}
    assert await world.one.renew({}, LEASE) == set()


@case
async def what_was_lost_counts_only_after_it_connects_again(world: World) -> None:
    await settled(world)
    await connect(world, A)
    await world.elapse(LEASE)
    assert await world.one.renew({A: W}, LEASE) == {A}
    assert await world.one.renew({A: W}, LEASE) == {A}
    assert await signal(world) == Quiet()
    assert await connect(world, A) is True
    assert await world.one.renew({A: W}, LEASE) == set()
    assert await signal(world) == Connected(1)


@case
async def thousands_are_renewed_and_read(world: World) -> None:
    await settled(world)
    workspaces = [WorkspaceId(f"workspace-{number}") for number in range(5000)]
    open_ones = workspaces[::500]
    held = {ConnectionId(f"connection-{number}"): workspace for number, workspace in enumerate(open_ones)}
    for connection, workspace in held.items():
        await connect(world, connection, workspace)
    await disconnect(world, A, workspaces[-1])

    asked = held | {ConnectionId(f"lost-{number}"): workspace for number, workspace in enumerate(workspaces)}
    assert await world.one.renew(asked, LEASE) == asked.keys() - held.keys()
    found = await world.one.read(workspaces)

    assert list(found) == workspaces
    assert [workspace for workspace in workspaces if found[workspace] == Connected(1)] == open_ones
    assert is_timer(found[workspaces[-1]], IDLE)
    assert sum(signal == Quiet() for signal in found.values()) == 5000 - len(open_ones) - 1


@case
async def asking_for_none_or_twice_is_no_error(world: World) -> None:
    await settled(world)
    await connect(world, A)
    assert await world.one.read([]) == {}
    assert await world.one.read(iter([W, V, W])) == {W: Connected(1), V: Quiet()}


# --- two proxies at once ----------------------------------------------------------------------------------------------


@case
async def of_many_who_come_at_once_one_is_first_and_of_many_who_go_one_is_last(world: World) -> None:
    await settled(world)
    proxies = [(world.one, world.other)[number % 2] for number in range(40)]
    names = [ConnectionId(f"connection-{number}") for number in range(40)]
    for _ in range(3):
        came = await asyncio.gather(
            *(proxy.connect(W, name, lease_seconds=LEASE) for proxy, name in zip(proxies, names, strict=True))
        )
        assert came.count(True) == 1
        assert await signal(world) == Connected(40)
        gone = await asyncio.gather(
            *(proxy.disconnect(W, name, idle_seconds=IDLE) for proxy, name in zip(proxies, names, strict=True))
        )
        assert gone.count(True) == 1
        assert is_timer(await signal(world), IDLE)


@case
async def somebody_who_comes_while_another_goes_is_never_left_with_a_timer(world: World) -> None:
    await settled(world)
    names = [ConnectionId(f"connection-{number}") for number in range(41)]
    await connect(world, names[0])
    for here, there in pairwise(names):
        last, first = await asyncio.gather(
            world.one.disconnect(W, here, idle_seconds=IDLE), world.other.connect(W, there, lease_seconds=LEASE)
        )
        assert last == first, "either nobody was there in between, for both, or somebody always was"
        assert await signal(world) == Connected(1)


# --- unknown is not idle ----------------------------------------------------------------------------------------------


@case
async def a_store_that_has_just_begun_is_not_believed(world: World) -> None:
    await world.one.read([W])
    await world.elapse(2 * LEASE - SLACK)
    assert await world.one.read([W, V]) == dict.fromkeys([W, V], ActivityUnknown(ActivityDoubt.EPOCH_YOUNG))
    await world.elapse(SLACK)
    assert await world.one.read([W, V]) == dict.fromkeys([W, V], Quiet())


@case
async def any_call_begins_the_epoch(world: World) -> None:
    await connect(world, A)
    await world.elapse(2 * LEASE)
    assert await signal(world) == Quiet()


@case
async def a_store_that_lost_everything_is_not_believed_until_all_had_time_to_come_back(world: World) -> None:
    await settled(world)
    await connect(world, A)
    await connect(world, B, V)
    await world.lose_everything()
    lost = await world.one.renew({A: W, B: V}, LEASE)
    assert lost == {A, B}
    assert isinstance(await signal(world), ActivityUnknown)
    assert await connect(world, A) is True
    await world.elapse(LEASE)
    assert isinstance(await signal(world), ActivityUnknown)
    assert await connect(world, A) is True
    await world.elapse(LEASE - SLACK)
    assert await world.one.renew({A: W}, LEASE) == set()
    await world.elapse(SLACK)
    assert await signal(world) == Connected(1)
    assert await signal(world, V) == Quiet()


@case
async def a_store_that_is_closed_says_so(world: World) -> None:
    await world.one.check()
    await connect(world, A)
    await world.one.close()
    await world.one.close()
    for attempt in (
        lambda: world.one.read([W]),
        lambda: connect(world, B),
        lambda: disconnect(world, A),
        lambda: world.one.renew({A: W}, LEASE),
        world.one.check,
    ):
        with pytest.raises(ActivityUnavailableError, match="is closed"):
            await attempt()


@case
async def periods_that_cannot_be_are_refused(world: World) -> None:
    await settled(world)
    await connect(world, A)
    for lease in (0, -1, math.nan, math.inf, LEASE + 0.001):
        with pytest.raises(InvalidPeriodError, match=r"The lease is .* seconds; expected more than 0 and at most 600"):
            await connect(world, B, lease=lease)
        with pytest.raises(InvalidPeriodError):
            await world.one.renew({A: W}, lease)
    for idle in (-1, math.nan, math.inf, 1e12):
        with pytest.raises(InvalidPeriodError, match=r"The idle timer is .* seconds; expected 0 \(none\) to 3153"):
            await disconnect(world, A, idle=idle)
    assert await signal(world) == Connected(1)


# --- what others write to a server ------------------------------------------------------------------------------------


@server_case
async def the_plain_counter_of_other_proxies_counts(world: World) -> None:
    await settled(world)
    await world.put(f"ws_conn:{W}", text="2")
    assert await signal(world) == Connected(2)
    assert await connect(world, A) is True, "others who count do not write the database, so ours must"
    assert await signal(world) == Connected(3)
    assert await disconnect(world, A) is True
    assert await signal(world) == Connected(2)
    await world.put(f"ws_conn:{W}", text="0")
    assert is_timer(await signal(world), IDLE)


@server_case
async def a_plain_counter_of_nothing_or_less_does_not_count(world: World) -> None:
    await settled(world)
    for text in ("0", "-1", "-30", "00"):
        await world.put(f"ws_conn:{W}", text=text)
        assert await signal(world) == Quiet()


@server_case
async def a_counter_that_is_no_number_is_unknown_and_only_there(world: World) -> None:
    await settled(world)
    for text in ("", "many", "1.5", " 2", "2 ", "0x10", "1e3", "-", "nan", "inf", "٣"):
        await world.put(f"ws_conn:{W}", text=text)
        assert await world.one.read([V, W]) == {V: Quiet(), W: ActivityUnknown(ActivityDoubt.UNREADABLE)}, text


@server_case
async def one_broken_workspace_is_unknown_and_no_other_is(world: World) -> None:
    await settled(world)
    many = [WorkspaceId(f"workspace-{number}") for number in range(2500)]
    await world.put(f"ws_leases:{many[3]}", items=["x"])
    await world.put(f"ws_conn:{many[1700]}", items=["x"])
    await world.put(f"ws_leases:{many[2400]}", text="x")
    await connect(world, A, many[4])
    found = await world.one.read(many)
    broken = {workspace for workspace, signal in found.items() if signal == ActivityUnknown(ActivityDoubt.UNREADABLE)}
    assert broken == {many[3], many[1700], many[2400]}
    assert found[many[4]] == Connected(1)
    assert sum(signal == Quiet() for signal in found.values()) == 2500 - 4


@server_case
async def who_is_certainly_there_is_there_whatever_else_is_broken(world: World) -> None:
    await settled(world)
    await connect(world, A)
    await world.put(f"ws_conn:{W}", text="many")
    assert await signal(world) == Connected(1)
    await world.put(f"ws_leases:{V}", items=["x"])
    await world.put(f"ws_conn:{V}", text="3")
    assert await signal(world, V) == Connected(3)


@server_case
async def a_broken_workspace_does_not_stop_the_renewal_of_others(world: World) -> None:
    await settled(world)
    await connect(world, A, V)
    await world.put(f"ws_leases:{W}", items=["x"])
    assert await world.one.renew({B: W, A: V}, LEASE) == {B}
    with pytest.raises(ActivityUnavailableError, match="ws_leases: of this workspace holds data of another program"):
        await connect(world, B)


@server_case
async def a_timer_of_another_proxy_counts_and_one_without_an_end_is_unknown(world: World) -> None:
    await settled(world)
    await world.put(f"idle_timer:{W}", text="1")
    assert await signal(world) == ActivityUnknown(ActivityDoubt.UNREADABLE)
    await connect(world, A)
    await disconnect(world, A)
    assert is_timer(await signal(world), IDLE)


@server_case
async def an_absent_epoch_is_told_from_a_young_one(world: World) -> None:
    assert await world.one.read([W]) == {W: ActivityUnknown(ActivityDoubt.EPOCH_ABSENT)}
    assert await world.one.read([W]) == {W: ActivityUnknown(ActivityDoubt.EPOCH_YOUNG)}


@server_case
async def an_epoch_that_cannot_be_begins_anew(world: World) -> None:
    for text, items in ((None, ["x"]), ("soon", None), ("", None), ("-5", None), ("99999999999999", None)):
        await settled(world)
        assert await signal(world) == Quiet()
        await world.put("activity:epoch", text=text, items=items)
        assert await world.one.read([W]) == {W: ActivityUnknown(ActivityDoubt.EPOCH_ABSENT)}, text
        assert await world.one.read([W]) == {W: ActivityUnknown(ActivityDoubt.EPOCH_YOUNG)}


@server_case
async def another_run_of_the_server_begins_the_epoch_anew(world: World) -> None:
    for items in (None, ["x"]):
        await settled(world)
        assert await signal(world) == Quiet()
        await world.put("activity:server", text=None if items else "of-before", items=items)
        assert await world.one.read([W]) == {W: ActivityUnknown(ActivityDoubt.EPOCH_ABSENT)}
        assert await world.one.read([W]) == {W: ActivityUnknown(ActivityDoubt.EPOCH_YOUNG)}
