"""How deep JSON nests, judged without parsing it."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st

from flowfabric.model import jsontext
from flowfabric.model.jsontext import BLOCK_BYTES, Nesting, nests_deeper

TEXTS = st.text(alphabet='[]{}"\\a\n', max_size=6)
VALUES = st.recursive(TEXTS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4))


def depth(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max(map(depth, inside), default=0)


@given(VALUES, st.integers(0, 6))
def test_it_agrees_with_a_parser(value: Any, limit: int) -> None:
    assert nests_deeper(json.dumps(value).encode(), limit) is (depth(value) > limit)


@given(VALUES, st.integers(0, 6), st.integers(1, 9))
def test_it_does_not_matter_where_it_is_cut(value: Any, limit: int, size: int) -> None:
    data = json.dumps(value).encode()
    nesting = Nesting(limit)
    found = [nesting.feed(data[start : start + size]) for start in range(0, len(data), size)]
    assert any(found) is (depth(value) > limit)


def test_it_ends_where_the_limit_is_passed() -> None:
    looked_at: list[bytes] = []

    class Looking(Nesting):
        def feed(self, block: bytes) -> bool:
            looked_at.append(block)
            return super().feed(block)

    with patch.object(jsontext, "Nesting", Looking):
        assert nests_deeper(b"[" * 65 + b" " * 20 * BLOCK_BYTES, 64)
    assert len(looked_at) == 1


@pytest.mark.parametrize(
    ("text", "deeper"),
    [
        (b"[" * 64 + b"]" * 64, False),
        (b"[" * 65 + b"]" * 65, True),
        (b'{"a":' * 65, True),
        (b'"' + b"[" * 1_000, False),
        (b'"' + rb"\"[" * 1_000, False),
        (rb'"\\"' + b"[" * 65, True),
        (b"", False),
        (b"]" * 1_000, False),
    ],
)
def test_at_the_edge(text: bytes, deeper: bool) -> None:
    assert nests_deeper(text, 64) is deeper
