"""The example of a domain: what it shows beyond the promises of every domain."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.address import Address, AddressKind
from lapse.core.clock import UnixNs
from lapse.core.duration import Duration
from lapse.engine.domain import Domain, DomainRules, FindableDomain, SimpleDomain, Target, policy_hash
from tests.conformance.domains.worlds import EXAMPLE, example
from tests.markdown import ROOT, table

if TYPE_CHECKING:
    from pathlib import Path

HOW_TO = ROOT / "docs" / "how-to" / "a-domain-of-your-own.md"
OLD = UnixNs(10**18)


def files(folder: Path, max_age: str = "1h") -> Any:  # noqa: ANN401 - a class of the example
    return example().ScratchFiles(folder, Duration.parse(max_age))


async def candidates(domain: Any) -> list[str]:  # noqa: ANN401 - as above
    return [one.address.name async for page in domain.due(OLD, size=10) for one in page]


def test_it_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 250


async def test_a_file_that_no_address_can_name_is_never_a_candidate(tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/caf\xe9"
    for path in (odd, os.fsencode(tmp_path / "café"), os.fsencode(tmp_path / "a b%\n")):
        with open(path, "w"):  # noqa: PTH123, ASYNC230 - a name that is no text
            os.utime(path, (0, 0))
    domain = files(tmp_path)

    assert await candidates(domain) == ["a b%\n", "café"]
    for name in await candidates(domain):
        found = await domain.find(
            Address.parse(str(Address("scratch", None, name)), {"scratch": AddressKind("scratch")})
        )
        assert found.address.name == name, "each of them can be held"
    assert os.path.exists(odd)  # noqa: PTH110, ASYNC240 - as above


@pytest.mark.parametrize("name", ["..", "a/b", "a\0b", "none"])
async def test_a_name_that_is_no_file_is_nothing(tmp_path: Path, name: str) -> None:
    assert await files(tmp_path).find(Address("scratch", None, name)) is None


async def test_a_name_that_cannot_be_looked_up_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"The scratch folder .* cannot be read: File name too long"):
        await files(tmp_path).find(Address("scratch", None, "a" * 300))


async def test_its_policy_is_a_short_hash_that_changes_with_the_policy(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    found = await files(tmp_path).find(Address("scratch", None, "a"))
    hashes = [files(tmp_path, age).policy(found) for age in ("1h", "60m", "2h")]

    assert all(re.fullmatch("[0-9a-f]{12}", one) for one in hashes)
    assert hashes[0] == hashes[1] != hashes[2]
    assert policy_hash("ab", "c") != policy_hash("a", "bc")


def test_the_how_to_names_every_part_and_the_base_has_the_rest() -> None:
    to_write = {name for row in table(HOW_TO, "part", "you say", "you can count on") for name in _names(row)}
    has_default = {name for row in table(HOW_TO, "part", "default", "define it if") for name in _names(row)}
    interface = (FindableDomain, Domain, DomainRules, Target)
    parts = {name for one in interface for name in vars(one) if not name.startswith("_")}

    assert to_write | has_default == parts
    assert has_default == {name for name in vars(SimpleDomain) if not name.startswith("_")}


def _names(row: dict[str, str]) -> list[str]:
    return re.findall(r"`(\w+)`", row["part"])
