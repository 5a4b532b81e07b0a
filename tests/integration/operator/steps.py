"""What tests of the operator do over and over: wait, make a claim, ask for captures, look at what became of them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from lapse.core.clock import SystemClock
from lapse.kube.errors import NotFoundError, StoreUnavailableError
from lapse.kube.resources import Object, ObjectKey, ready_condition
from lapse.requests.api.conditions import is_final
from lapse.requests.api.kinds import MANIFEST_CAPTURE_REQUEST, VOLUME_CAPTURE_REQUEST
from lapse.requests.api.upstream import PERSISTENT_VOLUME_CLAIM
from tests.servers.kube.csi import CLASS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from lapse.kube.resources import Kind
    from lapse.objects.kubernetes import KubernetesStore
    from tests.servers import KubeServer

T = TypeVar("T", bound=Object)
A = TypeVar("A")
Json = dict[str, Any]
CLOCK = SystemClock()
HOLD = "lapse.dev/hold"


async def until(ask: Callable[[], Awaitable[A | None]], *, seconds: float = 100) -> A:
    """Ask again and again until there is an answer; an API server that is away has given none."""
    async with asyncio.timeout(seconds):
        while True:
            with suppress(StoreUnavailableError):
                if answer := await ask():
                    return answer
            await CLOCK.sleep(0.05)


async def found(store: KubernetesStore, kind: Kind[T], key: ObjectKey) -> T | None:
    try:
        return await store.get(kind, key)
    except NotFoundError:
        return None


async def until_gone(store: KubernetesStore, kind: Kind[Any], key: ObjectKey) -> None:
    async def gone() -> bool:
        return await found(store, kind, key) is None

    await until(gone)


async def until_ended(store: KubernetesStore, kind: Kind[Any], key: ObjectKey, *, seconds: float = 100) -> Any:  # noqa: ANN401 - a request
    """Wait until a request is final, in whatever way."""

    async def final() -> Any:  # noqa: ANN401 - as above
        request = await store.get(kind, key)
        return request if request.status is not None and is_final(request.status.conditions) else None

    return await until(final, seconds=seconds)


async def until_final(store: KubernetesStore, kind: Kind[Any], key: ObjectKey) -> Any:  # noqa: ANN401 - a request
    """Wait until a request is completed; that it ends in any other way is a failure."""
    request = await until_ended(store, kind, key)
    condition = ready_condition(request.status.conditions)
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "Completed"), condition
    return request


# --- making things ----------------------------------------------------------------------------------------------------


async def bound_claim(store: KubernetesStore, kube: KubeServer, namespace: str, name: str = "data") -> tuple[Any, Path]:
    """A claim of the driver's, with the file `greeting` on its volume."""
    spec = {
        "storageClassName": CLASS,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Mi"}},
    }
    await store.create(PERSISTENT_VOLUME_CLAIM, {"metadata": {"name": name, "namespace": namespace}, "spec": spec})

    async def bound() -> Any:  # noqa: ANN401 - a claim
        claim = await store.get(PERSISTENT_VOLUME_CLAIM, ObjectKey(namespace, name))
        return claim if claim.status is not None and claim.status.phase == "Bound" else None

    claim = await until(bound)
    folder = await asyncio.to_thread(kube.claim_folder, name, namespace=namespace)
    (folder / "greeting").write_text("moin\n", encoding="ascii")
    return claim, folder


async def ask_for_capture(
    store: KubernetesStore,
    claim: Any,  # noqa: ANN401 - a claim
    *,
    held: bool,
    name: str = "nightly",
    annotations: dict[str, str] | None = None,
) -> ObjectKey:
    meta = claim.metadata
    target = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": meta.name, "uid": meta.uid}
    notes = {**({HOLD: "true"} if held else {}), **(annotations or {})}
    body = {
        "metadata": {"name": name, "namespace": meta.namespace, "annotations": notes},
        "spec": {"mode": "Snapshot", "target": target},
    }
    return (await store.create(VOLUME_CAPTURE_REQUEST, body)).metadata.key


async def ask_for_manifests(
    store: KubernetesStore, namespace: str, targets: list[Json], *, name: str = "settings", held: bool = True
) -> ObjectKey:
    meta = {"name": name, "namespace": namespace, "annotations": {HOLD: "true"} if held else {}}
    body = {"metadata": meta, "spec": {"targets": targets}}
    return (await store.create(MANIFEST_CAPTURE_REQUEST, body)).metadata.key


async def let_go(store: KubernetesStore, kind: Kind[Any], key: ObjectKey) -> None:
    await store.patch(kind, key, {"metadata": {"annotations": {HOLD: None}}})
