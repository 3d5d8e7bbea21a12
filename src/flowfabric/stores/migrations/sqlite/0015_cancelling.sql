-- When an execution that was asked to end is ended anyway.
ALTER TABLE ff_exec_core ADD COLUMN cancel_at_ms INTEGER;
