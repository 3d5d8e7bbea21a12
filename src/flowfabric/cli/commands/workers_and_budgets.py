"""``flowfabric workers`` and ``flowfabric budgets``: lists of both."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.markup import escape

from flowfabric.cli.application import OK, OPERATING, application, command
from flowfabric.cli.store_option import NOWHERE, Namespace, Where, on_store
from flowfabric.cli.terminal import age, say_json, show_table
from flowfabric.sdk.app import App
from flowfabric.sdk.paging import pages


@command(application, group=OPERATING, shows=("flowfabric workers", "flowfabric workers --namespace acme --json"))
def workers(*, namespace: Namespace = "default", where: Where = NOWHERE) -> int:
    """List live workers."""

    async def read(app: App) -> list[Any]:
        listing = pages(lambda after: app.engine.list_workers(namespace=namespace, after=after), "cursor")
        return [each async for page in listing for each in page.entries]

    found = on_store(where, read, namespace)
    if where.json:
        say_json(msgspec.to_builtins(found, enc_hook=str))
        return OK
    show_table(
        ("worker", "lanes", "capabilities", "heartbeat"),
        (
            (
                escape(each.worker_instance_id),
                escape(", ".join(each.lanes)),
                escape(", ".join(each.capabilities)),
                f"{age(each.last_heartbeat_ms)} ago",
            )
            for each in found
        ),
        f"no workers in namespace {escape(namespace)}: start one with `flowfabric worker module:app`",
    )
    return OK


@command(application, group=OPERATING, shows=("flowfabric budgets", "flowfabric budgets --namespace acme --json"))
def budgets(
    *,
    namespace: Annotated[
        str | None, Parameter(name=("--namespace", "-n"), help="Only budgets of this namespace.", show_default=False)
    ] = None,
    where: Where = NOWHERE,
) -> int:
    """List budgets, with what is spent and reserved of their limits.

    A budget without a namespace belongs to the operator.
    """
    wanted = None if namespace is None else [namespace]

    async def read(app: App) -> list[Any]:
        listing = pages(lambda cursor: app.engine.list_budgets(cursor, 500, wanted))
        return [each async for page in listing for each in page.budgets]

    found = on_store(where, read)
    if where.json:
        say_json(msgspec.to_builtins(found, enc_hook=str))
        return OK
    show_table(
        ("budget", "namespace", "scope", "of", "spent", "reserved", "limit", "breaches"),
        (
            (
                escape(each.budget_id),
                escape(each.namespace or ""),
                escape(f"{each.scope_type}:{each.scope_id}".strip(":")),
                escape(name),
                _spent(each.usage.get(name, 0), each.reserved.get(name, 0), limit),
                f"{each.reserved.get(name, 0):,}",
                f"{limit:,}" if limit else "none",
                str(each.breach_count),
            )
            for each in found
            for name, limit in each.hard_limits.items()
        ),
        f"no budgets{'' if namespace is None else f' of namespace {escape(namespace)}'}: "
        "define one with @app.task(budget=Budget(…))",
        keep="budget",
    )
    return OK


def _spent(spent: int, reserved: int, limit: int | None) -> str:
    full = bool(limit) and spent + reserved >= (limit or 0)
    return f"[red]{spent:,}[/red]" if full else f"{spent:,}"
