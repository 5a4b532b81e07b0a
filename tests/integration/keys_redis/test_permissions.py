"""A user with exactly the permissions that the how-to lists can do everything, and misses each one taken away."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import lapse
from lapse.core.clock import SystemClock
from lapse.keys.errors import BackendUnavailableError, OutcomeUnknownError
from lapse.keys.url import init_store

if TYPE_CHECKING:
    from redis import Redis

    from lapse.keys.store import Keys
    from tests.integration.keys_redis.conftest import Raw, Start

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to" / "keys-on-redis.md"


def listed() -> list[str]:
    """Return the rules of the how-to, word by word."""
    rules = re.search(r"ACL SETUSER lapse on >PASSWORD (.+?)\n```", HOW_TO.read_text("utf-8"), re.DOTALL)
    assert rules is not None
    return rules[1].replace("\\\n", " ").split()


def allow(client: Redis, rules: list[str]) -> None:
    client.execute_command("ACL", "SETUSER", "lapse", "reset", "on", ">s3cret", *rules)  # type: ignore[no-untyped-call]


def use_everything(keys: Keys) -> None:
    app = keys.app(7)
    assert app.insert_if_not_exists("k", "v", 60)
    app.put("k", "v", 60)
    assert app.compare_and_swap("k", "v", "w", 60)
    assert app.touch("k", 60)
    assert app.ttl_get("k") == "w"
    assert app.get_many(["k"]) == {"k": "w"}
    assert app.query_ttl("k") is not None
    assert app.get_item("k") is not None
    assert app.insert_many([("a", "v", 60), ("b", "v", 60)]) == [True, True]
    assert len(app.scan()) == 3
    assert app.delete("a")
    assert app.compare_and_delete("b", "v")
    assert app.delete("k")


def test_every_listed_permission_is_needed_and_its_lack_is_found_before_anything_is_written(
    start: Start, raw: Raw
) -> None:
    with start() as server:
        client, url = raw(server), f"redis://lapse:s3cret@127.0.0.1:{server.port}/1"
        rules = listed()
        allow(client, rules)
        with lapse.open_keys(url) as keys:
            use_everything(keys)
        for rule in (rule for rule in rules if rule.startswith("+")):
            client.script_flush()
            allow(client, [other for other in rules if other != rule])
            with pytest.raises(BackendUnavailableError, match=f"run {rule[1:].upper()}( |\\.)"):
                _open_and_use(url)


def _open_and_use(url: str) -> None:
    with lapse.open_keys(url) as keys:
        assert keys.app(7).get_many(["k"]) == {}
        assert keys.app(7).query_ttl("k") is None


def test_keys_of_another_namespace_are_out_of_reach(start: Start, raw: Raw) -> None:
    with start() as server:
        allow(raw(server), listed())
        with pytest.raises(BackendUnavailableError, match="use the keys that are needed here"):
            lapse.open_keys(f"redis://lapse:s3cret@127.0.0.1:{server.port}/0?namespace=other")


def test_rights_that_are_taken_away_while_a_store_is_open_leave_no_false_promise(start: Start, raw: Raw) -> None:
    with start() as server:
        client, rules = raw(server), listed()
        allow(client, rules)
        with lapse.open_keys(f"redis://lapse:s3cret@127.0.0.1:{server.port}/0") as keys:
            app = keys.app(7)
            app.put("k", "v", 60)
            allow(client, [rule for rule in rules if rule != "+zadd"])
            with pytest.raises(OutcomeUnknownError, match="perhaps halfway"):
                app.put("k", "w", 60)
            with pytest.raises(OutcomeUnknownError, match="perhaps halfway"):
                app.insert_many([("new", "w", 60)])


def test_init_needs_no_more_and_warns_of_eviction_when_it_may_look(start: Start, raw: Raw) -> None:
    with start() as server:
        client = raw(server)
        allow(client, listed())
        said = init_store(f"redis://lapse:s3cret@127.0.0.1:{server.port}/0?buckets=4", SystemClock())
        assert said == f"redis needs no schema; redis://127.0.0.1:{server.port}/0 is used with buckets=4"
        assert client.get("lapse:buckets") == b"4"

        client.config_set("maxmemory-policy", "allkeys-lru")
        assert init_store(f"{server.keys_url()}?buckets=4", SystemClock()).endswith(
            "; warning: its maxmemory-policy is allkeys-lru, which removes live keys: set it to noeviction"
        )
