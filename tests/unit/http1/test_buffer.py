from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.http1.heads import ReceiveBuffer, RejectedError

WHOLE = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


def test_a_head_may_arrive_in_any_pieces() -> None:
    for cut in range(len(WHOLE)):
        incoming = ReceiveBuffer()
        incoming.feed(WHOLE[:cut])
        assert incoming.take_head() is None
        incoming.feed(WHOLE[cut:])
        assert incoming.take_head() == WHOLE[:-4]


@given(
    st.lists(st.sampled_from([b"GET /a", b"GET /bb\r\nX: y", b"P"]), min_size=1, max_size=8),
    st.lists(st.integers(1, 20)),
    st.binary(max_size=9).filter(lambda each: b"\n" not in each and b"\r" not in each),
)
def test_what_is_taken_is_what_was_fed_in_whatever_pieces(heads: list[bytes], sizes: list[int], behind: bytes) -> None:
    data = b"".join(head + b"\r\n\r\n" for head in heads) + behind
    incoming, found = ReceiveBuffer(), []
    for size in [*sizes, len(data)]:
        piece, data = data[:size], data[size:]
        if piece:
            incoming.feed(piece)
        while (head := incoming.take_head()) is not None:
            found.append(head)
    assert found == heads
    assert len(incoming) == len(behind)
    assert incoming.take() == behind
    assert not incoming


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\nHost: a\n\n", b"GET / HTTP/1.1\r\nHost: a\n\n", b"GET / \rHTTP"])
def test_lines_that_end_otherwise_are_refused_at_once(data: bytes) -> None:
    for pieces in ([data], [data[at : at + 1] for at in range(len(data))]):
        incoming = ReceiveBuffer()

        def feed_all(pieces: list[bytes] = pieces, incoming: ReceiveBuffer = incoming) -> None:
            for piece in pieces:
                incoming.feed(piece)
                incoming.take_head()

        with pytest.raises(RejectedError) as caught:
            feed_all()
        assert caught.value.status == 400


def test_many_heads_in_one_piece_are_not_moved_for_each() -> None:
    incoming = ReceiveBuffer()
    incoming.feed(WHOLE * 40_000)
    begun = time.process_time()
    taken = 0
    while incoming.take_head() is not None:
        taken += 1
    assert taken == 40_000
    assert time.process_time() - begun < 2  # 40 GB would have to be moved otherwise
