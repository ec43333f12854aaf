-- The schema `postrider`: outbox, inbox, dead letters, and what operating them needs.
-- Applied by `postrider db migrate` in one transaction; touches nothing outside this schema.

-- ── Outbox ──────────────────────────────────────────────────────────────────────────────────────────────────────────
-- Written in the caller's own transaction: by the Rust API, or by a plain INSERT of
--   id, aggregate_type, event_type, payload   (and whatever else below has no default).
-- A row that no relay could publish is refused here, at the INSERT, where somebody can still do something about it.

-- One counter for all partitions. CACHE 1, so that the order of positions is the order of inserts across sessions.
CREATE SEQUENCE postrider.event_outbox_position AS bigint CACHE 1;

CREATE TABLE postrider.event_outbox (
    position       bigint      NOT NULL DEFAULT nextval('postrider.event_outbox_position'),
    id             text        NOT NULL,
    group_id       text,
    subsidiary_id  text,
    aggregate_type text        NOT NULL,                    -- all words of the type but the last: ecommerce.order
    aggregate_id   text,
    event_type     text        NOT NULL,                    -- the last word: completed
    payload        jsonb,                                   -- what a plain INSERT gives
    body           bytea,                                   -- what the Rust API gives: kept byte for byte
    content_type   text        NOT NULL DEFAULT 'application/json',
    status         text        NOT NULL DEFAULT 'pending',  -- failed = failed at least once, still claimable
    available_at   timestamptz NOT NULL DEFAULT now(),
    attempts       integer     NOT NULL DEFAULT 0,
    created_at     timestamptz NOT NULL DEFAULT now(),
    occurred_at    timestamptz NOT NULL DEFAULT now(),
    ordering_key   text,                                    -- absent: that of the aggregate; '': no order at all
    causation_id   text,
    correlation_id text,
    traceparent    text,
    tracestate     text,
    headers        jsonb,
    exchange       text,                                    -- absent: the relay's own
    routing_key    text,                                    -- absent: aggregate_type.event_type
    target_queue   text,                                    -- one queue alone, past the exchange
    published_at   timestamptz,
    last_error     text,

    -- What the event keeps its order with, the same text as OrderingKey::of_aggregate.
    key  text GENERATED ALWAYS AS (
        NULLIF(COALESCE(ordering_key, COALESCE(group_id || '/', '') || aggregate_type || '/' || aggregate_id), '')
    ) STORED,
    -- Relays lease slots. All events of a key share one; those without a key are spread by their id.
    slot smallint NOT NULL GENERATED ALWAYS AS ((hashtextextended(COALESCE(
        NULLIF(COALESCE(ordering_key, COALESCE(group_id || '/', '') || aggregate_type || '/' || aggregate_id), ''),
        id), 0) & 63)::smallint) STORED,

    PRIMARY KEY (position, created_at),

    CONSTRAINT id_has_1_to_128_bytes             CHECK (octet_length(id) BETWEEN 1 AND 128),
    CONSTRAINT group_id_has_1_to_128_bytes       CHECK (octet_length(group_id) BETWEEN 1 AND 128),
    CONSTRAINT subsidiary_id_has_1_to_128_bytes  CHECK (octet_length(subsidiary_id) BETWEEN 1 AND 128),
    CONSTRAINT aggregate_id_has_1_to_128_bytes   CHECK (octet_length(aggregate_id) BETWEEN 1 AND 128),
    CONSTRAINT causation_id_has_1_to_128_bytes   CHECK (octet_length(causation_id) BETWEEN 1 AND 128),
    CONSTRAINT correlation_id_has_1_to_128_bytes CHECK (octet_length(correlation_id) BETWEEN 1 AND 128),
    CONSTRAINT ordering_key_has_600_bytes_at_most CHECK (octet_length(ordering_key) <= 600),
    CONSTRAINT type_has_255_bytes_at_most        CHECK (octet_length(aggregate_type) + octet_length(event_type) < 255),
    -- No empty word; no space, control character or wildcard, in any script. The last word alone has no dot.
    -- (?:…) because a group that captures makes the test four times as slow.
    CONSTRAINT aggregate_type_is_words_with_dots CHECK (aggregate_type ~
        '^[^.*#\u0001-\u0020\u007f-\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+(?:\.[^.*#\u0001-\u0020\u007f-\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+)*$'),
    CONSTRAINT event_type_is_one_word            CHECK (event_type ~
        '^[^.*#\u0001-\u0020\u007f-\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+$'),
    CONSTRAINT either_payload_or_body            CHECK (num_nonnulls(payload, body) = 1),
    CONSTRAINT status_is_known                   CHECK (status IN ('pending', 'published', 'failed', 'dead')),
    CONSTRAINT attempts_is_not_negative          CHECK (attempts >= 0),
    CONSTRAINT exchange_has_255_bytes_at_most    CHECK (octet_length(exchange) <= 255),
    CONSTRAINT routing_key_has_255_bytes_at_most CHECK (octet_length(routing_key) <= 255),
    CONSTRAINT target_queue_has_1_to_255_bytes   CHECK (octet_length(target_queue) BETWEEN 1 AND 255)
) PARTITION BY RANGE (created_at);

-- Everything, until partitions are made by time.
CREATE TABLE postrider.event_outbox_default PARTITION OF postrider.event_outbox DEFAULT;

-- Claims: the rows of a slot in order, and the heads that hold up their keys.
CREATE INDEX event_outbox_claim ON postrider.event_outbox (slot, position) WHERE status IN ('pending', 'failed');
CREATE INDEX event_outbox_failing ON postrider.event_outbox (slot, key, position)
    WHERE status IN ('failed', 'dead') AND key IS NOT NULL;
-- People: what is due, and the history of an aggregate.
CREATE INDEX event_outbox_status ON postrider.event_outbox (status, available_at);
CREATE INDEX event_outbox_aggregate ON postrider.event_outbox (aggregate_type, aggregate_id);

-- An id is committed once. A unique index of a partitioned table would have to contain created_at, so ids are kept apart.
CREATE TABLE postrider.event_outbox_id (
    id         text        PRIMARY KEY,
    created_at timestamptz NOT NULL
);

-- Once a statement: registers the ids, and wakes the relays when the transaction commits. Runs with its owner's rights,
-- so that a producer needs no more than INSERT on event_outbox.
-- PostgreSQL lets only one transaction that notifies commit at a time, through its wait for the disk: if every producer did,
-- all of them together would commit no faster than one. So at most two at a time do (the second, lest a long transaction
-- silence everybody); who commits beside them is found by the relays' next looks, which follow a notification closely.
CREATE FUNCTION postrider.event_outbox_added() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO postrider.event_outbox_id (id, created_at) SELECT id, created_at FROM added;
    IF pg_try_advisory_xact_lock(1886352244, 0) OR pg_try_advisory_xact_lock(1886352244, 1) THEN
        PERFORM pg_notify('postrider_outbox', '');
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER event_outbox_added AFTER INSERT ON postrider.event_outbox
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION postrider.event_outbox_added();

-- Who publishes what. Every time in these two is the database's own, so that no machine's clock can break a lease.
CREATE TABLE postrider.outbox_slot (
    slot        smallint PRIMARY KEY CHECK (slot BETWEEN 0 AND 63),
    owner       text,
    lease_until timestamptz,
    epoch       bigint   NOT NULL DEFAULT 0,  -- how often it changed hands
    CHECK ((owner IS NULL) = (lease_until IS NULL))
) WITH (fillfactor = 20);

INSERT INTO postrider.outbox_slot (slot) SELECT generate_series(0, 63);

CREATE TABLE postrider.outbox_relay (
    relay      text        PRIMARY KEY,
    seen_until timestamptz NOT NULL
) WITH (fillfactor = 50);

-- ── Inbox ───────────────────────────────────────────────────────────────────────────────────────────────────────────
-- What each consumer has applied. Never partitioned: its key is what makes an effect happen once.
CREATE TABLE postrider.event_inbox (
    consumer_name text        NOT NULL CHECK (octet_length(consumer_name) BETWEEN 1 AND 128),
    event_id      text        NOT NULL CHECK (octet_length(event_id) BETWEEN 1 AND 128),
    group_id      text,
    payload_hash  bytea       NOT NULL CHECK (octet_length(payload_hash) = 32),
    response      bytea,
    processed_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_name, event_id)
);
CREATE INDEX event_inbox_processed_at ON postrider.event_inbox (processed_at);

-- ── Dead letters ────────────────────────────────────────────────────────────────────────────────────────────────────
-- PostgreSQL keeps no NUL in text or jsonb. Where a message has one, these columns show U+FFFD and `exact` has the truth.
CREATE TABLE postrider.dead_letter (
    id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key             text        NOT NULL UNIQUE,
    event_id        text,
    event_type      text,
    group_id        text,
    consumer_name   text,
    queue           text        NOT NULL,
    exchange        text        NOT NULL,
    routing_key     text        NOT NULL,
    reason          text        NOT NULL,
    error           text        NOT NULL,
    error_class     text,
    fingerprint     text,
    attempts        integer     NOT NULL,
    first_failed_at timestamptz NOT NULL,
    dead_at         timestamptz NOT NULL,
    properties      jsonb       NOT NULL,
    headers         jsonb       NOT NULL,
    body            bytea       NOT NULL,
    exact           bytea,
    status          text        NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'replayed', 'discarded')),
    resolved_at     timestamptz,
    operation_id    uuid
);
CREATE INDEX dead_letter_dead_at ON postrider.dead_letter (dead_at, id);
CREATE INDEX dead_letter_queue ON postrider.dead_letter (queue, dead_at, id);
CREATE INDEX dead_letter_event ON postrider.dead_letter (event_id, queue) WHERE event_id IS NOT NULL;
CREATE INDEX dead_letter_fingerprint ON postrider.dead_letter (fingerprint, dead_at, id) WHERE fingerprint IS NOT NULL;

-- ── Consumers ───────────────────────────────────────────────────────────────────────────────────────────────────────
-- Those that ever started here, with how events reach them: what the audit goes by.
CREATE TABLE postrider.consumer (
    name          text        PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 128),
    registration  jsonb       NOT NULL,
    registered_at timestamptz NOT NULL DEFAULT now()
);

-- ── Operating it ────────────────────────────────────────────────────────────────────────────────────────────────────
CREATE TABLE postrider.operation (
    id          uuid        PRIMARY KEY,
    kind        text        NOT NULL,
    state       text        NOT NULL,
    plan        jsonb       NOT NULL,
    done        bigint      NOT NULL DEFAULT 0,
    total       bigint,
    rate        double precision,                           -- events a second at most; absent: no limit
    created_by  text        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    started_at  timestamptz,
    finished_at timestamptz,
    error       text,
    lease_owner text,
    lease_until timestamptz
);
CREATE INDEX operation_created_at ON postrider.operation (created_at);

CREATE TABLE postrider.audit_log (
    id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT now(),
    actor   text        NOT NULL,
    action  text        NOT NULL,
    subject text        NOT NULL,
    reason  text,
    detail  jsonb
);
CREATE INDEX audit_log_at ON postrider.audit_log (at, id);

CREATE TABLE postrider.api_token (
    id         uuid        PRIMARY KEY,
    name       text        NOT NULL,
    role       text        NOT NULL,
    tenant     text,
    hash       bytea       NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    revoked_at timestamptz
);
