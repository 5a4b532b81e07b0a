"""What a redis:// URL may say, and what is said about one that says something else. Nothing is connected here."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import lapse
from lapse.core.clock import SystemClock
from lapse.core.duration import Duration
from lapse.keys.backends.redis import RedisBackend, open_backend
from lapse.keys.errors import KeysURLError
from lapse.keys.url import init_store, parse_url

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to" / "keys-on-redis.md"


def test_options_have_defaults() -> None:
    options = parse_url("redis://localhost").options

    assert (options["buckets"], options["namespace"], options["connections"]) == (1, "lapse", 32)
    assert options["timeout"] == Duration.of_seconds(5)
    assert options["connect_timeout"] == Duration.of_seconds(2)


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost",
        "redis://localhost/",
        "redis://:password@localhost:6379/15",
        "redis://user:password@[::1]:6379",
        "redis://127.0.0.1?namespace=a.B-c_1&timeout=100ms&connections=10000",
        "rediss://user:p%40ss@redis.example:6380/0?cache=100&cache_max_age=1s",
    ],
)
def test_urls_that_are_fine(url: str) -> None:
    assert isinstance(open_backend(parse_url(url), SystemClock()), RedisBackend)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis://", "names no server"),
        ("redis://a,b:6379", "names no server; expected one host"),
        ("redis://localhost:0", "names no server"),
        ("redis://localhost:65536", "names no server"),
        ("redis://localhost:port", "names no server"),
        ("redis://localhost/keys", "not a database number"),
        ("redis://localhost/-1", "not a database number"),
        ("redis://user@localhost", "user name and no password"),
        ("redis://localhost?namespace=a:b", "expected 1 to 64 letters"),
        ("redis://localhost?namespace=", "expected 1 to 64 letters"),
        ("redis://localhost?timeout=never", "expected how long to wait"),
        ("redis://localhost?timeout=0s", "expected how long to wait"),
        ("redis://localhost?connections=0", "expected a whole number from 1"),
        ("redis://localhost?connections=1e3", "expected a whole number from 1"),
        ("redis://localhost?retries=3", "'retries' is not an option of redis://; valid options: buckets, ca, cache, "),
        (f"redis://localhost?ca={__file__}", "is for TLS; write rediss://"),
        (f"rediss://localhost?cert={__file__}", "belong together"),
        (f"rediss://localhost?ca={__file__}", "holds no PEM"),
        ("rediss://localhost?ca=/no/such/file", "expected an existing file"),
    ],
)
def test_urls_that_are_not(url: str, problem: str) -> None:
    with pytest.raises(KeysURLError, match=re.escape(problem)):
        open_backend(parse_url(url), SystemClock())


def test_a_driver_that_is_not_installed_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith(("lapse.keys.backends.redis", "lapse.db.redis"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hiredis", None)

    with pytest.raises(
        KeysURLError, match=re.escape("its driver (hiredis) is not installed; run pip install 'lapse[redis]'")
    ):
        lapse.open_keys("redis://:s3cret@localhost")


def test_embedded_stores_are_initialised_as_well(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/keys.db"
    assert init_store("memory://", SystemClock()).startswith("nothing to make")
    assert init_store(f"{url}?buckets=4", SystemClock()) == f"{url} is made, with buckets=4"
    assert init_store(f"{url}?buckets=4", SystemClock()) == f"{url} is there, with buckets=4"


def test_the_how_to_shows_the_capabilities_and_the_options() -> None:
    text = HOW_TO.read_text("utf-8")
    promised = RedisBackend.capabilities
    for name in ("atomicity", "clock", "precision", "cleanup", "scan", "multi_key"):
        assert f"| {name.replace('_', '-')} | {getattr(promised, name)} |" in text
    for option in parse_url("redis://localhost").options:
        assert re.search(rf"^\| .*`{option}`.* \|", text, re.MULTILINE), option
