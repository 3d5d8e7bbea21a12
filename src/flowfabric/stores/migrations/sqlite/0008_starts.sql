-- What starts executions: schedules, requests that callers leave in transactions of their own, and bursts.

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

-- Executions that callers ask for in transactions of their own. A row becomes an execution once it is committed.
CREATE TABLE ff_enqueue_request (
    request_id      BLOB NOT NULL PRIMARY KEY,
    requested_at_ms INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    execution_id    TEXT,
    command         TEXT NOT NULL,
    error           TEXT,
    refused_at_ms   INTEGER
);

CREATE INDEX ff_enqueue_request_due_idx ON ff_enqueue_request (requested_at_ms, request_id)
    WHERE refused_at_ms IS NULL;
CREATE INDEX ff_enqueue_request_execution_idx ON ff_enqueue_request (execution_id);

-- Starts that fall together, and the execution they share.
CREATE TABLE ff_debounce (
    namespace     TEXT NOT NULL,
    debounce_key  TEXT NOT NULL,
    partition_key INTEGER NOT NULL,
    execution_id  BLOB NOT NULL,
    first_at_ms   INTEGER NOT NULL,
    until_ms      INTEGER NOT NULL,
    PRIMARY KEY (namespace, debounce_key)
) WITHOUT ROWID;

CREATE INDEX ff_debounce_execution_idx ON ff_debounce (partition_key, execution_id);
