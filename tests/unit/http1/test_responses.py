"""Responses of HTTP/1.1, in whatever pieces they come."""

from __future__ import annotations

import gzip

import pytest

from lapse.http1.bodies import LAST_CHUNK, chunk
from lapse.http1.heads import RejectedError
from lapse.http1.responses import ResponseReader

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\nRetry-After: 3\r\n\r\nhello"
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;more=x\r\nlo\r\n0\r\n\r\n"
TRAILERS = CHUNKS[:-2] + b"X-Sum: 1\r\n\r\n"
INFORMED = b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH


def fed(*pieces: bytes) -> tuple[ResponseReader, bytes]:
    reader, content = ResponseReader(b"GET"), b""
    for piece in pieces:
        assert not reader.done, "it was complete before the last piece"
        content += reader.feed(piece)
    return reader, content


def one_by_one(text: bytes) -> list[bytes]:
    return [bytes([byte]) for byte in text]


@pytest.mark.parametrize("text", [LENGTH, CHUNKS, TRAILERS, INFORMED])
def test_a_response_is_complete_with_its_last_byte_whatever_pieces_it_comes_in(text: bytes) -> None:
    for pieces in ([text], one_by_one(text)):
        reader, content = fed(*pieces)
        assert reader.done
        assert reader.keep
        assert reader.head is not None
        assert (reader.head.status, content) == (200, b"hello")


def test_headers_are_found_whatever_their_case() -> None:
    reader, _ = fed(LENGTH)
    assert reader.head is not None
    assert reader.head.values[b"retry-after"] == b"3"


@pytest.mark.parametrize("code", [204, 304])
def test_a_response_without_a_body_needs_no_length(code: int) -> None:
    reader, content = fed(b"HTTP/1.1 %d x\r\n\r\n" % code)
    assert reader.done
    assert not content


def test_a_response_without_a_length_ends_with_its_connection() -> None:
    reader, content = fed(b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo")
    assert not reader.done
    assert reader.end()
    assert (content, reader.keep) == (b"hello", False)


@pytest.mark.parametrize("text", [b"", LENGTH[:10], LENGTH[:-1], CHUNKS[:-1], CHUNKS[:60]])
def test_a_response_that_is_cut_short_is_none(text: bytes) -> None:
    reader, _ = fed(*([text] if text else []))
    assert not reader.end()
    assert reader.begun is bool(text)


def test_a_tunnel_that_a_proxy_has_opened_has_no_body() -> None:
    reader = ResponseReader(b"CONNECT")
    reader.feed(b"HTTP/1.1 200 Connection established\r\n\r\n")
    assert reader.done


@pytest.mark.parametrize("framing", ["length", "chunks", "close"])
def test_what_was_compressed_is_given_piece_by_piece(framing: str) -> None:
    packed = gzip.compress(b"hello" * 1000)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n"
    if framing == "length":
        text = head + b"Content-Length: %d\r\n\r\n" % len(packed) + packed
    elif framing == "chunks":
        text = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(packed) + LAST_CHUNK
    else:
        text = head + b"\r\n" + packed
    for pieces in ([text], one_by_one(text)):
        reader, content = fed(*pieces)
        assert reader.end()
        assert content == b"hello" * 1000


def test_compressed_content_that_ends_too_early_is_no_response() -> None:
    packed = gzip.compress(b"hello")[:-1]
    reader, _ = fed(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + packed)
    with pytest.raises(RejectedError, match="decompressed"):
        reader.end()


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n",
    ],
)
def test_a_connection_is_not_kept_against_the_servers_wish_or_with_more_on_it_than_was_asked_for(head: bytes) -> None:
    reader, _ = fed(head)
    assert reader.done
    assert not reader.keep


def test_a_piece_of_many_chunks_is_one_piece() -> None:
    reader, content = fed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"a") * 2000 + LAST_CHUNK)
    assert reader.done
    assert content == b"a" * 2000


@pytest.mark.parametrize(
    "text",
    [
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabcd\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 70_000,
        b"x" * 70_000,
    ],
)
def test_what_is_no_response_is_never_guessed_at(text: bytes) -> None:
    with pytest.raises(RejectedError):
        fed(text)
