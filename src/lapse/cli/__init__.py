"""The command line: one module per noun, found by name and imported only when its command is used.

`main` is the one place where an outcome becomes an exit code: 0 done, 1 failed, 2 changes pending where that was
asked for, 3 partly done, 64 wrong usage (a command returns the number, or raises), 130 after Ctrl-C, 141 when the
reader of a pipe has gone. A user's mistake is one message on stderr, never a traceback; a traceback means a defect of
Lapse.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from cyclopts import App, CycloptsError

import lapse
from lapse.cli.former_names import renewed
from lapse.cli.output import ExitCode, OutputError, message, stderr, stdout
from lapse.cli.usage import examples, explain
from lapse.core.errors import LapseError
from lapse.domains import REGISTRY

app = App(
    "lapse",
    help="Everything temporary, ended on time, and only on time.",
    help_epilogue="lapse COMMAND --help shows examples. Results go to stdout, messages to stderr.\n\n"
    "Exit codes: 0 done, 1 failed, 2 changes pending (with --detailed-exitcode), 3 partly done, 64 wrong usage.",
    help_format="plaintext",
    group_parameters="Options",
    version=f"lapse {lapse.__version__}",
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
# By name, so that `lapse --help` imports no backend and no web framework; hence the help texts here.
app.command(
    "lapse.cli.commands.processes:up", name="up", help="Run everything that is enabled: loops, HTTP API, dashboard."
)
app.command(
    "lapse.cli.commands.tokens:open_page",
    name="open",
    help="Print a link that opens the dashboard in a browser.",
    help_epilogue=examples("lapse open", "lapse open --browser"),
)
app.command("lapse.cli.commands.demo:app", name="demo", help="See things lapse: a demo that can be removed.")
app.command(
    "lapse.cli.commands.processes:proxy",
    name="proxy",
    help="Serve workspaces to their owners, beside lapse up.",
    help_epilogue=examples("lapse proxy --activity-url redis://redis:6379 --proxy-port 8762"),
)
app.command(
    "lapse.cli.commands.processes:operator", name="operator", help="Carry out requests on a Kubernetes cluster."
)
app.command(
    "lapse.cli.commands.processes:webhook",
    name="webhook",
    help="Check requests and policies before a cluster stores them.",
)
app.command(
    "lapse.cli.commands.processes:ttl_manager",
    name="ttl-manager",
    help="Stop and archive idle workspaces.",
    help_epilogue=examples(
        "lapse ttl-manager --activity-url redis://redis:6379",
        "lapse ttl-manager --activity-url redis://redis:6379 --dry-run",
    ),
)
for _domain in REGISTRY.built_in:
    if _domain.noun is not None:
        app.command(_domain.noun.commands, name=_domain.name, help=_domain.noun.help)
app.command(
    "lapse.cli.commands.busy:busy",
    name="busy",
    help="Run a command, and keep its workspace from lapsing meanwhile.",
    help_epilogue=examples("lapse busy -- python3 train.py", "lapse busy --workspace lab --most 3h -- make"),
)
app.command("lapse.cli.commands.db:app", name="db", help="Make the tables of Lapse on PostgreSQL.")
app.command(
    "lapse.cli.commands.verbs:plan",
    name="plan",
    help="Show what will lapse, when and why.",
    help_epilogue=examples("lapse plan", "lapse plan --within 7d --domain history", "lapse plan --propose"),
)
app.command(
    "lapse.cli.commands.forecast:forecast",
    name="forecast",
    help="Show how much lapses when, and what comes next.",
    help_epilogue=examples("lapse forecast", "lapse forecast --within 7d --domain history --steps 28"),
)
app.command(
    "lapse.cli.commands.verbs:apply",
    name="apply",
    help="Carry out a plan, and nothing else.",
    help_epilogue=examples("lapse apply 0de47e3b0b5fbe1a", "lapse apply plan.json --when-due"),
)
app.command(
    "lapse.cli.commands.verbs:approve",
    name="approve",
    help="Allow a plan to be carried out.",
    help_epilogue=examples("lapse approve 0de47e3b0b5fbe1a", "lapse approve plan.json"),
)
app.command("lapse.cli.commands.record:plans_app", name="plans", help="See plans that were proposed.")
app.command(
    "lapse.cli.commands.verbs:why",
    name="why",
    help="Tell why a thing is kept or lapses.",
    help_epilogue=examples("lapse why workspace/lab", "lapse why vcr/default/nightly --at 2h"),
)
app.command(
    "lapse.cli.commands.verbs:hold",
    name="hold",
    help="Keep a thing from lapsing.",
    help_epilogue=examples(
        "lapse hold vcr/default/nightly --reason audit --until 7d",
        "lapse hold snapshot/NAME --reason 'case 7' --legal",
    ),
)
app.command("lapse.cli.commands.verbs:release", name="release", help="End a hold.")
app.command(
    "lapse.cli.commands.verbs:extend",
    name="extend",
    help="Give a thing a later deadline.",
    help_epilogue=examples("lapse extend keeper/NAME 2h", "lapse extend workspace/lab 2030-01-31T12:00:00Z"),
)
app.command(
    "lapse.cli.commands.verbs:delete",
    name="delete",
    help="Delete a thing now.",
    help_epilogue=examples("lapse delete snapshot/NAME", "lapse delete history/default/NAME --yes"),
)
app.command(
    "lapse.cli.commands.verbs:undo",
    name="undo",
    help="Bring back what lapsed.",
    help_epilogue=examples("lapse undo history/default/nightly-1", "lapse undo 0de47e3b0b5fbe1a"),
)
app.command("lapse.cli.commands.record:trash_app", name="trash", help="See what lapsed and can be brought back.")
app.command(
    "lapse.cli.commands.record:journal",
    name="journal",
    help="Tell who let what lapse, when, and by which rule.",
    help_epilogue=examples("lapse journal --since 1d --search /shop/", "lapse journal --domain audit --follow"),
)
app.command(
    "lapse.cli.commands.record:status",
    name="status",
    help="Show what runs, what stands still, and what lapses next.",
    help_epilogue=examples("lapse status", "lapse status -o json"),
)
app.command(
    "lapse.cli.commands.verbs:freeze",
    name="freeze",
    help="Let Lapse end nothing of a domain by itself until it is resumed.",
)
app.command("lapse.cli.commands.verbs:resume", name="resume", help="Resume a frozen domain.")
app.command(
    "lapse.cli.commands.crds:app", name="crds", help="Install and compare our definitions on a Kubernetes cluster."
)
app.command(
    "lapse.cli.commands.login:login",
    name="login",
    help="Keep a token for a server, to work on it from here.",
    help_epilogue=examples(
        "lapse login https://lapse.example.org",
        "lapse login https://lapse.example.org --token-file token.txt",
        "lapse login --list",
    ),
)
app.command(
    "lapse.cli.commands.login:logout",
    name="logout",
    help="Forget the token for a server.",
    help_epilogue=examples("lapse logout https://lapse.example.org"),
)
app.command(
    "lapse.cli.commands.completion:completion",
    name="completion",
    help="Print a script that completes commands in a shell.",
    help_epilogue=examples(
        "lapse completion bash > ~/.local/share/bash-completion/completions/lapse",
        "lapse completion zsh > ~/.zfunc/_lapse",
        "lapse completion fish > ~/.config/fish/completions/lapse.fish",
    ),
)
app.command("lapse.cli.commands.config:app", name="config", help="Show and check the configuration.")
app.command("lapse.cli.commands.tokens:app", name="tokens", help="Create, list and revoke tokens of the HTTP API.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    _prepare_streams()
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        _give_up_stdout()
        return ExitCode.PIPE_CLOSED
    return code


def _prepare_streams() -> None:
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as by >&-
            descriptor = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8")  # values are UTF-8 in every store, whatever the locale says


def _give_up_stdout() -> None:
    # The interpreter flushes stdout once more at its end, and would complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    try:
        _add_noun(arguments)
        arguments = renewed(arguments, lambda told: message(f"warning: {told}", style="yellow"))
        result = app(
            arguments,
            console=stdout(),
            error_console=stderr(),
            exit_on_error=False,
            print_error=False,
        )
    except CycloptsError as error:
        return _fail(explain(error), ExitCode.USAGE)
    except OutputError as error:
        _give_up_stdout()
        return _fail(str(error), ExitCode.FAILED)
    except LapseError as error:
        return _fail(str(error), error.exit_code)
    return result if isinstance(result, int) else ExitCode.DONE


def _add_noun(arguments: list[str]) -> None:
    """Add the commands of an installed domain when they are asked for; no other command imports a foreign domain."""
    word = next(iter(arguments), "")
    if word[:1].isalpha() and word not in app and word in REGISTRY.installed_names():
        noun = REGISTRY.get(word).noun
        if noun is not None:
            app.command(noun.commands, name=word, help=noun.help)


def _fail(text: str, code: int) -> int:
    message(f"lapse: {text}", style="red")
    return code
