"""The proxies that are compared, each in a process of its own on one port, all before the same program.

configurable-http-proxy comes from npm into ``build/``, nginx from this machine or Debian's package, unpacked into the
cache of test servers. A plain relay on aiohttp, for HTTP only, is what a proxy of ours on that library would cost at
least: it checks nothing and holds no leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from bench.contest import step
from bench.proxy_load import LOOPBACK
from tests.servers.cache import cached, fetched
from tests.servers.errors import FetchError
from tests.servers.packages import Debian
from tests.servers.progress import tell_stderr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiohttp import web

ROOT: Final = Path(__file__).parents[1]
OURS: Final = "lapse"
NGINX: Final = "nginx"
CHP: Final = "configurable-http-proxy"
CHP_VERSION: Final = "5.3.0"
HOST: Final = "bench.w.localhost"


@dataclass(frozen=True, slots=True)
class Peer:
    """A proxy that runs."""

    name: str
    port: int
    pids: list[int]
    websockets: bool = True


class PeerMissingError(Exception):
    """A peer that cannot be had here; says why."""


@contextlib.contextmanager
def child(argv: list[str], port: int, *, env: dict[str, str] | None = None) -> Iterator[int]:
    """Run a process until the block ends; it must take connections on ``port``."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=ROOT, env={**os.environ, **(env or {})})
        try:
            _wait_for(port, process)
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), 1):
            return
        if process.poll() is not None:
            raise PeerMissingError(f"it ended with code {process.returncode}")
        time.sleep(0.05)
    raise PeerMissingError("it does not listen")


# --- configurable-http-proxy -----------------------------------------------------------------------------------------


def _chp() -> Path:
    folder = ROOT / "build" / f"{CHP}-{CHP_VERSION}"
    script = folder / "node_modules" / CHP / "bin" / CHP
    if script.exists():
        return script
    npm = shutil.which("npm")
    if npm is None:
        raise PeerMissingError("there is no npm here to fetch it with")
    folder.mkdir(parents=True, exist_ok=True)
    with step(f"fetching {CHP} {CHP_VERSION} from npm"):
        argv = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), f"{CHP}@{CHP_VERSION}"]
        done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise PeerMissingError(f"npm did not give it: {done.stderr.strip().splitlines()[-1:]}")
    return script


@contextlib.contextmanager
def configurable_http_proxy(ports: tuple[int, int], upstream: int) -> Iterator[Peer]:
    """Route by host, as it would with one workspace per host name."""
    port, api = ports
    node = shutil.which("node")
    if node is None:
        raise PeerMissingError("there is no node here")
    argv = [node, str(_chp()), "--ip", LOOPBACK, "--port", str(port), "--api-ip", LOOPBACK, "--api-port", str(api)]
    token = "bench"  # noqa: S105 - of a proxy that lives for a minute on loopback
    with child([*argv, "--host-routing", "--log-level", "error"], api, env={"CONFIGPROXY_AUTH_TOKEN": token}) as pid:
        request = urllib.request.Request(
            f"http://{LOOPBACK}:{api}/api/routes/{HOST}",
            data=json.dumps({"target": f"http://{LOOPBACK}:{upstream}"}).encode(),
            headers={"Authorization": f"token {token}"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=10):  # noqa: S310 - our own address
            pass
        yield Peer(CHP, port, [pid])


# --- nginx -----------------------------------------------------------------------------------------------------------

_NGINX: Final = """daemon off; worker_processes 1; pid {folder}/pid; error_log stderr error;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
  upstream program {{ server {loopback}:{upstream}; keepalive 64; }}
  server {{
    listen {loopback}:{port} backlog=2048; server_name {host}; keepalive_requests 100000000;
    location / {{
      proxy_pass http://program; proxy_http_version 1.1; proxy_set_header Host $host;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade;
      proxy_set_header X-Forwarded-For $remote_addr; proxy_read_timeout 600s;
    }}
  }}
}}
"""


def _nginx() -> Path:
    found = shutil.which("nginx")
    if found is not None:
        return Path(found)
    package = Debian("nginx", size=600_000)
    try:
        folder = cached(package) or fetched(package, tell_stderr)
    except (FetchError, OSError) as error:
        raise PeerMissingError(f"none on this machine, and Debian's package cannot be had ({error})") from error
    return folder / "usr" / "sbin" / "nginx"


def nginx_version() -> str:
    """Return the version of the one that `nginx` starts."""
    said = subprocess.run([_nginx(), "-v"], capture_output=True, text=True, timeout=10, check=True)
    return said.stderr.strip().rpartition("/")[2]


@contextlib.contextmanager
def nginx(ports: tuple[int, int], upstream: int) -> Iterator[Peer]:
    """One worker, kept connections to the program, no log."""
    binary, port = _nginx(), ports[0]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "nginx.conf"
        text = _NGINX.format(folder=folder, loopback=LOOPBACK, upstream=upstream, port=port, host=HOST)
        config.write_text(text, "utf-8")
        with child([str(binary), "-p", folder, "-c", str(config), "-e", "stderr"], port) as pid:
            workers = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
            yield Peer(NGINX, port, [int(worker) for worker in workers])


# --- ours, and the one on aiohttp ------------------------------------------------------------------------------------


@contextlib.contextmanager
def ours(ports: tuple[int, int], upstream: int) -> Iterator[Peer]:
    """Lapse's, with a lease per connection in its own memory."""
    with child([sys.executable, "-m", "bench.proxy_peers", "ours", str(ports[0]), str(upstream)], ports[0]) as pid:
        yield Peer(OURS, ports[0], [pid])


@contextlib.contextmanager
def on_aiohttp(ports: tuple[int, int], upstream: int) -> Iterator[Peer]:
    """The relay on aiohttp, with uvloop."""
    with child([sys.executable, "-m", "bench.proxy_peers", "aiohttp", str(ports[0]), str(upstream)], ports[0]) as pid:
        yield Peer("aiohttp", ports[0], [pid], websockets=False)


async def _run_ours(port: int, upstream: int) -> None:
    from lapse.app.process import settle_memory
    from lapse.proxy.limits import ProxyLimits
    from lapse.proxy.server import Options, Proxy
    from tests.integration.proxy.kit import World

    world = World(people={"bench": "ann"}, accesses=Counter())
    world.add("bench", upstream)
    # All clients of the benchmark have one address, and nobody else is to be protected from them.
    proxy = Proxy(world.ports(), Options(limits=ProxyLimits(connections_per_peer=0)))
    await proxy.start(LOOPBACK, port)
    settle_memory()
    await asyncio.Event().wait()


async def _run_aiohttp(port: int, upstream: int) -> None:
    import aiohttp
    from aiohttp import web

    client = aiohttp.ClientSession(auto_decompress=False, connector=aiohttp.TCPConnector(limit=0))

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        url = f"http://{LOOPBACK}:{upstream}{request.path_qs}"
        async with client.request(request.method, url, headers=request.headers, allow_redirects=False) as answer:
            response = web.StreamResponse(status=answer.status, headers=answer.headers)
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            return response

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, LOOPBACK, port, backlog=2048).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    _runs = {"ours": _run_ours, "aiohttp": _run_aiohttp}
    uvloop.run(_runs[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3])))
