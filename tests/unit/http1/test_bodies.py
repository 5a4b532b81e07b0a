from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.http1.bodies import LAST_CHUNK, Body, Chunked, Counted, Endless, body_of, chunk
from lapse.http1.heads import CHUNKED, UNTIL_CLOSE, RejectedError


def feed(body: Body, data: bytes, cuts: list[int]) -> bytes:
    """Feed in pieces that end at ``cuts``, and say what came out."""
    out, before = b"", 0
    for cut in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        piece, before = data[before:cut], cut
        if body.done:
            body.rest += piece
        elif piece:
            out += body.feed(piece)
    return out


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=6), st.lists(st.integers(0, 400)), st.binary(max_size=9))
def test_chunks_give_the_same_body_in_whatever_pieces_they_arrive(
    parts: list[bytes], cuts: list[int], behind: bytes
) -> None:
    body = Chunked()
    data = b"".join(map(chunk, parts)) + LAST_CHUNK + behind
    assert feed(body, data, cuts) == b"".join(parts)
    assert body.done
    assert body.rest == behind


@given(st.binary(max_size=50), st.lists(st.integers(0, 60)), st.binary(max_size=9))
def test_a_counted_body_ends_where_it_says(content: bytes, cuts: list[int], behind: bytes) -> None:
    body = Counted(len(content))
    assert feed(body, content + behind, cuts) == content
    assert body.done
    assert body.rest == behind


def test_an_endless_body_is_never_done_by_itself() -> None:
    body = Endless()
    assert body.feed(b"anything") == b"anything"
    assert not body.done


def test_the_reader_follows_the_head() -> None:
    assert isinstance(body_of(CHUNKED), Chunked)
    assert isinstance(body_of(UNTIL_CLOSE), Endless)
    assert body_of(0).done


def test_extensions_and_trailers_are_left_out() -> None:
    body = Chunked()
    assert body.feed(b'3;name="value"\r\nabc\r\n0\r\nX-Trailer: a\r\n\r\nnext') == b"abc"
    assert body.done
    assert body.rest == b"next"


@pytest.mark.parametrize(
    "data",
    [
        b"3\nabc\r\n0\r\n\r\n",
        b"3\r\nabcd\r\n0\r\n\r\n",
        b"3\r\nab\r\n0\r\n\r\n",
        b"3\r\nabc\n0\r\n\r\n",
        b"0x3\r\nabc\r\n0\r\n\r\n",
        b"-3\r\nabc\r\n",
        b"+3\r\nabc\r\n",
        b" 3\r\nabc\r\n",
        b"3 3\r\nabc\r\n",
        b"\r\nabc\r\n",
        b"g\r\n",
        b"3;\nabc\r\n",
        b"3;a\rb\r\nabc\r\n",
        b"f" * 16 + b"\r\n",
        b"1" * 5000,
        b"3;" + b"a" * 5000,
        b"0\r\nX: a\nY: b\r\n\r\n",
        b"0\r\nGET /hidden HTTP/1.1\r\n\r\n",
        b"0\r\nContent-Length: 5\r\n\r\n",
        b"0\r\ntransfer-encoding: chunked\r\n\r\n",
        b"3 ;x\r\nabc\r\n",
        b"0\r\n" + b"X: aaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n" * 1000 + b"\r\n",
    ],
)
@pytest.mark.parametrize("cuts", [[], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]])
def test_a_chunk_that_is_not_exactly_right_is_refused(data: bytes, cuts: list[int]) -> None:
    with pytest.raises(RejectedError):
        feed(Chunked(), data, cuts)


@given(st.binary(max_size=100), st.lists(st.integers(0, 100)))
def test_chunks_are_judged_alike_in_whatever_pieces_they_arrive(data: bytes, cuts: list[int]) -> None:
    def outcome(cuts: list[int]) -> object:
        body = Chunked()
        try:
            out = feed(body, b"2\r\nab\r\n" + data + b"\r\n0\r\n\r\n\r\n\r\n", cuts)
        except RejectedError:
            return "refused"
        return out, body.done, body.rest

    assert outcome(cuts) == outcome([])


def test_a_piece_of_many_chunks_is_read_in_turns() -> None:
    body, out, turns = Chunked(), b"", 0
    data = chunk(b"a") * 40_000 + LAST_CHUNK + b"next"
    while not body.done:
        turns += 1
        fed = body.feed(data)
        assert len(fed) <= 1000
        assert body.more or body.done
        out, data = out + fed, b""
    assert out == b"a" * 40_000
    assert body.rest == b"next"
    assert turns > 10
