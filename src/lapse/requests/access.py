"""Asking the cluster who may read what: one SubjectAccessReview for each distinct target of a capture.

Bounded in every direction: so many questions at once, so many in all (`admission.MAX_TARGETS`), so many seconds. What
goes wrong on the way is a ruling that denies, never an exception and never a yes. Nothing is remembered between two
captures but the kinds of the cluster: a right that was taken away counts at once.

One question for each name and not one for the whole kind, although that would often do: whoever may read all of a kind
but one must be asked about that one, and some authorizers know such rules.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from lapse.core.log import get_logger
from lapse.kube.discovery import Discovery
from lapse.kube.errors import ObjectError, UnknownKindError
from lapse.kube.resources import untyped
from lapse.requests.admission import (
    Ruling,
    access_review,
    decide,
    failure,
    first_look,
    questions,
    read_answer,
    unknown_kind,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.kube.client import Client
    from lapse.kube.resources import Kind
    from lapse.requests.admission import Person, Question, Review

ACCESS_REVIEW: Final = untyped(
    "authorization.k8s.io/v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False
)
AT_ONCE: Final = 16
"""Questions under way for one capture, so that a large one leaves connections for others."""
_log = get_logger("lapse.requests.access")


class Judge:
    """See the module. Belongs to one event loop."""

    def __init__(self, client: Client) -> None:
        """Ask by ``client``, which may create SubjectAccessReviews."""
        self._client = client
        self._discovery = Discovery(client)

    async def judge(self, review: Review, *, seconds: float) -> Ruling:
        """Say within ``seconds`` whether the request may be created."""
        ruling = await self._ruling(review, seconds)
        about = {"user": review.person.username, "namespace": review.namespace, "targets": len(review.targets)}
        if ruling.failed:
            _log.warning("capture_not_judged", reason=ruling.message, **about)
        elif not ruling.allowed:
            _log.info("capture_denied", reason=ruling.message, **about)
        else:
            _log.debug("capture_allowed", **about)
        return ruling

    async def _ruling(self, review: Review, seconds: float) -> Ruling:
        try:
            async with asyncio.timeout(seconds):
                return first_look(review) or await self._asked(review)
        except TimeoutError:
            return failure(f"the cluster did not answer everything within {seconds:g} s")
        except ObjectError as error:
            return failure(str(error.details.get("problem", error)))

    async def _asked(self, review: Review) -> Ruling:
        kinds: dict[tuple[str, str], Kind[Any]] = {}
        for target in review.targets:
            named = (target.api_version, target.kind)
            if named not in kinds:
                try:
                    kinds[named] = await self._discovery.find(*named)
                except UnknownKindError:
                    return unknown_kind(*named)  # the first is enough: who makes up a thousand causes one question
        asked = questions(review, kinds)
        return decide(review, asked, await self._answers(review.person, asked))

    async def _answers(self, person: Person, asked: tuple[Question, ...]) -> dict[Question, bool]:
        """Ask all; raises the first `ObjectError`, after which no question is begun."""
        answers: dict[Question, bool] = {}
        failures: list[ObjectError] = []
        waiting = iter(asked)

        async def work(waiting: Iterator[Question]) -> None:
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
