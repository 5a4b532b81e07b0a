"""Faults on the way and in the server: each a clear error, nothing lost, nothing done twice."""

from __future__ import annotations

import asyncio
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import lapse
from lapse.keys.errors import BackendClosedError, BackendError, BackendUnavailableError, OutcomeUnknownError
from tests.integration.keys_dynamodb.conftest import Raw, init, new_table, url_of
from tests.integration.keys_dynamodb.injector import Injector, answer_with_html, fail_after, forward, leave_out, refuse
from tests.servers import Relay, Server, dynamodb_server, wait_until
from tests.servers.ports import reserved_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lapse.keys.store import AppKeys


def outcome(operation: Callable[[], object]) -> object:
    """The answer, or the error in place of it."""
    try:
        return operation()
    except BackendError as error:
        return error


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


# --- no way to the server ---------------------------------------------------------------------------------------------


def test_a_port_where_nobody_listens_is_an_error_at_once() -> None:
    with reserved_port() as port, pytest.raises(BackendUnavailableError, match="cannot be reached"):
        lapse.open_keys(url_of(f"http://127.0.0.1:{port}", "lapse"))


def test_tls_to_a_server_without_it_is_an_error(shared_dynamodb: Server, table: str) -> None:
    with pytest.raises(BackendUnavailableError, match="no TLS connection could be made"):
        lapse.open_keys(url_of(shared_dynamodb.url.replace("http:", "https:"), table))


def test_an_endpoint_that_is_not_dynamodb_is_an_error_and_not_an_empty_store(injector: Injector, table: str) -> None:
    with lapse.open_keys(url_of(injector.endpoint, table, "timeout=1s")) as keys:
        app = keys.app(7)
        injector.spoil("GetItem", answer_with_html(), times=100)

        with pytest.raises(BackendUnavailableError, match="not one of DynamoDB"):
            app.ttl_get("k")


def test_a_server_that_goes_away_and_comes_back_needs_no_new_store(relay: Relay, table: str) -> None:
    with lapse.open_keys(url_of(f"http://127.0.0.1:{relay.port}", table)) as keys:
        app = keys.app(7)
        app.put("k", "v", 600)

        relay.cut(refuse=True)
        with pytest.raises(BackendUnavailableError, match="cannot be reached"):
            app.ttl_get("k")
        with pytest.raises(BackendUnavailableError, match="Nothing was changed by this call"):
            app.insert_if_not_exists("other", "v", 600)
        relay.accept()

        assert app.ttl_get("k") == "v"
        assert app.ttl_get("other") is None


# --- lost after sending -----------------------------------------------------------------------------------------------


def test_a_write_whose_answer_is_lost_has_an_unknown_outcome_and_is_not_repeated(
    relay: Relay, table: str, raw: Raw, threads: ThreadPoolExecutor
) -> None:
    with lapse.open_keys(url_of(f"http://127.0.0.1:{relay.port}", table)) as keys:
        app = keys.app(7)
        app.put("k", "v", 600)
        relay.silence(up=False, down=True)
        sent = relay.counts.requests

        waiting = threads.submit(outcome, lambda: app.insert_if_not_exists("new", "mine", 600))
        wait_until(lambda: len(raw.items(table)) == 2, what="the insert in the server")
        relay.cut()
        error = waiting.result(10)

        assert isinstance(error, OutcomeUnknownError)
        assert "the connection was lost" in str(error)
        assert error.__cause__ is not None
        assert relay.counts.requests == sent + 1
        relay.speak()
        assert app.ttl_get("new") == "mine"  # it was applied: a repetition would have said False


def test_a_read_whose_answer_is_lost_is_asked_again(relay: Relay, table: str, threads: ThreadPoolExecutor) -> None:
    with lapse.open_keys(url_of(f"http://127.0.0.1:{relay.port}", table)) as keys:
        app = keys.app(7)
        app.put("k", "v", 600)
        relay.silence(up=False, down=True)
        sent = relay.counts.requests

        waiting = threads.submit(outcome, lambda: app.ttl_get("k"))
        wait_until(lambda: relay.counts.requests > sent, what="the read on its way")
        relay.cut()
        relay.speak()

        assert waiting.result(10) == "v"


async def test_a_write_that_waits_for_a_connection_in_vain_was_not_sent(url: str) -> None:
    async with lapse.open_keys_async(url + "&connections=1&timeout=1s") as keys:
        link = await keys.backend.calls._links.get()  # type: ignore[attr-defined]
        async with link.slots:
            with pytest.raises(BackendUnavailableError, match="all 1 connections are in use, and the timeout of 1 s"):
                await keys.app(7).put("k", "v", 600)


# --- a server that stands still or dies -------------------------------------------------------------------------------


@pytest.mark.server("dynamodb", private=True)
def test_a_server_that_stands_still_is_a_timeout_and_loses_nothing() -> None:
    with dynamodb_server() as server:
        url = url_of(server.url, new_table())
        init(url)
        with lapse.open_keys(url) as patient, lapse.open_keys(url + "&timeout=1s") as keys:
            app = keys.app(7)
            patient.app(7).put("k", "v", 600)

            with server.paused():
                with pytest.raises(BackendUnavailableError, match="the timeout of 1 s is over"):
                    app.ttl_get("k")
                with pytest.raises(OutcomeUnknownError, match="Read the key before you decide"):
                    app.compare_and_swap("k", "v", "w", 600)
                with pytest.raises(BackendUnavailableError):
                    app.get_many(["k"])
                with pytest.raises(BackendUnavailableError):
                    app.scan()

            assert patient.app(7).ttl_get("k") in {"v", "w"}


@pytest.mark.server("dynamodb", private=True)
def test_a_server_killed_during_a_swap_leaves_the_old_value_or_the_new_one(threads: ThreadPoolExecutor) -> None:
    with dynamodb_server(durable=True) as server:
        url = url_of(server.url, new_table())
        init(url)
        with lapse.open_keys(url) as keys:
            app = keys.app(7)
            app.insert_many([(f"{number}", "v", 600) for number in range(10)])
            server.pause()
            waiting = threads.submit(outcome, lambda: app.compare_and_swap("0", "v", "w", 600))
            wait_until(waiting.running, what="the swap to begin")
            server.kill()
            error = waiting.result(10)
            server.start()

            # The request may have died before it was sent, on a connection that was already dead.
            assert isinstance(error, OutcomeUnknownError | BackendUnavailableError)
            values = app.get_many(f"{number}" for number in range(10))
            assert values.pop("0") in {"v", "w"}
            assert values == {f"{number}": "v" for number in range(1, 10)}


# --- a busy server ----------------------------------------------------------------------------------------------------

THROTTLED = ["ThrottlingException", "ProvisionedThroughputExceededException", "RequestLimitExceeded"]


@pytest.mark.parametrize("code", THROTTLED)
def test_a_throttled_write_is_sent_again_until_it_is_taken(injector: Injector, table: str, raw: Raw, code: str) -> None:
    with lapse.open_keys(url_of(injector.endpoint, table)) as keys:
        injector.spoil("PutItem", refuse(code), times=3)

        assert keys.app(7).insert_if_not_exists("k", "v", 600)

    assert injector.requests["PutItem"] == 4
    assert len(raw.items(table)) == 1


def test_a_throttled_write_gives_up_within_its_timeout_and_changed_nothing(
    injector: Injector, table: str, raw: Raw
) -> None:
    with lapse.open_keys(url_of(injector.endpoint, table, "timeout=1s")) as keys:
        injector.spoil("PutItem", refuse("ThrottlingException"), times=1000)

        with pytest.raises(BackendUnavailableError, match=r"busy \(ThrottlingException\), and the timeout of 1 s"):
            keys.app(7).put("k", "v", 600)

    assert 2 <= injector.requests["PutItem"] < 20  # with growing pauses, not in a tight loop
    assert raw.items(table) == []


def test_a_wait_for_a_busy_server_does_not_shorten_a_ttl(injector: Injector, table: str) -> None:
    with lapse.open_keys(url_of(injector.endpoint, table)) as keys:
        injector.spoil("PutItem", refuse("ThrottlingException"), times=5)

        keys.app(7).put("k", "v", 1)

        left = keys.app(7).query_ttl("k")
        assert left is not None  # five pauses take more than 0.7 s
        assert left > 0.5


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_keys_that_a_batch_left_out_are_asked_for_again(injector: Injector, table: str, share: float) -> None:
    with lapse.open_keys(url_of(injector.endpoint, table)) as keys:
        app = keys.app(7)
        names = [f"{number}" for number in range(150)]
        app.insert_many([(name, f"value {name}", 600) for name in names])
        injector.spoil("BatchGetItem", leave_out(share), times=3)
        injector.forget()

        assert app.get_many([*names, "absent"]) == {name: f"value {name}" for name in names}

        assert injector.requests == {"BatchGetItem": 5}


def test_a_batch_that_makes_no_progress_is_an_error_and_not_a_part_of_the_answer(
    injector: Injector, table: str
) -> None:
    with lapse.open_keys(url_of(injector.endpoint, table, "timeout=1s")) as keys:
        injector.spoil("BatchGetItem", leave_out(1.0), times=1000)

        with pytest.raises(BackendUnavailableError, match="left 2 keys of a batch out"):
            keys.app(7).get_many(["a", "b"])


# --- errors of the server ---------------------------------------------------------------------------------------------

WRITES: dict[str, tuple[str, Callable[[AppKeys], object]]] = {
    "insert": ("PutItem", lambda app: app.insert_if_not_exists("new", "v", 600)),
    "put": ("PutItem", lambda app: app.put("k", "w", 600)),
    "swap": ("PutItem", lambda app: app.compare_and_swap("k", "v", "w", 600)),
    "touch": ("UpdateItem", lambda app: app.touch("k", 600)),
    "delete": ("DeleteItem", lambda app: app.delete("k")),
    "compare_and_delete": ("DeleteItem", lambda app: app.compare_and_delete("k", "v")),
}


@pytest.mark.parametrize("write", WRITES)
def test_an_internal_error_of_a_write_is_an_unknown_outcome_and_is_not_repeated(
    injector: Injector, table: str, write: str
) -> None:
    name, operation = WRITES[write]
    with lapse.open_keys(url_of(injector.endpoint, table)) as keys:
        app = keys.app(7)
        app.put("k", "v", 600)
        injector.forget()
        injector.spoil(name, fail_after())

        with pytest.raises(OutcomeUnknownError, match=r"internal error \(500 InternalServerError\)"):
            operation(app)

    assert injector.requests == {name: 1}


def test_an_internal_error_of_a_read_is_asked_again(injector: Injector, table: str) -> None:
    with lapse.open_keys(url_of(injector.endpoint, table)) as keys:
        app = keys.app(7)
        app.put("k", "v", 600)
        for operation in ("GetItem", "BatchGetItem", "Query"):
            injector.spoil(operation, refuse("InternalServerError", status=500), times=2)

        assert app.ttl_get("k") == "v"
        assert app.get_many(["k"]) == {"k": "v"}
        assert [item.key for item in app.scan()] == ["k"]


def test_insert_many_tells_how_far_it_came(injector: Injector, table: str, raw: Raw) -> None:
    with lapse.open_keys(url_of(injector.endpoint, table)) as keys:
        items = [(f"{number:03}", "v", 600) for number in range(200)]
        injector.spoil("PutItem", forward(), times=50)
        injector.spoil("PutItem", fail_after())

        with pytest.raises(OutcomeUnknownError, match=r"\d+ of 200 items are written for certain; then: ") as caught:
            keys.app(7).insert_many(items)

    certain = int(str(caught.value).partition(" of 200")[0].rpartition(" ")[2])
    assert certain <= len(raw.items(table)) < 200  # those after the error were not begun


def test_insert_many_that_wrote_nothing_says_so(injector: Injector, table: str, raw: Raw) -> None:
    with lapse.open_keys(url_of(injector.endpoint, table)) as keys:
        injector.spoil("PutItem", refuse("AccessDeniedException"), times=200)

        with pytest.raises(BackendUnavailableError, match=r"do not allow dynamodb:PutItem .* Nothing was changed"):
            keys.app(7).insert_many([(f"{number}", "v", 600) for number in range(100)])

    assert raw.items(table) == []
    assert injector.requests["PutItem"] <= 32


# --- credentials ------------------------------------------------------------------------------------------------------


def test_missing_credentials_are_an_error_that_says_where_they_are_expected(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)

    with pytest.raises(BackendUnavailableError, match=r"no usable AWS credentials .*\(AWS_ACCESS_KEY_ID .* the role"):
        lapse.open_keys(url)


def test_a_profile_that_is_not_there_is_an_error_about_credentials(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")

    with pytest.raises(BackendUnavailableError, match=r"no usable AWS credentials .*ProfileNotFound"):
        lapse.open_keys(url)


def test_an_error_shows_no_credentials_however_much_of_it_is_printed(
    injector: Injector, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DynamoDB Local takes any credentials, so the refusal is injected."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIANOTFORYOUREYES")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-secret")
    injector.spoil("GetItem", refuse("UnrecognizedClientException"))

    with pytest.raises(BackendUnavailableError, match="refused the AWS credentials") as caught:
        lapse.open_keys(url_of(injector.endpoint, table))

    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value.__cause__)
    assert not any(secret in shown for secret in ("AKIANOTFORYOUREYES", "very-secret", "token-secret"))


@pytest.mark.parametrize("code", ["UnrecognizedClientException", "ExpiredTokenException", "InvalidSignatureException"])
def test_refused_credentials_are_told_as_such(injector: Injector, table: str, code: str) -> None:
    with lapse.open_keys(url_of(injector.endpoint, table)) as keys:
        injector.spoil("GetItem", refuse(code, message="The security token of user X is wrong"))

        with pytest.raises(BackendUnavailableError, match=rf"refused the AWS credentials \({code}\)") as caught:
            keys.app(7).ttl_get("k")

    assert "user X" not in str(caught.value)


# --- loops and closing ------------------------------------------------------------------------------------------------


async def test_an_opened_store_serves_blocking_locks_and_awaited_calls(url: str) -> None:
    async with lapse.open_keys_async(url) as keys:
        app = keys.app(7)
        async with app.lock("job", 60) as lock:
            assert not lock.lost
            await app.put("k", "v", 600)

        def blocking() -> bool:
            with app.lock("job", 60) as inner:
                return not inner.lost

        assert await asyncio.to_thread(blocking)
        assert await app.ttl_get("k") == "v"


async def test_a_closed_store_says_so_and_may_be_closed_again(url: str) -> None:
    keys = await lapse.open_keys_async(url)
    app = keys.app(7)
    await keys.close()
    await keys.close()

    with pytest.raises(BackendClosedError):
        await app.ttl_get("k")
