"""Proxies as processes of their own, on one Redis, beside the server that runs the workspaces."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.integration.workspaces_served.conftest import NEEDED, QUICK, Served, servers_of
from tests.integration.workspaces_served.test_served import notebook, seconds_pass, websocket
from tests.servers.lapse_server import LapseServer, lapse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = NEEDED


class Town:
    """A server, and proxies beside it, on one database and one activity store."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder, self.flags = folder, flags
        self.servers = [LapseServer.start(folder, *QUICK, *flags)]
        self.up = Served(self.servers[0], folder, flags=flags)

    def proxy(self) -> Served:
        """Start a proxy; whoever asks its API asks the server."""
        flags = (f"--state-dir={self.folder}", *self.flags, *QUICK[:2], "--proxy-port=0")
        self.servers.append(LapseServer.spawn(self.folder, "proxy", *flags))
        served = Served(self.servers[-1], self.folder)
        served.server = self.up.server
        return served

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


@pytest.fixture(scope="module")
def town(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with servers_of(request, "servers") as flags:
        town = Town(tmp_path_factory.mktemp("town"), *flags)
        try:
            yield town
        finally:
            town.stop()


def enter(proxy: Served, name: str, cookie: str) -> int:
    with proxy.browser(name) as client:
        return client.get("/", headers={"Cookie": cookie}).status_code


def test_of_two_proxies_one_takes_a_ticket_and_both_know_the_session(town: Town) -> None:
    one, two = town.proxy(), town.proxy()
    town.up.create("lab")
    town.up.becomes("lab", "RUNNING")
    path = town.up.ticket("lab")

    def show(proxy: Served) -> tuple[int, str]:
        with proxy.browser("lab") as client:
            answer = client.get(path)
            return answer.status_code, answer.headers.get("set-cookie", "").partition(";")[0]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(show, [one, two] * 4))
    assert sorted(status for status, _ in answers) == [303] + 7 * [403]
    [cookie] = [cookie for status, cookie in answers if status == 303]
    assert [enter(proxy, "lab", cookie) for proxy in (one, two, town.up)] == [200, 200, 200]


def test_who_is_connected_through_any_proxy_is_there_until_a_killed_proxy_s_lease_is_over(town: Town) -> None:
    proxy = town.proxy()
    process = town.servers[-1]
    notebook(town.up, "held", standby_ttl_seconds=1)
    cookie = town.up.session("held")
    with websocket(proxy, "held", cookie=cookie):
        seconds_pass(1.1)
        town.up.ticks(3)
        assert town.up.show("held")["desired_state"] == "RUNNING"
        process.stop(signal.SIGKILL)
        assert town.up.becomes("held", "STANDBY")["desired_by"] == "ttl"


def test_a_proxy_ends_in_order(town: Town) -> None:
    proxy = town.proxy()
    process = town.servers[-1]
    notebook(town.up, "ordered")
    cookie = town.up.session("ordered")
    with websocket(proxy, "ordered", cookie=cookie):
        code, _took = process.stop()
    assert code == 0
    assert enter(town.up, "ordered", cookie) == 200


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--keys-url=memory://", "--activity-url=redis://127.0.0.1:1"), "keys_url is memory://"),
        ((), "needs activity_url"),
        (("--activity-url=redis://127.0.0.1:1", "--proxy-host=0.0.0.0"), "workspaces_beyond_loopback"),
    ],
)
def test_a_proxy_that_would_share_nothing_does_not_start(tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
    given = (f"--state-dir={tmp_path}", "--proxy-port=0", "--probes-port=0", *flags)
    refused = lapse("proxy", *given, state_dir=tmp_path)

    assert refused.returncode in {1, 64}
    assert said in refused.stderr
