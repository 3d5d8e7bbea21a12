-- Lanes: since when one is in its state, and why; between which keys it is shared.

ALTER TABLE ff_lane_registry ADD COLUMN state_reason TEXT;
ALTER TABLE ff_lane_registry ADD COLUMN state_changed_at_ms INTEGER;
ALTER TABLE ff_lane_registry ADD COLUMN fair_by TEXT;
ALTER TABLE ff_lane_registry ADD COLUMN fair_pending INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ff_lane_registry ADD COLUMN fair_changed_at_ms INTEGER;

-- The ranks that wait in fair lanes: the lowest of all, and the highest of each key. Other lanes have no entry here.
-- Their conditions differ so that no plan takes the one for the other.
CREATE INDEX ff_exec_core_fair_idx ON ff_exec_core (lane_id, priority, fair_rank)
    WHERE claimable AND fair_rank < 0;
CREATE INDEX ff_exec_core_fair_key_idx ON ff_exec_core (lane_id, priority, fair_key, fair_rank)
    WHERE claimable AND fair_key IS NOT NULL;
