"""The relay forwards faithfully, and misbehaves exactly as asked."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from typing import TYPE_CHECKING

import pytest
import redis
from cassandra import ConsistencyLevel
from cassandra.cluster import Cluster

from tests.servers import Relay, wait_until
from tests.servers.relay import CassandraFrames, Turns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import Server


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        connection: socket.socket = self.request
        try:
            while data := connection.recv(65536):
                connection.sendall(data)
        except ConnectionError:
            pass


@contextlib.contextmanager
def serving(handler: type[socketserver.BaseRequestHandler]) -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back what it gets."""
    with serving(_Echo) as port:
        yield port


def connect(relay: Relay, seconds: float = 5) -> socket.socket:
    return socket.create_connection((relay.host, relay.port), timeout=seconds)


def ask(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    return client.recv(65536)


def test_bytes_come_back_unchanged_and_counted(echo: int) -> None:
    payload = bytes(range(256)) * 4096
    with Relay(echo) as relay, connect(relay) as client:
        sender = threading.Thread(target=client.sendall, args=(payload,))
        sender.start()
        received = b""
        while len(received) < len(payload):
            received += client.recv(65536)
        sender.join()
        assert received == payload
        counts = relay.counts
        assert (counts.connections, counts.bytes_up, counts.bytes_down) == (1, len(payload), len(payload))


def test_each_turn_of_a_connection_is_one_request(echo: int) -> None:
    with Relay(echo) as relay, connect(relay) as one, connect(relay) as two:
        for _ in range(3):
            ask(one, b"a")
        ask(two, b"b")
        assert relay.counts.requests == 4


def test_a_request_in_two_pieces_is_one_turn() -> None:
    turns = Turns()
    assert [turns.sent(b"a"), turns.sent(b"b")] == [["turn"], []]
    turns.answered(b"c")
    assert turns.sent(b"d") == ["turn"]


def test_the_end_of_one_direction_is_passed_on(echo: int) -> None:
    with Relay(echo) as relay, connect(relay) as client:
        assert ask(client, b"a") == b"a"
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""


def test_a_silent_relay_accepts_and_holds_everything_back_until_it_speaks(echo: int) -> None:
    with Relay(echo) as relay:
        relay.silence()
        with connect(relay, seconds=0.2) as client:
            client.sendall(b"held")
            with pytest.raises(TimeoutError):
                client.recv(10)
            assert relay.counts.bytes_up == 0
            relay.speak()
            client.settimeout(5)
            assert client.recv(10) == b"held"


def test_with_only_the_way_back_silent_the_server_gets_the_request(echo: int) -> None:
    with Relay(echo) as relay, connect(relay, seconds=0.2) as client:
        relay.silence(up=False)
        client.sendall(b"lost")
        with pytest.raises(TimeoutError):
            client.recv(10)
        counts = relay.counts
        assert (counts.bytes_up, counts.bytes_down) == (4, 0)
        relay.cut()
        with pytest.raises(ConnectionResetError):
            client.recv(10)


def test_a_cut_resets_open_connections_and_takes_new_ones(echo: int) -> None:
    with Relay(echo) as relay, connect(relay) as client:
        ask(client, b"a")
        relay.cut()
        with pytest.raises(ConnectionResetError):
            client.recv(10)
        with connect(relay) as fresh:
            assert ask(fresh, b"b") == b"b"


def test_a_closed_door_refuses_until_it_is_opened_on_the_same_port(echo: int) -> None:
    with Relay(echo) as relay:
        relay.cut(refuse=True)
        with pytest.raises(ConnectionRefusedError):
            connect(relay)
        relay.accept()
        with connect(relay) as client:
            assert ask(client, b"a") == b"a"


def test_a_delay_counts_for_each_direction(echo: int) -> None:
    with Relay(echo) as relay, connect(relay) as client:
        relay.delay(0.1)
        assert wait_until(lambda: ask(client, b"a") == b"a") >= 0.2


def test_a_server_that_is_not_there_resets_the_connection() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with Relay(unused.getsockname()[1]) as relay:
            # Around both: the reset may come before the client has seen that it is connected.
            with pytest.raises(ConnectionResetError), connect(relay) as client:
                client.recv(10)
            assert relay.counts.bytes_up == 0


def test_a_large_answer_is_delivered_whole_when_the_server_hangs_up_after_it() -> None:
    answer = b"x" * 3_000_000

    class Speaker(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(answer)

    with serving(Speaker) as port, Relay(port) as relay, connect(relay) as client:
        received = b""
        while piece := client.recv(65536):
            received += piece
        assert received == answer


def test_one_redis_command_or_pipeline_is_one_request(shared_redis: Server) -> None:
    with Relay(shared_redis.port) as relay, redis.Redis(host=relay.host, port=relay.port) as client:
        client.ping()
        before = relay.counts.requests
        client.get("nothing")
        assert relay.counts.requests - before == 1
        with client.pipeline(transaction=False) as pipeline:
            for _ in range(100):
                pipeline.get("nothing")
            pipeline.execute()
        assert relay.counts.requests - before == 2


def test_cassandra_requests_are_counted_by_kind(shared_cassandra: Server) -> None:
    with Relay(shared_cassandra.port, reader=CassandraFrames) as relay:
        # The driver learns the server's own port from it, and would go round the relay.
        cluster = Cluster([relay.host], port=relay.port, protocol_version=4)
        try:
            session = cluster.connect()
            statement = session.prepare("SELECT release_version FROM system.local")
            statement.consistency_level = ConsistencyLevel.ONE
            before = relay.counts.by_name.get("EXECUTE", 0)
            for _ in range(5):
                session.execute(statement)
            assert relay.counts.by_name["EXECUTE"] - before == 5
        finally:
            cluster.shutdown()
