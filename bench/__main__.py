"""Run the benchmark: ``python -m bench [--quick] [--only PART ...] [--out FOLDER]``."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench import chart, claims, expiry, file, memory, page, servers, startup, writers
from bench.contest import ContenderError, require_linux, this_machine
from bench.plans import FULL, QUICK, SERVERS, Plans

if TYPE_CHECKING:
    from collections.abc import Callable

_ROOT: Final = Path(__file__).resolve().parent.parent
_COMMAND: Final = "make bench"


def main() -> None:
    """Run the parts and write the page."""
    options = _options()
    require_linux()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is left is cleaned up
    (_ROOT / "build").mkdir(exist_ok=True)
    # Not the system's folder for temporary files: that may be memory, where durability costs nothing.
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=_ROOT / "build"))
    start = time.perf_counter()
    try:
        if options.only:
            for name in dict.fromkeys(options.only):
                print("\n" + "\n".join(_PARTS[name](QUICK if options.quick else FULL, folder)))
        else:
            out = options.out or _ROOT / ("build/benchmarks" if options.quick else "docs")
            _write(_run_all(quick=options.quick, folder=folder), out)
    except ContenderError as error:
        sys.exit(f"\n{error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"Done in {time.perf_counter() - start:.0f} s.")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=_COMMAND, description="Lapse beside its peers, in one run.")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes: shows that it works, its figures mean nothing"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(_PARTS),
        metavar="PART",
        help=f"these parts alone: {', '.join(_PARTS)}; their figures are printed, no page is written",
    )
    parser.add_argument(
        "--out", type=Path, help="folder for the page and the chart (default: docs; build/benchmarks if quick)"
    )
    return parser.parse_args()


# --- single parts, printed -------------------------------------------------------------------------------------------


def _memory(plans: Plans, _folder: Path) -> list[str]:
    results = memory.run(plans.memory)
    return [page.memory_ratios(results), page.memory_figures(results), page.claims_section(claims.of_memory(results))]


def _expiry(plans: Plans, _folder: Path) -> list[str]:
    results = expiry.run(plans.expiry)
    return [page.expiry_figures(results), page.claims_section(claims.of_expiry(results))]


def _file(plans: Plans, folder: Path) -> list[str]:
    results = file.run(plans.file, folder)
    return [page.file_ratios(results), page.file_figures(results), page.claims_section(claims.of_file(results))]


def _writers(plans: Plans, folder: Path) -> list[str]:
    results = writers.run(plans.writers, folder)
    return [
        page.writers_ratios(results),
        page.writers_figures(results),
        page.claims_section(claims.of_writers(results)),
    ]


def _startup(plans: Plans, _folder: Path) -> list[str]:
    return [page.startup_figures(startup.run(plans.startup))]


def _server(name: str) -> Callable[[Plans, Path], list[str]]:
    def part(plans: Plans, _folder: Path) -> list[str]:
        results = {name: servers.run(SERVERS[name], plans.servers[name])}
        return [
            page.servers_ratios(results),
            page.servers_figures(results),
            page.claims_section(claims.of_servers(results)),
        ]

    return part


_PARTS: Final[dict[str, Callable[[Plans, Path], list[str]]]] = {
    "startup": _startup,
    "memory": _memory,
    "expiry": _expiry,
    "file": _file,
    "writers": _writers,
    **{name: _server(name) for name in SERVERS},
}


# --- all of them -----------------------------------------------------------------------------------------------------


def _run_all(*, quick: bool, folder: Path) -> page.Run:
    plans = QUICK if quick else FULL
    machine, start = this_machine(folder), time.perf_counter()
    return page.Run(
        startup=startup.run(plans.startup),
        memory=memory.run(plans.memory),
        expiry=expiry.run(plans.expiry),
        file=file.run(plans.file, folder),
        writers=writers.run(plans.writers, folder),
        servers={name: servers.run(part, plans.servers[name]) for name, part in SERVERS.items()},
        machine=machine,
        plans=plans,
        command=f"{_COMMAND} BENCH_ARGS=--quick" if quick else _COMMAND,
        seconds=time.perf_counter() - start,
    )


def _write(run: page.Run, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "benchmarks.md").write_text(page.write(run), "utf-8")
    chart.draw(run, out / "images/benchmarks-keys.png")
    print("\n" + page.claims_section(run.claims))
    print(f"Wrote benchmarks.md and images/benchmarks-keys.png to {out}.")


if __name__ == "__main__":
    main()
