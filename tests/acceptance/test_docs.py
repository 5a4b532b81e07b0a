"""The documents, to the letter: every Python block runs, every console block prints what it shows.

A block stands alone, with a folder of its own in which the examples are. But a page that says ``lapse up`` in a console
block is one sitting: its blocks, Python too, run in order, in one folder, beside a ``lapse up`` with the settings that
the page has for it: as variables of that command, and as a block that begins with ``# lapse.toml``. Ports that such a
page names, of workspaces and of their proxy, become free ones.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.servers.lapse_server import LapseServer, clean_environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[2]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?P<language>\w+)(?P<notes>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS_A_SERVER = "not run here"  # in the notes of a fence: needs something that a test run does not have
SETTINGS_FILE = "# lapse.toml\n"
PROXY_PORT = "8752"
PORT = re.compile(r"--port (\d+)")
START = re.compile(r"^\$ (?P<settings>(?:[A-Z_]+=\S+ )*)(?:\.venv/bin/)?lapse up$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    document: str
    line: int
    body: str
    language: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    found = []
    for path in DOCS:
        text = path.read_text()
        for match in FENCE.finditer(text):
            if match["language"] in languages and NEEDS_A_SERVER not in match["notes"]:
                line = text.count("\n", 0, match.start()) + 1
                found.append(Block(str(path.relative_to(ROOT)), line, match["body"], match["language"]))
    return found


def steps(body: str) -> Iterator[tuple[str, str]]:
    """Take a console block apart into commands and what they print."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        while command.endswith("\\"):
            more, _, printed = printed.partition("\n")
            command = f"{command}\n{more}"
        yield command, printed


def shown_as(expected: str) -> re.Pattern[str]:
    """Make a pattern of what a document shows: ``...`` stands for anything."""
    return re.compile(".*".join(map(re.escape, expected.split("..."))), re.DOTALL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LapseServer]:
    running = LapseServer.start(tmp_path_factory.mktemp("state"))
    yield running
    running.stop()


def sittings() -> dict[str, list[Block]]:
    """Return the blocks of the pages that start Lapse themselves."""
    pages: dict[str, list[Block]] = {}
    for block in blocks("console", "python"):
        pages.setdefault(block.document, []).append(block)
    return {page: found for page, found in pages.items() if any(START.search(block.body) for block in found)}


def alone(language: str) -> list[Block]:
    """Return the blocks that stand alone."""
    return [block for block in blocks(language) if block.document not in sittings()]


@pytest.mark.parametrize("block", alone("python"), ids=str)
def test_python_blocks_run(block: Block, tmp_path: Path) -> None:
    run_python(block.body, folder=tmp_path, state=tmp_path)


def run_python(body: str, *, folder: Path, state: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", body.replace("/var/lib/app", str(folder))],
        cwd=folder,
        env=clean_environment(state),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("block", alone("console"), ids=str)
def test_console_blocks_print_what_they_show(block: Block, server: LapseServer, tmp_path: Path) -> None:
    show_examples(tmp_path)
    run_block(block, server, folder=tmp_path, state=tmp_path)


@pytest.mark.timeout(400)  # a page has twenty commands, and the machine may be busy
@pytest.mark.parametrize("page", sittings())
def test_a_page_that_starts_lapse_prints_what_it_shows_from_top_to_bottom(page: str, tmp_path: Path) -> None:
    opening, *rest = sittings()[page]
    start = START.fullmatch(opening.body.strip())
    assert start is not None, f"{opening}: the first block must be the start alone"
    settings = dict(setting.split("=") for setting in start["settings"].split())
    folder, state = tmp_path / "work", tmp_path / "state"
    for path in (folder, state / "lapse"):  # the second is where commands look without being told
        path.mkdir(parents=True)
    show_examples(folder)
    for file in [one for one in blocks("toml") if one.document == page and one.body.startswith(SETTINGS_FILE)]:
        (state / "lapse" / "lapse.toml").write_text(file.body)
    server = LapseServer.start(state / "lapse", settings=settings)
    ports = {named: free_port() for block in rest for named in PORT.findall(block.body)}
    try:
        for block in rest:
            renamed = with_ports(block, {**ports, PROXY_PORT: server.proxy_port})
            if block.language == "python":
                run_python(renamed.body.replace("http://127.0.0.1:8750", server.http), folder=folder, state=state)
                continue
            run_block(renamed, server, folder=folder, state=state, LAPSE_PROXY_PORT=str(server.proxy_port))
    finally:
        server.stop()


def with_ports(block: Block, ports: Mapping[str, int]) -> Block:
    """Return a block with other ports than those that a page names."""
    named = re.compile(rf"\b(?:{'|'.join(ports)})\b")
    return replace(block, body=named.sub(lambda match: str(ports[match[0]]), block.body))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def show_examples(folder: Path) -> None:
    """Let a folder look like the checkout, as far as pages use it."""
    (folder / "examples").symlink_to(ROOT / "examples")


def run_block(block: Block, server: LapseServer, *, folder: Path, state: Path, **settings: str) -> None:
    environment = {**clean_environment(state), **settings}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    for command, expected in steps(block.body):
        wired = command.replace("http://127.0.0.1:8750", server.http).replace("http://127.0.0.1:8751", server.probes)
        wired = wired.replace("lapse tokens owner ", f"lapse tokens owner --state-dir={server.state_dir} ")
        result = subprocess.run(
            ["bash", "-c", wired.replace("/var/lib/app", str(folder))],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=110,
        )
        printed = result.stdout if result.stdout.endswith("\n") or not result.stdout else f"{result.stdout}\n"
        assert shown_as(expected).fullmatch(printed), f"{block}: $ {command}\n{printed}"


def test_there_is_something_to_run() -> None:
    assert len(blocks("python")) >= 3
    assert len(blocks("console")) >= 5
    assert {"docs/tutorials/capture-a-directory.md", "docs/tutorials/an-idle-workspace.md"} <= set(sittings())
