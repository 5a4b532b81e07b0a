"""What does one call to a Kubernetes API server cost the client? Ours, lightkube and bare aiohttp on the same server.

``python -m bench.kube_client [--quick]`` starts a control plane and prints one line of JSON: milliseconds of the
client's own processor time per GET and per DELETE, the median of several rounds in which all take turns. The calls are
in flight 16 at a time over TLS. All but lightkube, which has none to offer, delete under a precondition by uid. Bare
aiohttp reads no object and knows no errors: it is the floor.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import statistics
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import aiohttp
from lightkube import AsyncClient, KubeConfig
from lightkube.generic_resource import create_namespaced_resource

from lapse.kube.api.client import KubeClient
from lapse.kube.auth.config import load_config
from lapse.kube.resources import Kind, ObjectKey, ObjectMeta, Struct
from tests.servers import kube_server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tests.servers import KubeServer

GROUP: Final = "test.lapse.dev"
SPACE: Final = "default"
IN_FLIGHT: Final = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    objects: int = 500
    rounds: int = 5


QUICK: Final = Plan(objects=50, rounds=1)


class WidgetSpec(Struct, frozen=True):
    """As controllers read objects: with the fields that they need."""

    size: int = 0


class Widget(Struct, frozen=True):
    """See `WidgetSpec`."""

    metadata: ObjectMeta
    spec: WidgetSpec = WidgetSpec()


WIDGET: Final = Kind(f"{GROUP}/v1", "Widget", "widgets", Widget)


class Contender(Protocol):
    """A client that can do the two calls."""

    async def get(self, name: str) -> object:
        """Read one object."""
        ...

    async def delete(self, name: str, uid: str) -> None:
        """Delete one object."""
        ...

    async def close(self) -> None:
        """End its connections."""
        ...


class Ours:
    """The client of `lapse.kube`."""

    def __init__(self, server: KubeServer) -> None:
        """Connect as the administrator."""
        self.client = KubeClient(load_config(file=server.kubeconfig, environ={}))

    async def get(self, name: str) -> object:
        """See `Contender`."""
        return await self.client.get(WIDGET, ObjectKey(SPACE, name))

    async def delete(self, name: str, uid: str) -> None:
        """See `Contender`."""
        await self.client.delete(WIDGET, ObjectKey(SPACE, name), uid=uid)

    async def close(self) -> None:
        """See `Contender`."""
        await self.client.close()


class Lightkube:
    """The asynchronous client of lightkube."""

    def __init__(self, server: KubeServer) -> None:
        """Connect as the administrator."""
        self._client = AsyncClient(config=KubeConfig.from_file(str(server.kubeconfig)))
        self._type: Any = create_namespaced_resource(GROUP, "v1", "Widget", "widgets")

    async def get(self, name: str) -> object:
        """See `Contender`."""
        found: object = await self._client.get(self._type, name, namespace=SPACE)
        return found

    async def delete(self, name: str, uid: str) -> None:
        """See `Contender`."""
        await self._client.delete(self._type, name, namespace=SPACE)

    async def close(self) -> None:
        """See `Contender`."""
        await self._client.close()


class Bare:
    """The HTTP library below ours."""

    def __init__(self, server: KubeServer) -> None:
        """Connect as the administrator."""
        context = ssl.create_default_context(cafile=str(server.ca_file))
        context.load_cert_chain(server.client_certificate_file, server.client_key_file)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context))
        self._url = f"{server.url}/apis/{GROUP}/v1/namespaces/{SPACE}/widgets"

    async def get(self, name: str) -> object:
        """See `Contender`."""
        async with self._session.get(f"{self._url}/{name}") as answer:
            return await answer.read()

    async def delete(self, name: str, uid: str) -> None:
        """See `Contender`."""
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        async with self._session.delete(f"{self._url}/{name}", json=options) as answer:
            await answer.read()

    async def close(self) -> None:
        """See `Contender`."""
        await self._session.close()


async def _measure(names: Sequence[str], call: Callable[[str], Awaitable[object]]) -> float:
    """Return milliseconds of processor time per call."""
    waiting = iter(names)

    async def work() -> None:
        for name in waiting:
            await call(name)

    start = time.process_time()
    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
    return (time.process_time() - start) * 1000 / len(names)


async def run(server: KubeServer, plan: Plan) -> dict[str, dict[str, float]]:
    """Let all take turns."""
    ours = Ours(server)
    contenders: dict[str, Contender] = {"lapse": ours, "lightkube": Lightkube(server), "aiohttp": Bare(server)}
    figures: dict[str, dict[str, list[float]]] = {name: {"get": [], "delete": []} for name in contenders}
    for turn in range(plan.rounds):
        for name, contender in contenders.items():
            uids: dict[str, str] = {}
            for number in range(plan.objects):
                body = {"metadata": {"name": f"{name}-{turn}-{number}", "namespace": SPACE}, "spec": {"size": number}}
                made = (await ours.client.create(WIDGET, body)).metadata
                uids[made.name] = made.uid
            await contender.get(next(iter(uids)))  # connections and caches are there
            figures[name]["get"].append(await _measure(list(uids), contender.get))
            figures[name]["delete"].append(
                await _measure(list(uids), lambda one, c=contender, u=uids: c.delete(one, u[one]))  # type: ignore[misc]  # bound now
            )
    assert not (await ours.client.list(WIDGET, namespace=SPACE)).items
    for contender in contenders.values():
        await contender.close()
    return {
        name: {call: round(statistics.median(rounds), 3) for call, rounds in calls.items()}
        for name, calls in figures.items()
    }


def main() -> None:
    """Print the figures."""
    plan = QUICK if "--quick" in sys.argv[1:] else Plan()
    with kube_server() as server:
        figures = asyncio.run(run(server, plan))
    ratio = {call: round(figures["lightkube"][call] / figures["lapse"][call], 1) for call in ("get", "delete")}
    print(json.dumps({"cpu_ms_per_call": figures, "times_as_much": ratio, "in_flight": IN_FLIGHT}))


if __name__ == "__main__":
    main()
