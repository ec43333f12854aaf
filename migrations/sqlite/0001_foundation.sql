-- The tables of a Postrider file. Times are whole microseconds since 1970, UTC.

-- Events that are committed and have to be published. Any program may INSERT the first columns; the rest has defaults.
CREATE TABLE event_outbox (
    -- The order in which events are published.
    position       INTEGER PRIMARY KEY AUTOINCREMENT,
    id             TEXT NOT NULL UNIQUE CHECK (length(CAST(id AS BLOB)) BETWEEN 1 AND 128),
    group_id       TEXT,
    subsidiary_id  TEXT,
    -- All words of the type but the last, and the last: 'ecommerce.order' and 'completed'.
    aggregate_type TEXT NOT NULL CHECK (length(aggregate_type) > 0),
    aggregate_id   TEXT,
    event_type     TEXT NOT NULL CHECK (length(event_type) > 0),
    -- JSON, or body and content_type for anything else.
    payload        TEXT CONSTRAINT payload_is_json CHECK (payload IS NULL OR json_valid(payload)),
    body           BLOB,
    content_type   TEXT,
    -- pending, published, failed (at least once, still tried), dead (given up; its key is parked behind it).
    status         TEXT NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'published', 'failed', 'dead')),
    -- Not before this time; 0 means at once.
    available_at   INTEGER NOT NULL DEFAULT 0 CHECK (typeof(available_at) = 'integer'),
    attempts       INTEGER NOT NULL DEFAULT 0,
    created_at     INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000)
                   CHECK (typeof(created_at) = 'integer'),
    occurred_at    INTEGER CHECK (typeof(occurred_at) IN ('integer', 'null')),
    -- Events of one key keep their order: NULL means that of the aggregate, '' means none.
    ordering_key   TEXT,
    "key"          TEXT GENERATED ALWAYS AS (
        NULLIF(COALESCE(ordering_key, COALESCE(group_id || '/', '') || aggregate_type || '/' || aggregate_id), '')
    ) VIRTUAL,
    -- Lanes divide the rows by it. Keys differ most in their last characters; a row without a key goes by its position.
    slot           INTEGER GENERATED ALWAYS AS (
        CASE WHEN "key" IS NULL THEN position
             ELSE length("key") + unicode(substr("key", -1)) + 31 * coalesce(unicode(substr("key", -2, 1)), 0)
                  + 961 * coalesce(unicode(substr("key", -3, 1)), 0) + 29791 * coalesce(unicode(substr("key", -4, 1)), 0)
        END
    ) VIRTUAL,
    causation_id   TEXT,
    correlation_id TEXT,
    traceparent    TEXT,
    tracestate     TEXT,
    headers        TEXT CHECK (headers IS NULL OR json_valid(headers)),
    -- Where it goes, if not to the outbox's own exchange by its type.
    exchange       TEXT,
    routing_key    TEXT,
    target_queue   TEXT,
    published_at   INTEGER,
    last_error     TEXT,
    CONSTRAINT payload_or_body CHECK (payload IS NOT NULL OR body IS NOT NULL)
);

-- What a claim walks: only rows that are still to be published are in it, with all that decides whether they are due.
CREATE INDEX event_outbox_waiting ON event_outbox (position, available_at, slot, "key")
    WHERE status IN ('pending', 'failed');
-- What holds back the rest of a key.
CREATE INDEX event_outbox_parked ON event_outbox ("key", position) WHERE status IN ('failed', 'dead');
CREATE INDEX event_outbox_aggregate ON event_outbox (aggregate_type, aggregate_id);
CREATE INDEX event_outbox_published ON event_outbox (published_at) WHERE status = 'published';

-- Events that a consumer has applied.
CREATE TABLE event_inbox (
    consumer_name TEXT NOT NULL,
    event_id      TEXT NOT NULL,
    group_id      TEXT,
    payload_hash  BLOB NOT NULL,
    response      BLOB,
    processed_at  INTEGER NOT NULL,
    PRIMARY KEY (consumer_name, event_id)
) WITHOUT ROWID;
CREATE INDEX event_inbox_processed ON event_inbox (processed_at);

-- Messages that nobody could handle, with everything needed to send them again.
CREATE TABLE dead_letter (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    -- Unique for this death: the same when the broker delivers it again.
    "key"           TEXT NOT NULL UNIQUE,
    event_id        TEXT,
    event_type      TEXT,
    group_id        TEXT,
    consumer_name   TEXT,
    queue           TEXT NOT NULL,
    exchange        TEXT NOT NULL,
    routing_key     TEXT NOT NULL,
    reason          TEXT NOT NULL,
    error           TEXT NOT NULL,
    error_class     TEXT,
    -- Groups what failed for the same reason.
    fingerprint     TEXT NOT NULL,
    attempts        INTEGER NOT NULL,
    first_failed_at INTEGER NOT NULL,
    dead_at         INTEGER NOT NULL,
    properties      TEXT NOT NULL CHECK (json_valid(properties)),
    headers         TEXT NOT NULL CHECK (json_valid(headers)),
    body            BLOB NOT NULL,
    status          TEXT NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'replayed', 'discarded')),
    resolved_at     INTEGER,
    operation_id    TEXT
);
CREATE INDEX dead_letter_event ON dead_letter (event_id, queue);
CREATE INDEX dead_letter_fingerprint ON dead_letter (fingerprint, id) WHERE status = 'open';
CREATE INDEX dead_letter_dead_at ON dead_letter (dead_at);

-- Replays, migrations and other long work, with their progress.
CREATE TABLE operation (
    id          TEXT PRIMARY KEY,
    kind        TEXT NOT NULL,
    state       TEXT NOT NULL,
    plan        TEXT NOT NULL CHECK (json_valid(plan)),
    done        INTEGER NOT NULL DEFAULT 0,
    total       INTEGER NOT NULL DEFAULT 0,
    rate        REAL,
    created_by  TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    started_at  INTEGER,
    finished_at INTEGER,
    error       TEXT
) WITHOUT ROWID;
CREATE INDEX operation_created ON operation (created_at);

-- Who changed what, and why.
CREATE TABLE audit_log (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    at      INTEGER NOT NULL,
    actor   TEXT NOT NULL,
    action  TEXT NOT NULL,
    subject TEXT NOT NULL,
    reason  TEXT,
    detail  TEXT CHECK (detail IS NULL OR json_valid(detail))
);

-- Access to the HTTP API. Only a hash of the token is kept.
CREATE TABLE api_token (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    role       TEXT NOT NULL CHECK (role IN ('viewer', 'operator', 'admin', 'metrics')),
    tenant     TEXT,
    hash       BLOB NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER
) WITHOUT ROWID;

-- The consumers that have ever started here, with the topology they were started with.
CREATE TABLE consumer (
    name          TEXT PRIMARY KEY,
    registration  TEXT NOT NULL CHECK (json_valid(registration)),
    registered_at INTEGER NOT NULL
) WITHOUT ROWID;
