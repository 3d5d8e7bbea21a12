-- In which lanes a namespace has executions that have not ended.

CREATE INDEX ff_exec_core_open_idx ON ff_exec_core (namespace, lane_id) WHERE terminal_at_ms IS NULL;
