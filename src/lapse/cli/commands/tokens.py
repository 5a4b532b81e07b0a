"""``lapse tokens`` and ``lapse open``: who may call the HTTP API, and who may see its pages.

Both work on the state database itself; a running server sees the change with the next request. What is made and revoked
is told in the journal. Only `lapse open` asks whether there is one, so that its link leads somewhere.
"""

from __future__ import annotations

import sys
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter

from lapse.cli.flags import OpenFlags, StateFlags, TokenFlags
from lapse.cli.input import Yes, confirm
from lapse.cli.output import (
    Output,
    OutputOption,
    message,
    print_document,
    print_link,
    print_page,
    print_result,
    print_table,
    print_text,
)
from lapse.cli.usage import examples
from lapse.core.errors import LapseError, UsageError

if TYPE_CHECKING:
    from typing import TypeVar

    from lapse.cli.context import Context, Work
    from lapse.cli.flags import Flags
    from lapse.client.transport import LapseServer
    from lapse.engine.view import Columns, Moment
    from lapse.web.auth.audit import AuditedTokens
    from lapse.web.auth.tokens import Token

    T = TypeVar("T")

_ANSWER_SECONDS: Final = 5.0

app = App(
    "tokens",
    help="Create, list and revoke tokens of the HTTP API.",
    help_epilogue="Scopes: admin (everything), read (every GET), monitor (lists, without values), operate, approve,\n"
    "holds, legal, keys:APP (one application's keys), workspaces:OWNER (one owner's workspaces).",
)


TokenId = Annotated[str, Parameter(name="ID", help="The id, as lapse tokens list shows it.")]
_COLUMNS: Final[Columns] = {
    "id": "id",
    "name": "name",
    "scopes": lambda view, _: " ".join(view.scopes),
    "created": "created_at",
    "revoked": "revoked_at",
}


class TokensElsewhereError(UsageError):
    """LAPSE_SERVER names {server}, and tokens are made on the machine of a server, in its state folder.

    Run this there. For the state folder of this machine, say so with --state-dir, or unset LAPSE_SERVER.
    """


class HTTPPortUnknownError(UsageError):
    """http_port is 0, so lapse up picks one, and this command does not know which. Name it with --http-port."""


class NoServerError(LapseError):
    """No Lapse answers at {url} ({problem}). Start lapse up, or name its port with --http-port."""


class OtherFolderError(LapseError):
    """The Lapse at {url} has another state folder than {folder}. Name its own with --state-dir or LAPSE_STATE_DIR."""


@app.command
def create(
    flags: TokenFlags = TokenFlags(),
    *,
    name: Annotated[str, Parameter(help="A name to recognise it by in a list.")],
    scope: Annotated[list[str], Parameter(help="What it allows; give it several times for several.", negative=())],
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a token and print it, once: it is not stored and cannot be shown again."""

    async def work(context: Context) -> tuple[str, str]:
        return await _audited(context).create(name, scope)

    token_id, token = _in_folder(flags, work)
    if output.for_programs:
        print_document(output, {"id": token_id, "name": name, "scopes": list(dict.fromkeys(scope)), "token": token})
    else:
        sys.stdout.write(f"{token}\n")
        message(f"Token {token_id} was made. Keep it now: it cannot be shown again.")


@app.command(name="list")
def list_tokens(flags: StateFlags = StateFlags(), *, output: OutputOption = Output.TABLE) -> None:
    """List all tokens, revoked ones included, without their secrets."""
    from lapse.engine.view import ViewPage

    async def work(context: Context) -> list[Token]:
        return context.tokens.list()

    none = "There are no tokens. lapse tokens create --name NAME --scope admin makes one."
    print_page(output, ViewPage(_in_folder(flags, work), None), _COLUMNS, none=none)


@app.command
def show(token_id: TokenId, /, *, flags: StateFlags = StateFlags(), output: OutputOption = Output.TABLE) -> None:
    """Show one token, without its secret."""
    from lapse.engine.view import row

    async def work(context: Context) -> Token:
        return context.tokens.get(token_id)

    found = _in_folder(flags, work)
    if output.for_programs:
        print_document(output, found)
    else:
        print_table(("fact", "value"), zip(_COLUMNS, row(found, _COLUMNS), strict=True))


@app.command
def revoke(
    token_id: TokenId,
    /,
    *,
    yes: Yes = False,
    flags: TokenFlags = TokenFlags(),
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a token useless, in running servers too; its sessions, websockets and tickets end with it.

    On a terminal it asks before.
    """
    confirm(f"Revoke token {token_id}", yes=yes)

    async def work(context: Context) -> None:
        await _audited(context).revoke(token_id)

    _in_folder(flags, work)
    print_result(output, {"id": token_id, "revoked": True}, f"Revoked: token {token_id}.")


@app.command(help_epilogue=examples("lapse tokens owner", "lapse tokens owner --header | curl -H @- URL"))
def owner(
    flags: StateFlags = StateFlags(),
    *,
    header: Annotated[
        bool, Parameter(help="As an Authorization header, for curl -H @-.", negative=(), show_default=False)
    ] = False,
) -> None:
    """Print the owner's token, with which the user of lapse up may do everything on this machine.

    It is in owner-token in the state folder. A revoked one is
    replaced by this command, or by the next lapse up.
    """

    async def work(context: Context) -> str:
        return context.owner()[1]

    token = _in_folder(flags, work)
    print_text(f"Authorization: Bearer {token}" if header else token)


def open_page(
    flags: OpenFlags = OpenFlags(),
    *,
    browser: Annotated[bool, Parameter(help="Open it in a browser, too.", negative=(), show_default=False)] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print a link that opens the dashboard in a browser, with the rights of the owner.

    It works once, within ten minutes.
    """
    from lapse.cli.context import in_context

    url, until = in_context(flags, _link)
    print_link(output, url, expires_at=until, within="ten minutes", browser=browser)


async def _link(context: Context) -> tuple[str, Moment]:
    from lapse.cli.remote import demand_own_program, server_at
    from lapse.engine.view import Moment
    from lapse.web.auth.sessions import TICKET_SECONDS, BrowserSessions, ticket_url

    settings = context.settings
    if not settings.http_port:
        raise HTTPPortUnknownError
    server = server_at(settings)
    _ask(server, "")  # before a folder is made that nobody uses
    demand_own_program(server)
    owner_id, token = context.owner()
    if _ask(server, token) == HTTPStatus.UNAUTHORIZED:
        raise OtherFolderError(url=server, folder=settings.state_dir)
    until = Moment(context.machine.wall_ns() + TICKET_SECONDS * 1_000_000_000)
    sessions = BrowserSessions(context.state, context.tokens, context.machine)
    return ticket_url(str(server), sessions.issue(owner_id)), until


def _ask(server: LapseServer, token: str) -> int:
    """Return the status with which a server answers the holder of a token; raises `NoServerError`."""
    from http.client import HTTPException

    from lapse.cli.remote import connection_to

    connection = connection_to(server, seconds=_ANSWER_SECONDS)
    try:
        connection.request("GET", "/api/v1/status", headers={"Authorization": f"Bearer {token}"} if token else {})
        return connection.getresponse().status
    except (OSError, HTTPException) as error:
        raise NoServerError(url=server, problem=str(error) or type(error).__name__) from error
    finally:
        connection.close()


def _in_folder(flags: Flags, work: Work[T]) -> T:
    """Do some work on the tokens of the state folder; raises `TokensElsewhereError` where a server is meant."""
    import os

    from lapse.cli.context import in_context
    from lapse.cli.remote import SERVER

    server = os.environ.get(SERVER)
    if server and "state_dir" not in flags.given:
        raise TokensElsewhereError(server=server)
    return in_context(flags, work)


def _audited(context: Context) -> AuditedTokens:
    from lapse.cli.context import who
    from lapse.web.auth.audit import AuditedTokens

    return AuditedTokens(context.tokens, context.journal, context.machine, who())
