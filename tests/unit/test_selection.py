"""What a plain run leaves out: named in one place, never all of a function, never a file that no list names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import selection
from tests.selection import (
    CASES_OF_INPUT,
    COMPUTING,
    FIFTH_CASES,
    FULL_ONLY,
    LONGEST,
    ONE_CASE,
    ONE_STORE,
    ROOT,
    RULES_OF_CORE,
    RULES_OF_SDK,
    STORES,
    left_to_full,
    longest_first,
    path_of,
)

FILES = [path.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests").rglob("test_*.py")]


def item(path: str, name: str, case: str = "", **parameters: str) -> Any:
    """As much of a collected test as matters here."""
    return SimpleNamespace(
        path=ROOT / "tests" / path,
        name=f"{name}[{case}]",
        originalname=name,
        callspec=SimpleNamespace(params=parameters),
    )


def left(*items: Any) -> list[Any]:
    return list(left_to_full(items))


def suite(path: str, functions: int, cases: int = 2) -> list[Any]:
    return [
        item(path, f"test_{number}", f"{store}-{case}", store_url=store)
        for number in range(functions)
        for store in STORES
        for case in range(cases)
    ]


def test_what_no_list_names_runs_everywhere() -> None:
    assert left(*suite("contract/leases/test_new_file.py", 7)) == []
    assert left(*suite("sdk/test_new_file.py", 7)) == []


def test_rules_of_core_run_on_two_stores_and_a_sample_on_each_other() -> None:
    everything = suite("contract/admission/test_block.py", 10)
    out = left(*everything)
    runs = [each for each in everything if each not in out]
    for store in STORES:
        here = [each for each in runs if each.callspec.params["store_url"] == store]
        assert len(here) == {"memory": 20, "sqlite": 10}.get(store, 2), store
    # Each other store takes other functions, with their first case.
    others = [each for each in runs if each.callspec.params["store_url"] not in ("memory", "sqlite")]
    assert len({each.originalname for each in others}) == len(others)
    assert all(each.name.endswith("-0]") for each in others)


def test_cases_of_input_run_in_memory_and_one_of_them_on_each_other_store() -> None:
    everything = suite("contract/executions/test_create.py", 3)
    assert [each.name for each in left(*everything)] == [
        f"test_{number}[{store}-1]" for number in range(3) for store in ("sqlite", "postgres", "valkey")
    ]


def test_rules_of_the_sdk_run_in_memory_and_through_a_server_and_a_sample_on_each_store() -> None:
    path = "sdk/runs/test_tasks.py"
    direct = suite(path, 8)
    served = [item(path, f"test_{number}", "remote", store_url="remote") for number in range(8)]
    out = left(*direct, *served)
    assert not any(each in out for each in served)
    runs = [each for each in direct if each not in out]
    for store in STORES:
        here = [each for each in runs if each.callspec.params["store_url"] == store]
        assert len(here) == (16 if store == "memory" else 2), store
    # What does not run through a server runs on SQLite.
    alone = left(*direct)
    assert not [each for each in alone if each.callspec.params["store_url"] in ("memory", "sqlite")]


def test_tests_without_a_store_run_whatever_the_list_says() -> None:
    assert left(item("contract/admission/test_block.py", "test_pure")) == []


def test_one_case_and_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "ONE_CASE", ("chaos/test_some.py::test_journey",))
    monkeypatch.setattr(selection, "FULL_ONLY", ("chaos/*::test_long",))
    first, second = (item("chaos/test_some.py", "test_journey", str(case)) for case in range(2))
    other, long = item("chaos/test_some.py", "test_other", "1"), item("chaos/test_some.py", "test_long")
    assert left(first, second, other, long) == [second, long]


def test_each_function_on_one_store_and_the_next_on_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "ONE_STORE", ("chaos/test_some.py",))
    everything = suite("chaos/test_some.py", 5, cases=1)
    out = left(*everything)
    runs = [each for each in everything if each not in out]
    assert [each.originalname for each in runs] == [f"test_{number}" for number in range(5)]
    assert [each.callspec.params["store_url"] for each in runs] == [*STORES, STORES[0]]


def test_a_fifth_of_the_cases_whatever_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "FIFTH_CASES", ("chaos/test_some.py",))
    pairs = [(name, kind) for name in range(10) for kind in range(5)]
    cases = [item("chaos/test_some.py", "test_crash", f"{pair}", store_url=STORES[pair[1] % 4]) for pair in pairs]
    out = left(*cases)
    kept = [pair for pair, each in zip(pairs, cases, strict=True) if each not in out]
    assert len(kept) == len(pairs) / 5
    assert {name for name, _ in kept} == set(range(10))
    assert {kind for _, kind in kept} == set(range(5))


def test_what_waits_is_first_and_what_computes_is_last() -> None:
    paths = ["simulation/test_d.py", "server/test_b.py", "unit/test_a.py", "cli/test_e.py", "console/test_c.py"]
    items = [item(path, path[0]) for path in paths]
    longest_first(items)
    assert [path_of(each) for each in items] == [
        "console/test_c.py", "cli/test_e.py", "unit/test_a.py", "server/test_b.py", "simulation/test_d.py"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "pattern",
    [
        *RULES_OF_CORE,
        *RULES_OF_SDK,
        *CASES_OF_INPUT,
        *ONE_CASE,
        *ONE_STORE,
        *FIFTH_CASES,
        *FULL_ONLY,
        *LONGEST,
        *COMPUTING,
    ],
)
def test_every_pattern_means_something(pattern: str) -> None:
    path, _, function = pattern.partition("::")
    found = [each for each in FILES if selection.is_in(each, (path,))]
    assert found
    if function:
        text = "".join((ROOT / "tests" / each).read_text() for each in found)
        assert f"def {function.partition('[')[0].rstrip('*')}" in text


def test_every_operation_is_called_on_every_store() -> None:
    """The test that does is on no list."""
    name = "test_every_operation_is_answered"
    assert f"def {name}(" in (ROOT / "tests/contract/engine/test_bad_input.py").read_text()
    assert left(*(item("contract/engine/test_bad_input.py", name, store, store_url=store) for store in STORES)) == []
