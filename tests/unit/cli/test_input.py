from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import pytest

from lapse.cli.input import FileError, read_file, read_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(folder: Path, text: str | bytes) -> str:
    (folder / "given").write_bytes(text.encode() if isinstance(text, str) else text)
    return "given"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1}', [{"a": 1}]),
        ("a: 1\nb: [x, 2.5, true, null]", [{"a": 1, "b": ["x", 2.5, True, None]}]),
        ("---\na: 1\n---\n---\nb: 2\n", [{"a": 1}, {"b": 2}]),
        ("# only a remark\n---\na: 1", [{"a": 1}]),
        ("at: 2026-01-31T12:00:00Z\nday: 2026-01-31", [{"at": "2026-01-31T12:00:00Z", "day": "2026-01-31"}]),
        ("a: &x {b: 1}\nc: *x", [{"a": {"b": 1}, "c": {"b": 1}}]),
        ("a: &x {b: 1}\nc: {<<: *x, d: 2}", [{"a": {"b": 1}, "c": {"b": 1, "d": 2}}]),
        ("text", ["text"]),
    ],
)
def test_documents_are_read_as_they_are_written(folder: Path, text: str, found: list[object]) -> None:
    assert read_file(written(folder, text)) == found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "there is no document in it"),
        ("---\n---\n", "there is no document in it"),
        ("# nothing\n", "there is no document in it"),
        ("a: 1\nb: [\n", "line 3: "),
        ("a: 1\n\tb: 2", "line 2: "),
        ("a: 1\na: 2", "line 2: 'a' comes twice"),
        ("a: {b: 1, b: 2}", "line 1: 'b' comes twice"),
        ("a: *nobody", "line 1: "),
        ("a: !!python/object:os.system x", "line 1: "),
        ("1: x", "1 is a key, and keys are texts"),
        ("a: .nan", "nan is not a number that JSON knows"),
        ("a: .inf", "inf is not a number that JSON knows"),
        ('{"a": NaN}', "nan is not a number that JSON knows"),
        ("a: !!set {x}", "set is not a type that JSON knows"),
        ("a: !!binary aGk=", "bytes is not a type that JSON knows"),
        ("&a [*a]", "it is too large, or nested too deep"),
        ("[" * 200_000, "nested too deep"),
        (
            "a: &a [x,x,x,x,x,x,x,x]\n"
            + "".join(f"{c}: &{c} [{','.join([f'*{b}'] * 8)}]\n" for b, c in zip("abcdefg", "bcdefgh", strict=True)),
            "it is too large",
        ),
        (b"a: \xff", "it is not text in UTF-8"),
        (b"a: \x00", "a character that YAML does not allow"),
        (b"x" * ((4 << 20) + 1), "it has more than 4 MiB"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_cannot_be_meant_is_one_line_with_its_place(folder: Path, text: str | bytes, problem: str) -> None:
    with pytest.raises(FileError) as raised:
        read_file(written(folder, text))
    assert str(raised.value).startswith("given cannot be read: ")
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("nowhere", "nowhere cannot be read: No such file or directory."),
        (".", ". cannot be read: Is a directory."),
        ("", "'' cannot be read: "),
        ("a\0b", r"a\x00b cannot be read: no such file."),
        ("--strcit", "--strcit cannot be read: No such file or directory, and it is not an option."),
    ],
)
def test_a_file_that_is_not_there_is_named(file: str, problem: str) -> None:
    with pytest.raises(FileError) as raised:
        read_file(file)
    assert str(raised.value).startswith(problem)


def test_stdin_is_read_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a: 1")))
    assert read_file("-") == [{"a": 1}]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(FileError, match="stdin cannot be read: there is no document in it"):
        read_file("-")


def test_several_files_are_read_in_their_order(folder: Path) -> None:
    (folder / "one").write_text("a: 1\n---\nb: 2")
    (folder / "two").write_text('{"c": 3}')
    assert read_files(["two", "one"]) == [{"c": 3}, {"a": 1}, {"b": 2}]
