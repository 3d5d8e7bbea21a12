-- How far each outbox has been deleted by age: a cursor before this place may have missed something. What happened
-- at or after trimmed_before_ms was never deleted.
CREATE TABLE ff_event_horizon (
    outbox            text NOT NULL PRIMARY KEY,
    trimmed_through   bigint NOT NULL,
    trimmed_before_ms bigint NOT NULL
);
