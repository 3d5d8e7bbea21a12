-- How it went, for charts: one sample of every minute, kept for a day.

CREATE TABLE ff_sample (
    minute_ms bigint NOT NULL PRIMARY KEY,
    document  text NOT NULL
);
