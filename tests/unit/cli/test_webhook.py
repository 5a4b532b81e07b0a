from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.app.webhook import NoCertificateError, _certificate
from lapse.settings import load_settings
from lapse.web.server.listener import CertificateError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("missing", ["webhook_cert_file", "webhook_key_file"])
def test_a_certificate_that_was_not_named_is_asked_for_by_its_setting_and_flag(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = {"webhook_cert_file": "tls.crt", "webhook_key_file": "tls.key", missing: None}
    flag = missing.replace("_", "-")
    with pytest.raises(NoCertificateError, match=rf"set {missing} \(or --{flag}\) to a file in PEM form\.$"):
        _certificate(load_settings(flags).settings, domain="requests")


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    flags = {"webhook_cert_file": "/nowhere/tls.crt", "webhook_key_file": "/nowhere/tls.key"}
    with pytest.raises(CertificateError, match=r"/nowhere/tls\.crt: No such file"):
        _certificate(load_settings(flags).settings, domain="requests")
