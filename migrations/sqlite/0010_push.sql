-- Push: subscriptions made over the API, what signs their requests, and what their last attempts came to.

CREATE TABLE push_subscription (
    name       TEXT    PRIMARY KEY,
    settings   TEXT    NOT NULL,
    version    INTEGER NOT NULL DEFAULT 1,
    created_by TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT;

CREATE TABLE push_secret (
    "no"         INTEGER PRIMARY KEY AUTOINCREMENT,
    subscription TEXT    NOT NULL,
    secret       TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER
) STRICT;
CREATE INDEX push_secret_subscription ON push_secret (subscription, "no");

CREATE TABLE push_attempt (
    "no"          INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer_name TEXT    NOT NULL,
    event_id      TEXT    NOT NULL,
    attempt       INTEGER NOT NULL,
    at            INTEGER NOT NULL,
    took_ms       INTEGER NOT NULL,
    status        INTEGER,
    error         TEXT,
    answer        TEXT    NOT NULL
) STRICT;
CREATE INDEX push_attempt_consumer ON push_attempt (consumer_name, "no");
CREATE INDEX push_attempt_event ON push_attempt (consumer_name, event_id);
