"""A user's mistake is one clear message, exit code 64, nothing done, no traceback and no secret repeated."""

from __future__ import annotations

import io
import sys

import pytest

from lapse.cli import main

SECRET = "s3cr3t"
STORE = ["--app", "7", "--url", "memory://"]
WHOLE_SECONDS = "expected a whole number of seconds (an int) from 1 to 31536000 (365 days)"


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """Replace stdin by bytes, none unless a test puts some there."""
    content = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(content, encoding="utf-8"))
    return content


def case(*arguments: str, says: str) -> object:
    return pytest.param(
        list(arguments), says, id=" ".join(ascii(argument)[1:20] for argument in arguments) or "nothing"
    )


@pytest.mark.usefixtures("stdin")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        # commands and options
        case(
            "kyes",
            says="'kyes' is not a command or option. Did you mean 'keys'? Commands: up,",
        ),
        case("--frobnicate", says="'--frobnicate' is not a command or option."),
        case("keys", "gte", says="'gte' is not a command or option. Did you mean 'get'?"),
        case("keys", "get", says="The argument KEY is missing."),
        case("keys", "put", "k", *STORE, "--ttl", "5m", says="The argument VALUE is missing."),
        case(
            "keys", "get", "k", "--url", "memory://", says="Say whose keys: --app N, or an address such as key/7/alpha"
        ),
        case("keys", "get", "k", "--ap", "7", says="Unknown option: --ap. Did you mean --app?"),
        case("keys", "get", "k", "--app", "--url", "memory://", says="--app needs a value."),
        case("keys", "get", "k", *STORE, "--jsn", says="Unknown option: --jsn."),
        case("keys", "put", "k", "v", *STORE, "--tll", "5m", says="Unknown option: --tll. Did you mean --ttl?"),
        case(
            "keys", "get", "k", *STORE, "-o", "jsn", says='Choose from: "table", "json", "yaml". Did you mean "json"?'
        ),
        case("keys", "get", "k", *STORE, "--app", "8", says="--app specified multiple times"),
        case("keys", "put", "k", "v", SECRET, *STORE, "--ttl", "5m", says="1 argument too many (not shown"),
        case("keys", "get", "k", SECRET, SECRET, *STORE, says="2 arguments too many (not shown"),
        case("keys", "get", "k", f"-{SECRET}", *STORE, says="Put -- before a value that starts with -"),
        case("keys", "get", "k", *STORE, f"--nonsense={SECRET}", says="Unknown option: --nonsense."),
        # keys and values
        case("keys", "get", "", *STORE, says="The key is empty. Expected 1 to 1024 bytes of UTF-8."),
        case("keys", "get", "k\udcff", *STORE, says="The key is not valid UTF-8: it breaks at position 1"),
        case("keys", "get", "é" * 513, *STORE, says="The key is 1026 bytes long as UTF-8; the limit is 1024 bytes."),
        case("keys", "put", "k", f"{SECRET}\udcff", *STORE, "--ttl", "5m", says="The value is not valid UTF-8"),
        case("keys", "put", "k", "🔑" * 16385, *STORE, "--ttl", "5m", says="The value is 65540 bytes long"),
        case("keys", "swap", "k", "é" * 32769, "w", *STORE, "--ttl", "5m", says="The value is 65538 bytes long"),
        case("keys", "delete", "k", "--if-value", "v" * 65537, *STORE, says="The value is 65537 bytes long"),
        case("keys", "swap", "k", "-", "-", *STORE, "--ttl", "5m", says="one line each; it has one line."),
        # TTLs
        case("keys", "put", "k", "v", *STORE, says="No TTL is given. Write --ttl 15m, or --ttl-seconds 900."),
        case("keys", "touch", "k", *STORE, says="No TTL is given."),
        case("keys", "put", "k", "v", *STORE, "--ttl", "5m", "--ttl-seconds", "300", says="The TTL is given twice."),
        case(
            "keys", "put", "k", "v", *STORE, "--ttl", "10minutes", says="'minutes' is not a unit. Expected numbers with"
        ),
        case("keys", "put", "k", "v", *STORE, "--ttl", "600", says="it has no unit (seconds would be 600s)"),
        case("keys", "put", "k", "v", *STORE, "--ttl", "", says="it holds no number"),
        case("keys", "put", "k", "v", *STORE, "--ttl", "0", says=f"The TTL is 0; {WHOLE_SECONDS}."),
        case("keys", "put", "k", "v", *STORE, "--ttl", "-5m", says=f"The TTL is -300; {WHOLE_SECONDS}."),
        case("keys", "put", "k", "v", *STORE, "--ttl", "500ms", says=f"The TTL is 500ms; {WHOLE_SECONDS}."),
        case("keys", "put", "k", "v", *STORE, "--ttl", "never", says=f"The TTL is never; {WHOLE_SECONDS}."),
        case("keys", "put", "k", "v", *STORE, "--ttl", "366d", says=f"The TTL is 31622400; {WHOLE_SECONDS}."),
        case(
            "keys", "put", "k", "v", *STORE, "--ttl-seconds", "31536001", says=f"The TTL is 31536001; {WHOLE_SECONDS}."
        ),
        case("keys", "put", "k", "v", *STORE, "--ttl-seconds", "0", says=f"The TTL is 0; {WHOLE_SECONDS}."),
        case("keys", "put", "k", "v", *STORE, "--ttl-seconds", "-1", says=f"The TTL is -1; {WHOLE_SECONDS}."),
        case("keys", "put", "k", "v", *STORE, "--ttl-seconds", "1.0", says=f"The TTL is '1.0'; {WHOLE_SECONDS}."),
        case("keys", "put", "k", "v", *STORE, "--ttl-seconds", "true", says=f"The TTL is 'true'; {WHOLE_SECONDS}."),
        case("keys", "put", "k", "v", *STORE, "--ttl-seconds", "0x10", says=f"The TTL is '0x10'; {WHOLE_SECONDS}."),
        case("keys", "put", "k", "v", *STORE, "--ttl-seconds", "١", says=f"The TTL is '١'; {WHOLE_SECONDS}."),
        case("keys", "put", "k", "v", *STORE, "--ttl-seconds", "9" * 5000, says="The TTL is a number of 5000 digits"),
        # applications, pages, stores
        case("keys", "get", "k", "--app", "-1", says="The application id is -1; expected a whole number"),
        case("keys", "get", "k", "--app", "4294967296", says="The application id is 4294967296; expected"),
        case("keys", "get", "k", "--app", "1.5", says="The application id is '1.5'; expected"),
        case("keys", "get", "k", "--app", "seven", says="The application id is 'seven'; expected"),
        case("keys", "list", *STORE, "--limit", "-1", says="--limit is -1. Expected 0 for all, or a number above 0."),
        case("keys", "list", *STORE, "--limit", "1.5", says="--limit is '1.5'. Expected 0 for all"),
        case("keys", "list", *STORE, "--prefix", "\udcff", says="lone surrogate"),
        case("keys", "get", "k", "--app", "7", "--url", "keys.db", says="it has no scheme; expected one of memory://"),
        case(
            "keys",
            "get",
            "k",
            "--app",
            "7",
            "--url",
            "mongo://x",
            says="'mongo' is not a known scheme; expected one of",
        ),
        case(
            "keys", "get", "k", "--app", "7", "--url", "memory://?a=1", says="'a' is not an option of memory://; valid"
        ),
        case("keys", "get", "k", "--app", "7", "--url", f"mongo://me:{SECRET}@h", says="The keys URL mongo://h"),
        case("keys", "conformance", says="The argument URL is missing."),
        case("keys", "conformance", "nowhere", says="it has no scheme"),
        case("keys", "conformance", "memory://", "--only", "nonsense", says="There is no conformance case 'nonsense'"),
    ],
)
def test_a_mistake_is_explained_and_ends_with_64(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(arguments)

    captured = capsys.readouterr()
    assert code == 64
    assert captured.out == ""
    assert captured.err.startswith("lapse: ")
    assert says in captured.err
    assert SECRET not in captured.err
    assert "Traceback" not in captured.err
    assert len(captured.err) < 600


@pytest.mark.parametrize(("arguments", "hint"), [
    (["kyes"], "Try 'lapse --help'."),
    (["keys", "gte"], "Try 'lapse keys --help'."),
    (["keys", "put", "k"], "Try 'lapse keys put --help'."),
])  # fmt: skip
def test_a_command_line_that_is_not_understood_names_the_help_to_read(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(arguments)

    assert capsys.readouterr().err.splitlines()[-1] == hint


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (f"{SECRET}\xff".encode("latin-1"), "What came from stdin is not UTF-8: it breaks at byte 6."),
        (b"\xed\xa0\x80", "What came from stdin is not UTF-8: it breaks at byte 0."),
        (b"v" * 65537, "The value is 65537 bytes long as UTF-8; the limit is 65536 bytes."),
        (b"v" * 1_000_000, "The value is more than 131074 bytes long as UTF-8; the limit is 65536 bytes."),
    ],
)
def test_what_comes_from_stdin_is_checked_like_any_value(
    content: bytes, says: str, stdin: io.BytesIO, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin.write(content)
    stdin.seek(0)

    assert main(["keys", "put", "k", "-", *STORE, "--ttl", "5m"]) == 64

    captured = capsys.readouterr()
    assert says in captured.err
    assert SECRET not in captured.err


@pytest.mark.parametrize(("content", "lines"), [(b"a\nb\nc\n", "3 lines"), (b"", "one line"), (b"a\n", "one line")])
def test_two_values_from_stdin_are_two_lines(
    content: bytes, lines: str, stdin: io.BytesIO, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin.write(content)
    stdin.seek(0)

    assert main(["keys", "swap", "k", "-", "-", *STORE, "--ttl", "5m"]) == 64
    assert f"Two values were to be read from stdin, one line each; it has {lines}." in capsys.readouterr().err


@pytest.mark.parametrize("value", ["-", "-x", "--", "@file", "$(id)", "[1, 2]", "{}", "", " ", "None", "null", "é🔑"])
def test_any_other_value_is_taken_as_it_is(value: str, stdin: io.BytesIO, capsys: pytest.CaptureFixture[str]) -> None:
    stdin.write(b"-\n")
    stdin.seek(0)

    assert main(["keys", "put", "k", *STORE, "--ttl", "5m", "--", value]) == 0
    assert capsys.readouterr() == ("Put: key/7/k.\n", "")
