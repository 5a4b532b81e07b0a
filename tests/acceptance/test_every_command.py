"""Every command for things of every domain, on every domain, in all three places: what the specification's table says.

Each cell of the table is a test of its own, such as `server-history-undo`. What a command did is looked at past the
commands: whether the thing is there, in the store, the database or the folder that has it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.acceptance.places import Place, cluster_place, folder_place, redis_place, server_place
from tests.acceptance.things import HOUR
from tests.servers import kube_server
from tests.servers.lapse_server import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.servers import Server

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
YES, NO = "yes", "no"
TABLE = """
            requests  keepers  artifacts  history  retention  workspaces  scratch  keys      redis
plan        yes       yes      yes        yes      yes        yes         yes      counts    untold
forecast    yes       yes      yes        yes      yes        yes         yes      counts    untold
apply       yes       yes      yes        yes      yes        yes         yes      no        -
approve     yes       yes      yes        yes      yes        yes         yes      no        -
propose     yes       yes      yes        yes      yes        yes         yes      no        -
why         yes       yes      yes        yes      yes        yes         yes      live      live
hold        yes       yes      yes        yes      yes        yes         yes      no        no
legal       yes       yes      yes        yes      yes        yes         yes      no        no
extend      yes       yes      yes        yes      yes        yes         yes      touch     touch
delete      yes       yes      yes        yes      yes        yes         yes      no        no
undo        yes       yes      yes        yes      yes        yes         no       no        no
trash       yes       yes      yes        yes      yes        yes         no       no        no
journal     yes       yes      yes        yes      yes        yes         yes      nameless  nameless
status      yes       yes      yes        yes      yes        yes         yes      yes       yes
freeze      yes       yes      yes        yes      yes        yes         yes      no        no
"""
"""What works on which domain. *no* is a usage error that says why, *counts* shows numbers and no names, and *touch* is
what an extension is for a key. On a cluster there are no workspaces, keys and domains of one's own: a usage error. The
last column are keys on a server, Redis, of a folder."""
ON_CLUSTER = ("requests", "keepers", "artifacts", "history", "retention")
PLACES = {
    "folder": (),
    "server": (),
    "cluster": (pytest.mark.server("kube", private=True),),
    "redis": (pytest.mark.server("redis"),),
}
OVER = -HOUR


def cells() -> Iterator[Any]:
    header, *rows = (line.split() for line in TABLE.strip().splitlines())
    for place, marks in PLACES.items():
        for verb, *said in rows:
            for column, expected in zip(header, said, strict=True):
                if (column == "redis") != (place == "redis") or expected == "-":
                    continue
                domain = "keys" if column == "redis" else column
                word = expected if place != "cluster" or domain in ON_CLUSTER else "elsewhere"
                yield pytest.param(place, domain, verb, word, id=f"{place}-{domain}-{verb}", marks=marks)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with folder_place(tmp_path_factory.mktemp("folder")) as place:
        yield place


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with server_place(tmp_path_factory.mktemp("server")) as place:
        yield place


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with kube_server(csi=True) as kube, cluster_place(tmp_path_factory.mktemp("cluster"), kube) as place:
        yield place


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory, shared_redis: Server) -> Iterator[Place]:
    with redis_place(tmp_path_factory.mktemp("redis"), shared_redis.keys_url()) as place:
        yield place


@pytest.mark.parametrize(("place", "domain", "verb", "expected"), list(cells()))
def test_a_command_does_what_the_table_says(
    place: str, domain: str, verb: str, expected: str, request: pytest.FixtureRequest
) -> None:
    at: Place = request.getfixturevalue(place)
    if expected == YES:
        WORKS[verb](at, domain)
    else:
        OTHERWISE[expected](at, domain, verb)


# --- plan, apply, approve ---------------------------------------------------------------------------------------------


def plan_words(at: Place, domain: str, *more: str) -> tuple[str, ...]:
    return ("plan", "--domain", at.domain(domain), *more)


def plan_works(at: Place, domain: str) -> None:
    over, live = at.new_ones(domain, OVER, HOUR)
    due, later = at.planned(domain, over), at.planned(domain, live)
    file = at.folder / "plan.json"
    shown = at.run(*plan_words(at, domain, "--detailed-exitcode", "--within", "60d"), code=2)
    assert {due, later} <= {line.partition(" ")[0] for line in shown.stdout.splitlines()}
    told = at.json(*plan_words(at, domain, "--out", str(file), "--within", "60d"))
    assert json.loads(file.read_text()) == told
    items = {one["address"]: one for one in told["items"]}
    assert {one["domain"] for one in told["items"]} == {at.domain(domain)}
    assert (items[due]["due"], items[later]["due"]) == (True, False)
    assert items[due]["reason"] in {"ttl_expired", "retention_limit", "archive_ttl_expired"}
    assert later not in {one["address"] for one in at.json(*plan_words(at, domain, "--within", "1m"))["items"]}
    assert at.has(domain, over)
    assert at.has(domain, live)
    at.end(domain, over)
    assert at.json(*plan_words(at, domain, "--within", "1m", "--detailed-exitcode"))["items"] == []


def forecast_works(at: Place, domain: str) -> None:
    over, live = at.new_ones(domain, OVER, HOUR)
    words = ("forecast", "--domain", at.domain(domain), "--within", "60d", "--limit", "1000")
    told = at.json(*words, "--steps", "60")
    items = {one["address"]: one for one in told["items"]}
    assert items[at.planned(domain, over)]["due"]
    assert not items[at.planned(domain, live)]["due"]
    (counted,) = told["domains"]
    assert (counted["name"], len(counted["counts"])) == (at.domain(domain), 60)
    assert counted["overdue"] >= 1
    assert sum(counted["counts"]) >= 1
    shown = at.run(*words)
    assert at.planned(domain, over) in shown.stdout
    assert "overdue" in shown.stderr
    assert at.has(domain, over)
    at.end(domain, over)
    assert at.json(*words[:3], "--within", "1m")["items"] == []


def planned(at: Place, domain: str, address: str, within: str = "1m") -> str:
    """Write a plan that has this one thing, and return the file."""
    file = str(at.folder / f"{next(at.names)}.json")
    items = at.json(*plan_words(at, domain, "--out", file, "--within", within))["items"]
    assert at.planned(domain, address) in [one["address"] for one in items]
    return file


def agreed(at: Place, domain: str, address: str, within: str = "1m") -> str:
    """Do the same, and let another person approve it where that is needed."""
    file = planned(at, domain, address, within)
    if at.waits_for_approval(domain):
        at.run("approve", file, by="bob")
    return file


def outcomes(told: Any) -> dict[str, str]:  # noqa: ANN401 - what apply prints
    return {one["address"]: one["outcome"] for one in told["items"]}


def apply_works(at: Place, domain: str) -> None:
    over, held, extended, live = at.new_ones(domain, OVER, OVER, OVER, HOUR)
    file = agreed(at, domain, over, within="60d")
    at.run("hold", at.planned(domain, held), "--reason=look")
    at.run("extend", at.planned(domain, extended), "2h")
    told = at.json("apply", file, code=3)
    came_of = [outcomes(told)[at.planned(domain, one)] for one in (over, held, extended, live)]
    assert came_of == ["ended", "held", "drifted", "not_due"]
    assert told["ended"] == 1
    assert at.is_gone(domain, over)
    assert [at.has(domain, one) for one in (held, extended, live)] == [True, True, True]
    at.run("release", at.planned(domain, held))
    shown = at.run("apply", agreed(at, domain, held))
    assert "1 ended, 0 left" in shown.stderr
    assert at.is_gone(domain, held)
    again = outcomes(at.json("apply", file, code=3))[at.planned(domain, held)]
    assert again == ("drifted" if domain == "workspaces" else "gone")  # an archived workspace is still there
    soon = at.new(domain, left=3)
    assert at.json("apply", "--when-due", agreed(at, domain, soon, within="2m"))["left"] == 0
    assert at.is_gone(domain, soon)
    at.end(domain, extended)


def approve_works(at: Place, domain: str) -> None:
    over = at.new(domain, left=OVER)
    file = planned(at, domain, over)
    if "bob" not in at.people:
        assert "takes two persons" in at.refused("approve", file)
        assert at.json("apply", file)["ended"] == 1
        return
    assert "another person must approve it" in at.refused("approve", file)
    if at.waits_for_approval(domain):
        assert outcomes(at.json("apply", file, code=3)) == {at.planned(domain, over): "waits_for_approval"}
        assert at.has(domain, over)
    approval = at.json("approve", file, by="bob")
    assert approval["plan"] == json.loads((at.folder / file).read_text())["id"]
    assert at.json("apply", file)["ended"] == 1
    assert at.is_gone(domain, over)


def propose_works(at: Place, domain: str) -> None:
    over = at.new(domain, left=OVER)
    if at.name == "cluster":
        assert "keeps no plans" in at.refused(*plan_words(at, domain, "--propose"))
        assert "lapse plan --out FILE" in at.refused("plans", "list")
        at.end(domain, over)
        return
    plan = at.json(*plan_words(at, domain, "--propose", "--within", "1m"))["id"]
    assert plan in [one["id"] for one in at.json("plans", "list")["items"]]
    assert at.planned(domain, over) in [one["address"] for one in at.json("plans", "show", plan)["items"]]
    if "bob" in at.people:
        assert "another person must approve it" in at.refused("approve", plan)
        at.run("approve", plan, by="bob")
    assert at.json("apply", plan)["ended"] == 1
    assert at.is_gone(domain, over)
    (told,) = [one for one in at.json("plans", "list")["items"] if one["id"] == plan]
    assert (told["ended"], told["left"], told["approved_by"] is None) == (1, 0, "bob" not in at.people)


# --- why --------------------------------------------------------------------------------------------------------------


def why_works(at: Place, domain: str) -> None:
    live = at.new(domain)
    shown = at.run("why", live).stdout
    assert "verdict" in shown
    told = at.json("why", live)
    assert (told["address"], told["domain"], told["verdict"]) == (live, at.domain(domain), "keep")
    assert [one["wins"] for one in told["rules"]].count(True) == 1
    assert told["anchor"] is not None
    assert told["deadline"] is not None
    assert f"lapse hold {live} --reason TEXT" in told["saved_by"]
    then = at.json("why", live, "--at", "60d")
    assert then["verdict"] == ("keep" if domain == "artifacts" else "due")
    assert at.run("why", at.unknown(domain), code=1).stdout == ""
    at.run("delete", live, "--yes")
    gone = at.json("why", live)
    if at.name == "cluster":  # its journal is the log, so the trash tells, as long as it is there
        assert (gone["verdict"], gone["undo"].partition(", until ")[0]) == ("gone", f"lapse undo {live}")
        at.run("trash", "empty", live, "--yes")
        until(lambda: not at.is_known(domain, live), seconds=20)
        assert "database_url" in at.run("why", live, code=1).stderr
        return
    assert (gone["verdict"], gone["reason"]) == ("gone", "deleted_by_person")
    assert gone["journal"]
    assert gone["undo"].startswith("no: " if domain == "scratch" else f"lapse undo {live}, until ")


# --- hold, release, extend, delete ------------------------------------------------------------------------------------


def hold_works(at: Place, domain: str) -> None:
    thing = at.new(domain)
    assert "--reason" in at.refused("hold", thing)
    assert f"Held: {thing} until " in at.run("hold", thing, "--reason=audit", "--until=7d").stdout
    assert at.json("why", thing)["hold"]["reason"] == "audit"
    assert "audit" in at.run("delete", thing, "--yes", code=1).stderr
    held = at.json("hold", thing, "--reason=longer")
    assert (held["address"], held["hold"]["reason"], held["hold"]["until"]) == (thing, "longer", None)
    assert at.has(domain, thing)
    assert at.json("release", thing)["changed"] is True
    assert at.json("release", thing)["changed"] is False
    assert at.json("why", thing)["hold"] is None
    at.run("release", at.unknown(domain), code=1)


def legal_works(at: Place, domain: str) -> None:
    thing = at.new(domain)
    if "bob" not in at.people:
        assert "takes two persons" in at.refused("hold", thing, "--reason=court", "--legal")
        at.run("delete", thing, "--yes")
        return
    assert "no end" in at.refused("hold", thing, "--reason=court", "--legal", "--until=7d")
    assert at.json("hold", thing, "--reason=court", "--legal")["hold"]["legal"] is True
    assert "--legal" in at.refused("release", thing)
    told = at.refused("release", thing, "--legal")
    assert f"{thing} is under a legal hold" in told
    assert "another person must release it" in told
    assert "court" in at.run("delete", thing, "--yes", code=1).stderr
    assert at.has(domain, thing)
    assert at.json("release", thing, "--legal", by="bob")["changed"] is True
    at.run("delete", thing, "--yes")
    assert at.is_gone(domain, thing)


def extend_works(at: Place, domain: str) -> None:
    thing = at.new(domain)
    before = at.json("why", thing)["deadline"]
    extended = at.json("extend", thing, "2h")
    told = at.json("why", thing)
    assert before < extended["extended_until"] == told["deadline"]
    assert told["extended_until"] == extended["extended_until"]
    assert "never an earlier one" in at.refused("extend", thing, before)
    assert "extend_max" in at.refused("extend", thing, "31d")
    assert at.json("why", thing)["deadline"] == told["deadline"]
    at.run("extend", at.unknown(domain), "2h", code=1)


def delete_works(at: Place, domain: str) -> None:
    held, free = at.new(domain), at.new(domain)
    at.run("hold", held, "--reason=audit")
    assert "audit" in at.run("delete", held, "--yes", code=1).stderr
    assert at.json("delete", free, "--yes")["address"] == free
    assert at.is_gone(domain, free)
    assert at.has(domain, held)
    assert free in at.run("delete", free, "--yes", code=1).stderr
    at.run("release", held)
    assert f"Deleted: {held}." in at.run("delete", held, "--yes").stdout
    assert at.is_gone(domain, held)


# --- undo and the trash -----------------------------------------------------------------------------------------------


def undo_works(at: Place, domain: str) -> None:
    deleted, lapsed = at.new_ones(domain, HOUR, OVER)
    at.run("delete", deleted, "--yes")
    assert at.is_gone(domain, deleted)
    (back,) = at.json("undo", deleted)["items"]
    assert at.is_back(domain, deleted, back["address"])
    assert deleted in at.run("undo", deleted, code=1).stderr
    plan = at.json("apply", agreed(at, domain, lapsed))["plan"]
    assert at.is_gone(domain, lapsed)
    if domain == "workspaces":  # what lapses is stopped or archived: nothing is in the trash
        assert "lapse workspaces start" in at.json("undo", plan, code=1)["problems"][lapsed]
        return
    if at.name == "cluster":
        assert "database_url" in at.run("undo", plan, code=1).stderr
        (back,) = at.json("undo", lapsed)["items"]
    else:
        told = at.json("undo", plan)
        assert told["problems"] == {}
        (back,) = told["items"]
    assert at.is_back(domain, lapsed, back["address"])
    assert at.name == "cluster" or plan[::-1] in at.run("undo", plan[::-1], code=1).stderr
    if at.domain(domain) != "keepers":  # a new keeper has taken the place of that one
        at.end(domain, lapsed)


def trash_works(at: Place, domain: str) -> None:
    first, second = at.new(domain), at.new(domain)
    for one in (first, second):
        at.run("delete", one, "--yes")
    told = at.json("trash", "list", "--domain", at.domain(domain))
    assert told["next"] is None
    entries = {one["address"]: one for one in told["items"]}
    assert {first, second} <= entries.keys()
    assert entries[first]["expires_at"] > entries[first]["ended_at"]
    assert first in at.run("trash", "list").stdout
    removed = at.json("trash", "empty", first, "--yes")
    assert ([one["address"] for one in removed["items"]], removed["problems"]) == ([first], {})
    at.run("undo", first, code=1)
    assert at.is_gone(domain, first)
    at.run("undo", second)


# --- journal, status, freeze ------------------------------------------------------------------------------------------


def journal_works(at: Place, domain: str) -> None:
    thing = at.new(domain)
    at.run("hold", thing, "--reason=audit")
    at.run("release", thing)
    at.run("delete", thing, "--yes")
    if at.name == "cluster":
        told = at.run("journal", "--address", thing, "-o", "json", code=1)
        assert ("database_url" in told.stderr, told.stdout) == (True, "")
        return
    rows = at.lines("journal", "--since", "1h", "--address", thing)
    reasons = [one["reason"] for one in rows if one["outcome"] != "intent"]
    assert reasons == ["deleted_by_person", "hold_released", "hold_placed"]
    assert len({one["actor"] for one in rows}) == 1
    ended = at.lines("journal", "--domain", at.domain(domain), "--outcome", "ended", "--limit", "1")
    assert [(one["address"], one["outcome"], one["domain"]) for one in ended] == [(thing, "ended", at.domain(domain))]
    assert at.lines("journal", "--address", thing, "--actor", "nobody") == []
    assert thing in at.run("journal", "--address", thing).stdout
    assert "Expected" in at.refused("journal", "--outcome", "vanished")
    assert "Expected" in at.refused("journal", "--domain", "nothing")


def status_works(at: Place, domain: str) -> None:
    told = at.json("status")
    one = next(one for one in told["domains"] if one["name"] == at.domain(domain))
    assert (one["frozen"], one["problem"]) == (None, None)
    assert one["act"] == ("plan" if domain != "keys" and at.waits_for_approval(domain) else "auto")
    assert told["problems"] == {}
    assert (told["running"], bool(told["loops"])) == ((True, True) if at.name == "server" else (None, False))
    assert at.domain(domain) in at.run("status").stdout


def freeze_works(at: Place, domain: str) -> None:
    over, name = at.new(domain, left=OVER), at.domain(domain)
    file = agreed(at, domain, over)
    assert at.json("freeze", name, "--reason=look")["frozen"]["reason"] == "look"
    try:
        told = next(one for one in at.json("status")["domains"] if one["name"] == name)
        assert told["frozen"]["reason"] == "look"
        assert at.json("why", over)["frozen"]["reason"] == "look"
        assert outcomes(at.json("apply", file, code=3)) == {at.planned(domain, over): "refused"}
        assert at.has(domain, over)
    finally:
        resumed = at.json("resume", name)
    assert (resumed["frozen"], resumed["resumed"]) == (None, [name])
    assert "Nothing to resume" in at.run("resume", name).stdout
    assert at.json("apply", file)["ended"] == 1
    assert at.is_gone(domain, over)


WORKS: dict[str, Callable[[Place, str], None]] = {
    "plan": plan_works,
    "forecast": forecast_works,
    "apply": apply_works,
    "approve": approve_works,
    "propose": propose_works,
    "why": why_works,
    "hold": hold_works,
    "legal": legal_works,
    "extend": extend_works,
    "delete": delete_works,
    "undo": undo_works,
    "trash": trash_works,
    "journal": journal_works,
    "status": status_works,
    "freeze": freeze_works,
}


# --- what a domain does not do ----------------------------------------------------------------------------------------


def asked(domain: str, verb: str, thing: str) -> list[tuple[str, ...]]:
    """Return the commands of a row of the table, about a thing."""
    words: dict[str, list[tuple[str, ...]]] = {
        "plan": [("plan", "--domain", domain)],
        "forecast": [("forecast", "--domain", domain)],
        "propose": [("plan", "--domain", domain, "--propose")],
        "why": [("why", thing), ("why", thing, "--at", "1h")],
        "hold": [("hold", thing, "--reason=audit"), ("release", thing)],
        "legal": [("hold", thing, "--reason=court", "--legal"), ("release", thing, "--legal")],
        "extend": [("extend", thing, "2h")],
        "delete": [("delete", thing, "--yes")],
        "undo": [("undo", thing)],
        "trash": [("trash", "empty", thing, "--yes")],
        "freeze": [("freeze", domain), ("resume", domain)],
        "journal": [("journal", "--domain", domain)],
        "status": [],
    }
    if verb in {"apply", "approve"}:
        return []
    return words[verb]


def refused(at: Place, domain: str, verb: str) -> None:
    """The domain cannot do it, and the tool says why; the thing is as it was."""
    thing = at.new(domain)
    if domain == "scratch":
        at.run("delete", thing, "--yes")
    for words in asked(domain, verb, thing):
        assert WHY_NOT[domain] in at.refused(*words).lower()
    if verb in {"apply", "approve"}:
        file = at.folder / "keys.json"
        at.run("plan", "--domain", domain, "--out", str(file))
        assert WHY_NOT[domain] in at.refused(verb, str(file)).lower()
    assert at.has(domain, thing) is (domain != "scratch")


WHY_NOT = {"keys": "keys ", "scratch": "has no trash"}


def elsewhere(at: Place, domain: str, verb: str) -> None:
    """The place has no such domain, and the tool says which it has, or why the domain never does that."""
    for words in asked(domain, verb, at.unknown(domain)):
        told = at.refused(*words)
        assert "Expected requests, keepers" in told or "Keys " in told or "has no trash" in told, words


def counted(at: Place, domain: str, verb: str) -> None:
    """A plan tells how many keys expire, and no names; so does a forecast."""
    thing = at.new(domain)
    if verb == "forecast":
        printed, ahead = at.run("forecast", "--domain", domain), at.json("forecast", "--domain", domain)
        assert ahead["items"] == []
        assert [sum(one["counts"]) >= 1 for one in ahead["domains"]] == [True]
        assert thing.rpartition("/")[2] not in printed.stdout + printed.stderr + json.dumps(ahead)
        return
    told = at.run("plan", "--domain", domain, "--detailed-exitcode")
    assert "application 7" in told.stderr
    document = at.json("plan", "--domain", domain)
    assert document["items"] == []
    assert [(one["domain"], one["scope"]) for one in document["counts"]] == [(domain, "7")]
    assert thing.rpartition("/")[2] not in told.stdout + told.stderr + json.dumps(document)


def untold(at: Place, domain: str, verb: str) -> None:
    """Nobody can count the keys of a server; a plan of everything has none of them, and one of keys says so."""
    at.new(domain)
    if verb == "forecast":
        (keys,) = [one for one in at.json("forecast")["domains"] if one["name"] == domain]
        assert keys["counts"] == []
        assert "nobody can tell" in keys["problem"].lower()
        assert at.json("forecast", "--domain", domain, code=1)["domains"] == [keys]
        return
    assert at.json("plan")["counts"] == []
    assert "nobody can tell" in at.refused("plan", "--domain", domain).lower()


def live(at: Place, domain: str, verb: str) -> None:
    """Why of a live key; of one that is gone nothing is known."""
    thing = at.new(domain)
    told = at.json("why", thing)
    assert (told["verdict"], told["domain"]) == ("keep", domain)
    assert told["undo"].startswith("no: ")
    assert at.json("why", thing, "--at", "61m")["verdict"] == "due"
    assert at.run("why", at.unknown(domain), code=1).stdout == ""


def touched(at: Place, domain: str, verb: str) -> None:
    """An extension is a touch."""
    thing = at.new(domain)
    before = at.json("why", thing)["deadline"]
    until = at.json("extend", thing, "2h")["extended_until"]
    assert before < until <= at.json("why", thing)["deadline"]
    assert "never an earlier one" in at.refused("extend", thing, before)
    assert at.has(domain, thing)


def nameless(at: Place, domain: str, verb: str) -> None:
    """The journal tells no names of keys, whatever was done to one."""
    thing = at.new(domain)
    at.run("extend", thing, "2h")
    at.lines("journal", "--domain", domain)
    everything = at.run("journal", "--limit", "0", "-o", "json").stdout
    assert thing.rpartition("/")[2] not in everything


OTHERWISE: dict[str, Callable[[Place, str, str], None]] = {
    "no": refused,
    "elsewhere": elsewhere,
    "counts": counted,
    "untold": untold,
    "live": live,
    "touch": touched,
    "nameless": nameless,
}
