"""Asking the cluster who may read what: one SubjectAccessReview for each distinct target of a capture.

Bounded in every direction: so many questions at once, so many in all (`admission.MAX_TARGETS`), so many seconds. What
goes wrong on the way is a ruling that denies, never an exception and never a yes.

One question for each name and not one for the whole kind, although that would often do: whoever may read all of a kind
but one must be asked about that one, and some authorizers know such rules.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lapse.core.log import get_logger
from lapse.kube.auth.access import AccessReviews
from lapse.kube.errors import ObjectError, UnknownKindError
from lapse.requests.admission.rules import decide, failure, first_look, questions, review_of, unknown_kind
from lapse.requests.expiry import DOMAIN

if TYPE_CHECKING:
    from lapse.kube.api.client import Client
    from lapse.kube.auth.admission import AdmissionRequest, Ruling
    from lapse.kube.resources import Kind
    from lapse.requests.admission.rules import Review

_log = get_logger("lapse.requests.admission.access")


class Judge:
    """See the module. Belongs to one event loop."""

    domain = DOMAIN

    def __init__(self, client: Client) -> None:
        """Ask by ``client``, which may create SubjectAccessReviews."""
        self._reviews = AccessReviews(client)

    async def judge(self, request: AdmissionRequest, *, seconds: float) -> Ruling:
        """Say within ``seconds`` whether the request may be created."""
        return await self.judge_capture(review_of(request), seconds=seconds)

    async def judge_capture(self, review: Review, *, seconds: float) -> Ruling:
        """Say the same of a request that was read."""
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
                    kinds[named] = await self._reviews.kind(*named)
                except UnknownKindError:
                    return unknown_kind(*named)  # the first is enough: who makes up a thousand causes one question
        asked = questions(review, kinds)
        return decide(review, asked, await self._reviews.answers(review.person, asked))
