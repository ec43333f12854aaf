-- Consumers: paused by name, events that take the process down, events held behind an earlier one of their key.

-- A row while a consumer is paused; every process that runs it looks here.
CREATE TABLE consumer_control (
    consumer_name TEXT PRIMARY KEY,
    paused_by     TEXT NOT NULL,
    reason        TEXT NOT NULL,
    since         INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- How often handling of an event began and never ended. Only redelivered events ever come here; they leave again when they are
-- settled, and stay for a month when they took the process down so often that they were given up.
CREATE TABLE consumer_crash (
    consumer_name TEXT NOT NULL,
    mark          TEXT NOT NULL,
    times         INTEGER NOT NULL,
    last_at       INTEGER NOT NULL,
    PRIMARY KEY (consumer_name, mark)
) STRICT, WITHOUT ROWID;

-- Events of ordered queues that wait for an earlier one of their key. A key is held while it has rows; the first is its head.
CREATE TABLE held_event (
    position      INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer_name TEXT NOT NULL,
    ordering_key  TEXT NOT NULL,
    event_id      TEXT NOT NULL,
    state         TEXT NOT NULL CHECK (state IN ('waiting', 'parked')),
    -- The one it waits for, from 1.
    attempt       INTEGER NOT NULL,
    due_at        INTEGER NOT NULL,
    error         TEXT NOT NULL,
    exchange      TEXT NOT NULL,
    routing_key   TEXT NOT NULL,
    -- Properties and headers, as JSON.
    head          BLOB NOT NULL,
    body          BLOB NOT NULL,
    held_at       INTEGER NOT NULL,
    lease_owner   TEXT,
    lease_until   INTEGER,
    UNIQUE (consumer_name, event_id)
) STRICT;
CREATE INDEX held_event_key ON held_event (consumer_name, ordering_key, position);
