"""Credentials that are renewed while we run: files that are replaced, and commands that print them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import SystemClock, VirtualClock
from lapse.core.timestamps import to_timestamp
from lapse.kube.api.transport import RateLimit
from lapse.kube.auth.config import Cluster, ExecConfig, User
from lapse.kube.auth.credentials import Contexts, Credential, UserCredentials
from lapse.kube.auth.exec_credentials import ExecCredentials
from lapse.kube.errors import CredentialsError, KubeConfigError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = "sesame-open"
V1 = "client.authentication.k8s.io/v1"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


# --- files ------------------------------------------------------------------------------------------------------------


async def test_a_token_is_read_again_once_a_minute(tmp_path: Path, clock: VirtualClock) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    source = UserCredentials(User(token=file), clock=clock)
    assert (await source.current()).authorization == "Bearer one"
    file.write_text("two\n")
    clock.advance(59)
    assert (await source.current()).authorization == "Bearer one"
    clock.advance(2)
    assert (await source.current()).authorization == "Bearer two"


async def test_a_refused_token_is_read_again_at_once(tmp_path: Path, clock: VirtualClock) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    source = UserCredentials(User(token=file), clock=clock)
    first = await source.current()
    file.write_text("two")
    source.refused(first)
    assert (await source.current()).authorization == "Bearer two"


async def test_a_file_that_cannot_be_read_for_a_moment_takes_nothing_away(tmp_path: Path, clock: VirtualClock) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    source = UserCredentials(User(token=file), clock=clock)
    await source.current()
    file.unlink()
    clock.advance(120)
    assert (await source.current()).authorization == "Bearer one"
    file.write_text("two")
    clock.advance(2)
    assert (await source.current()).authorization == "Bearer two"


async def test_a_token_that_was_never_there_is_told_with_its_file(tmp_path: Path, clock: VirtualClock) -> None:
    source = UserCredentials(User(token=tmp_path / "token"), clock=clock)
    with pytest.raises(CredentialsError, match="token cannot be read: No such file") as failure:
        await source.current()
    assert isinstance(failure.value, StoreUnavailableError)
    (tmp_path / "token").write_text(" \n")
    with pytest.raises(CredentialsError, match="token is empty"):
        await source.current()


@pytest.mark.parametrize("token", [b"a\r\nX-Evil: 1", b"a b", "ä".encode()])
async def test_a_token_cannot_smuggle_a_header(token: bytes, clock: VirtualClock) -> None:
    with pytest.raises(CredentialsError, match="no token has"):
        await UserCredentials(User(token=token), clock=clock).current()


async def test_a_password_is_sent_as_basic_authentication(clock: VirtualClock) -> None:
    found = await UserCredentials(User(username="me", password="pw"), clock=clock).current()
    assert found.authorization == "Basic bWU6cHc="
    assert "bWU6cHc" not in repr(found)


async def test_a_certificate_and_its_key_are_read_again_too(tmp_path: Path, clock: VirtualClock) -> None:
    (tmp_path / "crt").write_text("c1")
    source = UserCredentials(User(certificate=tmp_path / "crt", key=b"k"), clock=clock)
    assert (await source.current()).certificate == (b"c1", b"k")
    (tmp_path / "crt").write_text("c2")
    clock.advance(61)
    assert (await source.current()).certificate == (b"c2", b"k")


# --- TLS --------------------------------------------------------------------------------------------------------------


def test_an_authority_that_is_none_is_a_mistake_of_the_configuration(tmp_path: Path, clock: VirtualClock) -> None:
    with pytest.raises(KubeConfigError, match="holds no certificate in PEM form"):
        Contexts(Cluster(server="https://x", ca=b"nonsense"), clock=clock)
    with pytest.raises(KubeConfigError, match=r"certificate-authority: .*ca\.crt cannot be read: No such file"):
        Contexts(Cluster(server="https://x", ca=tmp_path / "ca.crt"), clock=clock)


def test_a_client_certificate_that_is_none_is_told_without_it(clock: VirtualClock) -> None:
    contexts = Contexts(Cluster(server="https://x"), clock=clock)
    with pytest.raises(CredentialsError, match="client certificate and its key cannot be used") as failure:
        contexts.context(Credential(certificate=(SECRET.encode(), SECRET.encode())))
    assert SECRET not in str(failure.value)
    assert contexts.context(Credential()) is contexts.context(Credential()), "connections are shared by context"


# --- plugins ----------------------------------------------------------------------------------------------------------


class Command:
    """A small program that leaves a trace of every run and then does what a test wants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "login.py"

    def does(self, code: str) -> None:
        trace = f"open({str(self.folder / 'runs')!r}, 'a').write(os.environ['KUBERNETES_EXEC_INFO'] + '\\n')"
        self.file.write_text(f"import json, os, sys, time\n{trace}\n{code}\n")

    def prints(self, *, api_version: str = V1, kind: str = "ExecCredential", **status: object) -> None:
        body = {"apiVersion": api_version, "kind": kind, "status": status}
        self.does(f"print({json.dumps(body)!r})")

    @property
    def runs(self) -> list[dict[str, Any]]:
        file = self.folder / "runs"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def source(self, clock: SystemClock | VirtualClock, *, seconds: float = 30.0, **fields: Any) -> ExecCredentials:  # noqa: ANN401 - fields of ExecConfig
        described = {"api_version": V1, "command": sys.executable, "args": (str(self.file), SECRET), **fields}
        cluster = Cluster(server="https://x", ca=b"PEM", exec_extension={"audience": "y"})
        return ExecCredentials(ExecConfig(**described), cluster, clock=clock, environ=dict(os.environ), timeout=seconds)


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.mark.process
async def test_a_plugin_runs_once_for_all_who_wait_and_is_kept_until_its_end(
    command: Command, clock: VirtualClock
) -> None:
    command.prints(token="one", expirationTimestamp=to_timestamp(clock.wall_ns() + 3600 * 10**9))
    source = command.source(clock)
    found = await asyncio.gather(*(source.current() for _ in range(5)))
    assert {one.authorization for one in found} == {"Bearer one"}
    command.prints(token="two")
    clock.advance(3585)
    assert (await source.current()).authorization == "Bearer one"
    clock.advance(10)
    assert (await source.current()).authorization == "Bearer two"
    clock.advance(1_000_000)
    assert (await source.current()).authorization == "Bearer two", "without an end it is kept"
    assert len(command.runs) == 2


@pytest.mark.process
async def test_a_refused_credential_is_renewed_but_not_in_a_hot_loop(command: Command, clock: VirtualClock) -> None:
    command.prints(token="one")
    source = command.source(clock)
    first = await source.current()
    source.refused(first)
    assert await source.current() == first, "it was printed a moment ago"
    clock.advance(6)
    command.prints(token="two")
    source.refused(Credential("Bearer another"))
    assert await source.current() == first, "somebody else's was refused"
    source.refused(first)
    assert (await source.current()).authorization == "Bearer two"
    assert len(command.runs) == 2


@pytest.mark.process
async def test_a_plugin_is_told_what_it_is_asked_for(command: Command, clock: VirtualClock) -> None:
    command.prints(token="one")
    await command.source(clock).current()
    await command.source(clock, wants_cluster=True).current()
    assert command.runs == [
        {"apiVersion": V1, "kind": "ExecCredential", "spec": {"interactive": False}},
        {
            "apiVersion": V1,
            "kind": "ExecCredential",
            "spec": {
                "interactive": False,
                "cluster": {
                    "server": "https://x",
                    "certificate-authority-data": "UEVN",
                    "config": {"audience": "y"},
                },
            },
        },
    ]


@pytest.mark.process
async def test_a_plugin_of_the_older_version_may_give_a_certificate(command: Command, clock: VirtualClock) -> None:
    version = "client.authentication.k8s.io/v1beta1"
    command.prints(api_version=version, clientCertificateData="c", clientKeyData="k")
    source = command.source(clock, api_version=version)
    assert await source.current() == Credential("", (b"c", b"k"))
    beside = UserCredentials(User(), clock=clock, exec_credentials=source)
    assert (await beside.current()).certificate == (b"c", b"k")


async def test_a_token_of_the_user_spares_the_plugin(command: Command, clock: VirtualClock) -> None:
    command.prints(token="printed")
    source = UserCredentials(User(token=b"given"), clock=clock, exec_credentials=command.source(clock))
    assert (await source.current()).authorization == "Bearer given"
    assert command.runs == []


def prints_text(text: str) -> Callable[[Command], None]:
    return lambda command: command.does(f"print({text!r})")


@pytest.mark.process
@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda command: command.does(f"sys.stderr.write({SECRET!r}); print({SECRET!r}); sys.exit(3)"), "with code 3"),
        (prints_text(SECRET), "printed no ExecCredential"),
        (lambda command: command.prints(kind="Else", token=SECRET), "printed no ExecCredential of client"),
        (lambda command: command.prints(api_version="v9", token=SECRET), "printed no ExecCredential of client"),
        (lambda command: command.prints(), "neither a token nor a certificate"),
        (lambda command: command.prints(clientKeyData=SECRET), "a key without its certificate"),
        (lambda command: command.prints(token=f"{SECRET}\r\nX-Evil: 1"), "characters that no token has"),
        (lambda command: command.prints(token=SECRET, expirationTimestamp="tomorrow"), "not an RFC 3339 time"),
        (lambda command: command.prints(token=SECRET, expirationTimestamp="2001-01-01T00:00:00Z"), "expired already"),
    ],
)
async def test_a_plugin_that_fails_is_named_with_nothing_of_what_it_wrote(
    command: Command, clock: VirtualClock, spoil: Callable[[Command], None], problem: str
) -> None:
    spoil(command)
    source = command.source(clock)
    with pytest.raises(CredentialsError, match=f"the credential plugin python.* {problem}") as failure:
        await source.current()
    assert SECRET not in f"{failure.value} {failure.value!r} {failure.value.__cause__}"
    with pytest.raises(CredentialsError):
        await source.current()
    assert len(command.runs) == 1, "a failure is not tried again at once"
    clock.advance(6)
    command.prints(token="good")
    assert (await source.current()).authorization == "Bearer good"


async def test_a_plugin_that_is_not_installed_says_how_to_get_it(command: Command, clock: VirtualClock) -> None:
    source = command.source(clock, command="no-such-login", install_hint="Get it from the shelf.")
    with pytest.raises(CredentialsError, match=r"no-such-login cannot be started \(No such file.*\)\. Get it from the"):
        await source.current()


@pytest.mark.parametrize("path", [".", "", "bin:", ":bin", "./bin"])
async def test_a_plugin_is_not_looked_for_in_the_working_directory(
    clock: VirtualClock, tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    for planted in (tmp_path / "login", tmp_path / "bin" / "login"):
        planted.write_text("#!/bin/sh\ntouch ran\n")
        planted.chmod(0o755)
    config = ExecConfig(api_version=V1, command="login")
    source = ExecCredentials(config, Cluster(server="https://x"), clock=clock, environ={"PATH": path})
    with pytest.raises(CredentialsError, match="No such file in the folders of PATH"):
        await source.current()
    assert not (tmp_path / "ran").exists()


def is_gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().split()[2] == "Z"


@pytest.mark.process
async def test_a_plugin_that_hangs_is_ended_with_all_it_started(command: Command) -> None:
    started = command.folder / "child"
    child = f"import os, time; open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    command.does(f"import subprocess; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(600)")
    clock = SystemClock()
    source = command.source(clock, seconds=600.0)
    running = asyncio.create_task(source.current())
    while not (started.exists() and started.read_text()):
        await clock.sleep(0.02)
    pid = int(started.read_text())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    for _ in range(250):
        if is_gone(pid):
            break
        await clock.sleep(0.02)
    else:
        pytest.fail("the command's child outlived it")


@pytest.mark.process
async def test_a_plugin_has_a_limited_time(command: Command) -> None:
    command.does("time.sleep(600)")
    with pytest.raises(CredentialsError, match=r"did not end within 0\.3 s"):
        await command.source(SystemClock(), seconds=0.3).current()


# --- rate -------------------------------------------------------------------------------------------------------------


async def test_a_rate_allows_a_burst_and_then_one_by_one(clock: VirtualClock) -> None:
    limit = RateLimit(10, burst=3, clock=clock)
    passed: list[int] = []

    async def one(number: int) -> None:
        await limit.wait()
        passed.append(number)

    tasks = [asyncio.create_task(one(number)) for number in range(6)]
    await clock.sleep(0)
    assert passed == [0, 1, 2]
    for expected in ([0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]):
        clock.advance(0.1)
        for _ in range(3):
            await clock.sleep(0)
        assert passed == expected
    await asyncio.gather(*tasks)
    clock.advance(60)
    tasks = [asyncio.create_task(one(number)) for number in range(6, 10)]
    await clock.sleep(0)
    assert passed[6:] == [6, 7, 8], "a long rest earns no more than the burst"
    clock.advance(1)
    await asyncio.gather(*tasks)


@pytest.mark.parametrize(("per_second", "burst"), [(0, None), (-1, 5), (5, 0)])
def test_a_rate_must_allow_something(per_second: float, burst: int | None, clock: VirtualClock) -> None:
    with pytest.raises(ValueError, match="above zero"):
        RateLimit(per_second, burst=burst, clock=clock)
