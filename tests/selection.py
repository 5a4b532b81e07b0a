"""The choice of tests: the quick ones of `make test`, the rest of `make test-all`, and those of one domain.

A test is *quick* if it needs nothing but Python. One rule decides, by folder, by file name and by mark:

- it stands in `tests/unit` or `tests/conformance`,
- its file does not have the name of a server in its own (`test_redis_url.py`, `test_contract_on_servers.py`),
- and it is not marked `server`, `driver`, `process` or `slow`.

`--quick` runs the quick tests, `--rest` all others: together every test, and none twice. `--domain NAME` keeps those of
one domain. With `--quick`, files that are not quick are not even imported, the drivers of servers cannot be imported,
and a test that starts another process fails: so no quick test has a server, whatever its marks say. What is only slow
is not refused; `--durations` shows it.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from importlib.machinery import ModuleSpec

TESTS = Path(__file__).parent
QUICK_FOLDERS = ("unit", "conformance")
SERVER_WORDS = frozenset({"redis", "valkey", "cassandra", "dynamodb", "postgres", "kubernetes", "server", "servers"})
MARKS = ("server", "driver", "process", "slow")
DRIVERS = frozenset(
    {"aiobotocore", "alembic", "botocore", "cassandra", "hiredis", "playwright", "psycopg", "psycopg_pool", "redis"}
    | {"sqlalchemy"}
)
"""Packages that are needed with a server only; `make test` does not install them."""

DOMAINS = ("keys", "requests", "history", "workspaces", "proxy", "kube", "web", "cli", "engine")
FOLDER_DOMAINS = {
    "activity": ("workspaces",),
    "browser": ("web",),
    "client": ("web", "cli"),
    "clock": ("engine",),
    "core": ("engine",),
    "db": ("engine",),
    "deploy": ("kube",),
    "domains": ("engine",),
    "files": ("engine",),
    "holds": ("engine",),
    "http1": ("proxy", "kube"),
    "journal": ("engine",),
    "kinds": ("kube", "requests", "history"),
    "leadership": ("engine",),
    "listener": ("web",),
    "monitoring": ("engine", "kube"),
    "objects": ("engine",),
    "openapi": ("web",),
    "operator": ("kube", "requests"),
    "record": ("engine",),
    "reference": ("cli", "web"),
    "plans": ("engine",),
    "retention": ("history",),
    "servers": (),
    "service": ("engine", "web"),
    "site": (),
    "ttl_manager": ("workspaces",),
    "up": ("cli",),
    "webhook": ("requests", "kube"),
}
"""Of folders whose name does not begin with that of a domain. What belongs to none runs when no domain is named."""

LEAST_SHARE = 70
"""Per cent of all tests that must be quick: a run of all others counts them."""
STARTS = frozenset(
    {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn"}
)
"""Events of `sys.addaudithook` that come before another process."""
COUNTS = pytest.StashKey[tuple[int, int]]()
"""How many tests are quick, and how many there are."""


def domains_of(path: Path) -> tuple[str, ...]:
    """The domains that a folder or file below `tests` belongs to: by its folder's name, or the first word of it."""
    _, folder, *_ = (*path.relative_to(TESTS).parts, "", "")
    word = folder.partition("_")[0]
    return (word,) if word in DOMAINS else FOLDER_DOMAINS.get(folder, FOLDER_DOMAINS.get(word, ()))


def may_be_quick(path: Path) -> bool:
    """Whether folder and name allow it; marks may still say otherwise."""
    named = path.suffix == ".py" and not SERVER_WORDS.isdisjoint(path.stem.split("_"))
    kind, *_ = (*path.relative_to(TESTS).parts, "") if path.is_relative_to(TESTS) else ("",)
    return not named and kind in {*QUICK_FOLDERS, ""}


def is_quick(item: pytest.Item) -> bool:
    """The rule, for a test that was collected."""
    return may_be_quick(item.path) and not any(item.get_closest_marker(mark) for mark in MARKS)


def needs_driver(module: str) -> bool:
    """Whether an imported module of Lapse has something of a server's driver in it."""
    values = vars(sys.modules[module]).values()
    origins = (getattr(value, "__module__", None) or getattr(value, "__name__", None) for value in values)
    return any(str(origin).partition(".")[0] in DRIVERS for origin in origins)


class NoDrivers(MetaPathFinder):
    """Finds no driver, also where all of them are installed: what is quick here is quick in a fresh checkout."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] in DRIVERS:
            raise ModuleNotFoundError(
                f"No module named {fullname!r} in `make test`: see tests/selection.py", name=fullname
            )
        return None


class ProcessRefusedError(RuntimeError):
    """A quick test starts no process: mark it with `pytest.mark.process`, and it runs with `make test-all`."""


class ProcessGuard:
    """Refuses other processes while a quick test runs: those of subprocess, asyncio and os, not of multiprocessing."""

    def __init__(self) -> None:
        self.running = False
        self.refused: list[str] = []

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in STARTS and self.running:
            self.refused.append(f"{event} {arguments[0]!r}" if arguments else event)
            raise ProcessRefusedError(ProcessRefusedError.__doc__)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self.running = True
        try:
            return (yield)
        finally:
            self.running = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None, None, None]:
        yield
        refused, self.refused = self.refused, []
        if refused:
            pytest.fail(f"{ProcessRefusedError.__doc__} It started: {', '.join(refused)}", pytrace=False)

    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> None:
        """Say it once: what was refused is kept for the end only if the code that was tested caught the error."""
        if call.excinfo is not None and call.excinfo.errisinstance(ProcessRefusedError):
            self.refused.clear()


# --- hooks ------------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lapse")
    group.addoption("--quick", action="store_true", help="only tests that need nothing but Python, as `make test` does")
    group.addoption("--rest", action="store_true", help="only tests that --quick leaves out")
    group.addoption("--domain", default="", help=f"only tests of one domain: {', '.join(DOMAINS)}")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    options = config.option
    if options.domain and options.domain not in DOMAINS:
        raise pytest.UsageError(f"there is no domain {options.domain!r}; expected one of {', '.join(DOMAINS)}")
    if options.quick and options.rest:
        raise pytest.UsageError("--quick and --rest leave nothing; without them, all tests run")
    if options.quick:
        sys.meta_path.insert(0, NoDrivers())
        guard = ProcessGuard()
        config.pluginmanager.register(guard)
        sys.addaudithook(guard)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out by path before anything is imported: drivers may be missing, and importing takes most of the time."""
    if not collection_path.is_relative_to(TESTS):
        return None
    if config.option.quick and not may_be_quick(collection_path):
        return True
    domain, depth = config.option.domain, len(collection_path.relative_to(TESTS).parts)
    return True if domain and depth > 1 and domain not in domains_of(collection_path) else None


@pytest.hookimpl(trylast=True)  # after other plugins gave their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    quick = {item for item in items if is_quick(item)}
    config.stash[COUNTS] = len(quick), len(items)
    if config.option.quick or config.option.rest:
        chosen = [item for item in items if (item in quick) == config.option.quick]
        config.hook.pytest_deselected(items=[item for item in items if (item in quick) != config.option.quick])
        items[:] = chosen


# --- the share of quick tests -----------------------------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if hasattr(config, "workeroutput") and COUNTS in config.stash:
        config.workeroutput["lapse_counts"] = config.stash[COUNTS]
        return
    share = _share(config)
    if share is not None and share < LEAST_SHARE and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:  # noqa: ANN401 - a type of pytest-xdist, which need not be there
    counts = getattr(node, "workeroutput", {}).get("lapse_counts")
    if counts:
        node.config.stash[COUNTS] = tuple(counts)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    share = _share(config)
    if share is not None:
        quick, everything = config.stash[COUNTS]
        verdict = "" if share >= LEAST_SHARE else f", FEWER THAN {LEAST_SHARE} %"
        terminalreporter.write_line(f"make test runs {quick} of {everything} tests: {share:.0f} %{verdict}")


def _share(config: pytest.Config) -> float | None:
    """Per cent of all tests that are quick, or None if this run did not collect all."""
    options = config.option
    chosen = options.quick or options.domain or options.keyword or options.markexpr
    if chosen or config.args_source is not pytest.Config.ArgsSource.TESTPATHS or COUNTS not in config.stash:
        return None
    quick, everything = config.stash[COUNTS]
    return 100 * quick / max(everything, 1)
