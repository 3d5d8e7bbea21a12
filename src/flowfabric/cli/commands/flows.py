"""``flowfabric flows``: what belongs together, drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.markup import escape
from rich.tree import Tree

from flowfabric.cli import filters
from flowfabric.cli.application import LOOKING, OK, application, command
from flowfabric.cli.run_ids import read_any, short
from flowfabric.cli.store_option import NOWHERE, Namespace, Where, on_store
from flowfabric.cli.terminal import Misused, age, coloured, out, say, say_json, show_table
from flowfabric.model.counting import counted
from flowfabric.model.ids import ExecutionId, FlowId, IdError
from flowfabric.model.operations.flows import AllOf, AnyOf, EdgeSnapshot, FlowSnapshot, Quorum
from flowfabric.model.reads.overview import FlowLine
from flowfabric.model.reads.search import ExecutionSummary
from flowfabric.sdk.app import App

#: Members that are drawn; who has more reads JSON.
MOST = 1_000
_MARKS = {
    "completed": "✓",
    "failed": "✗",
    "expired": "✗",
    "cancelled": "–",
    "skipped": "–",
    "active": "▶",
    "suspended": "⏸",
}


@command(
    application,
    group=LOOKING,
    shows=(
        "flowfabric flows",
        "flowfabric flows RUN",
        "flowfabric flows 6f1c0c3e-…    a flow's own id",
        "flowfabric flows RUN --json",
    ),
)
def flows(
    what: Annotated[
        str | None,
        Parameter(
            help="The id of a run, such as 7:1f0c…, or of a flow; leave it out to list the newest flows.",
            converter=read_any,
        ),
    ] = None,
    /,
    *,
    namespace: Namespace = "default",
    where: Where = NOWHERE,
) -> int:
    """Draw what a run started, or the graph of a flow.

    Without an id, list the newest flows in the namespace.
    """
    if what is None:
        return _list(namespace, where)
    flow, members, edges, root = on_store(where, lambda app: _read(app, what))
    if where.json:
        say_json(
            {
                "flow": msgspec.to_builtins(flow, enc_hook=str),
                "members": msgspec.to_builtins(members, enc_hook=str),
                "edges": msgspec.to_builtins(edges, enc_hook=str),
            }
        )
        return OK
    own = [each for each in members if not each.execution_kind.startswith("$")]
    state = "" if flow is None else coloured(flow.public_flow_state)
    title = f"[bold]{escape(flow.flow_kind if flow else 'flow')}[/bold] {state}  {counted(len(own), 'run')}"
    tree = Tree(title, guide_style="dim")
    policies = {} if flow is None else {str(each.downstream_execution_id): each for each in flow.edge_groups}
    _grow(tree, own, edges, policies, what, root)
    out().print(tree, soft_wrap=not out().is_terminal)
    if len(members) >= MOST:
        say(f"[dim]the first {MOST:,} only, with --json too[/dim]")
    return OK


def _name(flow: FlowLine) -> str:
    """A workflow's flow is called as its root is."""
    key = f" {flow.root_key}" if flow.root_key else ""
    return f"{flow.root_kind}{key}" if flow.root_kind else flow.flow_kind


def _list(namespace: str, where: Where) -> int:
    found = on_store(where, lambda app: app.engine.search_flows(namespaces=[namespace], limit=50), namespace).flows
    if where.json:
        say_json(msgspec.to_builtins(found, enc_hook=str))
        return OK
    show_table(
        ("state", "what", "runs", "age", "flow"),
        (
            (
                coloured(each.public_flow_state),
                escape(_name(each)),
                f"{each.node_count:,}",
                age(each.created_at),
                escape(str(each.flow_id)),
            )
            for each in found
        ),
        f"no flows in namespace {escape(namespace)} yet: workflows and `submit_flow` create them",
        keep="flow",
    )
    return OK


async def _read(
    app: App, what: str
) -> tuple[FlowSnapshot | None, list[ExecutionSummary], list[EdgeSnapshot], str | None]:
    try:
        flow_id = str(FlowId(what)) if not what.startswith("{") else None
    except IdError:
        raise Misused(f"{what}: not the id of a run (7:1f0c…) or of a flow; `flowfabric list` shows runs") from None
    if flow_id is None:
        flow_id = await app.engine.resolve_execution_flow_id(ExecutionId.parse(what))
        if flow_id is None:
            await app.run(what).info()
            raise Misused(f"{what}: this run started nothing and is in no flow")
    flow = await app.engine.describe_flow(flow_id)
    if flow is None:
        raise Misused(f"{what}: no such flow")
    question = {"flow_id": flow_id, "namespaces": [flow.namespace]}
    members = [each async for each in filters.found(app, question, MOST, builtin=True)][::-1]
    line = (await app.engine.read_flow_tree(flow_id, namespaces=[flow.namespace], limit=1)).flow
    root = None if line.root is None else str(line.root)
    if root is not None and root not in {str(each.execution_id) for each in members}:
        # It is older than as many members as are read.
        page = await app.engine.search_executions(query=root, namespaces=[flow.namespace])
        members = [*page.executions, *members]
    return flow, members, await app.engine.list_flow_edges(flow_id), root


def _grow(
    tree: Tree,
    members: list[ExecutionSummary],
    edges: Iterable[EdgeSnapshot],
    policies: Mapping[str, Any],
    marked: str,
    root: str | None,
) -> None:
    """Every member once: below the parent that is farthest from the beginning, the others are named beside it."""
    by_id = {str(each.execution_id): each for each in members}
    parents: dict[str, list[str]] = {each: [] for each in by_id}
    for edge in edges:
        upper, lower = str(edge.upstream_execution_id), str(edge.downstream_execution_id)
        if upper in by_id and lower in by_id and upper not in parents[lower]:
            parents[lower].append(upper)
    if not any(parents.values()):
        _adopt(parents, members, root)
    depth = _depths(parents)
    branches: dict[str, Tree] = {}
    for identity in sorted(by_id, key=lambda each: (depth[each], by_id[each].created_at, each)):
        above = sorted(parents[identity], key=lambda each: (-depth[each], each))
        home = branches[above[0]] if above else tree
        label = _label(by_id[identity], identity == marked)
        if len(above) > 1:
            names = ", ".join(escape(by_id[each].execution_kind) for each in above[1:4])
            more = f" and {len(above) - 4} more" if len(above) > 4 else ""
            label += f"  [dim]← also {names}{more}[/dim]"
        label += _policy(policies.get(identity))
        branches[identity] = home.add(label)


def _adopt(parents: dict[str, list[str]], members: list[ExecutionSummary], root: str | None) -> None:
    """A flow without edges is what one workflow has started: each member below the one that started it, or else below
    the workflow."""
    for each in members:
        own = str(each.execution_id)
        parent = root if each.parent is None or str(each.parent) not in parents else str(each.parent)
        if parent in parents and parent != own:
            parents[own] = [parent]


def _depths(parents: Mapping[str, list[str]]) -> dict[str, int]:
    """How many are above each, at most. A cycle, which must not be, is cut."""
    depth = dict.fromkeys(parents, 0)
    for _ in range(len(parents)):
        moved = False
        for each, above in parents.items():
            new = max((depth[one] + 1 for one in above), default=0)
            if new > depth[each] and new <= len(parents):
                depth[each], moved = new, True
        if not moved:
            break
    return depth


def _label(each: ExecutionSummary, marked: bool) -> str:
    state = each.public_state.value
    name = f"[bold]{escape(each.execution_kind)}[/bold]" if marked else escape(each.execution_kind)
    mark = coloured(state).replace(f"]{state}[", f"]{_MARKS[state]}[") if state in _MARKS else "·"
    return f"{mark} {name}  {coloured(state)}  [dim]{age(each.created_at)}  {escape(short(each.execution_id))}[/dim]"


def _policy(group: Any) -> str:
    """What a member needs of its parents, unless it is all of them."""
    if group is None or isinstance(group.policy, AllOf):
        return ""
    progress = f"{group.satisfied_count} of {group.total_deps}"
    if isinstance(group.policy, AnyOf):
        return f"  [magenta]any of them[/magenta] [dim]({progress})[/dim]"
    if isinstance(group.policy, Quorum):
        return f"  [magenta]{group.policy.k} of them[/magenta] [dim]({progress})[/dim]"
    return ""
