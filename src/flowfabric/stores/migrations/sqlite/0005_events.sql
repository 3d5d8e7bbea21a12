-- How far each outbox has been deleted by age: a cursor before this place may have missed something.
CREATE TABLE ff_event_horizon (
    outbox          TEXT NOT NULL PRIMARY KEY,
    trimmed_through INTEGER NOT NULL
);
