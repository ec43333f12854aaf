-- Pull: what the tokens of leases are signed with, so that no process believes a token that none of them gave. One row, made by whoever
-- gives the first lease.
CREATE TABLE postrider.pull_key (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    key bytea NOT NULL CHECK (octet_length(key) = 32)
);
