"""`lapse login` and what commands make of it: which server, which token, and a file that nobody else reads."""

from __future__ import annotations

import json
import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from lapse.cli import main, remote
from lapse.cli.flags import VerbFlags
from lapse.cli.remote import (
    CredentialsFile,
    LoginFileError,
    NoTokenError,
    OtherFlagsError,
    OwnerTokenNotSentError,
    client_at,
    token_for,
)
from lapse.client import ServerAddressError, TokenInTheClearError
from lapse.client.errors import ServerUnreachableError
from lapse.client.transport import LapseServer
from lapse.web.auth.running import note_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "lapse_0a1b2c_hunter2"
THERE = "https://lapse.example.org"


class Answers(BaseHTTPRequestHandler):
    """A server that knows one token."""

    def do_GET(self) -> None:
        known = self.headers["Authorization"] == f"Bearer {TOKEN}"
        body = b"{}" if known else b'{"status":401,"detail":"The token is unknown.","code":"TokenInvalidError"}'
        self.send_response(200 if known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:  # noqa: ANN401 - as the base has it
        """Stay silent."""


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answers) as found:
        thread = Thread(target=found.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("LAPSE_STATE_DIR", str(tmp_path / "state"))
    for name in ("LAPSE_SERVER", "LAPSE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config" / "lapse"


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return str(path)


def kept(folder: Path) -> CredentialsFile:
    return CredentialsFile(folder)


# --- the commands -----------------------------------------------------------------------------------------------------


def test_a_token_that_the_server_knows_is_kept_and_never_shown(
    server: str, token_file: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["login", server, "--token-file", token_file]) == 0
    assert main(["login", "--list"]) == 0
    assert main(["login", "--list", "-o", "json"]) == 0
    told = capsys.readouterr()

    assert kept(folder).tokens() == {server: TOKEN}
    assert "hunter2" not in told.out + told.err
    assert "0a1b2c" in told.out
    assert '"items"' in told.out


def test_a_token_that_the_server_does_not_know_is_not_kept(
    server: str, tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("lapse_0_secret77")
    assert main(["login", server, "--token-file", str(wrong)]) == 1

    told = capsys.readouterr().err
    assert "The token is unknown." in told
    assert "secret77" not in told
    assert not (folder / "credentials.json").exists()


def test_logging_out_forgets_the_token_of_that_server_alone(
    server: str, token_file: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept(folder).keep(LapseServer.parse(THERE), "lapse_1_other")
    assert main(["login", server, "--token-file", token_file]) == 0
    assert main(["logout", f"{server}/"]) == 0
    assert kept(folder).tokens() == {THERE: "lapse_1_other"}
    assert main(["logout", server]) == 0
    assert "not logged in" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["login", "logout"])
def test_a_command_without_a_server_says_how_to_name_one(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command]) == 64
    assert f"lapse {command} https://lapse.example.org" in capsys.readouterr().err


def test_no_token_is_asked_for_that_would_be_sent_in_the_clear(
    token_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["login", "http://lapse.example.org", "--token-file", token_file]) == 64
    assert "without TLS" in capsys.readouterr().err


# --- the file ---------------------------------------------------------------------------------------------------------


def test_the_file_is_this_users_alone(folder: Path) -> None:
    before = os.umask(0)
    try:
        kept(folder).keep(LapseServer.parse(THERE), TOKEN)
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "credentials.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [one.name for one in folder.iterdir()] == ["credentials.json"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602])
def test_a_file_that_others_can_read_or_change_is_refused_and_left_as_it_is(folder: Path, mode: int) -> None:
    kept(folder).keep(LapseServer.parse(THERE), TOKEN)
    path = folder / "credentials.json"
    path.chmod(mode)
    for use in (kept(folder).tokens, lambda: kept(folder).keep(LapseServer.parse(THERE), "lapse_2_new")):
        with pytest.raises(LoginFileError, match="other users can read or change it") as refused:
            use()
        assert "hunter2" not in str(refused.value)
    assert (stat.S_IMODE(path.stat().st_mode), TOKEN in path.read_text()) == (mode, True)


def test_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("{}")
    elsewhere.chmod(0o600)
    folder.mkdir(parents=True)
    (folder / "credentials.json").symlink_to(elsewhere)
    with pytest.raises(LoginFileError):
        kept(folder).tokens()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"servers": {"x": "y"}}', b'{"form": 2}', b"\xff"])
def test_a_file_that_cannot_be_read_is_an_error_and_not_empty(folder: Path, content: bytes) -> None:
    folder.mkdir(parents=True)
    path = folder / "credentials.json"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(LoginFileError):
        kept(folder).keep(LapseServer.parse(THERE), TOKEN)
    assert path.read_bytes() == content


def test_of_many_that_log_in_at_once_all_count(folder: Path) -> None:
    servers = [LapseServer.parse(f"https://h{number}") for number in range(20)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda one: kept(folder).keep(one, TOKEN), servers))
    assert len(kept(folder).tokens()) == len(servers)


def test_a_write_that_is_cut_off_leaves_what_was_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(folder).keep(LapseServer.parse(THERE), TOKEN)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(LoginFileError, match="No space left"):
        kept(folder).keep(LapseServer.parse("https://h"), "lapse_2_new")
    assert kept(folder).tokens() == {THERE: TOKEN}


# --- which server, which token ----------------------------------------------------------------------------------------


def where(flags: VerbFlags, *, cluster: bool = False) -> str | None:
    client = client_at(flags, cluster=cluster)
    return None if client is None else repr(client)


def test_a_server_is_asked_when_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAPSE_TOKEN", TOKEN)
    assert where(VerbFlags()) is None
    assert where(VerbFlags(server=THERE)) == f"AsyncClient('{THERE}')"
    monkeypatch.setenv("LAPSE_SERVER", THERE)
    assert where(VerbFlags()) == f"AsyncClient('{THERE}')"


@pytest.mark.parametrize("given", [{"state_dir": "/x"}, {"database_url": "postgresql://h/d"}, {"kube_context": "c"}])
def test_a_place_that_is_named_wins_over_the_environment(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAPSE_SERVER", THERE)
    assert where(VerbFlags(**given)) is None
    assert where(VerbFlags(), cluster=True) is None


def test_two_places_at_once_are_refused() -> None:
    with pytest.raises(OtherFlagsError, match="--cluster cannot be given"):
        client_at(VerbFlags(server=THERE), cluster=True)
    with pytest.raises(OtherFlagsError, match="--kube-context"):
        client_at(VerbFlags(server=THERE, kube_context="c"))


def test_the_token_of_the_environment_is_for_the_server_of_the_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAPSE_TOKEN", TOKEN)
    assert token_for(THERE, VerbFlags()) == TOKEN
    monkeypatch.setenv("LAPSE_SERVER", f"{THERE}/")
    assert token_for(THERE, VerbFlags()) == TOKEN
    with pytest.raises(NoTokenError, match="lapse login https://other"):
        token_for("https://other", VerbFlags())
    kept(folder).keep(LapseServer.parse("https://other"), "lapse_1_kept")
    assert token_for("https://other", VerbFlags()) == "lapse_1_kept"


def test_the_owners_token_is_found_for_the_lapse_up_of_this_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").mkdir()
    path = tmp_path / "state" / "owner-token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        monkeypatch.setenv("LAPSE_HTTP_PORT", str(port))
        assert token_for(f"http://127.0.0.1:{port}", VerbFlags()) == TOKEN
        assert token_for(f"http://localhost:{port}", VerbFlags()) == TOKEN
        with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(NoTokenError):
            token_for(f"http://127.0.0.1:{other.getsockname()[1]}", VerbFlags())
        with pytest.raises(NoTokenError):
            token_for(f"https://lapse.example.org:{port}", VerbFlags())
        path.chmod(0o644)
        with pytest.raises(NoTokenError):
            token_for(f"http://127.0.0.1:{port}", VerbFlags())


OURS, THEIRS = os.geteuid(), 54321
ONE, TWO, ANY = "0100007F", "0200007F", "00000000"  # 127.0.0.1, 127.0.0.2 and 0.0.0.0, as the kernel prints them
ONE_6, ANY_6, MAPPED = "0" * 24 + "01000000", "0" * 32, "0" * 16 + "FFFF0000" + ONE


def listening(*listeners: tuple[str, int], state: str = "0A") -> str:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    line = "   0: {}:222E 00000000:0000 {} 00000000:00000000 00:00000000 00000000 {:5} 0 1\n"
    return head + "".join(line.format(address, state, user) for address, user in listeners)


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Tables of listeners that a test writes, and an owner's token for the port that they are about."""
    (tmp_path / "state").mkdir()
    path = tmp_path / "state" / "owner-token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    found = tmp_path / "tcp", tmp_path / "tcp6"
    monkeypatch.setattr(remote, "_TABLES", tuple(map(str, found)))
    monkeypatch.setenv("LAPSE_HTTP_PORT", "8750")
    return found


@pytest.mark.parametrize(
    ("host", "four", "six"),
    [
        ("127.0.0.1", [(ONE, OURS)], []),
        ("127.0.0.1", [(ANY, OURS)], []),
        ("127.0.0.1", [], [(ANY_6, OURS)]),
        ("127.0.0.1", [], [(MAPPED, OURS)]),
        ("127.0.0.1", [(ONE, 0)], []),
        ("127.0.0.1", [(ONE, OURS), (TWO, THEIRS)], [(ONE_6, THEIRS)]),
        ("127.0.0.1", [(ONE, OURS)], [(ANY_6, THEIRS)]),
        ("localhost", [(ONE, OURS), (TWO, THEIRS)], []),
        ("[::1]", [(ONE, THEIRS), (ANY, THEIRS)], [(ONE_6, OURS)]),
    ],
)
def test_the_owners_token_is_for_a_program_of_this_user_at_that_very_address(
    host: str, four: list[tuple[str, int]], six: list[tuple[str, int]], tables: tuple[Path, Path]
) -> None:
    tables[0].write_text(listening(*four) + listening((ONE, THEIRS), state="01"))
    tables[1].write_text(listening(*six))
    assert token_for(f"http://{host}:8750", VerbFlags()) == TOKEN


@pytest.mark.parametrize(
    ("host", "four", "six"),
    [
        ("127.0.0.1", [(ONE, THEIRS)], []),
        ("127.0.0.1", [(ANY, THEIRS)], []),
        ("127.0.0.1", [], [(ANY_6, THEIRS)]),
        ("127.0.0.1", [(ANY, OURS)], [(MAPPED, THEIRS)]),
        ("127.0.0.1", [(ONE, THEIRS), (ANY, OURS)], []),
        ("localhost", [(ONE, OURS)], [(ONE_6, THEIRS)]),
        ("[::1]", [(ONE, OURS)], [(ANY_6, THEIRS)]),
    ],
)
def test_the_owners_token_is_not_sent_to_a_program_of_another_user(
    host: str, four: list[tuple[str, int]], six: list[tuple[str, int]], tables: tuple[Path, Path]
) -> None:
    tables[0].write_text(listening(*four))
    tables[1].write_text(listening(*six))
    with pytest.raises(OwnerTokenNotSentError, match="a program of another user listens there"):
        token_for(f"http://{host}:8750", VerbFlags())


def test_the_owners_token_is_not_sent_where_nobody_can_tell_who_listens(tables: tuple[Path, Path]) -> None:
    with pytest.raises(OwnerTokenNotSentError, match="does not tell whose program"):
        token_for("http://127.0.0.1:8750", VerbFlags())
    tables[0].write_text(listening((ONE, OURS)))
    assert token_for("http://127.0.0.1:8750", VerbFlags()) == TOKEN, "a system without IPv6"
    tables[1].mkdir()
    with pytest.raises(OwnerTokenNotSentError, match="does not tell whose program"):
        token_for("http://127.0.0.1:8750", VerbFlags())
    tables[1].rmdir()
    tables[0].write_text(listening())
    with pytest.raises(ServerUnreachableError, match="no program listens there"):
        token_for("http://127.0.0.1:8750", VerbFlags())


def test_lapse_open_sends_the_owners_token_to_no_program_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str | None] = []

    class Listens(Answers):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            super().do_GET()

    with HTTPServer(("127.0.0.1", 0), Listens) as found:
        (tmp_path / "tcp").write_text(listening((ONE, THEIRS)).replace("222E", f"{found.server_port:04X}"))
        monkeypatch.setattr(remote, "_TABLES", (str(tmp_path / "tcp"),))
        thread = Thread(target=found.serve_forever)
        thread.start()
        try:
            assert main(["open", "--http-port", str(found.server_port)]) == 1
        finally:
            found.shutdown()
            thread.join()
    out, err = capsys.readouterr()
    assert "a program of another user listens there" in err
    assert out == ""
    assert seen == [None], "asked, without a token"


def test_this_process_is_seen_to_listen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as here:
        port = here.getsockname()[1]
        assert remote.listeners_on("127.0.0.1", port) == {os.geteuid()}
        assert remote.listeners_on("127.0.0.2", port) == set()
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as here:
        port = here.getsockname()[1]
        assert remote.listeners_on("127.0.0.1", port) == remote.listeners_on("::1", port) == {os.geteuid()}


def test_a_token_that_a_server_does_not_know_is_told_with_where_it_came_from(
    server: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    CredentialsFile(folder).keep(LapseServer.parse(server), "lapse_0a1b2c_old")
    told = f"lapse: {server} does not know the token {{}}, or it was revoked. {{}}.\n"
    for line in (("status",), ("keys", "list", "--app", "7")):
        assert main([*line, "--server", server]) == 1
        said = told.format("that lapse login has kept", f"Log in again with lapse login {server}")
        assert capsys.readouterr().err == said
    monkeypatch.setenv("LAPSE_TOKEN", "lapse_0a1b2c_older")
    assert main(["status", "--server", server]) == 1
    assert capsys.readouterr().err == told.format("in LAPSE_TOKEN", "Set it to another one, or unset it")


def test_the_status_of_a_folder_names_the_server_that_has_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as here:
        port = here.getsockname()[1]
        note_server(folder, port, tmp_path / "state")
        out = ""
        for form in ("table", "json"):
            assert main(["status", "-o", form]) == 0
            told = "A Lapse serves this folder, and was not asked. To ask it: lapse status --server"
            out, err = capsys.readouterr()
            assert err == f"{told} http://127.0.0.1:{port}\n"
        assert json.loads(out)["running"] is None
        assert main(["status", "--state-dir", str(tmp_path / "another")]) == 0
        assert capsys.readouterr().err == ""
    assert main(["status"]) == 0
    assert capsys.readouterr().err == "", "its note is there still, and nobody listens"


def test_a_folder_is_served_by_the_first_program_of_its_user_or_of_root(
    folder: Path, tmp_path: Path, tables: tuple[Path, Path]
) -> None:
    for port in (8749, 8750):
        note_server(folder, port, tmp_path)
    assert remote.server_of(tmp_path) is None, "nobody can tell who listens"
    theirs = listening((ONE, THEIRS)).replace("222E", "222D")
    tables[0].write_text(theirs)
    assert remote.server_of(tmp_path) is None
    tables[0].write_text(theirs + listening((ONE, OURS)).partition("\n")[2])
    assert remote.server_of(tmp_path) == "http://127.0.0.1:8750"


@pytest.mark.parametrize(
    ("url", "error"), [("lapse.example.org", ServerAddressError), ("http://lapse.example.org", TokenInTheClearError)]
)
def test_a_server_that_cannot_be_asked_is_refused(
    url: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAPSE_TOKEN", TOKEN)
    with pytest.raises(error):
        client_at(VerbFlags(server=url))


def test_the_file_has_a_form_that_people_can_read(folder: Path) -> None:
    kept(folder).keep(LapseServer.parse(THERE), TOKEN)
    assert json.loads((folder / "credentials.json").read_text()) == {"form": 1, "servers": {THERE: {"token": TOKEN}}}


def test_no_token_is_made_in_a_folder_when_a_server_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAPSE_SERVER", "http://127.0.0.1:8750")
    monkeypatch.setenv("LAPSE_STATE_DIR", str(tmp_path / "state"))

    for line in (["create", "--name=bob", "--scope=read"], ["list"], ["revoke", "id", "--yes"], ["owner"]):
        assert main(["tokens", *line]) == 64
        assert "LAPSE_SERVER names http://127.0.0.1:8750" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()
    assert main(["tokens", "list", f"--state-dir={tmp_path / 'state'}"]) == 0
