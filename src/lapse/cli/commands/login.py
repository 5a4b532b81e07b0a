"""``lapse login`` and ``lapse logout``: tokens for servers, kept for the commands of this user.

A token is kept only after the server has let it in. It is read from a file, from stdin or from the terminal, never from
an argument, which every user of the machine could see.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from lapse.cli.input import STDIN, value_from
from lapse.cli.output import ExitCode, Output, OutputOption, message, print_document, print_result, print_table
from lapse.core.errors import UsageError

if TYPE_CHECKING:
    from lapse.cli.remote import CredentialsFile
    from lapse.client.transport import LapseServer

_LONGEST: Final = 4096
_ID: Final = 1

Address = Annotated[str | None, Parameter(name="URL", help="The address of the server, as https://HOST.")]


class NoServerNamedError(UsageError):
    """Name the server, as in lapse {command} https://lapse.example.org. {known}."""


class TokenFileError(UsageError):
    """The token cannot be read from {file}: {problem}."""


def login(
    url: Address = None,
    /,
    *,
    token_file: Annotated[
        str, Parameter(metavar="FILE", help="Where the token is; - is stdin, which is asked for on a terminal.")
    ] = STDIN,
    ca_file: Annotated[
        str | None,
        Parameter(metavar="FILE", help="Certificate of the authority to trust there; otherwise LAPSE_CA_FILE."),
    ] = None,
    list_: Annotated[
        bool, Parameter(name="--list", help="List the servers, without tokens.", negative=(), show_default=False)
    ] = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Keep a token for a server, to work on it from here.

    The server is asked first: a token that it does not know is not kept. Then
    --server URL, or LAPSE_SERVER, is enough for every verb.
    """
    from lapse.cli.context import run_through
    from lapse.cli.remote import trust_for
    from lapse.client import AsyncClient
    from lapse.client.transport import LapseServer, trust_authority

    if list_:
        return _list(output)
    server = LapseServer.parse(_named(url, "login"))
    authority = "" if ca_file is None else str(Path(ca_file).expanduser().absolute())
    tls = trust_authority(Path(authority)) if authority else trust_for(server)
    client = AsyncClient(str(server), token := _token(token_file, server), tls=tls)
    run_through(client.check())
    _file().keep(server, token, ca_file=authority or _file().ca_file(server))
    kept = {"server": str(server), "token": _id_of(token)}
    print_result(output, kept, f"Logged in to {server}. To work there: --server {server}, or LAPSE_SERVER={server}")
    return ExitCode.DONE


def logout(url: Address = None, /, *, output: OutputOption = Output.TABLE) -> int:
    """Forget the token for a server. The token itself stays good: lapse tokens revoke ends it."""
    from lapse.client.transport import LapseServer

    server = LapseServer.parse(_named(url, "logout"))
    was_kept = _file().forget(server)
    said = f"Logged out of {server}." if was_kept else f"Nothing to do: not logged in to {server}."
    print_result(output, {"server": str(server), "changed": was_kept}, said)
    return ExitCode.DONE


def _list(output: Output) -> int:
    from lapse.engine.view import ViewPage

    rows = [{"server": server, "token": _id_of(token)} for server, token in sorted(_file().tokens().items())]
    if output.for_programs:
        print_document(output, ViewPage(rows, None))
    elif rows:
        print_table(["server", "token"], [[row["server"], row["token"]] for row in rows])
    else:
        message("There are no servers. lapse login https://lapse.example.org adds one.")
    return ExitCode.DONE


def _file() -> CredentialsFile:
    from lapse.cli.remote import CredentialsFile
    from lapse.settings import own_folder

    return CredentialsFile(own_folder())


def _named(url: str | None, command: str) -> str:
    if url is None:
        known = ", ".join(sorted(_file().tokens()))
        raise NoServerNamedError(command=command, known=f"Known: {known}" if known else "None is known yet")
    return url


def _token(file: str, server: LapseServer) -> str:
    """Return the token that is given, without the blanks around it."""
    if file == STDIN:
        return value_from(STDIN, f"Token for {server}").strip()
    try:
        with Path(file).open(encoding="ascii") as opened:
            return opened.read(_LONGEST).strip()
    except OSError as error:
        raise TokenFileError(file=file, problem=error.strerror or "unknown reason") from error
    except UnicodeError as error:
        raise TokenFileError(file=file, problem="it is not ASCII") from error


def _id_of(token: str) -> str:
    """Return the part of a token that is no secret: its id, as lapse tokens list shows it."""
    parts = token.split("_")
    return parts[_ID] if len(parts) > _ID + 1 else "unknown"
