"""What a refusal repeats of what was sent."""

from __future__ import annotations

import pytest

from flowfabric.model.quoting import MAX_QUOTED, quoted
from flowfabric.model.waitpoint_tokens import Token


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a b", "'a b'"),
        ("", "''"),
        ("a\nb\x1b[0m\u202e", r"'a\nb\x1b[0m\u202e'"),
        ("\ud800", r"'\ud800'"),
        ("'", '"\'"'),
        (b"\x00a", r"b'\x00a'"),
        ("x" * 64, f"'{'x' * 64}'"),
        ("x" * 65, f"'{'x' * 64}'…"),
        (None, "None"),
        (True, "True"),
        (5, "5"),
        (2**65, "<int>"),
        (1.5, "1.5"),
        (["secret"] * 1_000, "<list>"),
        (Token("k1:" + "0f" * 32), "'k1:<REDACTED:len=64>'"),
    ],
)
def test_what_is_quoted(value: object, text: str) -> None:
    assert quoted(value) == text


def test_it_stays_short() -> None:
    for each in ("\x00" * 10**6, b"\xff" * 10**6, "é" * 10**6):
        assert len(quoted(each)) <= 4 * MAX_QUOTED + 4
