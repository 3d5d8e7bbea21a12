-- Members of each flow counted by state: what dashboards show. Nothing is decided upon it.

CREATE TABLE ff_flow_summary (
    partition_key            INTEGER NOT NULL,
    flow_id                  BLOB NOT NULL,
    total_members            INTEGER NOT NULL DEFAULT 0,
    sampled_members          INTEGER NOT NULL DEFAULT 0,
    members_completed        INTEGER NOT NULL DEFAULT 0,
    members_failed           INTEGER NOT NULL DEFAULT 0,
    members_cancelled        INTEGER NOT NULL DEFAULT 0,
    members_expired          INTEGER NOT NULL DEFAULT 0,
    members_skipped          INTEGER NOT NULL DEFAULT 0,
    members_active           INTEGER NOT NULL DEFAULT 0,
    members_suspended        INTEGER NOT NULL DEFAULT 0,
    members_waiting          INTEGER NOT NULL DEFAULT 0,
    members_delayed          INTEGER NOT NULL DEFAULT 0,
    members_rate_limited     INTEGER NOT NULL DEFAULT 0,
    members_waiting_children INTEGER NOT NULL DEFAULT 0,
    public_flow_state        TEXT NOT NULL,
    last_summary_update_at   INTEGER NOT NULL,
    PRIMARY KEY (partition_key, flow_id)
);
