-- How far each outbox has been deleted by age: a cursor before this place may have missed something. What happened
-- at or after trimmed_before_ms was never deleted.
CREATE TABLE ff_event_horizon (
    outbox            TEXT NOT NULL PRIMARY KEY,
    trimmed_through   INTEGER NOT NULL,
    trimmed_before_ms INTEGER NOT NULL
);
