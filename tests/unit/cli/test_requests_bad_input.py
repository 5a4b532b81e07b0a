"""A mistake in a command for requests is one clear line, exit code 64 or 1, nothing made and no traceback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.cli import main

if TYPE_CHECKING:
    from pathlib import Path

LONGEST = "a" * 253
NAME_RULE = "expected at most 253 lower case letters, digits, '-' and '.'"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a directory ``data`` and a state of its own."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "greeting.txt").write_text("hello")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAPSE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def wrong(line: str, *, says: str, code: int = 64) -> object:
    return pytest.param(line.split(), says, code, id=line[:70])


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        # names, modes, durations
        wrong("capture", says="The argument NAME is missing."),
        wrong("capture x", says="--directory PATH, or --claim NAME"),
        wrong("capture X --directory data", says=f"NAME is not valid: name is 'X'; {NAME_RULE}"),
        wrong(f"capture {LONGEST}a --directory data", says=NAME_RULE),
        wrong("capture x --directory data --namespace a.b", says="The namespace is not valid: namespace is 'a.b'"),
        wrong(
            "capture x --directory data --keep 30", says="--keep is not valid: '30' is not a duration: it has no unit"
        ),
        wrong("capture x --directory data --keep 0s", says="--keep 0s is not valid: expected a duration above zero"),
        wrong(
            "capture-manifests x --target pvc/data --keep soon", says="--keep is not valid: 'soon' is not a duration"
        ),
        wrong("capture x --directory data --mode Snap", says="'Snap' is not a mode. Expected Snapshot or Detach."),
        wrong("capture x --directory data --claim No", says="--claim is not valid: name is 'No'"),
        wrong("capture x --directory nowhere", says="nowhere is not a directory. Name one that exists"),
        wrong("capture x --directory data/greeting.txt", says="data/greeting.txt is not a directory."),
        wrong("capture x --directory data --wait --timeout 10minutes", says="'10minutes' is not a duration"),
        wrong("capture x --directory data --timeout 0s", says="The timeout is 0s; expected a duration above zero"),
        wrong("capture x --directory data --timeout -1h", says="The timeout is -1h; expected a duration above zero"),
        wrong("capture x --directory data --timeout 600", says="it has no unit (seconds would be 600s)"),
        wrong("capture x --claim nope", says="There is no PersistentVolumeClaim default/nope.", code=1),
        # sources
        wrong("restore r", says="--from is missing."),
        wrong("restore r --from vcr/x", says="There is no VolumeCaptureRequest default/x, and no snapshot", code=1),
        wrong("restore r --from mcr/default/x", says="expected a capture (vcr/NAMESPACE/NAME), a snapshot (vsc/NAME)"),
        wrong("restore r --from keeper/x", says="--from keeper/x is not valid"),
        wrong("restore r --from UPPER", says="--from is not valid: name is 'UPPER'"),
        wrong("restore r --from vsc/x --to data", says="data exists and is not an empty directory."),
        wrong("restore r --from vsc/x --to data/greeting.txt", says="is not an empty directory."),
        wrong("restore r --from vsc/x --claim No", says="--claim is not valid"),
        wrong("restore r --from vsc/x", says="There is no VolumeSnapshotContent x.", code=1),
        wrong("restore r --from pv/x", says="There is no PersistentVolume x.", code=1),
        wrong("restore r --from x", says="there is no snapshot and no volume of this name", code=1),
        wrong("restore r --from vcr/default/x", says="There is no VolumeCaptureRequest default/x", code=1),
        # targets
        wrong("capture-manifests m", says="--target is missing."),
        wrong("capture-manifests m --target x", says="'x' is not a target; expected KIND/NAME as in pvc/data"),
        wrong("capture-manifests m --target Frob/x", says="'Frob' is not a kind. Expected VolumeCaptureRequest (vcr)"),
        wrong(
            "capture-manifests m --target v2:ConfigMap/x", says="'v2:ConfigMap' is not a kind. Expected v1:ConfigMap,"
        ),
        wrong("capture-manifests m --target cm/", says="'cm/' is not a target;"),
        wrong("capture-manifests m --target cm/X", says="The target cm/X is not valid"),
        # kinds and addresses
        wrong("list foo", says="'foo' is not a kind. Expected vcr, vrr, mcr, csched, keeper,"),
        wrong("list vcr -n UPPER", says="The namespace is not valid"),
        wrong("show vcr", says="There is no request vcr in the namespace default. lapse requests list -A", code=1),
        wrong("show NOPE", says="NAME is not valid"),
        wrong(
            "show vcr/", says="'vcr/' is not the address of a request or of something that it made: a part is empty."
        ),
        wrong("show vcr/shop/x -n bank", says="vcr/shop/x names another namespace than --namespace bank."),
        wrong("show x -n UPPER", says="The namespace is not valid"),
        wrong("delete nope", says="There is no request nope in the namespace default.", code=1),
        wrong("list --limit -1", says="--limit is -1. Expected 0 for all, or a number above 0."),
        wrong("list --after nonsense", says="--after 'nonsense' is not what a list like this one printed as next."),
        wrong("list keeper --after vcr/default/x", says="--after 'vcr/default/x' is not what a list like this one"),
        wrong(
            "show frob/default/x", says="'frob' is not a kind. Expected KIND/NAMESPACE/NAME as in vcr/default/nightly"
        ),
        wrong("show workspace/x", says="'workspace' is not a kind."),
        wrong("show keeper/a/b", says="keeper takes one NAME: it has no namespace"),
        wrong("show vcr/default/%zz", says="'vcr/default/%zz' is not the address"),
        wrong("show vcr/default/x", says="There is no VolumeCaptureRequest default/x.", code=1),
        wrong("watch foo", says="'foo' is not a kind."),
        wrong("watch --timeout soon", says="'soon' is not a duration"),
        wrong("watch --until-ready vcr/default/x", says="There is no VolumeCaptureRequest default/x.", code=1),
        wrong("watch --until-ready a/b --until-gone c/d", says="Write either --until-ready or --until-gone."),
        wrong("delete keeper/x", says="There is no ObjectKeeper x.", code=1),
        wrong("delete vsc/x", says="snapshot/x is not deleted by hand: a keeper goes some time after its request"),
        wrong("delete vcr/default/x", says="There is no VolumeCaptureRequest default/x.", code=1),
        wrong("manifests show NOPE", says="CHECKPOINT is not valid"),
        wrong("manifests show vcr/default/x", says="expected the name of a checkpoint, or checkpoint/NAME"),
        wrong("manifests show nope", says="There is no ManifestCheckpoint nope.", code=1),
        # places
        wrong("list --state-dir data/greeting.txt", says="cannot be used: File exists. Name another one", code=1),
        wrong("list --state-dir data/greeting.txt/x", says="cannot be used: Not a directory.", code=1),
    ],
)
def test_a_mistake_is_one_clear_message(
    arguments: list[str], says: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["requests", *arguments]) == code

    captured = capsys.readouterr()
    first, *rest = captured.err.splitlines()
    assert captured.out == ""
    assert first.startswith("lapse: ")
    assert says in first
    assert all(line.startswith("Try 'lapse requests") for line in rest)


@pytest.mark.parametrize("ttl", ["10minutes", "0s", "-1h", "600", ""])
def test_a_ttl_that_cannot_be_meant_ends_the_start(ttl: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--request-ttl", ttl]) == 64
    assert "flag --request-ttl: request_ttl" in capsys.readouterr().err


def test_a_refused_request_makes_no_claim(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["requests", "capture", "x", "--directory", "data"]) == 0
    assert main(["requests", "delete", "pvc/default/data"]) == 0
    assert main(["requests", "capture", "x", "--directory", "data"]) == 1
    capsys.readouterr()

    main(["requests", "list", "pvc", "-o", "json"])
    assert capsys.readouterr().out == '{"items": [], "next": null}\n'


def test_a_name_of_253_characters_is_fine_and_taken_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["requests", "capture", LONGEST, "--directory", "data"]) == 0
    assert main(["requests", "capture", LONGEST, "--directory", "data"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert f"There is a VolumeCaptureRequest default/{LONGEST} already. Use another name, or delete it first" in said


def test_a_directory_of_more_than_text_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["requests", "capture", "x", "--directory", "da\udcffta"]) == 64
    assert r"da\udcffta is not a directory." in capsys.readouterr().err


def test_who_waits_while_nobody_works_is_asked_whether_lapse_up_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["requests", "capture", "x", "--directory", "data", "--wait", "--timeout", "100ms"]) == 1

    said = capsys.readouterr().err
    state = folder / "state"
    assert said == f"lapse: vcr/default/x is not ready after 100ms. Is lapse up running with --state-dir {state}?\n"
