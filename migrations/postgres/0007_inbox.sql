-- How long the inbox remembers, and claims on effects outside the database.

-- Deleted in batches by age: vacuum follows closely, so that neither the table nor its indexes keep what is gone.
ALTER TABLE postrider.event_inbox SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);

-- What each consumer's inbox has forgotten: events applied before this time may be unknown.
CREATE TABLE postrider.inbox_memory (
    consumer_name    text        PRIMARY KEY CHECK (octet_length(consumer_name) BETWEEN 1 AND 128),
    forgotten_before timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Work that one process among all does at a time.
CREATE TABLE postrider.duty (
    name   text        PRIMARY KEY,
    holder text        NOT NULL,
    until  timestamptz NOT NULL
) WITH (fillfactor = 50);

-- ── Claims ──────────────────────────────────────────────────────────────────────────────────────────────────────────
-- What is to happen once outside the database. Done once it has a response; free while it has neither that nor a lease.
CREATE SEQUENCE postrider.claim_token;
CREATE TABLE postrider.claim (
    scope        text        NOT NULL CHECK (octet_length(scope) BETWEEN 1 AND 256),
    key          text        NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 512),
    payload_hash bytea       NOT NULL CHECK (octet_length(payload_hash) = 32),
    token        bigint      NOT NULL,
    owner        text        NOT NULL,
    lease_until  timestamptz,
    response     bytea,
    touched_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);
CREATE INDEX claim_touched_at ON postrider.claim (touched_at);
