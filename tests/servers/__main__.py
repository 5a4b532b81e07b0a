"""The servers by hand: without options it lists them, `--fetch` warms the cache, `--start NAME` runs one."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.servers.cache import cache_root
from tests.servers.errors import ServerFailedError, ServerMissingError
from tests.servers.pool import STARTERS
from tests.servers.process import INTERRUPTED
from tests.servers.programs import NAMES, OFFERS, find_all
from tests.servers.progress import megabytes, tell_stderr

if TYPE_CHECKING:
    from collections.abc import Sequence

ROW = "{:<10} {:<10} {:<30} {}\n"


def _row(name: str) -> str:
    program = OFFERS[name].local()
    if program is None:
        package = OFFERS[name].package
        return ROW.format(
            name, package.version or "-", f"{package.origin}: {megabytes(package.size)}", "not fetched yet"
        )
    if name not in STARTERS:
        return ROW.format(name, program.version, program.source, "no server")
    try:
        with STARTERS[name](tell_stderr) as server:
            return ROW.format(name, program.version, program.source, f"{server.start_seconds:.2f} s")
    except (ServerFailedError, ServerMissingError) as error:
        return ROW.format(name, program.version, program.source, error)


def list_servers(names: Sequence[str]) -> int:
    """What can be had; each that is here is started once, to tell how long that takes."""
    sys.stdout.write(ROW.format("server", "version", "source", "start"))
    for name in names:  # one after the other: times measured side by side would say little
        sys.stdout.write(_row(name))
        sys.stdout.flush()
    sys.stdout.write(f"cache: {cache_root()}\n")
    return 0


def _fetch(name: str) -> str | None:
    try:
        program = find_all(name)
    except ServerMissingError as error:
        return str(error)
    tell_stderr(f"{name} {program.version}: here ({program.source})")
    return None


def fetch_servers(names: Sequence[str]) -> int:
    """Fetch what is not here."""
    begun = time.monotonic()
    with ThreadPoolExecutor() as threads:
        answers = threads.map(_fetch, names)
        try:
            problems = [problem for problem in answers if problem is not None]
        except KeyboardInterrupt:
            INTERRUPTED.set()
            return 130
    for problem in problems:
        tell_stderr(problem)
    tell_stderr(f"done in {time.monotonic() - begun:.1f} s")
    return 1 if problems else 0


def start_server(name: str) -> int:
    """Run one in the foreground until interrupted."""
    for number in (signal.SIGTERM, signal.SIGINT):  # the latter is ignored in a shell's background
        signal.signal(number, signal.default_int_handler)
    try:
        with STARTERS[name](tell_stderr) as server:
            sys.stdout.write(f"{server.url}\n")
            sys.stdout.flush()
            tell_stderr(f"{name} {server.version}, process {server.pid}, {server.folder}; end with Ctrl-C")
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except (ServerMissingError, ServerFailedError) as error:
        tell_stderr(str(error))
        return 1
    return 0


def main() -> int:
    """Read the arguments and do one of the three."""
    parser = argparse.ArgumentParser(prog="python -m tests.servers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these of {', '.join(NAMES)}")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--fetch", action="store_true", help="fetch what is not on this machine, start nothing")
    action.add_argument(
        "--start", metavar="NAME", choices=tuple(STARTERS), help="run one in the foreground and print its URL"
    )
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(NAMES))
    if unknown:
        parser.error(f"no server is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    names = arguments.names or NAMES
    if arguments.start:
        return start_server(arguments.start)
    return fetch_servers(names) if arguments.fetch else list_servers(names)


if __name__ == "__main__":
    sys.exit(main())
