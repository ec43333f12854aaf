-- The ledger: charts of accounts, journal entries, balances, periods, rates, rules, the chain and its checkpoints.
-- Every row has its tenant, and forced row-level security shows a transaction the rows of one tenant alone: the one it has
-- named by `SET LOCAL postrider.tenant = '…'`. Superusers and roles with BYPASSRLS see everything: do not run the ledger as one.
-- Amounts are whole minor units. Entries and lines are never updated or deleted.

-- Who keeps books here: names alone, so that an operator can walk them.
CREATE TABLE postrider.ledger_tenant (
    tenant    text        PRIMARY KEY CHECK (octet_length(tenant) BETWEEN 1 AND 128),
    opened_at timestamptz NOT NULL DEFAULT now()
);

-- The books of a tenant. Who posts locks this row: it is the tenant's sequencer, and the head of its chain.
CREATE TABLE postrider.ledger_book (
    tenant           text    PRIMARY KEY REFERENCES postrider.ledger_tenant,
    base_currency    text    NOT NULL CHECK (octet_length(base_currency) = 3),
    rounding_account text,
    retained_account text,
    rate_source      text    NOT NULL DEFAULT '',
    back_dated       text    NOT NULL DEFAULT 'refuse' CHECK (back_dated IN ('refuse', 'next_open')),
    max_entries      bigint,                                -- quota; absent: none
    version          bigint  NOT NULL DEFAULT 1,            -- grows with every change of what entries are made by
    head_number      bigint  NOT NULL DEFAULT 0,
    head_hash        bytea   NOT NULL DEFAULT decode(repeat('00', 32), 'hex') CHECK (octet_length(head_hash) = 32)
) WITH (fillfactor = 20);

CREATE TABLE postrider.ledger_account (
    tenant         text     NOT NULL,
    code           text     NOT NULL CHECK (octet_length(code) BETWEEN 1 AND 128),
    name           text     NOT NULL,
    type           text     NOT NULL CHECK (type IN ('asset', 'liability', 'equity', 'income', 'expense')),
    normal_side    smallint CHECK (normal_side IN (1, 2)),  -- absent: that of the type
    currency       text     CHECK (octet_length(currency) = 3),
    active         boolean  NOT NULL,
    opens_children boolean  NOT NULL,
    PRIMARY KEY (tenant, code)
);

-- Every version of a tenant's rules.
CREATE TABLE postrider.ledger_rules (
    tenant     text        NOT NULL,
    version    integer     NOT NULL CHECK (version > 0),
    document   text        NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, version)
);

CREATE TABLE postrider.ledger_rate (
    tenant text NOT NULL,
    source text NOT NULL,
    base   text NOT NULL CHECK (octet_length(base) = 3),
    quote  text NOT NULL CHECK (octet_length(quote) = 3),   -- one unit of quote is worth `rate` of base
    day    date NOT NULL,
    rate   text NOT NULL,                                   -- an exact decimal
    PRIMARY KEY (tenant, source, base, quote, day)
);

CREATE TABLE postrider.ledger_period (
    tenant    text NOT NULL,
    name      text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 64),
    starts_on date NOT NULL,
    ends_on   date NOT NULL,
    state     text NOT NULL CHECK (state IN ('open', 'closing', 'closed', 'locked')),
    PRIMARY KEY (tenant, name),
    CHECK (starts_on <= ends_on)
);

CREATE TABLE postrider.ledger_entry (
    tenant       text        NOT NULL,
    number       bigint      NOT NULL CHECK (number > 0),
    kind         smallint    NOT NULL CHECK (kind BETWEEN 1 AND 8),
    effective_on date        NOT NULL,
    posted_at    timestamptz NOT NULL,
    source_event text        NOT NULL CHECK (octet_length(source_event) BETWEEN 1 AND 128),
    payload_hash bytea       NOT NULL CHECK (octet_length(payload_hash) = 32),
    rule         text        NOT NULL,
    description  text        NOT NULL,
    metadata     text        NOT NULL,
    refers_to    bigint,
    hash         bytea       NOT NULL CHECK (octet_length(hash) = 32),
    PRIMARY KEY (tenant, number),
    -- Whatever an inbox has forgotten: an event is in the books once.
    CONSTRAINT ledger_entry_source UNIQUE (tenant, source_event)
);
-- An entry is reversed, settled or voided once.
CREATE UNIQUE INDEX ledger_entry_refers_to ON postrider.ledger_entry (tenant, refers_to) WHERE refers_to IS NOT NULL;

CREATE TABLE postrider.ledger_line (
    tenant      text     NOT NULL,
    entry       bigint   NOT NULL,
    line        smallint NOT NULL,
    account     text     NOT NULL,
    side        smallint NOT NULL CHECK (side IN (1, 2)),   -- 1 debit, 2 credit
    amount      bigint   NOT NULL CHECK (amount >= 0),
    currency    text     NOT NULL,
    base_amount bigint   NOT NULL CHECK (base_amount >= 0),
    rate        text,
    rate_source text,
    PRIMARY KEY (tenant, entry, line)
);
CREATE INDEX ledger_line_account ON postrider.ledger_line (tenant, account, entry);

-- What the lines add up to, changed once a batch and account.
CREATE TABLE postrider.ledger_balance (
    tenant          text   NOT NULL,
    account         text   NOT NULL,
    currency        text   NOT NULL,
    debits          bigint NOT NULL,
    credits         bigint NOT NULL,
    base_debits     bigint NOT NULL,
    base_credits    bigint NOT NULL,
    pending_debits  bigint NOT NULL,
    pending_credits bigint NOT NULL,
    PRIMARY KEY (tenant, account, currency)
) WITH (fillfactor = 50);

-- The same by day: what a balance was at the end of any day is a sum over few rows.
CREATE TABLE postrider.ledger_day (
    tenant       text   NOT NULL,
    account      text   NOT NULL,
    currency     text   NOT NULL,
    day          date   NOT NULL,
    debits       bigint NOT NULL,
    credits      bigint NOT NULL,
    base_debits  bigint NOT NULL,
    base_credits bigint NOT NULL,
    PRIMARY KEY (tenant, account, currency, day)
) WITH (fillfactor = 70);

-- Signed roots over runs of entries, published as anchors outside of this database.
CREATE TABLE postrider.ledger_checkpoint (
    tenant       text        NOT NULL,
    first_number bigint      NOT NULL,
    last_number  bigint      NOT NULL,
    root         bytea       NOT NULL CHECK (octet_length(root) = 32),
    head_hash    bytea       NOT NULL CHECK (octet_length(head_hash) = 32),
    made_at      timestamptz NOT NULL,
    public_key   bytea       NOT NULL CHECK (octet_length(public_key) = 32),
    signature    bytea       NOT NULL CHECK (octet_length(signature) = 64),
    PRIMARY KEY (tenant, last_number),
    CHECK (first_number <= last_number)
);

-- ── Nothing that was written is changed ──────────────────────────────────────────────────────────────────────────────
CREATE FUNCTION postrider.ledger_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is final: post a reversal instead', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END
$$;
CREATE TRIGGER ledger_is_final BEFORE UPDATE OR DELETE OR TRUNCATE ON postrider.ledger_entry
    FOR EACH STATEMENT EXECUTE FUNCTION postrider.ledger_is_final();
CREATE TRIGGER ledger_is_final BEFORE UPDATE OR DELETE OR TRUNCATE ON postrider.ledger_line
    FOR EACH STATEMENT EXECUTE FUNCTION postrider.ledger_is_final();
CREATE TRIGGER ledger_is_final BEFORE UPDATE OR DELETE OR TRUNCATE ON postrider.ledger_checkpoint
    FOR EACH STATEMENT EXECUTE FUNCTION postrider.ledger_is_final();
CREATE TRIGGER ledger_is_final BEFORE UPDATE OR DELETE OR TRUNCATE ON postrider.ledger_rules
    FOR EACH STATEMENT EXECUTE FUNCTION postrider.ledger_is_final();

-- ── One tenant at a time ─────────────────────────────────────────────────────────────────────────────────────────────
-- The setting is read once a statement, not once a row. Where it is absent, no row is seen and none may be written.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['book', 'account', 'rules', 'rate', 'period', 'entry', 'line', 'balance', 'day', 'checkpoint']
    LOOP
        EXECUTE format('ALTER TABLE postrider.ledger_%s ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE postrider.ledger_%s FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY one_tenant ON postrider.ledger_%s USING '
            '(tenant = (SELECT current_setting(''postrider.tenant'', true)))', name);
    END LOOP;
END
$$;
