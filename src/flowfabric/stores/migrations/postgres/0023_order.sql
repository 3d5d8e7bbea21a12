-- First in, first out: ids that ascend, and one order for those who wait for room.

-- A version 7 UUID: milliseconds, then microseconds, then chance.
CREATE FUNCTION ff_ascending_uuid() RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT (lpad(to_hex(us / 1000), 12, '0') || '7' || lpad(to_hex(us % 1000), 3, '0')
            || substr(replace(gen_random_uuid()::text, '-', ''), 17))::uuid
    FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) AS clock
$$;

ALTER TABLE ff_enqueue_request ALTER COLUMN request_id SET DEFAULT ff_ascending_uuid();

DROP INDEX ff_exec_core_waiting_idx;
CREATE INDEX ff_exec_core_waiting_idx
    ON ff_exec_core (blocked_by, priority DESC, fair_rank, created_at_ms, execution_id)
    WHERE eligibility_state IN ('blocked_by_budget', 'blocked_by_quota');
