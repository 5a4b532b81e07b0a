"""What the contract cannot ask of a server in order: that it is away, and that it says no."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.kube.errors import ForbiddenError, StoreUnavailableError
from lapse.kube.resources import ObjectKey
from tests.conformance.objects.book import WIDGET, widget
from tests.conformance.objects.kubernetes_adapter import KubernetesStore
from tests.servers.ports import reserved_port

if TYPE_CHECKING:
    from tests.servers import KubeServer


async def test_a_server_that_is_away_proves_nothing() -> None:
    with reserved_port() as port:
        store = KubernetesStore(f"http://127.0.0.1:{port}", ca_file=None)
        with pytest.raises(StoreUnavailableError):
            await store.get(WIDGET, ObjectKey("default", "a"))
        with pytest.raises(StoreUnavailableError):
            await store.check()
        with pytest.raises(StoreUnavailableError):
            await anext(store.watch(WIDGET, since="1"))
        await store.close()


@pytest.mark.server("kube")
async def test_what_is_not_allowed_is_forbidden(shared_kube: KubeServer) -> None:
    store = KubernetesStore(shared_kube.url, ca_file=shared_kube.ca_file, token=shared_kube.user_token)
    with pytest.raises(ForbiddenError):
        await store.create(WIDGET, widget("default", "a"))
    with pytest.raises(ForbiddenError):
        await store.list(WIDGET)
    with pytest.raises(ForbiddenError):
        await anext(store.watch(WIDGET, since="1"))
    await store.close()
