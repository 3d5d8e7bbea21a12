-- What starts executions by itself: schedules.

CREATE TABLE ff_schedule (
    namespace          text NOT NULL,
    schedule_id        text NOT NULL,
    partition_key      smallint NOT NULL,
    lane_id            text NOT NULL,
    execution_kind     text NOT NULL,
    payload            bytea,
    payload_encoding   text,
    priority           integer NOT NULL DEFAULT 0,
    policy             jsonb,
    tags               jsonb NOT NULL DEFAULT '{}',
    cron               text,
    time_zone          text,
    every_ms           bigint CHECK (every_ms > 0),
    anchor_ms          bigint,
    overlap            text NOT NULL CHECK (overlap IN ('skip', 'queue', 'replace')),
    catch_up           text NOT NULL CHECK (catch_up IN ('none', 'last', 'all')),
    catch_up_limit     integer NOT NULL DEFAULT 1,
    jitter_ms          bigint NOT NULL DEFAULT 0,
    paused             boolean NOT NULL DEFAULT false,
    next_at_ms         bigint,
    revision           bigint NOT NULL DEFAULT 1,
    created_at_ms      bigint NOT NULL,
    updated_at_ms      bigint NOT NULL,
    source             text,
    last_slot_ms       bigint,
    last_execution_id  text,
    last_started_at_ms bigint,
    started_count      bigint NOT NULL DEFAULT 0,
    last_skipped_ms    bigint,
    last_skip_reason   text,
    skipped_count      bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, schedule_id)
) WITH (fillfactor = 50);

CREATE INDEX ff_schedule_due_idx ON ff_schedule (next_at_ms) WHERE next_at_ms IS NOT NULL;
