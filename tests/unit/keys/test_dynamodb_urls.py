from __future__ import annotations

import pytest

from lapse.core.clock import VirtualClock
from lapse.keys.backends.dynamodb import open_backend
from lapse.keys.errors import KeysURLError
from lapse.keys.url import parse_url


def test_a_url_says_region_table_and_options() -> None:
    url = (
        "dynamodb://eu-west-1/lapse-keys?endpoint=http://127.0.0.1:8000&buckets=16&timeout=3s&connect_timeout=1s"
        "&connections=10&max_skew=2500ms"
    )

    backend = open_backend(parse_url(url), VirtualClock())

    settings = backend.calls.settings
    assert (settings.region, settings.table) == ("eu-west-1", "lapse-keys")
    assert settings.endpoint == "http://127.0.0.1:8000"
    assert (settings.buckets, settings.connections) == (16, 10)
    assert (settings.timeout, settings.connect_timeout, settings.max_skew_ns) == (3.0, 1.0, 2_500_000_000)
    assert backend.capabilities.shared
    assert backend.capabilities.late_by_seconds == 7.0


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("dynamodb://localhost:8000/lapse", "names no region.*endpoint=http://host:port"),
        ("dynamodb:///lapse", "names no region"),
        ("dynamodb://eu-west-1", "names no table"),
        ("dynamodb://eu-west-1/a/b", "names no table"),
        ("dynamodb://eu-west-1/ab", "names no table"),
        ("dynamodb://eu-west-1/lapse?region=x", "valid options: buckets, cache, cache_max_age, connect_timeout"),
        ("dynamodb://eu-west-1/lapse?endpoint=127.0.0.1:8000", "endpoint=127.0.0.1:8000 is not valid"),
        ("dynamodb://eu-west-1/lapse?endpoint=http://h:99999", "is not valid"),
        ("dynamodb://eu-west-1/lapse?endpoint=http://h/path", "is not valid"),
        ("dynamodb://eu-west-1/lapse?timeout=never", "timeout=never is not valid"),
        ("dynamodb://eu-west-1/lapse?timeout=0s", "timeout=0s is not valid"),
        ("dynamodb://eu-west-1/lapse?max_skew=never", "max_skew=never is not valid"),
        ("dynamodb://eu-west-1/lapse?max_skew=61s", "max_skew=61s is not valid; expected a duration up to 60s"),
        ("dynamodb://eu-west-1/lapse?connections=0", "connections=0 is not valid; expected a whole number from 1"),
        ("dynamodb://eu-west-1/lapse?buckets=0", "buckets=0 is not valid"),
    ],
)
def test_a_url_that_cannot_be_used_says_why(url: str, problem: str) -> None:
    with pytest.raises(KeysURLError, match=problem):
        open_backend(parse_url(url), VirtualClock())


@pytest.mark.parametrize(
    "url", ["dynamodb://AKIAID:secret@eu-west-1/lapse", "dynamodb://eu-west-1/lapse?endpoint=http://AKIAID:secret@h"]
)
def test_credentials_in_a_url_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(KeysURLError) as caught:
        open_backend(parse_url(url), VirtualClock())

    assert "secret" not in str(caught.value)
    assert "AKIAID" not in str(caught.value)
