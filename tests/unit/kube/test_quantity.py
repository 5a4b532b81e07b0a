from __future__ import annotations

import pytest

from lapse.kube.quantity import units


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1Gi", 2**30),
        ("1.5Ki", 1536),
        ("1G", 10**9),
        ("1E", 10**18),
        ("1e3", 1000),
        ("1E3", 1000),
        ("12e-1", 2),
        ("500m", 1),
        ("1n", 1),
        (".5Ki", 512),
        ("5.", 5),
        ("0", 0),
        (1048576, 1048576),
        (0.5, 1),
        (" 1Gi ", 2**30),
    ],
)
def test_an_amount_is_read_as_kubernetes_reads_it(text: float | str, number: int) -> None:
    assert units(text) == number


@pytest.mark.parametrize("text", [None, "", "Gi", "-1Gi", "1 Gi", "1gi", "1e999", "1" * 65, "1_000", "٣Gi", "NaN"])
def test_what_is_no_amount_says_nothing(text: str | None) -> None:
    assert units(text) is None
