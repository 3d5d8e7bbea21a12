-- Lanes: since when one is in its state, and why.

ALTER TABLE ff_lane_registry ADD COLUMN state_reason TEXT;
ALTER TABLE ff_lane_registry ADD COLUMN state_changed_at_ms INTEGER;
