"""Questions about budgets and quotas as SQL, for every SQL store."""

from __future__ import annotations

from flowfabric.stores import questions as ask
from flowfabric.stores.questions import MAX_WAITED_FOR
from flowfabric.stores.sql.flows import Asked, Text, any_row
from flowfabric.stores.sql.rows import WAITING_FOR_ROOM, Dialect

#: For each ``ListGates``: the table, the id and the condition. What blocks is found by jumping from one to the next.
_GATES = {
    "budgets": ("ff_budget_policy", "budget_id", "1 = 1"),
    "quotas": ("ff_quota_policy", "quota_policy_id", "1 = 1"),
    "budget_reset": ("ff_budget_policy", "budget_id", "next_reset_at_ms <= ?1"),
    "quota_room": ("ff_quota_policy", "quota_policy_id", "next_room_at_ms <= ?1"),
    # Most policies have no slot taken and no guard: they are not counted.
    "quota_drift": (
        "ff_quota_policy p",
        "quota_policy_id",
        """quota_policy_id IN (SELECT t.quota_policy_id FROM ff_quota_policy t WHERE t.active_concurrency <> 0
UNION SELECT g.quota_policy_id FROM ff_quota_admitted g WHERE g.counted)
AND active_concurrency <> (SELECT count(*) FROM ff_quota_admitted a WHERE a.partition_key = p.partition_key
AND a.quota_policy_id = p.quota_policy_id AND a.counted)""",
    ),
    "blocked": (
        f"""(WITH RECURSIVE gates(gate) AS (
    SELECT min(e.blocked_by) FROM ff_exec_core e WHERE e.eligibility_state IN ({WAITING_FOR_ROOM})
    UNION ALL
    SELECT (SELECT min(e.blocked_by) FROM ff_exec_core e WHERE e.eligibility_state IN ({WAITING_FOR_ROOM})
            AND e.blocked_by > gates.gate) FROM gates WHERE gates.gate IS NOT NULL)
SELECT gate FROM gates WHERE gate IS NOT NULL) found""",
        "gate",
        "1 = 1",
    ),
}

#: What uses a quota policy ``p``, or a budget ``b``. Texts that begin with its id are names of it: its owner, and
#: whatever else is named behind it.
_QUOTA_USERS = (
    "ff_exec_core e WHERE e.quota_policy_id IN (p.quota_policy_id, substr(p.quota_policy_id, 1, 36))",
    "ff_quota_window w WHERE w.partition_key = p.partition_key AND w.quota_policy_id = p.quota_policy_id",
    "ff_quota_admitted a WHERE a.partition_key = p.partition_key AND a.quota_policy_id = p.quota_policy_id",
)
_BUDGET_USERS = (
    (
        "ff_exec_core e WHERE e.budget_ids <> '' AND e.budget_ids{} >= substr(b.budget_id, 1, 36) "
        "AND e.budget_ids{} < substr(b.budget_id, 1, 36) || 'A'"
    ),
    "several s WHERE s.names LIKE '%,' || substr(b.budget_id, 1, 36) || '%'",
    (
        "ff_budget_usage u WHERE u.partition_key = b.partition_key AND u.budget_id = b.budget_id "
        "AND (u.current_value <> 0 OR u.reserved_value <> 0 OR u.granted_value <> 0)"
    ),
    "ff_budget_usage_by_exec x WHERE x.partition_key = b.partition_key AND x.budget_id = b.budget_id",
    "ff_budget_ask k WHERE k.budget_id = b.budget_id",
    # Budgets that stand right under it; those further down stand under these.
    (
        "ff_budget_policy c WHERE c.ancestor_ids <> '' AND c.ancestor_ids{} >= b.budget_id "
        "AND c.ancestor_ids{} < b.budget_id || '-'"
    ),
)
#: The lists of more than one budget that executions name, by jumping from one to the next.
_SEVERAL = """WITH RECURSIVE several(names) AS (
    SELECT (SELECT e.budget_ids FROM ff_exec_core e WHERE e.budget_ids LIKE '%,%' ORDER BY e.budget_ids{} LIMIT 1)
    UNION ALL
    SELECT (SELECT e.budget_ids FROM ff_exec_core e WHERE e.budget_ids LIKE '%,%'
            AND e.budget_ids{} > several.names ORDER BY e.budget_ids{} LIMIT 1)
    FROM several WHERE several.names IS NOT NULL)"""

_LENGTHS = (1, 8, 64, MAX_WAITED_FOR)


class BudgetQuestions:
    """Compiles questions about budgets and quotas for one dialect."""

    _dialect: Dialect

    def _ListGates(self, q: ask.ListGates) -> Asked:  # noqa: N802
        table, name, condition = _GATES[q.what]
        text = Text()
        text.add(condition)
        if "?1" in condition:
            text.mark(q.now)
        bytewise = self._dialect.bytewise
        if q.namespaces is not None:
            marks = ", ".join([text.mark(each) for each in sorted(q.namespaces)])
            text.add(f"namespace IN ({marks})" if marks else "1 = 0")
        if q.after is not None:
            text.add(f"{name}{bytewise} > {text.mark(q.after)}")
        sql = f"SELECT {name} FROM {table} WHERE {text.where()} ORDER BY {name}{bytewise} LIMIT {int(q.limit)}"
        return Asked(sql, text.params, lambda rows: [row[0] for row in rows])

    def _IdleGates(self, q: ask.IdleGates) -> Asked:  # noqa: N802
        bytewise = self._dialect.bytewise
        before, table, name = "", "ff_quota_policy p", "p.quota_policy_id"
        users: tuple[str, ...] = _QUOTA_USERS
        if q.what == "budgets":
            before, table, name, users = _SEVERAL, "ff_budget_policy b", "b.budget_id", _BUDGET_USERS
        used = " OR ".join(any_row(each) for each in users)
        sql = (
            f"{before} SELECT {name}, {used} FROM {table} WHERE idle_check_at_ms <= ?1 "
            f"ORDER BY idle_check_at_ms, {name} LIMIT {int(q.limit)}"
        )
        return Asked(sql.replace("{}", bytewise), [q.now], lambda rows: [(row[0], bool(row[1])) for row in rows])

    def _WaitedFor(self, q: ask.WaitedFor) -> Asked:  # noqa: N802
        # In few lengths, so that there are few statements to plan.
        names = list(q.quota_policy_ids)
        length = next(each for each in _LENGTHS if each >= len(names))
        text = Text()
        marks = ", ".join([text.mark(each) for each in names + names[:1] * (length - len(names))])
        sql = (
            "SELECT quota_policy_id FROM ff_quota_policy WHERE waiting_since_ms IS NOT NULL "
            f"AND quota_policy_id IN ({marks})"
        )
        return Asked(sql, text.params, lambda rows: [row[0] for row in rows])

    def _ExpiredGuards(self, q: ask.ExpiredGuards) -> Asked:  # noqa: N802
        return Asked(
            "SELECT quota_policy_id, execution_id, expires_at_ms FROM ff_quota_admitted "
            f"WHERE expires_at_ms <= ?1 AND expires_at_ms >= ?2 ORDER BY expires_at_ms LIMIT {int(q.limit)}",
            [q.now, q.since],
            lambda rows: [tuple(row) for row in rows],
        )


def admission_trims(question: ask.TrimAdmission) -> list[tuple[str, int]]:
    """``(table and condition, time)`` of what budgets and quotas leave behind."""
    return [
        ("ff_quota_window WHERE expires_at_ms <= ?1", question.now),
        ("ff_budget_usage_dedup WHERE expires_at_ms <= ?1", question.now),
    ]
