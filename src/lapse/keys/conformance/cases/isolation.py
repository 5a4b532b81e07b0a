"""Applications do not see each other, and buckets are not seen at all."""

from __future__ import annotations

from typing import Final

from lapse.keys.backends.layout import bucket_of
from lapse.keys.conformance.case import CaseRegistry, ContractRule, Violation, expect, expect_that
from lapse.keys.conformance.cases.operations import expect_absent, expect_present
from lapse.keys.conformance.fixture import KIT_APPS, LONG, CaseFixture, Session, StoreTarget, is_empty, with_option
from lapse.keys.errors import BackendMisfitError, KeysURLError
from lapse.keys.store import AppKeys, open_keys
from lapse.keys.url import parse_url
from lapse.keys.validation import MAX_APP_ID

REGISTRY: Final = CaseRegistry()
case = REGISTRY.case

_BUCKETS: Final = 8


def _expect_isolated(one: AppKeys, other: AppKeys) -> None:
    """Nothing that is done in one application is seen in the other."""
    expect(one.insert_if_not_exists("k", "one", LONG), True, "an insert in one application")
    expect_absent(other, "in another application")
    expect(other.compare_and_swap("k", "one", "x", LONG), False, "a swap in another application")
    expect(other.compare_and_delete("k", "one"), False, "a compare-and-delete in another application")
    expect(other.touch("k", LONG), False, "a touch in another application")
    expect(other.delete("k"), False, "a delete in another application")
    expect(other.insert_if_not_exists("k", "other", LONG), True, "an insert of the same key in another application")
    expect_present(one, "one", "in the first application")
    expect_present(other, "other", "in the other application")
    expect(one.delete("k"), True, "a delete in the first application")
    expect_present(other, "other", "in the other application after a delete in the first")
    expect([item.key for item in one.scan()], [], "a scan of the first application after its delete")


@case(ContractRule.ISOLATION)
def applications_are_isolated(fixture: CaseFixture) -> None:
    """Two applications have the same key with different values, and nothing done in one is seen in the other."""
    _expect_isolated(fixture.app(), fixture.app())


@case(ContractRule.ISOLATION)
def neighbouring_applications_are_isolated(fixture: CaseFixture) -> None:
    """Applications are isolated whose ids are neighbours, or differ in one byte only."""
    first = fixture.session.draw_app()
    for other in (first + 1, first ^ 0x0000_0100, first ^ 0x0001_0000):
        if other not in KIT_APPS or not is_empty(fixture.session.keys.backend, other):
            continue
        fixture.session.drawn.add(other)
        one, two = fixture.app(first), fixture.app(other)
        _expect_isolated(one, two)
        two.delete("k")


@case(ContractRule.ISOLATION)
def first_and_last_application(fixture: CaseFixture) -> None:
    """The applications 0 and 4294967295 are isolated from each other and from all others."""
    for app_id in (0, MAX_APP_ID):
        if not is_empty(fixture.keys.backend, app_id) or not is_empty(fixture.session.keys.backend, app_id):
            fixture.not_applicable(f"application {app_id} holds records already, so the kit does not write there")
    first, last = fixture.app(0), fixture.app(MAX_APP_ID)
    _expect_isolated(first, last)
    last.delete("k")
    _expect_isolated(last, fixture.app())


@case(ContractRule.ISOLATION)
def locks_are_no_keys(fixture: CaseFixture) -> None:
    """The records of a lock are not seen among the keys of its application."""
    keys = fixture.app()
    with keys.lock("k", LONG):
        expect([item.key for item in keys.scan()], [], "a scan while a lock is held")
        expect(keys.ttl_get("lock:k"), None, "ttl_get of the name of a lock's record")


# --- buckets ---------------------------------------------------------------------------------------------------------


def _fresh(target: StoreTarget) -> tuple[Session, AppKeys]:
    session = Session(target)
    return session, session.keys.app(session.draw_app())


@case(ContractRule.BUCKETS)
def buckets_are_not_seen(fixture: CaseFixture) -> None:
    """Spread over several buckets, every operation works and a scan is in order, page by page."""
    if fixture.target.fresh is None:
        fixture.not_applicable(
            "this takes a new store; run the kit on one whose URL says ?buckets=8, and every case is spread"
        )
    with fixture.target.fresh(_BUCKETS) as target:
        session, keys = _fresh(target)
        try:
            _expect_spread(keys)
        finally:
            session.close()


def _expect_spread(keys: AppKeys) -> None:
    names = [f"key-{number:03}" for number in range(100)]
    expect(len({bucket_of(name, _BUCKETS) for name in names}), _BUCKETS, "the number of buckets that the names hash to")
    expect(keys.insert_many([(name, name, LONG) for name in reversed(names)]), [True] * 100, "inserts over all buckets")
    expect([item.key for item in keys.scan()], names, "a scan over all buckets")
    found: list[str] = []
    while page := keys.scan(after=found[-1] if found else None, limit=7):
        found += [item.key for item in page]
    expect(found, names, "all pages of 7 over all buckets")
    expect(keys.get_many(names), {name: name for name in names}, "get_many over all buckets")
    for name in names:
        expect(keys.compare_and_swap(name, name, "new", LONG), True, f"a swap of {name}")
        expect(keys.touch(name, LONG), True, f"a touch of {name}")
        expect(keys.compare_and_delete(name, "new"), True, f"a compare-and-delete of {name}")
    expect(keys.scan(), [], "a scan after all deletes")


@case(ContractRule.BUCKETS)
def another_number_of_buckets_is_refused(fixture: CaseFixture) -> str | None:
    """A store that was used with one number of buckets cannot be opened with another."""
    url = fixture.target.url
    if not fixture.target.shared:
        return "each opening of this store is a new one, so there is no other number"
    if url is None:
        fixture.not_applicable("no URL names this store, so it cannot be opened with another number")
    options = parse_url(url).options
    if "buckets" not in options:
        fixture.not_applicable("this backend has no option buckets")
    keys = fixture.app()
    keys.put("k", "v", LONG)
    answer = _with_other_buckets(with_option(url, "buckets", options["buckets"] + 1), keys.app_id)
    expect_that(answer is None, "opening with another number of buckets", wanted="BackendMisfitError", saw=answer)
    expect(keys.ttl_get("k"), "v", "ttl_get with the right number of buckets afterwards")
    return None


def _with_other_buckets(url: str, app_id: int) -> str | None:
    """Return what came instead of the refusal."""
    try:
        with open_keys(url, sweep=False) as keys:
            return f"the answer {keys.app(app_id).ttl_get('k')!r}"
    except BackendMisfitError:
        return None
    except KeysURLError as error:
        raise Violation(f"opening with another number of buckets: expected BackendMisfitError, saw {error}") from error
