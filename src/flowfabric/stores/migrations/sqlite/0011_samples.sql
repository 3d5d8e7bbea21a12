-- How it went, for charts: one sample of every minute, kept for a day.

CREATE TABLE ff_sample (
    minute_ms INTEGER NOT NULL PRIMARY KEY,
    document  TEXT NOT NULL
);
