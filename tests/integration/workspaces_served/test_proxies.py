"""Proxies as processes of their own, on one Redis, beside the server that runs the workspaces."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.integration.workspaces_served.conftest import QUICK, Served
from tests.integration.workspaces_served.test_served import notebook, seconds_pass, websocket
from tests.servers import redis_server
from tests.servers.lapse_server import ENDED_SECONDS, LapseServer, lapse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.server("redis", private=True)


class Town:
    """A server, and proxies beside it."""

    def __init__(self, folder: Path, activity: str) -> None:
        self.folder, self.activity = folder, f"--activity-url={activity}"
        self.servers = [LapseServer.start(folder, *QUICK, self.activity)]
        self.up = Served(self.servers[0], folder)

    def proxy(self) -> Served:
        """Start a proxy; whoever asks its API asks the server."""
        flags = (f"--state-dir={self.folder}", self.activity, *QUICK[:2], "--proxy-port=0")
        self.servers.append(LapseServer.spawn(self.folder, "proxy", *flags))
        served = Served(self.servers[-1], self.folder)
        served.server = self.up.server
        return served

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    with redis_server() as server:
        town = Town(tmp_path, server.url)
        yield town
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
    notebook(town.up, "lab", standby_ttl_seconds=2)
    cookie = town.up.session("lab")
    with websocket(proxy, "lab", cookie=cookie):
        seconds_pass(6)
        assert town.up.show("lab")["desired_state"] == "RUNNING"
        town.servers[1].stop(signal.SIGKILL)
        assert town.up.becomes("lab", "STANDBY")["desired_by"] == "ttl"


def test_a_proxy_ends_in_order(town: Town) -> None:
    proxy = town.proxy()
    notebook(town.up, "lab")
    cookie = town.up.session("lab")
    with websocket(proxy, "lab", cookie=cookie):
        code, took = town.servers[1].stop()
    assert code == 0
    assert took < ENDED_SECONDS
    assert enter(town.up, "lab", cookie) == 200


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
