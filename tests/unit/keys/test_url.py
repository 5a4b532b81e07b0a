from __future__ import annotations

import sys
import traceback
from types import ModuleType
from typing import Any

import pytest

from lapse.core.duration import NEVER, Duration
from lapse.core.errors import UsageError
from lapse.keys import url as keys_url
from lapse.keys.backends.layout import BUCKETS, SWEEP_INTERVAL
from lapse.keys.errors import KeysURLError
from lapse.keys.url import parse_url

PASSWORD = "s3cr3t"


@pytest.fixture(autouse=True)
def _a_network_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register a scheme with hosts and credentials, as network backends will have them."""
    module: Any = ModuleType("lapse_test_network")
    module.OPTIONS = {"buckets": BUCKETS, "sweep_interval": SWEEP_INTERVAL}
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(keys_url, "BACKENDS", {"memory": "lapse.keys.backends.memory", "net": "lapse_test_network"})


def test_a_url_without_options_has_their_defaults() -> None:
    url = parse_url("memory://")

    assert (url.scheme, url.location, url.path) == ("memory", "", "")
    assert url.options == {"buckets": 1, "sweep_interval": Duration.of_seconds(1)}


def test_options_are_parsed() -> None:
    url = parse_url("memory://?buckets=16&sweep_interval=never")

    assert url.options == {"buckets": 16, "sweep_interval": NEVER}


def test_the_case_of_the_scheme_does_not_matter() -> None:
    assert parse_url("MEMORY://").scheme == "memory"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("net://host", (None, None, "host", "")),
        ("net://host:6379/0", (None, None, "host:6379", "/0")),
        ("net://me@host/0", ("me", None, "host", "/0")),
        ("net://me:s3cr3t@host/0", ("me", "s3cr3t", "host", "/0")),
        ("net://:s3cr3t@host/0", (None, "s3cr3t", "host", "/0")),
        ("net://me:@host/0", ("me", "", "host", "/0")),
        ("net://me:a:b@host/0", ("me", "a:b", "host", "/0")),
        ("net://me:%40%2F%3A%23%3F@host/0", ("me", "@/:#?", "host", "/0")),
        ("net://m%65:caf%C3%A9@host/%F0%9F%94%91", ("me", "café", "host", "/🔑")),
        ("net://a,b,c:9042/keyspace", (None, None, "a,b,c:9042", "/keyspace")),
        ("net://me:s3cr3t@a:1,b:2/keyspace", ("me", "s3cr3t", "a:1,b:2", "/keyspace")),
        ("net://[::1]:6379/0", (None, None, "[::1]:6379", "/0")),
        ("net:///a@b/c%20d", (None, None, "", "/a@b/c d")),
    ],
)
def test_a_url_is_taken_apart(text: str, parts: tuple[str | None, str | None, str, str]) -> None:
    url = parse_url(text)

    assert (url.username, url.password, url.location, url.path) == parts


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it has no scheme; expected one of memory://, net://"),
        ("memory", "it has no scheme; expected one of memory://, net://"),
        ("/var/lib/keys.db", "it has no scheme"),
        ("://", "'' is not a known scheme"),
        ("mongodb://host", "'mongodb' is not a known scheme; expected one of memory://, net://"),
        ("memory://?bucket=16", "'bucket' is not an option of memory://; valid options: buckets, sweep_interval"),
        ("memory://?=", "'' is not an option of memory://; valid options: buckets, sweep_interval"),
        ("memory://?buckets=1&buckets=2", "the option buckets is given twice"),
        ("memory://?buckets=1&buckets=1", "the option buckets is given twice"),
        ("memory://?buckets=0", "buckets=0 is not valid; expected a whole number from 1 to 65536"),
        ("memory://?buckets=65537", "buckets=65537 is not valid"),
        ("memory://?buckets=-1", "buckets=-1 is not valid"),
        ("memory://?buckets=1.5", "buckets=1.5 is not valid"),
        ("memory://?buckets=1_6", "buckets=1_6 is not valid"),
        ("memory://?buckets=%D9%A1", "is not valid; expected a whole number"),
        ("memory://?buckets=", "buckets= is not valid"),
        ("memory://?buckets", "buckets= is not valid"),
        ("memory://?sweep_interval=600", "sweep_interval=600 is not valid; expected a duration such as 1s, or never"),
        ("memory://?sweep_interval=0s", "sweep_interval=0s is not valid"),
        ("memory://?sweep_interval=-1s", "sweep_interval=-1s is not valid"),
        ("net://host/0#1", "it has a fragment (#...); write # in a path or password as %23"),
        ("net://[::1", "it is not a URL"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_was_expected(text: str, problem: str) -> None:
    with pytest.raises(KeysURLError) as caught:
        parse_url(text)

    assert problem in str(caught.value)
    assert isinstance(caught.value, UsageError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "text",
    [
        f"me:{PASSWORD}@host",
        f"mongodb://me:{PASSWORD}@host/0",
        f"net://me:{PASSWORD}@host/0?nonsense=1",
        f"net://me:{PASSWORD}@host/0?buckets=0",
        f"net://me:{PASSWORD}@host/0#fragment",
        f"net://me:{PASSWORD}@[::1",
        f"net://me:{PASSWORD}@ho\u2100st/0",
        f"net://me:{PASSWORD}/odd@host/0",
        f"net://me:odd/{PASSWORD}@host/0",
        f"net://me:{PASSWORD}?odd@host/0",
        f"net://me:odd?{PASSWORD}@host/0",
        f"net://me:{PASSWORD}#odd@host/0",
        f"net://me:odd#{PASSWORD}@host/0",
        f"net://me:{PASSWORD}@odd/@host/0",
        f"net://me:odd@{PASSWORD}/@host/0",
        f"mongodb://me:{PASSWORD}/odd@host/0",
    ],
)
def test_no_part_of_an_error_shows_the_password(text: str) -> None:
    with pytest.raises(KeysURLError) as caught:
        parse_url(text)

    shown = "".join(traceback.format_exception(caught.value, chain=True)).replace(text, "")
    assert PASSWORD not in str(caught.value)
    assert PASSWORD not in repr(caught.value)
    assert PASSWORD not in repr(caught.value.details)
    assert PASSWORD not in shown


def test_neither_str_nor_repr_of_a_url_shows_the_password() -> None:
    url = parse_url(f"net://me:{PASSWORD}@host:6379/0?buckets=2")

    assert str(url) == "net://host:6379/0"
    assert PASSWORD not in repr(url)
    assert url.password == PASSWORD
