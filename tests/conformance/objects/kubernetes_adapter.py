"""The object-store port over a real Kubernetes API server, as thin as it can be: the contract's second opinion.

It says what the server says, translated into the port's words, and adds nothing: no retries, no cache, no election of
servers. The translations that are not obvious:

- ``metadata.uid`` in a merge patch is a precondition; a wrong one is answered as an invalid change of that field. In a
  patch of the status the server ignores it: there a version must stand for it, which no two objects share;
- a new object may not name a resource version, and what it says of its status is dropped by the server;
- 'gone' comes as a status before a list and as an event inside a watch that has begun well.
"""

from __future__ import annotations

import io
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from lapse.core.clock import SystemClock
from lapse.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NotFoundError,
    ObjectError,
    StoreUnavailableError,
    UnknownKindError,
)
from lapse.kube.resources import NO_LABELS, Event, EventType, Json, Kind, Object, ObjectKey, Page, untyped

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
    from pathlib import Path

    from lapse.objects.port import ObjectStore

T = TypeVar("T", bound=Object)
MERGE_PATCH: Final = "application/merge-patch+json"
WATCH_SECONDS: Final = 4
"""The server sends a bookmark two seconds before it ends a watch, otherwise once a minute: so watches end soon."""
REQUEST_SECONDS: Final = 30


class KubernetesStore:
    """See the module. Belongs to one event loop."""

    database = None

    def __init__(
        self,
        url: str,
        *,
        ca_file: Path | None,
        certificate: tuple[Path, Path] | None = None,
        token: str = "",
        kinds: Iterable[Kind[Any]] = (),
    ) -> None:
        """The client shows a ``certificate``, given with its key, or a ``token``."""
        self._headers = {"User-Agent": "lapse-contract", **({"Authorization": f"Bearer {token}"} if token else {})}
        self._url = url
        self._kinds = {(kind.api_version, kind.kind): kind for kind in kinds}
        self._tls: ssl.SSLContext | bool = True
        if ca_file is not None:
            self._tls = ssl.create_default_context(cafile=str(ca_file))
            if certificate is not None:
                self._tls.load_cert_chain(*map(str, certificate))
        self._session: aiohttp.ClientSession | None = None

    async def get(self, kind: Kind[T], key: ObjectKey) -> T:
        return kind.decode(await self._ask("GET", kind, key))

    async def list(
        self,
        kind: Kind[T],
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] = NO_LABELS,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[T]:
        query = {"labelSelector": ",".join(f"{name}={value}" for name, value in labels.items())} if labels else {}
        if limit is not None:
            query["limit"] = str(limit)
        if after is not None:
            query["continue"] = after
        answer = msgspec.json.decode(await self._ask("GET", kind, ObjectKey(namespace, ""), query=query))
        named = {"apiVersion": kind.api_version, "kind": kind.kind}
        return Page(
            items=tuple(kind.convert({**named, **item}) for item in answer["items"]),
            resource_version=answer["metadata"]["resourceVersion"],
            next=answer["metadata"].get("continue") or None,
        )

    async def resolve(self, api_version: str, kind: str) -> Kind[Any]:
        if (api_version, kind) in self._kinds:
            return self._kinds[api_version, kind]
        try:
            answer = await self._send("GET", _root(api_version), about=(kind, api_version))
        except (NotFoundError, UnknownKindError):
            raise UnknownKindError(kind=kind, api_version=api_version) from None
        for resource in msgspec.json.decode(answer)["resources"]:
            if resource["kind"] == kind and "/" not in resource["name"]:
                return untyped(api_version, kind, resource["name"], namespaced=resource["namespaced"])
        raise UnknownKindError(kind=kind, api_version=api_version)

    async def watch(self, kind: Kind[T], *, namespace: str | None = None, since: str) -> AsyncGenerator[Event[T], None]:
        query = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": since}
        query["timeoutSeconds"] = str(WATCH_SECONDS)
        path = _path(kind, ObjectKey(namespace, ""))
        async with self._answer("GET", path, query=query) as answer:
            if answer.status != 200:
                raise _error(answer.status, await answer.read(), kind, since)
            pending = b""
            try:
                async for part in answer.content.iter_any():
                    *lines, pending = (pending + part).split(b"\n")
                    for line in lines:
                        yield _event(kind, since, msgspec.json.decode(line))
            finally:
                if answer.connection is not None and answer.connection.transport is not None:
                    answer.connection.transport.abort()  # a farewell by TLS would outlive the event loop

    async def create(self, kind: Kind[T], obj: T | Json) -> T:
        body = kind.body(obj)
        metadata = body.get("metadata")
        if not isinstance(metadata, dict):
            raise InvalidError(kind=kind.kind, name="?", problem="metadata is no object")
        body = {**body, "metadata": {k: v for k, v in metadata.items() if k != "resourceVersion"}}
        if kind.namespaced and not metadata.get("namespace"):
            raise InvalidError(kind=kind.kind, name=metadata.get("name"), problem="it names no namespace")
        where = ObjectKey(metadata["namespace"] if kind.namespaced else None, "")
        return kind.decode(await self._ask("POST", kind, where, body=body, name=str(metadata.get("name"))))

    async def patch(
        self, kind: Kind[T], key: ObjectKey, changes: Json, *, uid: str | None = None, version: str | None = None
    ) -> T:
        body = _preconditions(changes, uid, version)
        return kind.decode(await self._ask("PATCH", kind, key, body=body, uid=uid))

    async def patch_status(
        self, kind: Kind[T], key: ObjectKey, changes: Json, *, uid: str | None = None, version: str | None = None
    ) -> T:
        while True:
            seen = version or (None if uid is None else await self._version_of(kind, key, uid))
            body = _preconditions({"status": changes}, None, seen)
            try:
                return kind.decode(await self._ask("PATCH", kind, key, part="/status", body=body))
            except ConflictError:
                if version is not None or uid is None:
                    raise

    async def _version_of(self, kind: Kind[Any], key: ObjectKey, uid: str) -> str:
        found = (await self.get(kind, key)).metadata
        if found.uid != uid:
            raise ConflictError(kind=kind.kind, name=key, problem=f"its uid is {found.uid}, not {uid}")
        return str(found.resource_version)

    async def delete(
        self,
        kind: Kind[Any],
        key: ObjectKey,
        *,
        uid: str | None = None,
        version: str | None = None,
        also: Callable[[Any], None] | None = None,
    ) -> None:
        assert also is None, "there is no database to write to"
        wanted = {"uid": uid, "resourceVersion": version}
        preconditions = {name: value for name, value in wanted.items() if value is not None}
        await self._ask("DELETE", kind, key, body={"propagationPolicy": "Background", "preconditions": preconditions})

    async def check(self) -> None:
        await self._send("GET", "/readyz", about=("server", ""))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            await SystemClock().sleep(0)  # aborted connections end in the loop's next turn

    # --- requests -----------------------------------------------------------------------------------------------------

    async def _ask(
        self,
        method: str,
        kind: Kind[Any],
        key: ObjectKey,
        *,
        name: str | None = None,
        part: str = "",
        uid: str | None = None,
        body: Json | None = None,
        query: Mapping[str, str] = NO_LABELS,
    ) -> bytes:
        async with self._answer(method, _path(kind, key) + part, body=body, query=query) as answer:
            content = await answer.read()
            if answer.status < 300:
                return content
            raise _error(answer.status, content, kind, name or key.name or "?", uid=uid)

    async def _send(self, method: str, path: str, *, about: tuple[str, str]) -> bytes:
        async with self._answer(method, path) as answer:
            content = await answer.read()
            if answer.status < 300:
                return content
            raise _error(answer.status, content, untyped(about[1], about[0], ""), "?")

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, *, body: Json | None = None, query: Mapping[str, str] = NO_LABELS
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS), headers=self._headers
            )
        content = None if body is None else io.BytesIO(msgspec.json.encode(body))  # bytes of a megabyte make it warn
        headers = {"Content-Type": MERGE_PATCH if method == "PATCH" else "application/json"}
        try:
            async with self._session.request(
                method, f"{self._url}{path}", params=dict(query), data=content, headers=headers, ssl=self._tls
            ) as answer:
                yield answer
        except (aiohttp.ClientError, TimeoutError) as error:
            raise StoreUnavailableError(problem=str(error) or type(error).__name__) from error


def _root(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _path(kind: Kind[Any], key: ObjectKey) -> str:
    space = "" if key.namespace is None else f"/namespaces/{quote(key.namespace, safe='')}"
    name = f"/{quote(key.name, safe='')}" if key.name else ""
    return f"{_root(kind.api_version)}{space}/{kind.plural}{name}"


def _preconditions(changes: Json, uid: str | None, version: str | None) -> Json:
    wanted = {"uid": uid, "resourceVersion": version}
    given = {name: value for name, value in wanted.items() if value is not None}
    if not given:
        return changes
    return {**changes, "metadata": {**changes.get("metadata", {}), **given}}


def _event(kind: Kind[T], since: str, told: Json) -> Event[T]:
    body = told["object"]
    if told["type"] == "ERROR":
        raise _error(body.get("code", 500), msgspec.json.encode(body), kind, since)
    version = body["metadata"]["resourceVersion"]
    if told["type"] == "BOOKMARK":
        return Event(EventType.BOOKMARK, None, version)
    return Event(EventType(told["type"]), kind.convert(body), version)


def _error(code: int, content: bytes, kind: Kind[Any], name: str, *, uid: str | None = None) -> ObjectError:
    try:
        status: Json = msgspec.json.decode(content)
    except msgspec.DecodeError:
        status = {"message": content.decode(errors="replace").strip()}
    reason, problem = status.get("reason"), status.get("message", "")
    causes = (status.get("details") or {}).get("causes") or []
    if uid is not None and code == 422 and any(cause.get("field") == "metadata.uid" for cause in causes):
        return ConflictError(kind=kind.kind, name=name, problem=problem)
    if code == 500 and "request is too large" in problem:  # etcd's limit, which lies below the server's own
        return InvalidError(kind=kind.kind, name=name, problem=problem)
    if code == 404 and reason is None:
        return UnknownKindError(kind=kind.kind, api_version=kind.api_version)
    if code == 409 and reason == "AlreadyExists":
        return AlreadyExistsError(kind=kind.kind, name=name)
    answers: dict[int, ObjectError] = {
        403: ForbiddenError(problem=problem),
        404: NotFoundError(kind=kind.kind, name=name),
        409: ConflictError(kind=kind.kind, name=name, problem=problem),
        410: GoneError(version=name),
        400: InvalidError(kind=kind.kind, name=name, problem=problem),
        413: InvalidError(kind=kind.kind, name=name, problem=problem),
        422: InvalidError(kind=kind.kind, name=name, problem=problem),
    }
    return answers.get(code) or StoreUnavailableError(problem=f"{code} {problem}")


if TYPE_CHECKING:
    _conforms: type[ObjectStore] = KubernetesStore
