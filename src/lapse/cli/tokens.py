"""``lapse tokens``: who may call the HTTP API.

Works on the state database itself, so it needs no running server; a running one sees the change with the next request.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from lapse.cli.flags import NO_STATE_FLAGS, StateFlags
from lapse.cli.output import Output, OutputOption, message, print_json, print_result, print_table

if TYPE_CHECKING:
    from lapse.web.tokens import Token, TokenStore

app = App(
    "tokens",
    help="Create, list and revoke tokens of the HTTP API.",
    help_epilogue="Scopes: admin (everything), read (every GET), keys:APP (one application's keys), workspaces:OWNER.",
)


@contextmanager
def _store(flags: StateFlags) -> Iterator[TokenStore]:
    from lapse.core.clock import SystemClock
    from lapse.web.state import StateDatabase
    from lapse.web.tokens import TokenStore

    with StateDatabase(flags.load().settings.state_dir) as state:
        yield TokenStore(state, clock=SystemClock())


@app.command
def create(
    flags: StateFlags = NO_STATE_FLAGS,
    *,
    name: Annotated[str, Parameter(help="To recognise it in a list.")],
    scope: Annotated[list[str], Parameter(help="What it allows; give it several times for several.", negative=())],
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a token and print it, once: it is not stored and cannot be shown again.

    From the first token on, every request needs one.
    """
    with _store(flags) as store:
        token_id, token = store.create(name, scope)
    if output is Output.JSON:
        print_json({"id": token_id, "name": name, "scopes": list(dict.fromkeys(scope)), "token": token})
    else:
        sys.stdout.write(f"{token}\n")
        message(f"Token {token_id} was made. Keep it now: it cannot be shown again.")


@app.command(name="list")
def list_tokens(flags: StateFlags = NO_STATE_FLAGS, *, output: OutputOption = Output.TABLE) -> None:
    """List all tokens, revoked ones included, without their secrets."""
    with _store(flags) as store:
        rows = [_row(token) for token in store.list()]
    if output is Output.JSON:
        print_json(rows)
    elif rows:
        print_table(["id", "name", "scopes", "created", "revoked"], [_cells(row) for row in rows])
    else:
        message("There are no tokens. lapse tokens create --name NAME --scope admin makes one.")


@app.command
def revoke(
    token_id: Annotated[str, Parameter(name="ID", help="As lapse tokens list shows it.")],
    flags: StateFlags = NO_STATE_FLAGS,
    *,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a token useless, in running servers too. Revoking the last one does not open the server again."""
    with _store(flags) as store:
        store.revoke(token_id)
    print_result(output, {"id": token_id, "revoked": True}, f"Token {token_id} is revoked.")


def _row(token: Token) -> dict[str, object]:
    return {
        "id": token.id,
        "name": token.name,
        "scopes": list(token.scopes),
        "created": token.created.isoformat(timespec="seconds"),
        "revoked": token.revoked.isoformat(timespec="seconds") if token.revoked else None,
    }


def _cells(row: dict[str, object]) -> list[object]:
    scopes = row["scopes"]
    assert isinstance(scopes, list)  # noqa: S101 - made above
    return [row["id"], row["name"], " ".join(scopes), row["created"], row["revoked"] or ""]
