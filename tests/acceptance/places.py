"""The three places where commands work: a state folder that no process serves, a running Lapse, and a cluster.

Each has all its domains, a policy about ConfigMaps, and people: on a folder the one user of the machine, on the others
ann and bob. On a running Lapse and on the cluster, what the built-in domains end waits for approved plans, so that the
loops, which run, leave to the commands what the commands are shown to do.
"""

from __future__ import annotations

import json
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lapse.domains import object_kinds
from lapse.history.api.kinds import RETENTION_POLICY
from lapse.kube.api.client import KubeClient
from lapse.kube.auth.config import load_config
from lapse.objects.kubernetes import KubernetesStore
from tests.acceptance.forked import Forked, Result, install_example
from tests.acceptance.things import (
    HOUR,
    POLICY,
    RECORDS,
    Artifacts,
    Files,
    Keepers,
    Keys,
    Objects,
    Records,
    Requests,
    Selected,
    Things,
    Workspaces,
    folder_store,
)
from tests.integration.operator.conftest import Operator
from tests.servers.lapse_server import LapseServer, clean_environment, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from pathlib import Path

    from lapse.objects.port import ObjectStore
    from tests.servers import KubeServer

OBJECTS: dict[str, type[Objects]] = {
    "requests": Requests,
    "keepers": Keepers,
    "artifacts": Artifacts,
    "history": Records,
    "retention": Selected,
}
UNKNOWN = {
    "requests": "mcr/default",
    "keepers": "keeper",
    "artifacts": "snapshot",
    "history": "history/chaos-system",
    "retention": "ConfigMap/default",
    "workspaces": "workspace",
    "scratch": "scratch",
    "keys": "key/7",
}
CACHED = ("requests", "keepers")
"""Domains whose objects a running Lapse keeps in memory."""
BY_PLAN = "requests,keepers,history,retention,workspaces"
SETTINGS = """
retention_interval = "1s"
request_ttl = "1h"
history_retention_limit = 2

[[retention.policies]]
metadata.name = "maps"
spec = {policy}

[domains.scratch]
folder = "{files}"
max_age = "1h"
interval = "1h"
"""


@dataclass(frozen=True)
class Place:
    """Where commands are run, and what is there."""

    name: str
    flags: tuple[str, ...]
    things: Mapping[str, Things]
    people: Mapping[str, Mapping[str, str]]
    """What tells each person apart, in the environment or as ``--flag``; the first one is who acts."""
    environment: Mapping[str, str]
    forked: Forked
    folder: Path
    """For files of the person."""
    by_plan: bool = False
    names: Iterator[int] = field(default_factory=lambda: iter(range(10_000)))

    def run(self, *words: str, by: str = "ann", code: int = 0) -> Result:
        """Run a command as a person, and demand its exit code."""
        known = self.people[by]
        given = [f"{name}={value}" for name, value in known.items() if name.startswith("--")]
        environment = {name: value for name, value in known.items() if not name.startswith("--")}
        done = self.forked.run([*words, *self.flags, *given], {**self.environment, **environment})
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done

    def json(self, *words: str, by: str = "ann", code: int = 0) -> Any:  # noqa: ANN401 - whatever it prints
        """Run a command for programs: stdout is exactly one document."""
        return json.loads(self.run(*words, "-o", "json", by=by, code=code).stdout)

    def lines(self, *words: str) -> list[Any]:
        """Run a command that prints a document in each line."""
        return [json.loads(line) for line in self.run(*words, "-o", "json").stdout.splitlines()]

    def refused(self, *words: str, by: str = "ann") -> str:
        """Run a command that is wrong usage here, with either output, and return what it says."""
        told = self.run(*words, by=by, code=64)
        assert told.stdout == ""
        assert self.run(*words, "-o", "json", by=by, code=64).stdout == ""
        return told.stderr

    def new(self, domain: str, *, left: int = HOUR) -> str:
        """Make a thing of a domain that is over in so many seconds, and return its address."""
        (made,) = self.new_ones(domain, left)
        return made

    def new_ones(self, domain: str, *lefts: int) -> list[str]:
        """Make several, and wait until they are seen.

        Creation times of a cluster are of whole seconds: what is over is so a little later. A server sees what others
        write to its folder a moment later.
        """
        made = [self.things[domain].make(f"thing-{next(self.names)}", left) for left in lefts]
        if self.name == "cluster" and min(lefts) < 0 and self.domain(domain) == "keepers":
            time.sleep(2)  # noqa: TID251 - the machine's own time passes on a cluster
        if self.name == "server" and self.domain(domain) in CACHED:
            wanted = {self.planned(domain, one) for one in made}
            until(lambda: wanted <= self._addresses(domain), seconds=20)
        return made

    def _addresses(self, domain: str) -> set[str]:
        """Return what a plan has of a domain."""
        found = self.json("plan", "--domain", self.domain(domain), "--within", "60d")
        return {one["address"] for one in found["items"]}

    def has(self, domain: str, address: str) -> bool:
        """Whether it is there, as everybody else sees it."""
        return self.things[domain].is_there(address)

    def is_known(self, domain: str, address: str) -> bool:
        """Whether its store has it at all, be it in the trash."""
        return self.things[domain].is_known(address)

    def is_gone(self, domain: str, address: str) -> bool:
        """Whether it is not there; for a moment artifacts still name a keeper that has ended."""
        if domain == "artifacts":
            until(lambda: not self.has(domain, address), seconds=20)
        return not self.has(domain, address)

    def planned(self, domain: str, address: str) -> str:
        """Return the address under which a plan has a thing."""
        return self.things[domain].lapses_as(address)

    def is_back(self, domain: str, address: str, told: str) -> bool:
        """Whether a thing was brought back, as what a command has told."""
        return self.things[domain].is_back(address, told)

    def end(self, domain: str, address: str) -> None:
        """Let a thing be in the way of no other test."""
        if self.has(domain, address):
            address = self.planned(domain, address)
            self.run("release", address)
            self.run("delete", address, "--yes")

    @staticmethod
    def domain(column: str) -> str:
        """Return the name of a domain: artifacts are in that of their keepers."""
        return "keepers" if column == "artifacts" else column

    def unknown(self, domain: str) -> str:
        """Return the address of a thing that there is not."""
        return f"{UNKNOWN[domain]}/nothing"

    def waits_for_approval(self, domain: str) -> bool:
        """Whether what a domain ends must be in an approved plan."""
        return self.by_plan and domain != "scratch"


def write_settings(folder: Path) -> None:
    """Write the settings of a state folder, with a folder for the example domain."""
    (folder / "files").mkdir()
    policy = ", ".join(f"{name} = {_toml(value)}" for name, value in POLICY["spec"].items())
    (folder / "lapse.toml").write_text(SETTINGS.format(policy=f"{{ {policy} }}", files=folder / "files"))


def _toml(value: Any) -> str:  # noqa: ANN401 - what a policy has
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml(one)}" for name, one in value.items()) + " }"
    return json.dumps(value)


def environment(folder: Path) -> dict[str, str]:
    """Return an environment with the settings of a folder, and with the example domain as if it were installed."""
    return {**clean_environment(folder), "LAPSE_CONFIG": str(folder / "lapse.toml"), "PYTHONPATH": str(folder / "env")}


def things_of(folder: Path) -> dict[str, Things]:
    """Return the things of every domain in a state folder."""

    store = partial(folder_store, folder)

    return {
        **{name: one(store) for name, one in OBJECTS.items()},
        "workspaces": Workspaces(folder),
        "scratch": Files(folder / "files"),
        "keys": Keys((folder / "keys.db").as_uri()),
    }


@contextmanager
def prepared(folder: Path) -> Iterator[Forked]:
    """Prepare a folder, and what runs commands."""
    write_settings(folder)
    install_example(folder / "env")
    forked = Forked.start(environment(folder))
    try:
        yield forked
    finally:
        forked.stop()


@contextmanager
def folder_place(folder: Path) -> Iterator[Place]:
    """A state folder that no process serves."""
    with prepared(folder) as forked:
        yield Place(
            name="folder",
            flags=(f"--state-dir={folder}",),
            things=things_of(folder),
            people={"ann": {}},
            environment=environment(folder),
            forked=forked,
            folder=folder,
        )


@contextmanager
def redis_place(folder: Path, url: str) -> Iterator[Place]:
    """A state folder whose keys are on a server; nothing else of it is asked for."""
    with folder_place(folder) as place:
        yield replace(place, things={"keys": Keys(url)}, environment={**place.environment, "LAPSE_KEYS_URL": url})


@contextmanager
def server_place(folder: Path) -> Iterator[Place]:
    """A running ``lapse up`` with all domains, asked over HTTP with named tokens, from another home."""
    home = folder / "home"
    home.mkdir()
    with prepared(folder) as forked:
        here = environment(folder)
        words = ("tokens", "create", "--scope=admin", f"--state-dir={folder}")
        made = {name: forked.run([*words, f"--name={name}"], here) for name in ("ann", "bob")}
        server = LapseServer.start(folder, settings={**here, "LAPSE_ACT_BY_PLAN": BY_PLAN})
        try:
            yield Place(
                name="server",
                flags=(f"--server={server.http}",),
                things=things_of(folder),
                people={name: {"LAPSE_TOKEN": one.stdout.strip()} for name, one in made.items()},
                environment={**clean_environment(home), "PYTHONPATH": here["PYTHONPATH"]},
                forked=forked,
                folder=home,
                by_plan=True,
            )
        finally:
            server.stop()
            print("".join(server.log[-60:]))  # noqa: T201 - shown beside a failure


@contextmanager
def cluster_place(folder: Path, kube: KubeServer) -> Iterator[Place]:
    """A cluster with a running operator; ann and bob are its administrators."""
    for name in ("lapse-system", RECORDS):
        kube.kubectl("create", "namespace", name)
    bob = (f"--user={kube.user}", "--clusterrole=cluster-admin")
    kube.kubectl("create", "clusterrolebinding", "bob", *bob)
    policies = ("--serviceaccount=lapse-system:lapse-retention", "--clusterrole=cluster-admin")
    kube.kubectl("create", "clusterrolebinding", "policies", *policies)
    kube.kubectl("apply", "-f", "-", stdin=json.dumps(RETENTION_POLICY.body(POLICY)))
    settings = {"LAPSE_CONFIG": str(folder / "lapse.toml"), "LAPSE_ACT_BY_PLAN": "requests,keepers,history,retention"}
    (folder / "lapse.toml").write_text(SETTINGS.partition("[[")[0])
    install_example(folder / "env")
    forked = Forked.start({**clean_environment(folder), "PYTHONPATH": str(folder / "env")})
    operator = Operator.launch(folder, kube.kubeconfig, settings=settings)

    @asynccontextmanager
    async def store(_now: int | None) -> AsyncIterator[ObjectStore]:
        found = KubernetesStore(KubeClient(load_config(file=kube.kubeconfig, environ={})), kinds=object_kinds())
        try:
            yield found
        finally:
            await found.close()

    try:
        yield Place(
            name="cluster",
            flags=(),
            things={name: one(store, is_cluster=True) for name, one in OBJECTS.items()},
            people={
                "ann": {"--kube-config": str(kube.kubeconfig)},
                "bob": {"--kube-config": str(kube.user_kubeconfig)},
            },
            environment={**clean_environment(folder), **settings},
            forked=forked,
            folder=folder,
            by_plan=True,
        )
    finally:
        operator.stop()
        forked.stop()
        print("".join(operator.log[-60:]))  # noqa: T201 - shown beside a failure
