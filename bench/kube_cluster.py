"""A control plane to measure on: what it counted, what its processes used, and a real ``lapse operator`` beside it.

The operator runs as it does in a cluster, as the service account of ``deploy/base`` with exactly its rights. So the API
server counts its calls apart from everybody else's: no other service account outside of kube-system calls anything.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp

from lapse.kube.api.client import KubeClient
from lapse.kube.api.transport import CallLimits
from lapse.kube.auth.config import load_config
from tests.servers.lapse_server import clean_environment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from tests.servers import KubeServer

NAMESPACE: Final = "lapse-system"
MANAGER: Final = "controller-manager"
_ROOT: Final = Path(__file__).resolve().parent.parent
_DEPLOY: Final = _ROOT / "deploy" / "base"
_FILES: Final = ("namespace.yaml", "service-account.yaml", "cluster-role.yaml", "role.yaml")
_ACCOUNTS: Final = "service-accounts"
"""The flow schema of all service accounts but those of kube-system."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_IN_FLIGHT: Final = 32
_WAIT_SECONDS: Final = 120.0
_SERIES: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_PROFILED: Final = """
import cProfile, sys, time
file = sys.argv.pop(1)
profile = cProfile.Profile(time.process_time)  # not wall time: others take the processor away, too
from lapse.cli import main
try:
    profile.runcall(main)
finally:
    profile.dump_stats(file)
"""


# --- what was counted ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Calls:
    """What the API server has answered so far."""

    by_resource: Mapping[tuple[str, str], int]
    """By verb and resource, whoever called. A watch counts when it ends."""
    of_operator: int
    """Everything that the operator asked, watches included."""

    def since(self, before: Calls) -> Calls:
        """Return what came between the two."""
        new = Counter(self.by_resource)
        new.subtract(before.by_resource)
        return Calls({what: count for what, count in new.items() if count}, self.of_operator - before.of_operator)

    @property
    def leases(self) -> int:
        """Calls for leadership; those of the API server, which keeps a lease by PUT, are not in it."""
        return sum(n for (verb, resource), n in self.by_resource.items() if resource == "leases" and verb != "PUT")

    @property
    def all_but_watches_and_leases(self) -> int:
        """All work, whoever did it; also what the components of the control plane ask in passing."""
        return sum(n for (verb, resource), n in self.by_resource.items() if verb != "WATCH" and resource != "leases")


def read_calls(text: str) -> Calls:
    """Read the metrics of an API server."""
    by_resource: Counter[tuple[str, str]] = Counter()
    of_operator = 0
    for line in text.splitlines():
        if line.startswith("apiserver_request_total{"):
            labels = dict(_SERIES.findall(line))
            if labels["resource"]:  # other paths are health checks and these metrics
                by_resource[labels["verb"], labels["resource"]] += _value(line)
        elif line.startswith("apiserver_flowcontrol_dispatched_requests_total{"):
            of_operator += _value(line) if dict(_SERIES.findall(line))["flow_schema"] == _ACCOUNTS else 0
    return Calls(by_resource, of_operator)


def _value(line: str) -> int:
    return int(float(line.rpartition(" ")[2]))


# --- what was used ---------------------------------------------------------------------------------------------------


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU time that a process has used, all its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_of(pid: int, name: str = "VmRSS") -> int:
    """Return a process's resident bytes; ``VmHWM`` gives their peak."""
    for line in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/{pid}/status has no {name}")


# --- the control plane -----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Cluster:
    """A control plane, as its administrator sees it."""

    server: KubeServer
    client: KubeClient
    _session: aiohttp.ClientSession | None = field(default=None, repr=False)

    @classmethod
    async def open(cls, server: KubeServer) -> Self:
        """Connect, and make the account of the operator."""
        for file in _FILES:
            await asyncio.to_thread(server.kubectl, "apply", "-f", str(_DEPLOY / file))
        config = load_config(file=server.kubeconfig, environ={})
        return cls(server, KubeClient(config, limits=CallLimits(request_seconds=120.0)))

    async def close(self) -> None:
        """End all connections."""
        await self.client.close()
        if self._session is not None:
            await self._session.close()

    async def calls(self) -> Calls:
        """Ask what was answered so far."""
        async with self.session.get(f"{self.server.url}/metrics", ssl=self.context) as answer:
            return read_calls(await answer.text())

    @property
    def session(self) -> aiohttp.ClientSession:
        """For what is no object, or is to be read as it comes."""
        if self._session is None:
            headers = {"Authorization": f"Bearer {self.server.admin_token}"}
            timeout = aiohttp.ClientTimeout(total=None)
            self._session = aiohttp.ClientSession(headers=headers, timeout=timeout, read_bufsize=2**20)
        return self._session

    @cached_property
    def context(self) -> ssl.SSLContext:
        """Trust the server."""
        return ssl.create_default_context(cafile=str(self.server.ca_file))

    def pid(self, component: str) -> int:
        """Return the process of a component."""
        return self.server.component(component).pid

    def cpu(self, *components: str) -> float:
        """Return the CPU time of these components."""
        return sum(cpu_seconds_of(self.pid(component)) for component in components)

    def account(self, folder: Path) -> Path:
        """Write a kubeconfig of the operator's account."""
        token = self.server.kubectl("create", "token", "lapse", "-n", NAMESPACE, "--duration=24h").strip()
        certificate = str(self.server.ca_file)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": self.server.url, "certificate-authority": certificate}}],
            "users": [{"name": "u", "user": {"token": token}}],
        }
        path = folder / "operator.kubeconfig"
        path.write_text(json.dumps(config), encoding="utf-8")
        return path

    async def watch_deletions(self, path: str, version: str, gone: list[float]) -> None:
        """Note the moment of each deletion below ``path`` after ``version``, until cancelled.

        Lines are counted and not read: whoever measures must not take the machine from those who are measured.
        """
        accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
        url = f"{self.server.url}{path}?watch=1&resourceVersion={version}&timeoutSeconds=3600"
        rest = b""
        async with self.session.get(url, ssl=self.context, headers={"Accept": accept}) as answer:
            answer.raise_for_status()
            async for piece in answer.content.iter_any():
                *lines, rest = (rest + piece).split(b"\n")
                now = time.time()
                gone.extend(now for line in lines if line.startswith(b'{"type":"DELETED"'))


async def each(items: Iterable[Any], call: Callable[[Any], Awaitable[object]]) -> None:
    """Call for each item, a few dozen in flight."""
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            await call(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(_IN_FLIGHT):
            group.create_task(work())


# --- the operator ----------------------------------------------------------------------------------------------------


class Operator:
    """A running ``lapse operator``, whose log goes to a file as it would in a cluster."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        """Hold the process; see `running`."""
        self.process, self.log = process, log

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid

    @property
    def cpu(self) -> float:
        """The CPU time that it has used."""
        return cpu_seconds_of(self.pid)

    def events(self, name: str) -> Iterator[dict[str, Any]]:
        """Read its log."""
        with self.log.open(encoding="utf-8") as lines:
            for line in lines:
                if f'"{name}"' in line and (event := json.loads(line))["event"] == name:
                    yield event

    async def ready(self) -> None:
        """Wait until it leads and its caches are filled; raises what it says when it ends instead."""
        probes = None
        async with asyncio.timeout(_WAIT_SECONDS), aiohttp.ClientSession() as session:
            while True:
                await asyncio.sleep(0.1)
                if self.process.poll() is not None:
                    raise RuntimeError(self.log.read_text("utf-8"))
                probes = probes or next((event["probes"] for event in self.events("listening")), None)
                if probes is not None and await _is_ready(session, probes):
                    return

    def stop(self) -> None:
        """End it in order."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


async def _is_ready(session: aiohttp.ClientSession, probes: str) -> bool:
    try:
        async with session.get(f"{probes}/readyz") as ready, session.get(f"{probes}/metrics") as metrics:
            return ready.status == 200 and "\nlapse_leader 1.0" in await metrics.text()
    except aiohttp.ClientError:
        return False


@contextmanager
def running_operator(cluster: Cluster, folder: Path, *flags: str) -> Iterator[Operator]:
    """Start an operator; it is stopped at the end."""
    number = len(list(folder.glob("operator-*.log")))
    log = folder / f"operator-{number}.log"
    fixed = ["--probes-port=0", "--log-format=json", f"--kube-config={cluster.account(folder)}"]
    program = [sys.executable, "-m", "lapse"]
    if profile := os.environ.get("BENCH_PROFILE"):
        program = [sys.executable, "-c", _PROFILED, f"{profile}-{number}"]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [*program, "operator", *fixed, *flags],
            env={name: value for name, value in clean_environment(folder).items() if name != "PYTHONUNBUFFERED"},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stderr=stderr,
        )
    operator = Operator(process, log)
    try:
        yield operator
    finally:
        operator.stop()
