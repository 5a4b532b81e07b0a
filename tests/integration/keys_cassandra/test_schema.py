from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import lapse
from lapse.keys.errors import BackendMisfitError, KeysURLError
from lapse.keys.url import parse_url
from tests.integration.keys_cassandra.conftest import init, raw_session

if TYPE_CHECKING:
    from tests.servers import Server


@pytest.fixture
def url(shared_cassandra: Server, request: pytest.FixtureRequest) -> str:
    return shared_cassandra.keys_url(f"lapse_{os.getpid()}_{abs(hash(request.node.name)) % 10**6}")


def test_a_store_without_a_keyspace_names_the_command_that_makes_it(url: str) -> None:
    with pytest.raises(BackendMisfitError, match=f"keyspace does not exist; make it with: lapse keys init {url}"):
        lapse.open_keys(url.replace("://", "://somebody:secret@"))


def test_a_store_without_tables_names_the_command_that_makes_them(url: str, shared_cassandra: Server) -> None:
    keyspace = url.rpartition("/")[2]
    with raw_session(url) as raw:
        raw(f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")

    with pytest.raises(BackendMisfitError, match=f"tables do not exist; make them with: lapse keys init {url}"):
        lapse.open_keys(url)

    assert init(url) == f"made the tables lapse_keys, lapse_keys_settings in {url}, with buckets=1"
    lapse.open_keys(url).close()


def test_opening_makes_nothing(url: str) -> None:
    with pytest.raises(BackendMisfitError):
        lapse.open_keys(url)

    with raw_session(url) as raw:
        keyspaces = {name for (name,) in raw("SELECT keyspace_name FROM system_schema.keyspaces")}
    assert url.rpartition("/")[2] not in keyspaces


def test_init_says_what_it_made_and_can_be_repeated(url: str) -> None:
    wanted = url + "?replication=1&buckets=4&gc_grace=1h"
    keyspace = url.rpartition("/")[2]

    first, second = init(wanted), init(wanted)

    assert first == (
        f"made the keyspace {keyspace} (copies: 1 in every datacenter) and the tables lapse_keys, lapse_keys_settings "
        f"in {url}, with buckets=4"
    )
    assert second == f"nothing was missing in {url}; it is used with buckets=4"
    with raw_session(url) as raw:
        [(grace, compaction)] = raw(
            "SELECT gc_grace_seconds, compaction FROM system_schema.tables "
            "WHERE keyspace_name = %s AND table_name = 'lapse_keys'",
            keyspace,
        )
        [(replication,)] = raw("SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s", keyspace)
    assert grace == 3600
    assert compaction["class"].endswith("LeveledCompactionStrategy")
    assert replication["class"].endswith("NetworkTopologyStrategy")


def test_another_number_of_buckets_is_refused_by_opening_and_by_init(url: str) -> None:
    init(url + "?buckets=4")

    with pytest.raises(BackendMisfitError, match="made with buckets=4 and is opened with buckets=1; open it with"):
        lapse.open_keys(url)
    with pytest.raises(BackendMisfitError, match="made with buckets=4 and is opened with buckets=8"):
        init(url + "?buckets=8")
    lapse.open_keys(url + "?buckets=4").close()


def test_a_keyspace_with_capital_letters_is_its_own(url: str) -> None:
    capital = url.replace("/lapse_", "/Lapse_")
    init(url)

    with pytest.raises(BackendMisfitError, match="keyspace does not exist"):
        lapse.open_keys(capital)
    assert init(capital).startswith("made the keyspace Lapse_")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("cassandra://h/", "its path must be a keyspace"),
        ("cassandra://h", "its path must be a keyspace"),
        ("cassandra://h/with-dash", "its path must be a keyspace"),
        ('cassandra://h/a"b', "its path must be a keyspace"),
        ("cassandra:///ks", r"expected cassandra://host\[,host...\]\[:port\]/keyspace"),
        ("cassandra://h:0/ks", "one port for all hosts"),
        ("cassandra://h1:1,h2:2/ks", "one port for all hosts"),
        ("cassandra://somebody@h/ks", "a user name and no password"),
        ("cassandra://h/ks?consistency=local", "needs the name of the datacenter: add dc=NAME"),
        ("cassandra://h/ks?consistency=one", "expected global, or local together with dc"),
        ("cassandra://h/ks?ssl=yes", "expected true or false"),
        ("cassandra://h/ks?ca=/nowhere.pem", "expected an existing file in PEM form"),
        ("cassandra://h/ks?max_skew=2m", "expected a duration up to 60s"),
        ("cassandra://h/ks?timeout=never", "expected how long to wait"),
        ("cassandra://h/ks?replication=0", "expected a number of copies"),
        ("cassandra://h/ks?replication=3,dc2:3", "expected a number of copies"),
        ("cassandra://h/ks?replication=dc1:3,dc1:2", "expected a number of copies"),
        ("cassandra://h/ks?gc_grace=-1s", "expected whole seconds"),
        ("cassandra://h/ks?retries=3", "valid options: buckets, ca, cache, cache_max_age, connect_timeout"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_before_anything_is_connected(text: str, problem: str) -> None:
    with pytest.raises(KeysURLError, match=problem):
        lapse.open_keys(text)


def test_several_hosts_share_one_port() -> None:
    from lapse.keys.backends.cassandra import _address

    address = _address(parse_url("cassandra://u:p%40ss@one,two,[::1]:9043/ks?consistency=local&dc=dc1"))

    assert (address.hosts, address.port, address.password) == (["one", "two", "::1"], 9043, "p@ss")
    assert "p@ss" not in repr(address)
