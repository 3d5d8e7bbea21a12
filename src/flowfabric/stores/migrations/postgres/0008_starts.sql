-- What starts executions: schedules, requests that callers leave in transactions of their own, and bursts.

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

-- Executions that callers ask for in transactions of their own. A row becomes an execution once it is committed.
CREATE TABLE ff_enqueue_request (
    request_id      uuid NOT NULL PRIMARY KEY DEFAULT gen_random_uuid(),
    requested_at_ms bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    execution_id    text,
    command         jsonb NOT NULL,
    error           text,
    refused_at_ms   bigint
);

CREATE INDEX ff_enqueue_request_due_idx ON ff_enqueue_request (requested_at_ms, request_id)
    WHERE refused_at_ms IS NULL;
CREATE INDEX ff_enqueue_request_execution_idx ON ff_enqueue_request (execution_id);

-- Engines look at once when the transaction commits; without this they would within a second.
CREATE FUNCTION ff_enqueue_wake() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('ff_wake', 'enqueue');
    RETURN NULL;
END
$$;

CREATE TRIGGER ff_enqueue_request_wake AFTER INSERT ON ff_enqueue_request
    FOR EACH STATEMENT EXECUTE FUNCTION ff_enqueue_wake();

-- For SQL: leaves a request and returns the UUID that the execution will have. The object holds arguments of
-- create_execution, with "input" (any JSON value) or "input_base64" for the payload.
CREATE FUNCTION ff_enqueue(command jsonb) RETURNS uuid LANGUAGE sql AS $$
    INSERT INTO ff_enqueue_request (command) VALUES ($1) RETURNING request_id
$$;

-- Starts that fall together, and the execution they share.
CREATE TABLE ff_debounce (
    namespace     text NOT NULL,
    debounce_key  text NOT NULL,
    partition_key smallint NOT NULL,
    execution_id  uuid NOT NULL,
    first_at_ms   bigint NOT NULL,
    until_ms      bigint NOT NULL,
    PRIMARY KEY (namespace, debounce_key)
) WITH (fillfactor = 50);

CREATE INDEX ff_debounce_execution_idx ON ff_debounce (partition_key, execution_id);
