-- Quotas and budgets that apps made and nothing uses any more are deleted.

ALTER TABLE ff_quota_policy ADD COLUMN idle_check_at_ms bigint;
ALTER TABLE ff_budget_policy ADD COLUMN idle_check_at_ms bigint;
CREATE INDEX ff_quota_policy_idle_idx ON ff_quota_policy (idle_check_at_ms) WHERE idle_check_at_ms IS NOT NULL;
CREATE INDEX ff_budget_policy_idle_idx ON ff_budget_policy (idle_check_at_ms) WHERE idle_check_at_ms IS NOT NULL;
CREATE INDEX ff_quota_policy_taken_idx ON ff_quota_policy (quota_policy_id) WHERE active_concurrency <> 0;
CREATE INDEX ff_budget_policy_above_idx ON ff_budget_policy (ancestor_ids COLLATE "C") WHERE ancestor_ids <> '';
CREATE INDEX ff_budget_ask_budget_idx ON ff_budget_ask (budget_id);

-- Who names them: every kept execution, as each may run again.
DROP INDEX ff_exec_core_slots_idx;
CREATE INDEX ff_exec_core_slots_idx ON ff_exec_core (quota_policy_id, admitted_at_ms) WHERE quota_policy_id IS NOT NULL;
CREATE INDEX ff_exec_core_budgets_idx ON ff_exec_core (budget_ids COLLATE "C") WHERE budget_ids <> '';
CREATE INDEX ff_exec_core_several_budgets_idx ON ff_exec_core (budget_ids COLLATE "C") WHERE budget_ids LIKE '%,%';
