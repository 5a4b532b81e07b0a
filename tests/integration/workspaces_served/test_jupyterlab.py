"""The page about JupyterLab, to the letter, with a real one: created, opened, used in a kernel, left, archived, back.

The commands are the page's; what its reader does in a browser is done here, over the proxy, with the session that the
page's ticket begins.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
import pytest
from websockets.sync.client import connect
from websockets.typing import Origin

from tests.acceptance.test_docs import FENCE, free_port, shown_as, steps
from tests.servers.lapse_server import PLAIN, LapseServer, clean_environment, until
from tests.servers.programs import find

if TYPE_CHECKING:
    from collections.abc import Iterator

# Starting JupyterLab takes seconds, and does so three times.
pytestmark = [pytest.mark.server("jupyterlab", private=True), pytest.mark.timeout(400)]
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "jupyterlab.md"
COMMANDS = [
    step
    for match in FENCE.finditer(PAGE.read_text())
    if match["language"] == "console"
    for step in steps(match["body"])
]
QUICK = {"TTL_MANAGER_INTERVAL": "500ms", "IDLE_TIMER_SECONDS": "1", "LAPSE_PROXY_LEASE": "5s"}
NOTEBOOK = {
    "metadata": {},
    "nbformat": 4,
    "nbformat_minor": 5,
    "cells": [
        {"id": "a", "cell_type": "code", "source": "1+1", "metadata": {}, "outputs": [], "execution_count": None}
    ],
}


class Reader:
    """Somebody who does what the page says, with a browser."""

    def __init__(self, server: LapseServer, folder: Path, home: Path) -> None:
        self.server, self.folder = server, folder
        self.port = free_port()
        self._env = {**clean_environment(folder), "HOME": str(home), "LAPSE_PROXY_PORT": str(server.proxy_port)}
        self._env["PATH"] = f"{Path(sys.executable).parent}:{self._env['PATH']}"
        self._browser = httpx2.Client(
            base_url=f"http://127.0.0.1:{server.proxy_port}",
            headers={"Host": self.host},
            trust_env=False,
            verify=PLAIN,
            timeout=60,
        )

    @property
    def host(self) -> str:
        return f"notebook.w.localhost:{self.server.proxy_port}"

    def does(self, starts_with: str) -> str:
        """Run the page's command that starts so, see that it prints what the page shows, and return that."""
        command, expected = next(step for step in COMMANDS if step[0].startswith(starts_with))
        for named, real in (("8888", self.port), ("8752", self.server.proxy_port)):
            command, expected = command.replace(named, str(real)), expected.replace(named, str(real))
        if os.geteuid() == 0:  # as the page says
            command = command.replace("--no-browser", "--no-browser --allow-root")
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
            timeout=150,
        )
        printed = done.stdout + done.stderr
        assert shown_as(expected).fullmatch(printed), f"$ {command}\n{printed}"
        return printed

    def opens(self) -> None:
        """Take the page's address to a browser."""
        url = urlsplit(self.does("lapse workspaces open notebook").splitlines()[0])
        assert url.netloc == self.host
        self._browser.cookies.clear()
        assert self.asks("GET", f"{url.path}?{url.query}").status_code == 303
        assert self.asks("GET", "/lab").status_code == 200  # which brings the cookie against forged requests

    def asks(self, method: str, path: str, body: object = None) -> httpx2.Response:
        token = self._browser.cookies.get("_xsrf")
        headers = {"Cookie": self._cookies, **({"X-XSRFToken": token} if token else {})}
        return self._browser.request(method, path, json=body, headers=headers)

    @property
    def _cookies(self) -> str:
        return "; ".join(f"{one.name}={one.value}" for one in self._browser.cookies.jar)

    def runs(self, kernel: str, code: str, *, until_type: str) -> dict[str, Any]:
        """Run code in a kernel, over a websocket through the proxy; return the first answer of a type."""
        header = {"msg_id": "m", "username": "u", "session": "s", "msg_type": "execute_request", "version": "5.3"}
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        request = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        with connect(
            f"ws://{self.host}/api/kernels/{kernel}/channels?session_id=s",
            sock=socket.create_connection(("127.0.0.1", self.server.proxy_port)),
            additional_headers={"Cookie": self._cookies},
            origin=Origin(f"http://{self.host}"),
            proxy=None,
            open_timeout=60,
        ) as client:
            client.send(json.dumps(request))
            while True:
                answer = json.loads(client.recv(timeout=60))
                if answer["msg_type"] == until_type and answer["parent_header"].get("msg_id") == "m":
                    found: dict[str, Any] = answer["content"]
                    return found

    def shows(self) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "lapse", "workspaces", "show", "notebook", "-o", "json"],
            cwd=self.folder, env=self._env, capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    def sets(self, *options: str) -> None:
        line = [sys.executable, "-m", "lapse", "workspaces", "set", "notebook", *options]
        subprocess.run(line, cwd=self.folder, env=self._env, capture_output=True, check=True, timeout=60)

    def waits_for(self, status: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            told = self.shows()
            assert told["error_message"] is None, told
            return told if (told["observed_status"], told["operation"]) == (status, "NONE") else None

        return until(look, seconds=120)

    def close(self) -> None:
        self._browser.close()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    folder, home = tmp_path / "state", tmp_path / "home"
    (folder / "lapse").mkdir(parents=True)
    home.mkdir()
    (home / "jupyter").symlink_to(find("jupyterlab").path.parent.parent)
    server = LapseServer.start(folder / "lapse", settings=QUICK)
    person = Reader(server, folder, home)
    try:
        yield person
    finally:
        person.close()
        server.stop()


def test_the_page_leads_from_an_empty_folder_to_a_notebook_that_comes_back(reader: Reader) -> None:
    reader.does("lapse workspaces create notebook")
    reader.opens()
    kernel = reader.asks("POST", "/api/kernels", {"name": "python3"}).json()["id"]
    assert reader.runs(kernel, "1+1", until_type="execute_result")["data"]["text/plain"] == "2"
    saved = reader.asks("PUT", "/api/contents/work.ipynb", {"type": "notebook", "content": NOTEBOOK})
    assert saved.status_code == 201, saved.text
    notebook = reader.asks("GET", "/api/contents/work.ipynb").json()
    assert "notebook" in reader.does("lapse workspaces logs notebook").lower()
    reader.does("lapse workspaces set notebook")

    # The tab is closed, and a kernel computes: that is activity, which the probe tells.
    reader.runs(kernel, "import time; time.sleep(600)", until_type="status")
    reader.sets("--standby-ttl", "3s")
    asked = until(lambda: told if (told := reader.shows())["probed_at"] else None, seconds=90)
    assert (asked["observed_status"], asked["probe_error"]) == ("RUNNING", None)
    busy_until = asked["last_access_at"]
    still = until(lambda: told if (told := reader.shows())["last_access_at"] > busy_until else None, seconds=90)
    assert (still["observed_status"], still["desired_state"]) == ("RUNNING", "RUNNING")
    reader.does("lapse workspaces show notebook")

    # The kernel comes to rest, and nobody is there: standby, and on to the archive.
    assert reader.asks("POST", f"/api/kernels/{kernel}/interrupt", {}).status_code == 204
    assert reader.waits_for("STANDBY")["desired_by"] == "ttl"
    reader.does("lapse workspaces archive notebook")
    assert reader.shows()["archived"] is True

    # Opened again, everything is there.
    reader.sets("--standby-ttl", "10m")
    reader.does("lapse workspaces start notebook")
    reader.opens()
    again = reader.asks("GET", "/api/contents/work.ipynb").json()
    assert (again["content"], again["last_modified"]) == (notebook["content"], notebook["last_modified"])
    kernel = reader.asks("POST", "/api/kernels", {"name": "python3"}).json()["id"]
    assert reader.runs(kernel, "1+1", until_type="execute_result")["data"]["text/plain"] == "2"


def test_every_command_of_the_page_is_run() -> None:
    body = Path(__file__).read_text()
    used = re.findall(r'does\("(lapse [^"]+)"\)', body)
    left_out = [command for command, _ in COMMANDS if not any(command.startswith(one) for one in used)]
    assert left_out == []
