"""What is spent, and of whose budgets, as commands tell it."""

from __future__ import annotations

import asyncio
import json

import pytest

from flowfabric.engine import Engine
from tests.cli.filling import Output, complaint, typed

BUDGET = "11111111-1111-4111-8111-111111111111"


def test_what_a_run_has_spent(url: str, capsys: Output) -> None:
    async def spend() -> str:
        async with await Engine.open(url, single_node=True) as engine:
            run = (await engine.create_execution(execution_kind="pay")).execution_id
            await engine.create_budget(
                budget_id=BUDGET, dimensions=["tokens"], hard_limits=[1_000], soft_limits=[0], scope_type="team"
            )
            await engine.record_spend(budget_id=BUDGET, execution_id=run, deltas={"tokens": 250}, idempotency_key="k")
            return str(run)

    run = asyncio.run(spend())
    assert f"250 tokens  of budget {BUDGET}" in typed(capsys, "show", run)
    table = typed(capsys, "budgets")
    assert "250" in table
    assert "1,000" in table


def test_budgets_of_several_owners(url: str, capsys: Output) -> None:
    async def spend() -> str:
        async with await Engine.open(url, single_node=True) as engine:
            for namespace, limit in ((None, 1_001), ("acme", 1_002), ("other", 1_003)):
                await engine.create_budget(
                    budget_id=BUDGET, namespace=namespace, dimensions=["tokens"], hard_limits=[limit], soft_limits=[0]
                )
            await engine.create_budget(
                budget_id=BUDGET.replace("1", "2"),
                namespace="acme",
                dimensions=["usd"],
                hard_limits=[5],
                soft_limits=[0],
            )
            run = (await engine.limited_to({"acme"}).create_execution(namespace="acme")).execution_id
            await engine.limited_to({"acme"}).record_spend(budget_id=BUDGET, execution_id=run, deltas={"tokens": 7})
            return str(run)

    run = asyncio.run(spend())
    assert f"7 tokens  of budget {BUDGET} of acme" in typed(capsys, "show", run)
    lines = [line.split() for line in typed(capsys, "budgets").splitlines()[1:]]
    assert [line[-2] for line in lines if line[:2] == [BUDGET, "acme"]] == ["1,002"]
    assert [line[-2] for line in lines if line[:2] == [BUDGET, "tokens"]] == ["1,001"], "nobody's but the operator's"
    assert len(lines) == 4
    found = json.loads(typed(capsys, "budgets", "--namespace", "acme", "--json"))
    assert [(each["namespace"], each["usage"]) for each in found] == [("acme", {"tokens": 7}), ("acme", {"usd": 0})]
    assert "no budgets of namespace nobody" in typed(capsys, "budgets", "-n", "nobody")


@pytest.mark.parametrize("url", ["server"], indirect=True)
def test_budgets_as_a_limited_credential_sees_them(url: str, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    async def make() -> None:
        async with await Engine.open(url, single_node=True) as engine:
            for namespace in (None, "acme", "spare", "other"):
                await engine.create_budget(
                    budget_id=BUDGET, namespace=namespace, dimensions=["tokens"], hard_limits=[9], soft_limits=[0]
                )

    asyncio.run(make())
    token = typed(capsys, "token", "create", "ci", "--scope", "read", "--for", "acme", "--for", "spare").strip()
    assert len(json.loads(typed(capsys, "budgets", "--json"))) == 4
    monkeypatch.setenv("FF_API_TOKEN", token)
    seen = {each["namespace"] for each in json.loads(typed(capsys, "budgets", "--json"))}
    assert seen == {"acme", "spare"}
    [mine] = json.loads(typed(capsys, "budgets", "--namespace", "spare", "--json"))
    assert mine["namespace"] == "spare"
    assert "no access to namespace 'other'" in complaint(capsys, "budgets", "-n", "other", code=1)
