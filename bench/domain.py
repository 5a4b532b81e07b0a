"""The command line of a domain's benchmarks: options, a line of JSON, a page, and an exit status that tells."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from bench.claims import Claim

ROOT: Final = Path(__file__).resolve().parent.parent


def options_of(name: str, doc: str | None, parts: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of ``python -m bench.NAME``, to which a benchmark may add its own options."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=(doc or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes: their figures mean nothing")
    parser.add_argument("--only", nargs="+", choices=parts, metavar="PART", help=f"of {', '.join(parts)}; no page")
    parser.add_argument("--out", type=Path, help="folder for the page (default: docs; build/benchmarks if quick)")
    return parser


def publish(
    name: str,
    options: argparse.Namespace,
    *,
    figures: Mapping[str, Any],
    claims: Sequence[Claim],
    page: str,
    write: Callable[[str], str],
) -> NoReturn:
    """Print the figures, write the page unless only a part was measured, and exit: 0 if all claims hold.

    ``write`` is given the command that repeats the run.
    """
    print(json.dumps({"bench": name, **figures, "holds": {claim.text: claim.verdict for claim in claims}}))
    if options.only is None or options.out is not None:
        out = options.out or ROOT / ("build/benchmarks" if options.quick else "docs")
        out.mkdir(parents=True, exist_ok=True)
        command = f"python -m bench.{name}" + " --quick" * options.quick
        (out / page).write_text(write(command), "utf-8")
        print(f"Wrote {page} to {out}.")
    sys.exit(any(claim.failing for claim in claims))
