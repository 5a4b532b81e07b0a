"""Fetched programs appear whole or not at all, and once."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from tests.servers.cache import cached, fetched
from tests.servers.errors import FetchError
from tests.servers.packages import _last_words, relocate_links
from tests.servers.process import run_command
from tests.servers.programs import OFFERS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.progress import Watch


@dataclass
class Parcel:
    """A package that needs no network."""

    fails: bool = False
    name: str = "parcel"
    version: str | None = "1.0"
    origin: str = "nowhere"
    size: int = 1000
    fills: int = 0
    release: threading.Event = field(default_factory=threading.Event)

    def fill(self, folder: Path, work: Path, watch: Watch) -> str:
        self.fills += 1
        (folder / "program").write_text("content", encoding="ascii")
        (work / "download").write_text("no longer needed", encoding="ascii")
        assert self.release.wait(timeout=10)
        if self.fails:
            raise FetchError("the registry said no")
        return self.version or "2.0~x"


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("LAPSE_SERVERS_CACHE", str(tmp_path / "cache"))
    return []


def ready(*, fails: bool = False, version: str | None = "1.0") -> Parcel:
    parcel = Parcel(fails=fails, version=version)
    parcel.release.set()
    return parcel


def test_a_package_is_fetched_once_and_found_afterwards(told: list[str]) -> None:
    parcel = ready()
    folder = fetched(parcel, told.append)
    assert [path.name for path in folder.iterdir()] == ["program"]
    assert fetched(parcel, told.append) == folder == cached(parcel)
    assert parcel.fills == 1
    assert len(told) == 2
    assert "fetching from nowhere" in told[0]
    assert "fetched" in told[1]


def test_another_version_is_another_package(told: list[str]) -> None:
    fetched(ready(), told.append)
    assert cached(ready(version="1.1")) is None


def test_a_package_without_a_pinned_version_is_found_by_its_name(told: list[str]) -> None:
    parcel = ready(version=None)
    folder = fetched(parcel, told.append)
    assert "2.0_x" in folder.name
    assert cached(parcel) == folder


def test_a_failed_fetch_leaves_nothing_and_can_be_tried_again(told: list[str], tmp_path: Path) -> None:
    parcel = ready(fails=True)
    with pytest.raises(FetchError, match="said no"):
        fetched(parcel, told.append)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["parcel.lock"]
    parcel.fails = False
    assert fetched(parcel, told.append).is_dir()


def test_the_rest_of_a_killed_fetch_is_not_taken_for_a_package(told: list[str], tmp_path: Path) -> None:
    rest = tmp_path / "cache" / ".parcel.partial" / "folder"
    rest.mkdir(parents=True)
    (rest / "half").write_text("x", encoding="ascii")
    folder = fetched(ready(), told.append)
    assert [path.name for path in folder.iterdir()] == ["program"]


def test_a_second_run_waits_for_the_first_instead_of_fetching(told: list[str]) -> None:
    parcel, waiting = Parcel(), threading.Event()

    def tell(line: str) -> None:
        if "waiting for another run" in line:
            waiting.set()

    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(fetched(parcel, tell))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert waiting.wait(timeout=10)
    parcel.release.set()
    for thread in threads:
        thread.join()
    assert parcel.fills == 1
    assert folders[0] == folders[1]


def test_links_that_mean_the_root_stay_inside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "conf").write_text("inside", encoding="ascii")
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr" / "conf").symlink_to("/etc/conf")
    (tmp_path / "usr" / "passwd").symlink_to("../etc/passwd")
    relocate_links(tmp_path)
    assert (tmp_path / "usr" / "conf").read_text(encoding="ascii") == "inside"
    assert (tmp_path / "usr" / "passwd").resolve().as_posix() == "/etc/passwd"


def test_a_reason_never_shows_the_credentials_of_a_mirror(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("fine\nerror: no answer from https://me:secret@mirror.example/simple\n", encoding="utf-8")
    assert _last_words(log) == "error: no answer from https://mirror.example/simple"


def test_a_command_tells_its_exit_code_and_its_output(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run_command(["sh", "-c", "echo out; echo err >&2; exit 7"], log=log, cwd=tmp_path) == 7
    assert log.read_text(encoding="ascii").split() == ["out", "err"]


def test_a_command_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        run_command([tmp_path / "nothing"], log=tmp_path / "log")


def test_every_offer_pins_a_version_unless_the_registry_decides() -> None:
    unpinned = [name for name, offer in OFFERS.items() if offer.package.version is None]
    assert unpinned == ["redis", "chromium"]
