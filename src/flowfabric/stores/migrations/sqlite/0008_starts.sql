-- What starts executions by itself: schedules.

CREATE TABLE ff_schedule (
    namespace          TEXT NOT NULL,
    schedule_id        TEXT NOT NULL,
    partition_key      INTEGER NOT NULL,
    lane_id            TEXT NOT NULL,
    execution_kind     TEXT NOT NULL,
    payload            BLOB,
    payload_encoding   TEXT,
    priority           INTEGER NOT NULL DEFAULT 0,
    policy             TEXT,
    tags               TEXT NOT NULL DEFAULT '{}',
    cron               TEXT,
    time_zone          TEXT,
    every_ms           INTEGER CHECK (every_ms > 0),
    anchor_ms          INTEGER,
    overlap            TEXT NOT NULL CHECK (overlap IN ('skip', 'queue', 'replace')),
    catch_up           TEXT NOT NULL CHECK (catch_up IN ('none', 'last', 'all')),
    catch_up_limit     INTEGER NOT NULL DEFAULT 1,
    jitter_ms          INTEGER NOT NULL DEFAULT 0,
    paused             INTEGER NOT NULL DEFAULT 0,
    next_at_ms         INTEGER,
    revision           INTEGER NOT NULL DEFAULT 1,
    created_at_ms      INTEGER NOT NULL,
    updated_at_ms      INTEGER NOT NULL,
    source             TEXT,
    last_slot_ms       INTEGER,
    last_execution_id  TEXT,
    last_started_at_ms INTEGER,
    started_count      INTEGER NOT NULL DEFAULT 0,
    last_skipped_ms    INTEGER,
    last_skip_reason   TEXT,
    skipped_count      INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, schedule_id)
) WITHOUT ROWID;

CREATE INDEX ff_schedule_due_idx ON ff_schedule (next_at_ms) WHERE next_at_ms IS NOT NULL;
