-- Pull: what the tokens of leases are signed with, so that none is believed that nobody gave, after a restart either. One row.
CREATE TABLE pull_key (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    key BLOB NOT NULL CHECK (length(key) = 32)
);
