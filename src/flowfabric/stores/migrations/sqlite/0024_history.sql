-- History in the order in which it happened.

-- Acts are numbered as they are committed; those that are there by their ids, which begin with the time.
CREATE TABLE ff_audit_numbered (
    number   INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    audit_id TEXT NOT NULL UNIQUE,
    at_ms    INTEGER NOT NULL,
    who      TEXT NOT NULL,
    act      TEXT NOT NULL,
    subject  TEXT NOT NULL,
    status   INTEGER NOT NULL
);
INSERT INTO ff_audit_numbered (audit_id, at_ms, who, act, subject, status)
    SELECT audit_id, at_ms, who, act, subject, status FROM ff_audit ORDER BY audit_id;
DROP TABLE ff_audit;
ALTER TABLE ff_audit_numbered RENAME TO ff_audit;

-- Signals are numbered on after a replay, so that old ones and new ones keep their order.
ALTER TABLE ff_exec_core ADD COLUMN earlier_signals INTEGER;
UPDATE ff_exec_core SET earlier_signals = (
    SELECT max(s.sequence) FROM ff_signal s
    WHERE s.partition_key = ff_exec_core.partition_key AND s.execution_id = ff_exec_core.execution_id
) - coalesce(signal_count, 0)
WHERE EXISTS (
    SELECT 1 FROM ff_signal s
    WHERE s.partition_key = ff_exec_core.partition_key AND s.execution_id = ff_exec_core.execution_id
    AND s.sequence > coalesce(ff_exec_core.signal_count, 0)
);
