"""Access reviews: what a user may do on a cluster, asked by SubjectAccessReviews, a bounded number at a time.

A right is one verb on one kind, as roles give them. Nothing is remembered between two judgements but the kinds of the
cluster: a right that was taken away counts at once. A review that is not answered raises; what that means is for the
caller to say, and it is never a yes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lapse.kube.api.discovery import Discovery
from lapse.kube.auth.admission import access_review, read_answer
from lapse.kube.errors import ObjectError
from lapse.kube.resources import untyped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.kube.api.client import KubeClient
    from lapse.kube.auth.admission import AccessQuestion, Person
    from lapse.kube.resources import Kind


class Right(NamedTuple):
    """One verb on one kind; ``subresource`` is empty or such as status."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str | None = None
    """None: in all of them."""
    name: str = ""
    """Of the one object that is meant; empty: all of them."""

    def __str__(self) -> str:
        """Print as an API server does."""
        part = f"/{self.subresource}" if self.subresource else ""
        place = f" in {self.namespace}" if self.namespace else ""
        named = f" {self.name}" if self.name else ""
        return f"{self.verb} {self.resource}{part}{f'.{self.group}' if self.group else ''}{named}{place}"


def rights_on(kind: Kind[Any], *verbs: str, subresource: str = "", namespace: str | None = None) -> list[Right]:
    """Return one right for each verb."""
    return [Right(verb, kind.group, kind.plural, subresource, namespace) for verb in verbs]


ACCESS_REVIEW: Final = untyped(
    "authorization.k8s.io/v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False
)
AT_ONCE: Final = 16
"""Questions under way for one request, so that a large one leaves connections for others."""


class AccessReviews:
    """See the module. Belongs to one event loop."""

    def __init__(self, client: KubeClient) -> None:
        """Ask by ``client``, which may create SubjectAccessReviews."""
        self._client = client
        self._discovery = Discovery(client)

    async def kind(self, api_version: str, kind: str) -> Kind[Any]:
        """Return a kind of the cluster; raises `UnknownKindError`."""
        return await self._discovery.find(api_version, kind)

    async def answers(self, person: Person, asked: tuple[AccessQuestion, ...]) -> dict[AccessQuestion, bool]:
        """Ask all; raises the first `ObjectError`, after which no question is begun."""
        answers: dict[AccessQuestion, bool] = {}
        failures: list[ObjectError] = []
        waiting = iter(asked)

        async def work(waiting: Iterator[AccessQuestion]) -> None:
            for question in waiting:
                try:
                    found = await self._client.create(ACCESS_REVIEW, access_review(person, question))
                    answers[question] = read_answer(found.body)
                except ObjectError as error:
                    failures.append(error)
                if failures:
                    return

        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE, len(asked))):
                group.create_task(work(waiting))
        if failures:
            raise failures[0]
        return answers
