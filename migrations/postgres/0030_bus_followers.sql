-- Moving from an old bus to a new one with outboxes in several databases: one keeps the migration, the others follow it. What a follower
-- has is the same row, under a version of its own, so that its relays obey it as they would obey one that was started there.
ALTER TABLE postrider.bus_migration
    ADD COLUMN leader_started_at timestamptz,   -- when the migration that is followed was started, where it is kept; null: it is kept here
    ADD COLUMN leader_version    bigint,        -- the version there that was followed last
    ADD CONSTRAINT bus_migration_leader CHECK ((leader_started_at IS NULL) = (leader_version IS NULL));
