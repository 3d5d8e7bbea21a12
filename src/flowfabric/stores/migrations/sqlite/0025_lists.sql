-- Lists that begin with the newest go by the time, then by the id, which ascends; questions by when they were asked.

DROP INDEX ff_exec_core_search_idx;
CREATE INDEX ff_exec_core_search_idx ON ff_exec_core (namespace, created_at_ms, execution_id, partition_key);
DROP INDEX ff_flow_core_created_idx;
CREATE INDEX ff_flow_core_created_idx ON ff_flow_core (created_at_ms, flow_id, partition_key);

ALTER TABLE ff_exec_core ADD COLUMN suspended_at_ms INTEGER;
UPDATE ff_exec_core SET suspended_at_ms = (
    SELECT s.suspended_at_ms FROM ff_suspension_current s
    WHERE s.partition_key = ff_exec_core.partition_key AND s.execution_id = ff_exec_core.execution_id
)
WHERE lifecycle_phase = 'suspended';
DROP INDEX ff_exec_core_suspended_idx;
-- Earlier releases do not say when they suspended something.
CREATE INDEX ff_exec_core_suspended_idx
    ON ff_exec_core (blocking_reason, coalesce(suspended_at_ms, created_at_ms), execution_id, partition_key)
    WHERE lifecycle_phase = 'suspended';
