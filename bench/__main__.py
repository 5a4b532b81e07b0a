"""Run the benchmark: ``python -m bench [--quick] [--only NAME] [--out FOLDER]``."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench import chart, expiry, file, memory, page, startup, writers
from bench.contest import ContenderError, require_linux, this_machine
from bench.plans import FULL, QUICK

_ROOT: Final = Path(__file__).resolve().parent.parent
_COMMAND: Final = "make bench"
_QUESTIONS: Final = ("memory", "expiry", "file", "writers", "startup")


def main() -> None:
    """Ask the questions and write the page."""
    options = _options()
    require_linux()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is left is cleaned up
    (_ROOT / "build").mkdir(exist_ok=True)
    # Not the system's folder for temporary files: that may be memory, where durability costs nothing.
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=_ROOT / "build"))
    start = time.perf_counter()
    try:
        if options.only:
            _ask_one(options.only, quick=options.quick, folder=folder)
        else:
            out = options.out or _ROOT / ("build/benchmarks" if options.quick else "docs")
            _write(_ask_all(quick=options.quick, folder=folder), out)
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
    parser.add_argument("--only", choices=_QUESTIONS, help="one question; its figures are printed, no page is written")
    parser.add_argument(
        "--out", type=Path, help="folder for the page and the chart (default: docs; build/benchmarks if quick)"
    )
    return parser.parse_args()


def _ask_one(name: str, *, quick: bool, folder: Path) -> None:
    plans = QUICK if quick else FULL
    match name:
        case "memory":
            in_memory = memory.run(plans.memory)
            sections = [page.memory_ratios(in_memory), page.memory_figures(in_memory)]
        case "expiry":
            sections = [page.expiry_figures(expiry.run(plans.expiry))]
        case "file":
            in_file = file.run(plans.file, folder)
            sections = [page.file_ratios(in_file), page.file_figures(in_file)]
        case "writers":
            together = writers.run(plans.writers, folder)
            sections = [page.writers_ratios(together), page.writers_figures(together)]
        case _:
            sections = [page.startup_figures(startup.run(plans.startup))]
    print("\n" + "\n".join(sections))


def _ask_all(*, quick: bool, folder: Path) -> page.Run:
    plans = QUICK if quick else FULL
    machine, start = this_machine(folder), time.perf_counter()
    return page.Run(
        startup=startup.run(plans.startup),
        memory=memory.run(plans.memory),
        expiry=expiry.run(plans.expiry),
        file=file.run(plans.file, folder),
        writers=writers.run(plans.writers, folder),
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
