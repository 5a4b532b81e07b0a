"""``lapse keys init`` on a real server, as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.servers.pytest_plugin import each

if TYPE_CHECKING:
    from tests.integration.keys_redis.conftest import Raw, Start
    from tests.servers import Server


def init(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lapse", "keys", "init", *arguments], capture_output=True, check=False, encoding="utf-8"
    )


@pytest.mark.parametrize("shared_server", each("redis", "valkey"), indirect=True)
def test_init_records_the_number_of_buckets_and_may_be_repeated(
    shared_server: Server, raw: Raw, namespace: str
) -> None:
    url = f"{shared_server.keys_url()}?namespace={namespace}"
    for _ in range(2):
        done = init(f"{url}&buckets=4", "-o", "json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {
            "ready": True,
            "said": f"redis needs no schema; {shared_server.keys_url()} is used with buckets=4",
        }
    assert raw(shared_server).get(f"{namespace}:buckets") == b"4"

    other = init(url)
    assert other.returncode == 1
    assert "made with buckets=4 and is opened with buckets=1" in other.stderr


def test_init_shows_no_password(start: Start) -> None:
    with start(requirepass="right-s3cret") as server:
        done = init(server.keys_url())
        refused = init(f"redis://:wr0ng-s3cret@127.0.0.1:{server.port}/0")

    assert done.returncode == 0
    assert refused.returncode == 1
    assert "refused the user name or the password" in refused.stderr
    assert "s3cret" not in done.stdout + done.stderr + refused.stdout + refused.stderr
