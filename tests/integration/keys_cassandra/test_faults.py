"""What happens when connections and servers fail. One private server serves all of it, because starting one is dear."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import lapse
from lapse.keys.errors import BackendClosedError, BackendUnavailableError, OutcomeUnknownError
from tests.integration.keys_cassandra.conftest import APP_IDS, init, raw_session
from tests.servers import Relay, Server, cassandra_server, wait_until
from tests.servers.certificate import make_certificate
from tests.servers.ports import reserved_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.keys.store import AppKeys
    from tests.servers.certificate import Certificate

pytestmark = [pytest.mark.server("cassandra", private=True), pytest.mark.timeout(300)]

SHORT = "timeout=1s&connect_timeout=2s"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    folder = tmp_path_factory.mktemp("certificate")
    made = make_certificate(folder, lambda _: None)
    files = ["-in", str(made.certificate_file), "-inkey", str(made.key_file), "-out", str(folder / "server.p12")]
    subprocess.run(["openssl", "pkcs12", "-export", "-passout", "pass:secret", *files], check=True)
    return made


@pytest.fixture(scope="module")
def server(certificate: Certificate) -> Iterator[Server]:
    """Asks for a password, takes TLS and plain connections on one port, and has every write on disk when it answers."""
    keystore = certificate.ca_file.parent / "server.p12"
    tls = {"enabled": True, "optional": True, "keystore": str(keystore), "keystore_password": "secret"}
    config = {"client_encryption_options": {**tls, "store_type": "PKCS12"}}
    with cassandra_server(auth=True, durable=True, config=config) as started:
        init(started.keys_url())
        yield started


@pytest.fixture
def app_id() -> int:
    return next(APP_IDS)


# --- who may connect --------------------------------------------------------------------------------------------------


def test_a_wrong_password_is_refused_and_never_shown(server: Server) -> None:
    url = server.keys_url().replace(":cassandra@", ":wr0ng-s3cret@")

    with pytest.raises(BackendUnavailableError, match="it refused the user name or the password") as caught:
        lapse.open_keys(url)

    told = f"{caught.value} {caught.value.details} {caught.value.__cause__!r}"
    assert "wr0ng-s3cret" not in told


def test_a_missing_login_is_refused(server: Server) -> None:
    with pytest.raises(BackendUnavailableError, match="it refused the user name or the password"):
        lapse.open_keys(server.keys_url().replace("cassandra:cassandra@", ""))


def test_a_user_with_too_few_permissions_is_told_which_ones_are_needed(server: Server, app_id: int) -> None:
    with raw_session(server.keys_url()) as raw:
        raw("CREATE ROLE IF NOT EXISTS reader WITH PASSWORD = 'reader' AND LOGIN = true")
        raw("GRANT SELECT ON KEYSPACE lapse TO reader")
    url = server.keys_url().replace("cassandra:cassandra@", "reader:reader@")

    with lapse.open_keys(url) as keys:
        reader = keys.app(app_id)
        assert reader.ttl_get("k") is None
        with pytest.raises(BackendUnavailableError, match="it needs SELECT and MODIFY on the keyspace"):
            reader.put("k", "v", 60)
    with pytest.raises(BackendUnavailableError, match="it needs CREATE"):
        init(url.replace("/lapse", "/another"))

    with raw_session(server.keys_url()) as raw:
        raw("GRANT MODIFY ON KEYSPACE lapse TO reader")

    def writes() -> bool:
        with lapse.open_keys(url) as keys:
            try:
                return keys.app(app_id).insert_if_not_exists("k", "v", 60)
            except BackendUnavailableError:
                return False

    wait_until(writes, seconds=20, what="a write with the permission given")  # the server caches permissions


def test_tls_is_spoken_and_the_certificate_checked(server: Server, certificate: Certificate, app_id: int) -> None:
    with lapse.open_keys(f"{server.keys_url()}?ssl=true&ca={certificate.ca_file}") as keys:
        assert keys.app(app_id).insert_if_not_exists("k", "v", 60) is True


def test_a_certificate_of_an_unknown_authority_is_refused(server: Server) -> None:
    with pytest.raises(BackendUnavailableError, match="TLS failed"):
        lapse.open_keys(f"{server.keys_url()}?ssl=true&{SHORT}")


def test_tls_to_a_server_without_it_is_refused(shared_cassandra: Server, certificate: Certificate) -> None:
    with pytest.raises(BackendUnavailableError, match="cannot be used now"):
        lapse.open_keys(f"{shared_cassandra.keys_url()}?ssl=true&ca={certificate.ca_file}&{SHORT}")


# --- no server --------------------------------------------------------------------------------------------------------


def test_a_port_where_nobody_listens_is_unavailable() -> None:
    with reserved_port() as port, pytest.raises(BackendUnavailableError, match="no server could be reached"):
        lapse.open_keys(f"cassandra://127.0.0.1:{port}/lapse?{SHORT}")


def test_a_host_that_does_not_exist_is_unavailable() -> None:
    with pytest.raises(BackendUnavailableError, match="none of its host names can be resolved"):
        lapse.open_keys(f"cassandra://nobody.invalid/lapse?{SHORT}")


def test_a_closed_store_says_so(server: Server, app_id: int) -> None:
    keys = lapse.open_keys(server.keys_url())
    auth = keys.app(app_id)
    keys.close()
    keys.close()

    with pytest.raises(BackendClosedError):
        auth.ttl_get("k")


# --- servers and connections that fail in the middle ------------------------------------------------------------------


def test_a_paused_server_is_a_time_out_and_works_again_when_it_goes_on(server: Server, app_id: int) -> None:
    with lapse.open_keys(f"{server.keys_url()}?{SHORT}") as keys:
        auth = keys.app(app_id)
        auth.put("k", "v", 600)
        with server.paused():
            with pytest.raises(BackendUnavailableError, match="did not answer in time"):
                auth.ttl_get("k")
            with pytest.raises(OutcomeUnknownError, match="did not answer in time"):
                auth.compare_and_swap("k", "v", "w", 600)
            with pytest.raises(BackendUnavailableError):
                lapse.open_keys(f"{server.keys_url()}?{SHORT}")

        wait_until(lambda: _answers(auth), seconds=30, what="an answer after the pause")
        assert auth.ttl_get("k") in {"v", "w"}


def _answers(auth: AppKeys) -> bool:
    try:
        auth.ttl_get("k")
    except BackendUnavailableError:
        return False
    return True


def test_a_slow_server_is_waited_for_as_long_as_the_url_says(server: Server, app_id: int) -> None:
    with Relay(server.port) as relay, lapse.open_keys(f"{server.keys_url(port=relay.port)}?timeout=2s") as keys:
        auth = keys.app(app_id)
        relay.delay(0.2)
        assert auth.insert_if_not_exists("k", "v", 60) is True
        relay.delay(1.5)
        with pytest.raises(BackendUnavailableError, match="did not answer in time"):
            auth.ttl_get("k")
        relay.delay(0)


def test_a_connection_cut_after_a_write_was_sent_leaves_its_outcome_unknown(server: Server, app_id: int) -> None:
    with (
        Relay(server.port) as relay,
        lapse.open_keys(server.keys_url(port=relay.port)) as keys,
        lapse.open_keys(server.keys_url()) as direct,
        ThreadPoolExecutor(1) as pool,
    ):
        auth, seen = keys.app(app_id), direct.app(app_id)
        seen.put("k", "old", 600)
        relay.silence(up=False)
        swap = pool.submit(auth.compare_and_swap, "k", "old", "new", 600)
        wait_until(lambda: seen.ttl_get("k") == "new", what="the write")
        relay.cut()
        relay.speak()

        with pytest.raises(OutcomeUnknownError, match="did not say whether the write was applied"):
            swap.result(timeout=30)
        wait_until(lambda: _answers(auth), seconds=30, what="an answer on a new connection")
        assert auth.ttl_get("k") == "new"


def test_a_server_killed_in_the_middle_of_a_swap_leaves_its_outcome_unknown_and_loses_nothing(
    server: Server, app_id: int
) -> None:
    with Relay(server.port) as relay, lapse.open_keys(server.keys_url(port=relay.port)) as keys:
        auth = keys.app(app_id)
        auth.insert_many([(f"kept {number}", "v", 600) for number in range(20)])
        auth.put("k", "old", 600)
        relay.silence(up=False)
        forwarded = relay.counts.bytes_up
        with ThreadPoolExecutor(1) as pool:
            swap = pool.submit(auth.compare_and_swap, "k", "old", "new", 600)
            wait_until(lambda: relay.counts.bytes_up > forwarded, what="the request at the server")
            server.kill()
            relay.cut()  # the server may have answered before it died: that answer must not arrive
            relay.speak()
            with pytest.raises(OutcomeUnknownError):
                swap.result(timeout=30)
        with pytest.raises(BackendUnavailableError, match="no server could be reached"):
            auth.ttl_get("k")

        server.start()
        wait_until(lambda: _answers(auth), seconds=60, what="an answer after the restart")
        assert auth.ttl_get("k") in {"old", "new"}
        assert len(auth.get_many([f"kept {number}" for number in range(20)])) == 20
