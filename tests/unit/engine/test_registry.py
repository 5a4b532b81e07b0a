"""The registry: names without imports, and broken domains of other distributions told by their distribution."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import Distribution, EntryPoint, PathDistribution
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from lapse.app import domains
from lapse.core.address import Address, AddressError, AddressKind
from lapse.core.clock import VirtualClock
from lapse.core.decision import DueReason
from lapse.core.duration import Duration
from lapse.core.errors import LapseError, UsageError
from lapse.domains import REGISTRY, object_kinds
from lapse.engine.domain import Candidate, SimpleDomain
from lapse.engine.registry import (
    GROUP,
    BrokenDomainError,
    DomainContext,
    DomainParts,
    DomainVerb,
    NoSuchDomainError,
    Registration,
    Registry,
    UnsupportedVerbError,
)
from lapse.engine.running.metrics import Metrics
from lapse.settings import SETTINGS, Settings
from lapse.workspaces.errors import (
    InvalidPageSizeError,
    WorkspaceOutcomeUnknownError,
    WorkspaceStoreUnavailableError,
)
from tests.servers.lapse_server import clean_environment


def build(_: DomainContext) -> DomainParts:
    raise NotImplementedError


def registration(name: str, **more: Any) -> Registration:  # noqa: ANN401 - any field
    given: dict[str, Any] = {"kinds": (AddressKind(name),), "reasons": lambda: [DueReason.TTL_EXPIRED], "build": build}
    return Registration(name=name, **{**given, **more})


OWN = registration("own", unsupported={DomainVerb.HOLD: "Own things are never held"})
MINE = registration("mine")
OTHER_NAME = registration("other")
NO_BUILD = registration("unbuilt", build=None)
SAME_KIND = registration("greedy", kinds=(AddressKind("own"),))
NOT_ONE = "a text"
KIND_AS_TEXT = registration("texts", kinds=["texts"])
UPPER_KIND = registration("upper", kinds=(AddressKind("Deployment.apps"),))
SETTINGS_AS_DICT = registration("dicts", settings=dict)


def point(name: str, value: str, tmp_path: Path) -> EntryPoint:
    """Return an entry point of a distribution that is called as the domain is."""
    folder = tmp_path / f"dist_{name}-1.0.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dist-{name}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {value}\n")
    found: Distribution = PathDistribution(folder)
    return next(iter(found.entry_points))


def registry(*points: EntryPoint) -> Registry:
    return Registry([OWN], installed=lambda: points)


HERE = __name__


def test_an_installed_domain_is_found_by_its_entry_point(tmp_path: Path) -> None:
    found = registry(point("mine", f"{HERE}:MINE", tmp_path))
    assert found.freezable() == ("own", "mine")
    assert found.freezable(cluster=True) == ()
    assert found.parse("mine/a") == Address("mine", None, "a")
    assert found.demand(DomainVerb.HOLD, Address("mine", None, "a")).name == "mine"


def test_a_plan_of_nothing_that_plans_end_is_refused_and_one_with_anything_else_is_not() -> None:
    never = registration("never", unsupported={DomainVerb.APPLY: "Never by a plan"})
    found = Registry([OWN, never], installed=list)
    found.demand_applicable(["own", "never"])
    found.demand_applicable([])
    with pytest.raises(UnsupportedVerbError, match=r"^Never by a plan\.$"):
        found.demand_applicable(["never"])


def test_a_verb_that_makes_no_sense_is_refused_with_the_address_and_the_reason() -> None:
    with pytest.raises(UnsupportedVerbError, match=r"^own/a: Own things are never held\.$"):
        registry().demand(DomainVerb.HOLD, Address("own", None, "a"))


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("gone", "no.such.module:X", "it cannot be imported (ModuleNotFoundError: "),
        ("absent", f"{HERE}:NO_SUCH_NAME", "it cannot be imported (AttributeError: "),
        ("text", f"{HERE}:NOT_ONE", "is no lapse.engine.registry.Registration"),
        ("mine", f"{HERE}:OTHER_NAME", "it is registered as 'other'"),
        ("unbuilt", f"{HERE}:NO_BUILD", "its registration has no build"),
        ("greedy", f"{HERE}:SAME_KIND", "the domain own has addresses of the kind own, too; one must change"),
        ("texts", f"{HERE}:KIND_AS_TEXT", "it has the kind 'texts'; expected an AddressKind"),
        ("upper", f"{HERE}:UPPER_KIND", "it has the kind 'Deployment.apps'; expected lower-case letters"),
        ("dicts", f"{HERE}:SETTINGS_AS_DICT", "expected a class that derives from msgspec.Struct, or None"),
        ("own", f"{HERE}:MINE", "the name is that of a domain of Lapse itself"),
        ("all", f"{HERE}:MINE", "its name must be lower-case letters"),
    ],
)
def test_a_broken_domain_is_told_with_its_distribution(name: str, value: str, problem: str, tmp_path: Path) -> None:
    found = registry(point(name, value, tmp_path))
    with pytest.raises(BrokenDomainError) as caught:
        found.installed()
    assert problem in str(caught.value)
    assert f"dist-{name}" in str(caught.value)
    assert isinstance(found.freezable(), tuple), "names are known without it"
    assert found.parse("own/a") == Address("own", None, "a"), "and it is in nobody's way"


def test_a_broken_domain_is_in_the_way_of_no_other(tmp_path: Path) -> None:
    both = [point("fallen", "no.such.module:X", tmp_path), point("mine", f"{HERE}:MINE", tmp_path)]
    assert registry(*both).parse("mine/a") == Address("mine", None, "a")
    with pytest.raises(BrokenDomainError, match="dist-fallen"):
        registry(*both).parse("fallen/a")


def test_two_distributions_with_one_name_are_told(tmp_path: Path) -> None:
    both = [point("mine", f"{HERE}:MINE", tmp_path / one) for one in ("a", "b")]
    with pytest.raises(BrokenDomainError, match="has a domain of the same name"):
        registry(*both).get("mine")


def test_names_that_nobody_has_are_told(tmp_path: Path) -> None:
    with pytest.raises(NoSuchDomainError, match="Expected own or mine"):
        registry(point("mine", f"{HERE}:MINE", tmp_path)).get("none")
    with pytest.raises(AddressError, match="'none' is not a kind"):
        registry().parse("none/a")


# --- the domains of Lapse itself --------------------------------------------------------------------------------------


def test_every_domain_of_lapse_itself_is_whole() -> None:
    metrics = Metrics("test")
    for one in REGISTRY.built_in:
        one.expect_series(metrics)
        assert list(one.reasons())
        assert not one.budget_setting or one.budget_setting in SETTINGS
        assert bool(one.budget_setting) == one.supports(DomainVerb.FREEZE)
    assert len({kind.name for one in REGISTRY.built_in for kind in one.kinds}) == 11
    assert len(set(object_kinds())) == len(object_kinds()) > 10


def test_an_error_has_the_status_the_exit_code_and_the_code_of_its_class() -> None:
    assert (LapseError.status, LapseError.exit_code, LapseError.code) == (500, 1, "LapseError")
    assert (UsageError.status, UsageError.exit_code, UsageError.code) == (422, 64, "UsageError")
    renamed = (WorkspaceOutcomeUnknownError, WorkspaceStoreUnavailableError, InvalidPageSizeError)
    assert [(one.code, one.status) for one in renamed] == [
        ("OutcomeUnknownError", 504),
        ("StoreUnavailableError", 503),
        ("InvalidLimitError", 422),
    ]

    class OfOneThatWasRenamedError(WorkspaceOutcomeUnknownError):
        """A code is not inherited."""

    assert (OfOneThatWasRenamedError.code, OfOneThatWasRenamedError.status) == ("OfOneThatWasRenamedError", 504)


CLUMSY = """
from lapse.core.address import AddressKind
from lapse.core.decision import DueReason
from lapse.core.duration import Duration
from lapse.engine.domain import Candidate, SimpleDomain
from lapse.engine.registry import DomainParts, Registration


class Clumsy(SimpleDomain):
    name = "clumsy"
    reasons = (DueReason.TTL_EXPIRED,)

    async def find(self, address):
        if address.name == "a":
            raise IndexError("out of range")
        return Candidate(address=address, uid="1", version="1", state=None, handle=None)

    def decide(self, candidate, now):
        return candidate.state.written

    def due(self, now, *, size): ...

    def policy(self, candidate): ...

    async def apply(self, actions, *, also): ...


DOMAIN = Registration(
    name="clumsy",
    kinds=(AddressKind("clumsy"),),
    reasons=lambda: Clumsy.reasons,
    build=lambda context: DomainParts(Clumsy(), Clumsy()),
)
"""


class Whole(SimpleDomain[None]):
    """All that a domain must have, and nothing more."""

    name = "mine"
    reasons = (DueReason.TTL_EXPIRED,)
    due = decide = policy = find = apply = print  # type: ignore[assignment]  # only that they are there counts


@pytest.mark.parametrize("missing", ["due", "decide", "policy", "find", "apply", "refresh", "is_in_doubt", "name"])
def test_a_domain_that_lacks_a_part_is_refused_before_anything_of_it_is_swept(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hidden(Whole):
        def __getattribute__(self, name: str) -> Any:  # noqa: ANN401 - any part
            if name == missing:
                raise AttributeError(name)
            return super().__getattribute__(name)

    found = registry(point("mine", f"{HERE}:MINE", tmp_path))
    monkeypatch.setattr(domains, "REGISTRY", found)
    settings, clock = Settings(state_dir=tmp_path), VirtualClock()
    for parts, problem in [
        ((Hidden(), Hidden()), f"what it builds has no {missing}."),
        ((Whole, Whole), "what it builds has no apply, batch, database, decide"),
    ]:
        broken = registration("mine", build=lambda _, parts=parts: parts)
        with pytest.raises(BrokenDomainError) as caught:
            domains.own_domain(broken, settings, clock)
        assert problem in str(caught.value)
    whole = registration("mine", build=lambda _: (Whole(), Whole()))
    assert domains.own_domain(whole, settings, clock).parts.domain.name == "mine"


class OwnSettings(Struct, kw_only=True):
    """What a domain must be told, and what it need not."""

    folder: Path
    pause: Duration
    name: str
    most: int | None = None


def test_settings_that_a_domain_needs_are_told_with_what_to_write_and_who_wants_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(domains, "REGISTRY", registry(point("mine", f"{HERE}:MINE", tmp_path)))
    wanting = registration("mine", settings=OwnSettings)
    with pytest.raises(domains.DomainSettingsMissingError) as caught:
        domains.own_domain(wanting, Settings(state_dir=tmp_path, domains={"mine": {"name": "x"}}), VirtualClock())

    first, *example = str(caught.value).splitlines()
    assert first.startswith("The domain mine, which ")
    assert "needs settings that are not there: folder, pause. Uninstall " in first
    assert example == ["[domains.mine]", 'folder = "/absolute/path"', 'pause = "5m"']
    wrong = Settings(state_dir=tmp_path, domains={"mine": {"nam": "x"}})
    with pytest.raises(domains.DomainSettingsError, match="it has no key nam; folder is missing"):
        domains.own_domain(wanting, wrong, VirtualClock())


@pytest.mark.parametrize("changes", [{"uid": 7}, {"uid": ""}, {"version": 7}, {"version": None}])
def test_a_candidate_is_known_by_text(changes: dict[str, Any]) -> None:
    given: dict[str, Any] = {"uid": "u", "version": "", "state": None, "handle": None, **changes}
    with pytest.raises(TypeError, match=r"mine/a has the uid .*: expected text, and a uid"):
        Candidate(address=Address("mine", None, "a"), **given)


# --- seen by a person -------------------------------------------------------------------------------------------------


@pytest.fixture
def broken(tmp_path: Path) -> dict[str, str]:
    """Give an environment in which a distribution with a broken domain is installed."""
    point("fallen", "fallen:DOMAIN", tmp_path / "site")
    (tmp_path / "site" / "fallen.py").write_text("raise RuntimeError('out of order')\n")
    return {**clean_environment(tmp_path), "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *sys.path])}


@pytest.mark.process
@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (("up",), 1, "The domain fallen of dist-fallen cannot be used: it cannot be imported"),
        (("config", "check"), 1, "Repair dist-fallen, or uninstall it."),
        (("hold", "fallen/a", "--reason", "x"), 1, "The domain fallen of dist-fallen cannot be used"),
        (("freeze", "all"), 0, "Frozen: everything"),
        (("freeze", "fallen"), 0, "Frozen: fallen"),
    ],
)
def test_a_person_reads_one_line_about_a_broken_domain(
    broken: dict[str, str], tmp_path: Path, line: tuple[str, ...], code: int, said: str
) -> None:
    arguments = [sys.executable, "-m", "lapse", *line, f"--state-dir={tmp_path / 'state'}"]
    done = subprocess.run(arguments, env=broken, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.process
@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("why", "clumsy/a"), "its find has failed (IndexError: out of range). Repair dist-clumsy"),
        (("hold", "clumsy/a", "--reason", "x"), "its find has failed (IndexError: out of range). Repair dist-clumsy"),
        (("release", "clumsy/a"), "its find has failed (IndexError: out of range). Repair dist-clumsy"),
        (("why", "clumsy/b"), "its decide has failed (AttributeError: "),
    ],
)
def test_a_person_reads_one_line_about_a_domain_that_fails(tmp_path: Path, line: tuple[str, ...], said: str) -> None:
    point("clumsy", "clumsy:DOMAIN", tmp_path / "site")
    (tmp_path / "site" / "clumsy.py").write_text(CLUMSY)
    found = os.pathsep.join([str(tmp_path / "site"), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "lapse", *line, f"--state-dir={tmp_path / 'state'}"],
        env={**clean_environment(tmp_path), "PYTHONPATH": found},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("lapse: The domain clumsy of dist-clumsy cannot be used: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
