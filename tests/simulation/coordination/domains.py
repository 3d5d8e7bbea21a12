"""What the operations of coordination choose from, and which operations on single executions are mixed in."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.simulation import domains
from tests.simulation.domains import Operation

#: Which member, by its number in the order of creation; the last ones are executions that belong to nobody.
MEMBER = st.integers(0, 7)
#: Two flows that are made step by step, and one that does not exist.
FLOW_IDS = tuple(str(uuid.UUID(int=number * 7919, version=4)) for number in (3, 4, 5))
#: Flows that are submitted whole.
SUBMITTED = tuple(str(uuid.UUID(int=number * 7919, version=4)) for number in (6, 7))
FLOW = st.sampled_from((0, 0, 0, 0, 0, 1, 1, 2))
REF = st.sampled_from((None, None, "result"))
CANCEL, RUN = "cancel_remaining", "let_run"
POLICIES: tuple[dict[str, Any], ...] = (
    {"kind": "all_of"},
    {"kind": "any_of", "on_satisfied": CANCEL},
    {"kind": "any_of", "on_satisfied": RUN},
    {"kind": "quorum", "k": 2, "on_satisfied": CANCEL},
    {"kind": "quorum", "k": 2, "on_satisfied": RUN},
    {"kind": "quorum", "k": 3, "on_satisfied": CANCEL},
)
POLICY = st.sampled_from((*POLICIES, POLICIES[0], POLICIES[1], POLICIES[3]))
ODD_POLICY = st.sampled_from((*POLICIES, POLICIES[1], {"kind": "quorum", "k": 0, "on_satisfied": RUN}))
#: How far the caller's revision is off.
REVISION = st.sampled_from((0, 0, 0, 0, 0, 0, 0, -1, 1))
EDGE = st.integers(0, 19)
#: A whole graph: edges as pairs of node numbers, the policy of the last node.
SHAPES: tuple[tuple[tuple[int, int], ...], ...] = (
    ((0, 1), (1, 2), (2, 3)),
    ((0, 2), (1, 2), (2, 3)),
    ((0, 3), (1, 3), (2, 3)),
    ((0, 1), (0, 2), (1, 3), (2, 3)),
    ((0, 2), (1, 2), (1, 3), (0, 3)),
    ((0, 1), (0, 2), (0, 3)),
    ((0, 3), (1, 3), (1, 2), (2, 3)),
)
SHAPE = st.sampled_from(SHAPES)
NODE = st.fixed_dictionaries(
    {
        "lane_id": st.sampled_from(("red", "red", "red", "blue")),
        "priority": st.sampled_from((0, 0, 5)),
        "policy": st.sampled_from(
            (
                None,
                None,
                None,
                {"max_reclaim_count": 0},
                {"max_replay_count": 1, "timeout_policy": {"attempt_timeout_ms": 1_000}},
            )
        ),
        "delay_until": st.sampled_from((None, None, None, None, None, 1_000)),
        "execution_deadline_at": st.sampled_from((None, None, None, None, None, 3_000)),
        "input_payload": st.sampled_from((b"in", b"")),
        "bound": st.integers(0, 6),
    }
)

# -- waiting ---------------------------------------------------------------------------------------------------------

SOURCES, SIGNALS, WAITPOINTS = "DistinctSources", "DistinctSignals", "DistinctWaitpoints"
A, B = ("single", "a", None), ("single", "b", "go")
CONDITIONS: tuple[tuple[Any, ...], ...] = (
    A,
    ("single", "a", "go"),
    B,
    ("all", (A, B)),
    ("count", 2, SOURCES, ("a",), None),
    ("count", 2, WAITPOINTS, ("a", "b", "c"), None),
    ("count", 2, SIGNALS, ("a", "b"), "go"),
    ("count", 1, SIGNALS, ("a", "b"), None),
    ("all", (("count", 2, SOURCES, ("a",), None), B)),
    ("operator",),
    ("timeout",),
)
CONDITION = st.sampled_from((*CONDITIONS, *CONDITIONS[:9]))
BEHAVIOR = st.sampled_from(("fail", "cancel", "expire", "auto_resume_with_timeout_signal", "escalate"))
WAIT_REASON = st.sampled_from(
    ("waiting_for_signal", "waiting_for_approval", "manual_pause", "paused_by_budget", "something_else")
)
#: What is wrong with a token, if anything.
TOKEN = st.sampled_from((*[""] * 18, "missing", "prefix", "other", "flipped", "foreign key", "longer"))
SECRETS = {f"k{number}": bytes([number]) * 32 for number in range(1, 6)}

# -- budgets and quotas ----------------------------------------------------------------------------------------------

BUDGETS = tuple(str(uuid.UUID(int=number * 104_729, version=4)) for number in (1, 2, 3))
QUOTAS = tuple(str(uuid.UUID(int=number * 224_737, version=4)) for number in (1, 2, 3))
#: A budget, one that stands under it, and one that only warns and begins anew every five seconds.
DEFINED: tuple[dict[str, Any], ...] = (
    {"parent": None, "hard": {"tokens": 9, "calls": 3}, "soft": {"tokens": 0, "calls": 0}, "warns": False},
    {"parent": BUDGETS[0], "hard": {"tokens": 6}, "soft": {"tokens": 4}, "warns": False},
    {"parent": None, "hard": {"tokens": 5}, "soft": {"tokens": 3}, "warns": True},
)
INTERVALS = (0, 0, 5_000)
#: ``(seconds, rate, cap)``: a window, one slot, and both.
ALLOWED = ((2, 2, 0), (3, 0, 1), (2, 2, 2))
AMOUNTS = st.sampled_from(
    ({"tokens": 3}, {"tokens": 1}, {"tokens": 3}, {"tokens": 6}, {"calls": 1}, {"calls": 2, "tokens": 4}, {"other": 7})
)
BUDGET = st.sampled_from((0, 1, 1, 1, 2, 3))
QUOTA = st.sampled_from((0, 1, 2))
KEY = st.sampled_from((None, None, None, "k"))
#: What executions may be bound by.
BOUND: tuple[dict[str, Any], ...] = (
    {},
    {"budget_ids": [BUDGETS[1]]},
    {"budget_ids": [BUDGETS[1], BUDGETS[2]]},
    {"budget_ids": [BUDGETS[0]]},
    {"quota_policy_id": QUOTAS[0]},
    {"quota_policy_id": QUOTAS[1]},
    {"quota_policy_id": QUOTAS[2], "budget_ids": [BUDGETS[1]]},
)

OPERATIONS: list[Operation] = []
#: Operations on single executions that coordination is mixed with, and how often.
SINGLE = {
    "other_engine": 2,
    "together": 2,
    "claim": 2,
    "claim_anything": 7,
    "claim_for_worker": 1,
    "claim_resumed_execution": 1,
    "issue_grant_and_claim": 1,
    "renew": 1,
    "work": 3,
    "complete": 3,
    "fail": 3,
    "delay": 1,
    "wait_children": 2,
    "cancel": 1,
    "repeat": 1,
    "complete_execution": 1,
    "fail_execution": 1,
    "cancel_execution": 2,
    "revoke_lease": 1,
    "replay_execution": 3,
    "block_execution": 1,
    "unblock_execution": 1,
    "advance": 1,
    "until_due": 2,
    "until_lease_ends": 2,
    "run_timers": 2,
    "expire_execution": 1,
}
GROUPS = ("graph", "tear", "wait", "signal", "budget", "quota", "claim", "end", "operator", "block", "time", "how")
#: Groups and operations that an example of a theme leaves alone.
ELSEWHERE = {
    "flows": ("wait", "signal", "budget", "quota"),
    "signals": ("graph", "tear", "budget", "quota", "labour", "wait_children", "delay"),
    "budgets": ("graph", "tear", "wait", "signal", "labour", "wait_children", "delay"),
    "everything": (),
}


def operation(
    group: str, weight: int, ready: Callable[[Any], bool] = lambda machine: True, **arguments: st.SearchStrategy[Any]
) -> Callable[[Any], Any]:
    """Let the machine of coordination do this, so often, when it is ready for it."""

    def add(function: Any) -> Any:
        OPERATIONS.append(Operation(function.__name__, group, weight, ready, st.fixed_dictionaries(arguments)))
        return function

    return add


def menu() -> list[Operation]:
    """Everything the machine may do."""
    chosen = [each._replace(weight=SINGLE[each.name]) for each in domains.OPERATIONS if each.name in SINGLE]
    # The first ones are drawn most often.
    return sorted(OPERATIONS + chosen, key=lambda each: each.name not in ("labour", "park", "hire"))
