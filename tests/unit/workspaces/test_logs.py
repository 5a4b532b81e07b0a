"""What the program of a workspace wrote, read in pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.workspaces import logs
from lapse.workspaces.logs import LogPage, LogUnreadableError, read_log

if TYPE_CHECKING:
    from pathlib import Path

LAB = "workspace/lab"


def followed(path: Path, *, after: int = 0) -> tuple[str, int]:
    """Return what is there behind a place, however many pages it takes, and where that ends."""
    text = ""
    while True:
        page = read_log(path, LAB, after=after)
        text, after = text + page.text, page.next
        if not page.more:
            return text, after


def test_a_log_that_grows_is_told_once_and_one_that_was_shortened_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert read_log(path, LAB) == LogPage("", 0, more=False)
    path.write_text("first ")
    text, place = followed(path)
    path.write_text("first more ")
    more, place = followed(path, after=place)
    path.write_text("new")
    assert (text, more, followed(path, after=place)) == ("first ", "more ", ("new", 3))
    assert followed(path, after=3) == ("", 3)


def test_a_character_is_told_when_all_of_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes("aß".encode()[:2])
    assert read_log(path, LAB) == LogPage("a", 1, more=False)
    path.write_bytes("aß".encode())
    assert read_log(path, LAB, after=1) == LogPage("ß", 3, more=False)


@given(st.text(max_size=60), st.integers(4, 9), st.integers(0, 9))
def test_pages_and_last_lines_are_those_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, text: str, most: int, lines: int
) -> None:
    path = tmp_path_factory.mktemp("logs") / "log"
    path.write_bytes(text.encode())
    whole = text.encode().split(b"\n")
    ended = whole[-1] == b""
    last = whole[:-1] if ended else whole
    wanted = b"\n".join(last[len(last) - min(lines, len(last)) :]) + (b"\n" if ended and lines and text else b"")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(logs, "MOST_BYTES", most)
        patched.setattr(logs, "_BLOCK", most)
        first = read_log(path, LAB, tail=lines)
        rest, _ = followed(path, after=first.next) if first.more else ("", 0)
        assert followed(path)[0] == text
        assert (first.text + rest).encode() == wanted


def test_a_log_that_cannot_be_read_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(LogUnreadableError, match="The output of workspace/lab cannot be read: Is a directory"):
        read_log(tmp_path, LAB)
