-- Members of each flow counted by state: what dashboards show. Nothing is decided upon it.

CREATE TABLE ff_flow_summary (
    partition_key            smallint NOT NULL,
    flow_id                  uuid NOT NULL,
    total_members            bigint NOT NULL DEFAULT 0,
    sampled_members          integer NOT NULL DEFAULT 0,
    members_completed        integer NOT NULL DEFAULT 0,
    members_failed           integer NOT NULL DEFAULT 0,
    members_cancelled        integer NOT NULL DEFAULT 0,
    members_expired          integer NOT NULL DEFAULT 0,
    members_skipped          integer NOT NULL DEFAULT 0,
    members_active           integer NOT NULL DEFAULT 0,
    members_suspended        integer NOT NULL DEFAULT 0,
    members_waiting          integer NOT NULL DEFAULT 0,
    members_delayed          integer NOT NULL DEFAULT 0,
    members_rate_limited     integer NOT NULL DEFAULT 0,
    members_waiting_children integer NOT NULL DEFAULT 0,
    public_flow_state        text NOT NULL,
    last_summary_update_at   bigint NOT NULL,
    PRIMARY KEY (partition_key, flow_id)
);
