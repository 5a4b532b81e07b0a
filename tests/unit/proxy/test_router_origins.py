from __future__ import annotations

import pytest

from lapse.proxy.ports import Proof
from lapse.proxy.router import is_foreign

HOST = "a.w.localhost:8080"
OURS = b"http://a.w.localhost:8080"
OTHERS = [
    b"http://b.w.localhost:8080",
    b"http://w.localhost:8080",
    b"http://localhost:8080",
    b"https://a.w.localhost:8080",
    b"http://a.w.localhost",
    b"http://a.w.localhost:80800",
    b"http://a.w.localhost:8080.evil.com",
    b"null",
    b"",
]


def foreign(proof: Proof, *, upgrade: bool = False, **fields: bytes) -> bool:
    values = {name.replace("_", "-").encode(): value for name, value in fields.items()}
    return is_foreign(values, host=HOST, scheme="http", proof=proof, upgrade=upgrade)


@pytest.mark.parametrize("proof", Proof)
@pytest.mark.parametrize("upgrade", [False, True])
def test_its_own_page_may_ask_a_workspace(proof: Proof, upgrade: bool) -> None:  # noqa: FBT001 - a case
    assert not foreign(proof, upgrade=upgrade, origin=OURS, sec_fetch_site=b"same-origin")
    assert not foreign(proof, upgrade=upgrade, origin=OURS.upper())


@pytest.mark.parametrize("origin", OTHERS)
def test_no_other_page_may_use_a_cookie(origin: bytes) -> None:
    assert foreign(Proof.COOKIE, origin=origin)
    assert foreign(Proof.COOKIE, origin=origin, upgrade=True)


@pytest.mark.parametrize("origin", OTHERS)
def test_a_token_is_not_sent_by_accident_but_a_foreign_websocket_is_refused_all_the_same(origin: bytes) -> None:
    assert not foreign(Proof.TOKEN, origin=origin)
    assert foreign(Proof.TOKEN, origin=origin, upgrade=True)


def test_programs_send_no_origin() -> None:
    assert not foreign(Proof.TOKEN)
    assert not foreign(Proof.TOKEN, upgrade=True)
    assert not foreign(Proof.COOKIE, upgrade=True)


def test_another_page_may_link_to_a_workspace_but_not_take_pieces_from_it() -> None:
    for site in (b"same-site", b"cross-site"):
        assert not foreign(Proof.COOKIE, sec_fetch_site=site, sec_fetch_mode=b"navigate")
        assert foreign(Proof.COOKIE, sec_fetch_site=site, sec_fetch_mode=b"no-cors")
        assert foreign(Proof.COOKIE, sec_fetch_site=site)
    assert not foreign(Proof.COOKIE, sec_fetch_site=b"none")


def test_the_default_port_need_not_be_named() -> None:
    for host, origin in (("a.w.x.com", b"https://a.w.x.com:443"), ("a.w.x.com:443", b"https://a.w.x.com")):
        values = {b"origin": origin}
        assert not is_foreign(values, host=host, scheme="https", proof=Proof.COOKIE, upgrade=True)
