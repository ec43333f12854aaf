-- Moving from an old bus to a new one: which phase it is in, who obeys it, and what each event became on either bus.

-- A migration. `version` changes with every phase, so that a relay knows whether it has seen the newest; relays obey the one that is
-- not finished, and there is one of those at most.
CREATE SEQUENCE postrider.bus_migration_version;
CREATE TABLE postrider.bus_migration (
    name            text        PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 128),
    definition      jsonb       NOT NULL,
    phase           text        NOT NULL CHECK (phase IN ('dual', 'suspended', 'cutover', 'finished')),
    version         bigint      NOT NULL DEFAULT nextval('postrider.bus_migration_version'),
    settled_version bigint      NOT NULL DEFAULT 0,         -- the last one that every relay obeys
    phase_at        timestamptz NOT NULL DEFAULT now(),
    started_at      timestamptz NOT NULL DEFAULT now(),
    off_since       timestamptz,                            -- when copies to the old bus ended
    copy_since      timestamptz,                            -- what was published since then without a copy still gets one
    parity          jsonb                                   -- the last comparison of both buses
);
CREATE UNIQUE INDEX bus_migration_one_at_a_time ON postrider.bus_migration ((true)) WHERE phase <> 'finished';

-- Which relay obeys which version, and how long its publishes take.
CREATE TABLE postrider.bus_migration_relay (
    relay         text        PRIMARY KEY,
    version       bigint      NOT NULL,
    seen_at       timestamptz NOT NULL DEFAULT now(),
    new_p99_ms    double precision,
    legacy_p99_ms double precision
);

-- While a migration runs: what became of an outbox row at each destination. Written with the mark of the row.
CREATE TABLE postrider.event_delivery (
    outbox          text        NOT NULL,
    position        bigint      NOT NULL,
    destination     text        NOT NULL CHECK (destination IN ('new', 'legacy')),
    event_id        text        NOT NULL,
    status          text        NOT NULL CHECK (status IN ('pending', 'confirmed', 'failed')),
    attempts        integer     NOT NULL DEFAULT 0,
    next_attempt_at timestamptz,
    error           text,
    confirmed_at    timestamptz,
    PRIMARY KEY (outbox, position, destination)
);
CREATE INDEX event_delivery_due ON postrider.event_delivery (outbox, next_attempt_at) WHERE status <> 'confirmed';
-- For forgetting what is confirmed and old: all but free to keep.
CREATE INDEX event_delivery_confirmed ON postrider.event_delivery USING brin (confirmed_at);
