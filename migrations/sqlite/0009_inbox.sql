-- How long the inbox remembers, and claims on effects outside the database.

-- What each consumer's inbox has forgotten: events applied before this time may be unknown.
CREATE TABLE inbox_memory (
    consumer_name    TEXT PRIMARY KEY,
    forgotten_before INTEGER NOT NULL
) WITHOUT ROWID;

-- Which file this is; a copy of it is the same one.
CREATE TABLE lineage (id TEXT NOT NULL);
INSERT INTO lineage (id) VALUES (lower(hex(randomblob(16))));

-- What is to happen once outside the database. Done once it has a response; free while it has neither that nor a lease.
CREATE TABLE claim_token (last INTEGER NOT NULL);
INSERT INTO claim_token (last) VALUES (0);
CREATE TABLE claim (
    scope        TEXT NOT NULL,
    "key"        TEXT NOT NULL,
    payload_hash BLOB NOT NULL,
    token        INTEGER NOT NULL,
    owner        TEXT NOT NULL,
    lease_until  INTEGER,
    response     BLOB,
    touched_at   INTEGER NOT NULL,
    PRIMARY KEY (scope, "key")
) WITHOUT ROWID;
CREATE INDEX claim_touched ON claim (touched_at);
