from __future__ import annotations

import pytest

from lapse.proxy.router import workspace_of
from lapse.workspaces.model import SuffixError, check_suffix, url_of


@pytest.mark.parametrize(
    ("host", "name"),
    [
        (b"notes.w.localhost:8080", "notes"),
        (b"notes.w.localhost", "notes"),
        (b"notes.w.localhost.:80", "notes"),
        (b"n-1.w.localhost", "n-1"),
        (b"w.localhost", None),
        (b".w.localhost", None),
        (b"a.notes.w.localhost", None),
        (b"notes.w.localhost.evil.com", None),
        (b"notes.evil-w.localhost", None),
        (b"notes.xw.localhost", None),
        (b"-a.w.localhost", None),
        (b"a" * 64 + b".w.localhost", None),
        (b"localhost:8080", None),
        (b"127.0.0.1:8080", None),
        (b"[::1]:8080", None),
        (b"", None),
        (b"notes.w.localhost:", None),
        (b"notes.w.localhost:8080:1", None),
        (b"notes.w.localhost/", None),
        (b"user@notes.w.localhost", None),
        (b"notes.w.localhost\x00", None),
    ],
)
def test_a_host_is_a_workspace_or_nothing(host: bytes, name: str | None) -> None:
    assert workspace_of(host, b"w.localhost") == name


def test_a_suffix_is_a_host_name() -> None:
    assert check_suffix(".W.Example.com.") == "w.example.com"
    for wrong in ("", "a b", "w_x", "-a", "w..com", "w.com:80"):
        with pytest.raises(SuffixError):
            check_suffix(wrong)


@pytest.mark.parametrize(
    ("scheme", "port", "expected"),
    [
        ("http", 8752, "http://notes.w.example.com:8752/"),
        ("http", 80, "http://notes.w.example.com/"),
        ("https", 8752, "https://notes.w.example.com/"),
    ],
)
def test_an_address_is_what_people_type(scheme: str, port: int, expected: str) -> None:
    assert url_of("notes", suffix="w.example.com", scheme=scheme, port=port) == expected
