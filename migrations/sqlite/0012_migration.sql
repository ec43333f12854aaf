-- Moving from an old bus to a new one: which phase it is in, who obeys it, and what each event became on either bus.
CREATE TABLE bus_migration (
    name            TEXT PRIMARY KEY,
    definition      TEXT NOT NULL CHECK (json_valid(definition)),
    phase           TEXT NOT NULL CHECK (phase IN ('dual', 'suspended', 'cutover', 'finished')),
    -- Changes with every phase, so that a relay knows whether it has seen the newest.
    version         INTEGER NOT NULL,
    -- The last one that the relay obeys.
    settled_version INTEGER NOT NULL DEFAULT 0,
    phase_at        INTEGER NOT NULL,
    started_at      INTEGER NOT NULL,
    -- When copies to the old bus ended.
    off_since       INTEGER,
    -- What was published since then without a copy still gets one.
    copy_since      INTEGER,
    -- The last comparison of both buses.
    parity          TEXT CHECK (parity IS NULL OR json_valid(parity))
);
-- Relays obey the one that is not finished.
CREATE UNIQUE INDEX bus_migration_one_at_a_time ON bus_migration (1) WHERE phase <> 'finished';

CREATE TABLE bus_migration_relay (
    relay         TEXT PRIMARY KEY,
    version       INTEGER NOT NULL,
    seen_at       INTEGER NOT NULL,
    new_p99_ms    REAL,
    legacy_p99_ms REAL
) WITHOUT ROWID;

-- While a migration runs: what became of an outbox row at each destination. Written with the mark of the row.
CREATE TABLE event_delivery (
    position        INTEGER NOT NULL,
    destination     TEXT NOT NULL CHECK (destination IN ('new', 'legacy')),
    event_id        TEXT NOT NULL,
    status          TEXT NOT NULL CHECK (status IN ('pending', 'confirmed', 'failed')),
    attempts        INTEGER NOT NULL DEFAULT 0,
    next_attempt_at INTEGER,
    error           TEXT,
    confirmed_at    INTEGER,
    PRIMARY KEY (position, destination)
) WITHOUT ROWID;
CREATE INDEX event_delivery_due ON event_delivery (next_attempt_at) WHERE status <> 'confirmed';
