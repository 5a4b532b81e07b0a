"""Keys over HTTP: one address per key, and conditional requests for what must be atomic.

| request on ``/api/v1/apps/{app}/keys/{key}`` | operation |
|---|---|
| ``GET`` | value, expiry and tag of a live key |
| ``PUT`` | put; with ``If-None-Match: *`` insert, with ``If-Match`` or ``expected`` compare and swap |
| ``PATCH`` | touch: a new TTL |
| ``DELETE`` | delete; with ``If-Match`` or ``expected`` compare and delete |

``GET`` on ``.../keys`` scans, ``POST`` on it inserts many, ``POST`` on ``.../keys:get-many`` gets many.

The rules for keys, values and TTLs are those of `lapse.keys.validation`, and only those: the models here describe
the form for OpenAPI and leave the fields as they came, so that ``900.0`` or ``true`` reaches the rule that refuses
it. A key in a path is taken from its raw bytes, because the decoded path has replaced what is no UTF-8, and two
different keys would become one.
"""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import parse_qsl, unquote, unquote_to_bytes

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import Field, WithJsonSchema
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import Response

from lapse.core.clock import Clock
from lapse.engine.view import ViewPage
from lapse.keys.aio import AsyncAppKeys, AsyncKeys
from lapse.keys.errors import InvalidAppIdError, KeyInvalidUTF8Error
from lapse.keys.port import NS_PER_MS, Item, is_over
from lapse.keys.validation import (
    MAX_APP_ID,
    MAX_KEY_BYTES,
    MAX_TTL_SECONDS,
    MAX_VALUE_BYTES,
    app_number,
    check_ttl,
    check_value,
)
from lapse.keys.view import Found, Inserted, KeyView, Written, address_of, view_of
from lapse.web.api.errors import (
    KeyAbsentError,
    NoSuchRouteError,
    PreconditionFailedError,
)
from lapse.web.api.forms import (
    DEFAULT_PAGE,
    Answer,
    Conditions,
    Form,
    Tagger,
    answer,
    conditions_of,
    match_of,
    problems,
)

PAGE_LIMIT: Final = 1_000
"""Records of one page at most: values may be 64 KiB each, and the page is built in memory."""
_RAW_PARTS: Final = 6  # "", api, v1, apps, APP, keys, and then the key


class _KeyConvertor(Convertor[str]):
    regex = r"(?s:.*)"  # a key may hold slashes and line ends

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("lapse_key", _KeyConvertor())

# --- the form of requests and answers --------------------------------------------------------------------------------

_TEXT: Final = {"type": "string", "description": f"At most {MAX_VALUE_BYTES} bytes as UTF-8"}
_NAME: Final = {"type": "string", "minLength": 1, "description": f"1 to {MAX_KEY_BYTES} bytes as UTF-8"}
_SECONDS: Final = {"type": "integer", "minimum": 1, "maximum": MAX_TTL_SECONDS, "description": "Seconds to live"}
Text = Annotated[Any, WithJsonSchema(_TEXT)]
Name = Annotated[Any, WithJsonSchema(_NAME)]
Seconds = Annotated[Any, WithJsonSchema(_SECONDS)]
AppId = Annotated[str, Path(description="Application id, 0 to 4294967295")]
KeyName = Annotated[str, Path(description="The key, percent-encoded")]


class Write(Form):
    """A value with its TTL; ``expected`` makes it a compare and swap."""

    value: Text
    ttl_seconds: Seconds
    expected: Text = None


class Touch(Form):
    """A new TTL."""

    ttl_seconds: Seconds


class Expected(Form):
    """The value that the key must have."""

    expected: Text


class NewRecord(Form):
    """A record to insert."""

    key: Name
    value: Text
    ttl_seconds: Seconds


class InsertMany(Form):
    """Records to insert, each unless a live one is there."""

    items: Annotated[list[NewRecord], Field(max_length=PAGE_LIMIT)]


class GetMany(Form):
    """Keys to read."""

    keys: Annotated[list[Name], Field(max_length=PAGE_LIMIT)]


class KeyPage(ViewPage[KeyView], frozen=True):
    """Live records in byte order of their keys; pass ``next`` as ``after`` for the following page."""


# --- what a request names --------------------------------------------------------------------------------------------


class KeysService:
    """What the routes need: the store, the clock that its expiries are compared with, and the tags."""

    def __init__(self, keys: AsyncKeys, *, clock: Clock, tagger: Tagger) -> None:
        """Bind them together."""
        self.keys, self._clock, self._tagger = keys, clock, tagger

    def app(self, app: str) -> AsyncAppKeys:
        """Return the keys of an application as an address names it; raises `InvalidAppIdError`."""
        number = app_number(app)
        if number is None:
            raise InvalidAppIdError(given=repr(app), limit=MAX_APP_ID)
        return self.keys.app(number)

    def view(self, app: AsyncAppKeys, item: Item) -> KeyView | None:
        """Return the view of a record; None when it has just expired."""
        now = self._clock.wall_ns()
        return None if is_over(item.expires_ms * NS_PER_MS, now) else view_of(app.app_id, item, now)

    def tag(self, app: AsyncAppKeys, key: str, value: str) -> dict[str, str]:
        """Return the ETag header of a value."""
        return {"ETag": self._tagger.tag(app.app_id, key, value)}

    async def matching(self, app: AsyncAppKeys, key: str, conditions: Conditions) -> str:
        """Return the current value if it fulfils ``If-Match``. The caller then compares with exactly this value."""
        value = await app.ttl_get(key)
        if value is None or not conditions.matches(self._tagger.tag(app.app_id, key, value)):
            raise PreconditionFailedError
        return value


# Awaitable, though they wait for nothing: the framework runs any other function in a thread.
async def _service(request: Request) -> KeysService:
    service: KeysService = request.app.state.keys
    return service


Service = Annotated[KeysService, Depends(_service)]


async def _app(service: Service, app: AppId) -> AsyncAppKeys:
    return service.app(app)


async def _key(request: Request, key: KeyName) -> str:  # noqa: ARG001 - for OpenAPI
    return exact_key(request.scope["raw_path"])


def exact_key(raw_path: bytes) -> str:
    """Take the key out of the raw path."""
    parts = raw_path.split(b"/", _RAW_PARTS)
    if (
        len(parts) <= _RAW_PARTS
        or unquote(parts[3].decode("ascii")) != "apps"
        or unquote(parts[5].decode("ascii")) != "keys"
    ):
        raise NoSuchRouteError  # a slash of the route itself was encoded; such an address names nothing
    try:
        return unquote_to_bytes(parts[_RAW_PARTS]).decode()
    except UnicodeDecodeError as error:
        raise KeyInvalidUTF8Error(position=error.start) from None  # the cause would show the key


App = Annotated[AsyncAppKeys, Depends(_app)]
Key = Annotated[str, Depends(_key)]
Limit = Annotated[int, Query(ge=1, le=PAGE_LIMIT, description="Records per page at most")]


def _query_text(request: Request, name: str) -> str | None:
    # Once more, strictly: the framework replaces what is no UTF-8.
    query: bytes = request.scope["query_string"]
    try:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError as error:
        raise KeyInvalidUTF8Error(position=error.start) from None
    return next((text for key, text in pairs if key == name), None)


# --- the routes ------------------------------------------------------------------------------------------------------

router = APIRouter(tags=["keys"])
_ONE: Final = "/apps/{app}/keys/{key:lapse_key}"
_CONDITIONS: Final = {
    "parameters": [
        {"name": "If-None-Match", "in": "header", "schema": {"type": "string", "enum": ["*"]}, "description": "Insert"},
        {"name": "If-Match", "in": "header", "schema": {"type": "string"}, "description": "Compare with a tag"},
    ]
}
_MATCH: Final = {"parameters": _CONDITIONS["parameters"][1:]}


@router.get("/apps/{app}/keys", operation_id="keys.list", summary="List live keys", responses={200: answer(KeyPage)})
async def scan(
    request: Request,
    app: App,
    service: Service,
    *,
    prefix: Annotated[str, Query(description="Only keys that start with this")] = "",  # noqa: ARG001 - for OpenAPI
    after: Annotated[str | None, Query(description="Only keys behind this one")] = None,  # noqa: ARG001 - for OpenAPI
    limit: Limit = DEFAULT_PAGE,
) -> Response:
    """Answer one page of live keys in byte order, with their values; the server keeps no cursor."""
    items = await app.scan(_query_text(request, "prefix") or "", _query_text(request, "after"), limit + 1)
    shown = items[:limit]
    live = [view for one in shown if (view := service.view(app, one)) is not None]
    return Answer(KeyPage(live, shown[-1].key if len(items) > limit else None))


@router.post(
    "/apps/{app}/keys", operation_id="keys.insert_many", summary="Insert many", responses={200: answer(Inserted)}
)
async def insert_many(app: App, body: InsertMany) -> Response:
    """Insert each item unless a live record is there. Each insert is atomic, all of them together are not."""
    items = [(item.key, item.value, item.ttl_seconds) for item in body.items]
    return Answer(Inserted(await app.insert_many(items)))


@router.post(
    "/apps/{app}/keys:get-many", operation_id="keys.get_many", summary="Get many", responses={200: answer(Found)}
)
async def get_many(app: App, body: GetMany) -> Response:
    """Return the live ones. A POST, because a list of keys does not fit into an address."""
    return Answer(Found(await app.get_many(body.keys)))


@router.get(
    _ONE,
    operation_id="keys.show",
    summary="Get a key",
    responses={200: answer(KeyView, tagged=True), **problems(404)},
)
async def get(request: Request, app: AppId, key: KeyName) -> Response:  # noqa: ARG001 - for OpenAPI
    """Return a live key; its ETag is a tag for If-Match."""
    # Without dependencies: for each of them the framework takes longer than the store for a key.
    service: KeysService = request.app.state.keys
    keys = service.app(app)
    item = await keys.get_item(exact_key(request.scope["raw_path"]))
    view = service.view(keys, item) if item else None
    if item is None or view is None:
        raise KeyAbsentError
    return Answer(view, headers=service.tag(keys, item.key, item.value))


@router.put(
    _ONE,
    operation_id="keys.put",
    summary="Put, insert or swap a key",
    openapi_extra=_CONDITIONS,
    responses={
        200: answer(Written, tagged=True),
        201: answer(Written, "Inserted", tagged=True),
        **problems(412),
    },
)
async def put(request: Request, app: App, key: Key, *, body: Write, service: Service) -> Response:
    """Write a value. Without a condition it does not tell whether the key was there; to know that, insert.

    With If-None-Match: * it inserts, with If-Match or expected it compares and swaps; otherwise 412.
    """
    by_value = "expected" in body.model_fields_set
    conditions = conditions_of(request, expected=by_value)
    status = 200
    if conditions.absent:
        done, status = await app.insert_if_not_exists(key, body.value, body.ttl_seconds), 201
    elif by_value:
        done = await app.compare_and_swap(key, body.expected, body.value, body.ttl_seconds)
    elif conditions.tags is not None:
        check_value(body.value, "new value")  # here already: nothing is read for a request that cannot succeed
        check_ttl(body.ttl_seconds)
        current = await service.matching(app, key, conditions)
        done = await app.compare_and_swap(key, current, body.value, body.ttl_seconds)
    else:
        await app.put(key, body.value, body.ttl_seconds)
        done = True
    if not done:
        raise PreconditionFailedError
    written = Written(address_of(app.app_id, key), key, body.ttl_seconds)
    return Answer(written, status, headers=service.tag(app, key, body.value))


@router.patch(
    _ONE,
    operation_id="keys.touch",
    summary="Touch: restart the TTL of a key",
    responses={200: answer(Written), **problems(404)},
)
async def touch(app: App, key: Key, body: Touch) -> Response:
    """Give a live key a new TTL, its value unchanged. An expired key is not revived.

    It takes no condition; PUT with the same value does.
    """
    if not await app.touch(key, body.ttl_seconds):
        raise KeyAbsentError
    return Answer(Written(address_of(app.app_id, key), key, body.ttl_seconds))


@router.delete(
    _ONE,
    operation_id="keys.delete",
    summary="Delete a key",
    status_code=204,
    openapi_extra=_MATCH,
    responses=problems(404, 412),
)
async def delete(request: Request, app: App, key: Key, *, service: Service, body: Expected | None = None) -> Response:
    """Delete a live key; with a condition only if it holds."""
    conditions = match_of(request, "DELETE", expected=body is not None)
    if body is None and conditions.tags is None:
        if not await app.delete(key):
            raise KeyAbsentError
        return Response(status_code=204)
    expected = body.expected if body is not None else await service.matching(app, key, conditions)
    if not await app.compare_and_delete(key, expected):
        raise PreconditionFailedError
    return Response(status_code=204)
