-- What goes by age is found by it: every heartbeat leaves a row, and nobody else reads the table in this order.

CREATE INDEX ff_worker_registry_event_age_idx ON ff_worker_registry_event (event_at_ms);
CREATE INDEX ff_enqueue_request_refused_idx ON ff_enqueue_request (refused_at_ms) WHERE refused_at_ms IS NOT NULL;
