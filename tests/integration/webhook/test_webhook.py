"""``lapse webhook`` asked by a real API server: people capture what they may read, and nothing else."""

from __future__ import annotations

import signal
import ssl
from typing import TYPE_CHECKING

import httpx2
import pytest

from tests.servers.kube.server import KubectlError
from tests.servers.lapse_server import until

if TYPE_CHECKING:
    from tests.integration.webhook.conftest import Harness, Json, Webhook

pytestmark = pytest.mark.server("kube")


def reading(*resources: str, group: str = "", **more: list[str]) -> Json:
    return {"apiGroups": [group], "resources": list(resources), "verbs": ["get"], **more}


def trusting(harness: Harness) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(harness.authority.ca_file))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def test_people_capture_what_they_may_read_and_nothing_else(harness: Harness, webhook: Webhook) -> None:
    before = harness.captures()
    assert "created" in harness.capture("ConfigMap settings")
    assert harness.captures() == before + 1

    complaint = harness.complaint("ConfigMap settings", "Secret password", "Service web")
    assert complaint is not None
    assert 'admission webhook "requests.lapse.dev" denied the request' in complaint
    missing = f"get secrets/password in {harness.name}, get services/web in {harness.name}"
    assert f"{harness.jane} may not {missing};" in complaint
    assert "settings" not in complaint
    assert "Forbidden" in complaint

    # Reading has to do with names and groups, and with the whole cluster for kinds of the whole cluster.
    assert "get nodes/worker in the whole cluster;" in (harness.complaint("Node worker") or "")
    assert "does not know the kind Gadget of v1" in (harness.complaint("Gadget a") or "")
    assert "the kind Gadget of example.org/v1" in (harness.complaint("Gadget a", api_version="example.org/v1") or "")
    assert "that no object can have" in (harness.complaint("ConfigMap settings/status") or "")

    named = reading("secrets", resourceNames=["password"])
    harness.allow({"kind": "Group", "name": f"keepers-{harness.name}"}, named)

    def as_a_keeper() -> str | None:
        try:
            return harness.capture("Secret password", as_="somebody", groups=(f"keepers-{harness.name}",))
        except KubectlError:
            return None  # the right is on its way

    assert "created" in until(as_a_keeper)
    with pytest.raises(KubectlError, match=r"may not get secrets/other in "):
        harness.capture("Secret other", as_="somebody", groups=(f"keepers-{harness.name}",))
    assert harness.captures() == before + 2
    assert webhook.event("request_denied") is not None


def test_a_capture_of_hundreds_is_judged_in_time(harness: Harness, webhook: Webhook) -> None:
    names = [f"ConfigMap settings-{number}" for number in range(400)]
    assert "created" in harness.capture(*names)

    complaint = harness.complaint(*names, "Secret password")
    assert complaint is not None
    assert f"may not get secrets/password in {harness.name};" in complaint
    assert "1001 different targets" in (harness.complaint(*(f"ConfigMap c-{n}" for n in range(1001))) or "")


def test_without_a_webhook_that_answers_nothing_is_captured(harness: Harness, webhook: Webhook) -> None:
    second = harness.launch()
    try:
        harness.configure(second.url, "second")
        second.stop(signal.SIGKILL)
        before = harness.captures()
        assert 'failed calling webhook "second.lapse.dev"' in (harness.complaint("ConfigMap settings") or "")
        assert harness.captures() == before

        second = harness.launch()
        harness.configure(second.url, "second")
        assert "created" in harness.capture("ConfigMap settings")
    finally:
        harness.forget("second")
        code, _seconds = second.stop()
    assert code == 0
    assert not [line for line in second.log if "Traceback" in line]


def test_a_right_that_the_webhook_loses_denies_and_its_return_allows(harness: Harness, webhook: Webhook) -> None:
    harness.kube.kubectl("delete", "clusterrolebinding", harness.name)

    def denied() -> str | None:
        complaint = harness.complaint("ConfigMap settings")
        return complaint if complaint and "cannot be checked" in complaint else None

    complaint = until(denied)
    assert "InternalError" in complaint
    assert 'cannot create resource "subjectaccessreviews"' in complaint
    assert webhook.metric('lapse_errors_total{domain="requests",kind="request"}') >= 1

    harness.bind()
    until(lambda: harness.complaint("ConfigMap settings") is None)


def test_a_certificate_that_was_replaced_is_taken_up(harness: Harness, webhook: Webhook) -> None:
    url = httpx2.URL(webhook.url)

    def shown() -> str:
        return ssl.get_server_certificate((url.host, url.port or 0))

    first = shown()
    assert first == (harness.folder / "tls.crt").read_text()
    harness.place_certificate("second")
    until(lambda: shown() == (harness.folder / "tls.crt").read_text() != first)

    assert "created" in harness.capture("ConfigMap settings")
    assert "may not get secrets/password" in (harness.complaint("Secret password") or "")
    assert webhook.event("certificate_replaced") is not None


def test_garbage_is_refused_and_leaves_no_traceback(harness: Harness, webhook: Webhook) -> None:
    with httpx2.Client(verify=trusting(harness), trust_env=False) as client:
        for body in (b"", b"garbage", b"\xff\xfe", b"[" * 200_000, b'{"kind": "AdmissionReview"}'):
            answer = client.post(webhook.url, content=body, headers={"Content-Type": "application/json"})
            assert (answer.status_code, answer.json()["code"]) == (400, "BadReviewError")
        assert client.get(webhook.url).status_code == 405
        assert client.post(webhook.url, content=b"garbage").status_code == 415
        assert client.post(webhook.url + "x", json={}).status_code == 404
        assert client.post(webhook.url, json={"a": "b" * (5 << 20)}).status_code == 413
    with pytest.raises(httpx2.HTTPError):
        httpx2.get(webhook.url.replace("https", "http"), trust_env=False)  # plain HTTP to a port with TLS

    assert "created" in harness.capture("ConfigMap settings")
    assert httpx2.get(f"{webhook.probes}/healthz", trust_env=False).status_code == 200
    assert httpx2.get(f"{webhook.probes}/readyz", trust_env=False).status_code == 200
    assert not [line for line in webhook.log if "Traceback" in line]


# --- bad input --------------------------------------------------------------------------------------------------------


def test_what_stands_in_the_way_of_a_start_is_one_line(harness: Harness) -> None:
    def refusal(*flags: str) -> str:
        with pytest.raises(RuntimeError) as raised:
            harness.launch(*flags)
        text = str(raised.value)
        assert text.count("\n") == 1, text
        return text

    assert "a pair" in refusal(f"--webhook-key-file={harness.authority.folder / 'ca.key'}")
    assert "Set webhook_port (or --webhook-port)" in refusal(f"--webhook-port={harness.kube.port}")
    user = f"--kube-config={harness.kube.user_kubeconfig}"
    assert "may not create subjectaccessreviews.authorization.k8s.io" in refusal(user)
