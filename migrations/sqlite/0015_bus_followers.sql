-- Moving from an old bus to a new one: a migration that is kept in another database, and followed here under a version of our own.
-- When the one that is followed was started, where it is kept; null: it is kept here.
ALTER TABLE bus_migration ADD COLUMN leader_started_at INTEGER;
-- The version there that was followed last.
ALTER TABLE bus_migration ADD COLUMN leader_version INTEGER;
