from __future__ import annotations

import socket

import pytest

from lapse.web.server.listener import CannotListenError, Endpoint


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_loopback_address_is_known_as_such_and_a_free_port_is_told(host: str) -> None:
    endpoint = Endpoint(host, 0, setting="http")
    try:
        assert endpoint.loopback_only
        assert endpoint.url == f"http://{host}:{endpoint.port}"
        assert {one.getsockname()[1] for one in endpoint.sockets} == {endpoint.port}
        with socket.create_connection((host, endpoint.port)):
            pass
    finally:
        endpoint.close()


def test_an_address_for_all_is_not_loopback_and_is_shown_as_one_that_can_be_opened() -> None:
    endpoint = Endpoint("0.0.0.0", 0, setting="http")  # noqa: S104 - that is the question
    try:
        assert not endpoint.loopback_only
        assert endpoint.url == f"http://localhost:{endpoint.port}"
    finally:
        endpoint.close()


@pytest.mark.parametrize(
    ("host", "problem"),
    [("no such host", "the host name is unknown"), ("192.0.2.1", "the address does not belong to this machine")],
)
def test_an_address_that_cannot_be_used_names_the_setting_to_change(host: str, problem: str) -> None:
    with pytest.raises(CannotListenError, match=rf"{problem}\. Set probes_host \(or --probes-host\)"):
        Endpoint(host, 0, setting="probes")
