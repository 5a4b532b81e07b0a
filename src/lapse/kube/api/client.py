"""A client of the Kubernetes API: one method is one call, on objects of any `Kind`.

Guarantees: every call ends within a time limit; a deletion or a patch may name the uid and the version that it is meant
for; every error is one of `lapse.kube.errors`, and none holds a secret. It keeps no copy of anything and repeats
nothing on its own account: whoever knows what a failure means for him decides when to try again
(`StoreUnavailableError.retry_after` says what the server would like).

Not done here: finding kinds (`lapse.kube.api.discovery`), keeping a copy current (`lapse.kube.controller.informer`),
and a patch of the status under a uid alone, which the API does not have (`lapse.objects.kubernetes` makes one of two
calls).
"""

from __future__ import annotations

import os
import platform
from contextlib import aclosing
from email.utils import parsedate_to_datetime
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from lapse.core.clock import SystemClock
from lapse.core.jitter import Chance, around, chance
from lapse.kube.api import wire
from lapse.kube.api.failures import failure
from lapse.kube.api.transport import SUCCESS, CallLimits, Response, Transport
from lapse.kube.errors import InvalidError
from lapse.kube.resources import NO_LABELS, Json, Kind, Object, ObjectKey, Page, untyped

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from lapse.core.clock import Clock
    from lapse.kube.auth.config import KubeConfig
    from lapse.kube.errors import ObjectError
    from lapse.kube.resources import Event

T = TypeVar("T", bound=Object)
A = TypeVar("A")


def _own_version() -> str:
    try:
        return metadata.version("lapse")  # not lapse.__version__: what is below must not import the top of the package
    except metadata.PackageNotFoundError:
        return "unknown"


USER_AGENT: Final = f"lapse/{_own_version()} ({platform.system().lower()}/{platform.machine()})"
WATCH_SECONDS: Final = 300.0
"""How long the server lets a watch run: each end costs a call, and spreads watches over servers again."""
_LIMITS: Final = CallLimits()
_NS: Final = 1_000_000_000
_SERVER: Final = untyped("v1", "server", "")
"""What is asked when no object is."""


class KubeClient:
    """See the module. Belongs to one event loop, from its first use."""

    def __init__(
        self,
        config: KubeConfig,
        *,
        clock: Clock | None = None,
        environ: Mapping[str, str] | None = None,
        limits: CallLimits = _LIMITS,
        user_agent: str = USER_AGENT,
        watch_seconds: float = WATCH_SECONDS,
        chance: Chance = chance,
    ) -> None:
        """Connect to nothing yet; raises `KubeConfigError`. ``environ`` is what credential plugins see."""
        self.config = config
        self.clock = clock or SystemClock()
        self._watch_seconds, self._chance = watch_seconds, chance
        self._transport = Transport(
            config,
            clock=self.clock,
            environ=os.environ if environ is None else environ,
            limits=limits,
            user_agent=user_agent,
        )

    # --- reading ------------------------------------------------------------------------------------------------------

    async def get(self, kind: Kind[T], key: ObjectKey) -> T:
        """Return one object; raises `NotFoundError`."""
        content = await self._read("GET", wire.address(kind, key), kind, key, accept=wire.accept(kind))
        return wire.read_object(kind, content, name=key.name)

    async def list(
        self,
        kind: Kind[T],
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] = NO_LABELS,
        fields: Mapping[str, str] = NO_LABELS,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[T]:
        """Return the objects that have all of ``labels``, of one namespace or of all.

        ``fields`` asks for those whose fields are so; which ones the server can look at is a matter of the kind.
        ``limit`` asks for pages, ``after`` is `Page.next`; a page that comes too late raises `GoneError`. Of a kind
        made by `metadata_only` the server sends no more than that.
        """
        query = wire.list_query(kind, labels=labels, fields=fields, limit=limit, after=after)
        path = f"{_collection(kind, namespace)}?{query}"
        accept = wire.accept(kind, "List")
        return wire.read_page(kind, await self._read("GET", path, kind, after or "list", accept=accept))

    async def watch(self, kind: Kind[T], *, namespace: str | None = None, since: str) -> AsyncGenerator[Event[T], None]:
        """Report what happens after the version ``since``, with bookmarks; ends by itself after some minutes.

        Raises `GoneError` when ``since`` is too old, and `StoreUnavailableError` when the connection is cut or silent.
        """
        seconds = max(1, round(around(self._watch_seconds, chance=self._chance)))
        path = f"{_collection(kind, namespace)}?{wire.watch_query(since, seconds)}"
        lines = wire.Lines()
        pieces = self._transport.stream(
            path, accept=wire.accept(kind), seconds=seconds, refusal=lambda response: _failure(response, kind, since)
        )
        async with aclosing(pieces):
            async for piece in pieces:
                for line in lines.feed(piece):
                    yield wire.read_event(kind, line, since=since)

    async def fetch(self, path: str, form: type[A]) -> A:
        """Return what the server has at a path that is no object, such as ``/version``."""
        content = await self._read("GET", path, _SERVER, path, accept=wire.JSON)
        try:
            return msgspec.json.decode(content, type=form, strict=False)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise wire.unreadable(_SERVER, error) from None

    def answered_within(self, seconds: float) -> bool:
        """Whether the server has granted a call, or reported in a watch, so recently. Asks nothing; any thread may."""
        answered_ns = self._transport.answered_ns
        return answered_ns is not None and self.clock.boottime_ns() - answered_ns <= seconds * _NS

    async def now_ns(self) -> int | None:
        """Return the server's time as Unix nanoseconds, to the second; None when its response does not tell."""
        response = await self._transport.call("GET", "/version", accept=wire.JSON)  # refused or not: it has a date
        try:
            return None if response.date is None else round(parsedate_to_datetime(response.date).timestamp() * _NS)
        except (ValueError, OverflowError):
            return None

    async def check(self) -> None:
        """Raise unless the server answers, and says that it is ready."""
        await self._read("GET", "/readyz", _SERVER, "readyz", accept="*/*")

    # --- writing ------------------------------------------------------------------------------------------------------

    async def create(self, kind: Kind[T], obj: T | Json) -> T:
        """Store a new object; raises `AlreadyExistsError`, `InvalidError`, or `NotFoundError` for its namespace."""
        key, body = wire.new_object(kind, obj)
        path = wire.collection(kind, key.namespace)
        return wire.read_object(kind, await self._send("POST", path, kind, key, body=body))

    async def patch(
        self, kind: Kind[T], key: ObjectKey, changes: Json, *, uid: str | None = None, version: str | None = None
    ) -> T:
        """Merge ``changes`` (RFC 7386) into all but the status; return the new state."""
        body = wire.with_preconditions(changes, uid=uid, version=version)
        return wire.read_object(kind, await self._send("PATCH", wire.address(kind, key), kind, key, body=body, uid=uid))

    async def patch_status(self, kind: Kind[T], key: ObjectKey, changes: Json, *, version: str | None = None) -> T:
        """Merge ``changes``, which are those of the status itself, into the status; return the new state.

        There is no precondition by uid: the server ignores it here. A version belongs to one object only.
        """
        if not kind.status:
            raise InvalidError(kind=kind.kind, name=key, problem="its status cannot be patched apart from the rest")
        body = wire.with_preconditions({"status": changes}, uid=None, version=version)
        path = wire.address(kind, key, "/status")
        return wire.read_object(kind, await self._send("PATCH", path, kind, key, body=body))

    async def delete(
        self,
        kind: Kind[Any],
        key: ObjectKey,
        *,
        uid: str | None = None,
        version: str | None = None,
        propagation: str = "Background",
    ) -> None:
        """Ask for the end of an object; raises `NotFoundError`, or `ConflictError` when it is not that one.

        An object with finalizers stays, marked, until others are done with it.
        """
        options = wire.delete_options(uid=uid, version=version, propagation=propagation)
        response = await self._transport.call(
            "DELETE", wire.address(kind, key), accept=wire.JSON, content_type=wire.JSON, body=options
        )
        if response.status not in SUCCESS:
            raise _failure(response, kind, key)

    async def close(self) -> None:
        """End all connections. Idempotent."""
        await self._transport.close()

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _read(self, method: str, path: str, kind: Kind[Any], name: object, *, accept: str) -> bytes:
        response = await self._transport.call(method, path, accept=accept)
        if response.status not in SUCCESS:
            raise _failure(response, kind, name)
        return response.content

    async def _send(
        self, method: str, path: str, kind: Kind[Any], key: ObjectKey, *, body: Json, uid: str | None = None
    ) -> bytes:
        try:
            content = msgspec.json.encode(body)
        except (TypeError, ValueError, OverflowError, RecursionError, UnicodeError) as error:
            raise InvalidError(kind=kind.kind, name=key, problem=f"it cannot be written as JSON ({error})") from None
        response = await self._transport.call(
            method,
            path,
            accept=wire.accept(kind),
            content_type=wire.MERGE_PATCH if method == "PATCH" else wire.JSON,
            body=content,
        )
        if response.status not in SUCCESS:
            raise _failure(response, kind, key, uid=uid)
        return response.content


def _collection(kind: Kind[Any], namespace: str | None) -> str:
    if namespace is not None and (not kind.namespaced or not namespace):
        raise InvalidError(
            kind=kind.kind, name="list", problem="it is found in no namespace, or the namespace is empty"
        )
    return wire.collection(kind, namespace)


def _failure(response: Response, kind: Kind[Any], name: object, *, uid: str | None = None) -> ObjectError:
    return failure(response.status, response.content, kind=kind, name=name, uid=uid, retry_after=response.retry_after)
