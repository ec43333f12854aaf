-- The ledger of a Postrider file. Amounts are whole minor units, days are counted from 1970-01-01, times are microseconds.

CREATE TABLE ledger_book (
    tenant           TEXT PRIMARY KEY,
    opened_at        INTEGER NOT NULL,
    base_currency    TEXT NOT NULL CHECK (length(base_currency) = 3),
    rounding_account TEXT,
    retained_account TEXT,
    rate_source      TEXT NOT NULL DEFAULT '',
    back_dated       TEXT NOT NULL DEFAULT 'refuse' CHECK (back_dated IN ('refuse', 'next_open')),
    max_entries      INTEGER,
    -- Grows with every change of what entries are made by.
    version          INTEGER NOT NULL DEFAULT 1,
    head_number      INTEGER NOT NULL DEFAULT 0,
    head_hash        BLOB NOT NULL DEFAULT (zeroblob(32)) CHECK (length(head_hash) = 32)
) WITHOUT ROWID;

CREATE TABLE ledger_account (
    tenant         TEXT NOT NULL,
    code           TEXT NOT NULL,
    name           TEXT NOT NULL,
    type           TEXT NOT NULL CHECK (type IN ('asset', 'liability', 'equity', 'income', 'expense')),
    normal_side    INTEGER CHECK (normal_side IN (1, 2)),
    currency       TEXT,
    active         INTEGER NOT NULL,
    opens_children INTEGER NOT NULL,
    PRIMARY KEY (tenant, code)
) WITHOUT ROWID;

CREATE TABLE ledger_rules (
    tenant     TEXT NOT NULL,
    version    INTEGER NOT NULL CHECK (version > 0),
    document   TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, version)
) WITHOUT ROWID;

-- One unit of quote is worth `rate` of base.
CREATE TABLE ledger_rate (
    tenant TEXT NOT NULL,
    source TEXT NOT NULL,
    base   TEXT NOT NULL,
    quote  TEXT NOT NULL,
    day    INTEGER NOT NULL,
    rate   TEXT NOT NULL,
    PRIMARY KEY (tenant, source, base, quote, day)
) WITHOUT ROWID;

CREATE TABLE ledger_period (
    tenant    TEXT NOT NULL,
    name      TEXT NOT NULL,
    starts_on INTEGER NOT NULL,
    ends_on   INTEGER NOT NULL,
    state     TEXT NOT NULL CHECK (state IN ('open', 'closing', 'closed', 'locked')),
    PRIMARY KEY (tenant, name),
    CHECK (starts_on <= ends_on)
) WITHOUT ROWID;

CREATE TABLE ledger_entry (
    tenant       TEXT NOT NULL,
    number       INTEGER NOT NULL CHECK (number > 0),
    kind         INTEGER NOT NULL CHECK (kind BETWEEN 1 AND 8),
    effective_on INTEGER NOT NULL,
    posted_at    INTEGER NOT NULL,
    source_event TEXT NOT NULL,
    payload_hash BLOB NOT NULL CHECK (length(payload_hash) = 32),
    rule         TEXT NOT NULL,
    description  TEXT NOT NULL,
    metadata     TEXT NOT NULL,
    refers_to    INTEGER,
    hash         BLOB NOT NULL CHECK (length(hash) = 32),
    PRIMARY KEY (tenant, number)
) WITHOUT ROWID;
-- Whatever an inbox has forgotten: an event is in the books once.
CREATE UNIQUE INDEX ledger_entry_source ON ledger_entry (tenant, source_event);
CREATE UNIQUE INDEX ledger_entry_refers_to ON ledger_entry (tenant, refers_to) WHERE refers_to IS NOT NULL;

CREATE TABLE ledger_line (
    tenant      TEXT NOT NULL,
    entry       INTEGER NOT NULL,
    line        INTEGER NOT NULL,
    account     TEXT NOT NULL,
    side        INTEGER NOT NULL CHECK (side IN (1, 2)),
    amount      INTEGER NOT NULL CHECK (amount >= 0),
    currency    TEXT NOT NULL,
    base_amount INTEGER NOT NULL CHECK (base_amount >= 0),
    rate        TEXT,
    rate_source TEXT,
    PRIMARY KEY (tenant, entry, line)
) WITHOUT ROWID;
CREATE INDEX ledger_line_account ON ledger_line (tenant, account, entry);

-- STRICT: SQLite would turn a sum that leaves 64 bits into a float.
CREATE TABLE ledger_balance (
    tenant          TEXT NOT NULL,
    account         TEXT NOT NULL,
    currency        TEXT NOT NULL,
    debits          INTEGER NOT NULL,
    credits         INTEGER NOT NULL,
    base_debits     INTEGER NOT NULL,
    base_credits    INTEGER NOT NULL,
    pending_debits  INTEGER NOT NULL,
    pending_credits INTEGER NOT NULL,
    PRIMARY KEY (tenant, account, currency)
) STRICT, WITHOUT ROWID;

CREATE TABLE ledger_day (
    tenant       TEXT NOT NULL,
    account      TEXT NOT NULL,
    currency     TEXT NOT NULL,
    day          INTEGER NOT NULL,
    debits       INTEGER NOT NULL,
    credits      INTEGER NOT NULL,
    base_debits  INTEGER NOT NULL,
    base_credits INTEGER NOT NULL,
    PRIMARY KEY (tenant, account, currency, day)
) STRICT, WITHOUT ROWID;

CREATE TABLE ledger_checkpoint (
    tenant       TEXT NOT NULL,
    first_number INTEGER NOT NULL,
    last_number  INTEGER NOT NULL,
    root         BLOB NOT NULL,
    head_hash    BLOB NOT NULL,
    made_at      INTEGER NOT NULL,
    public_key   BLOB NOT NULL,
    signature    BLOB NOT NULL,
    PRIMARY KEY (tenant, last_number)
) WITHOUT ROWID;

CREATE TRIGGER ledger_entry_update BEFORE UPDATE ON ledger_entry
BEGIN SELECT RAISE(ABORT, 'ledger_entry is final: post a reversal instead'); END;
CREATE TRIGGER ledger_entry_delete BEFORE DELETE ON ledger_entry
BEGIN SELECT RAISE(ABORT, 'ledger_entry is final: post a reversal instead'); END;
CREATE TRIGGER ledger_line_update BEFORE UPDATE ON ledger_line
BEGIN SELECT RAISE(ABORT, 'ledger_line is final: post a reversal instead'); END;
CREATE TRIGGER ledger_line_delete BEFORE DELETE ON ledger_line
BEGIN SELECT RAISE(ABORT, 'ledger_line is final: post a reversal instead'); END;
CREATE TRIGGER ledger_checkpoint_update BEFORE UPDATE ON ledger_checkpoint
BEGIN SELECT RAISE(ABORT, 'ledger_checkpoint is final'); END;
CREATE TRIGGER ledger_checkpoint_delete BEFORE DELETE ON ledger_checkpoint
BEGIN SELECT RAISE(ABORT, 'ledger_checkpoint is final'); END;
CREATE TRIGGER ledger_rules_update BEFORE UPDATE ON ledger_rules
BEGIN SELECT RAISE(ABORT, 'ledger_rules is final: add a new version instead'); END;
CREATE TRIGGER ledger_rules_delete BEFORE DELETE ON ledger_rules
BEGIN SELECT RAISE(ABORT, 'ledger_rules is final: add a new version instead'); END;
