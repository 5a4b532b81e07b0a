"""Pages of lists: ``--limit`` and ``--after``, the same for every noun.

``next`` of a page is what ``--after`` takes. It names the last item that was shown, by what lists are ordered by, so a
page goes on in the right place also when that item is gone by then. Not guaranteed: that pages show one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from cyclopts import Parameter

from lapse.cli.usage import NumberError
from lapse.core.errors import UsageError

if TYPE_CHECKING:
    from lapse.engine.view import ViewPage

T = TypeVar("T")


class AfterError(UsageError):
    """--after {given!r} is not what a list like this one printed as next."""


@Parameter(name="*")
@dataclass(frozen=True)
class Paging:
    """Which part of a list to print."""

    limit: Annotated[int, Parameter(metavar="N", help="How many to print at most; 0 for all.")] = 100
    after: Annotated[
        str | None, Parameter(metavar="NEXT", help="Go on from here: next of the page before.", show_default=False)
    ] = None

    def check(self) -> None:
        """Raise a usage error for a number that is none of a list; before anything is read."""
        if self.limit < 0:
            raise NumberError(name="--limit", given=self.limit, expected="0 for all, or a number above 0")

    def page(
        self,
        items: Iterable[T],
        *,
        place: Callable[[T], Any],
        name: Callable[[T], str],
        placed: Callable[[str], Any],
        last_first: bool = False,
    ) -> ViewPage[T]:
        """Return a page of all ``items``, in the order of their ``place``, or the other way round.

        ``name`` is what ``next`` says of an item, and ``placed`` reads its place from that; None: it is none.
        """
        from lapse.engine.view import ViewPage

        ordered = sorted(items, key=place, reverse=last_first)
        if self.after is not None:
            start = placed(self.after)
            if start is None:
                raise AfterError(given=self.after)
            ordered = [one for one in ordered if (place(one) < start if last_first else place(one) > start)]
        shown = ordered[: self.limit] if self.limit else ordered
        return ViewPage(shown, name(shown[-1]) if len(shown) < len(ordered) else None)


FIRST_PAGE: Final = Paging()
