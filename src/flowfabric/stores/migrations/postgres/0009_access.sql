-- What callers from outside need: lists of a namespace, newest first.

CREATE INDEX ff_exec_core_search_idx ON ff_exec_core (namespace, created_at_ms, partition_key, execution_id);
