-- First in, first out: one order for those who wait for room.

DROP INDEX ff_exec_core_waiting_idx;
CREATE INDEX ff_exec_core_waiting_idx
    ON ff_exec_core (blocked_by, priority DESC, fair_rank, created_at_ms, execution_id)
    WHERE eligibility_state IN ('blocked_by_budget', 'blocked_by_quota');
