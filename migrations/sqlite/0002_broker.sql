-- The embedded broker: what was declared, and what waits in its queues.

CREATE TABLE broker_exchange (
    name      TEXT PRIMARY KEY,
    kind      TEXT NOT NULL CHECK (kind IN ('topic', 'fanout', 'direct')),
    alternate TEXT
) STRICT, WITHOUT ROWID;

CREATE TABLE broker_queue (
    id                     INTEGER PRIMARY KEY,
    name                   TEXT NOT NULL UNIQUE,
    kind                   TEXT NOT NULL CHECK (kind IN ('quorum', 'classic')),
    -- In microseconds; NULL means for ever.
    message_ttl            INTEGER,
    dead_letter_exchange   TEXT,
    dead_letter_key        TEXT,
    single_active_consumer INTEGER NOT NULL
) STRICT;

CREATE TABLE broker_binding (
    exchange TEXT NOT NULL,
    queue    INTEGER NOT NULL REFERENCES broker_queue (id),
    key      TEXT NOT NULL,
    PRIMARY KEY (exchange, queue, key)
) STRICT, WITHOUT ROWID;

-- A message, stored once however many queues it is in.
CREATE TABLE broker_message (
    id          INTEGER PRIMARY KEY,
    -- The property of that name, for people who look for an event.
    message_id  TEXT,
    exchange    TEXT NOT NULL,
    routing_key TEXT NOT NULL,
    -- The other properties and the headers, as embedded/codec.rs writes them.
    head        BLOB NOT NULL,
    body        BLOB NOT NULL
) STRICT;

-- The place of a message in a queue. Which places are delivered and unsettled is known in memory only: a delivery costs no
-- write, and what a dead process held is delivered again.
CREATE TABLE broker_entry (
    queue       INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    message     INTEGER NOT NULL,
    -- 1 if the message has been in more than one place.
    shared      INTEGER NOT NULL,
    -- Microseconds since 1970.
    expires_at  INTEGER,
    -- Once dead-lettered: where it was published to last, and the headers that tell of its deaths.
    exchange    TEXT,
    routing_key TEXT,
    deaths      BLOB,
    PRIMARY KEY (queue, seq)
) STRICT, WITHOUT ROWID;

-- Whether a shared message is still in some queue.
CREATE INDEX broker_entry_shared ON broker_entry (message) WHERE shared = 1;
