-- Several outbox tables in one database, claims that cost nothing for what is published, and `postrider.publish`.
-- The indexes are built while writers wait: on a large outbox, migrate at a quiet time.

-- ── Which tables are outboxes ───────────────────────────────────────────────────────────────────────────────────────
CREATE TABLE postrider.outbox (
    name        text        PRIMARY KEY,                    -- schema.table
    schema_name text        NOT NULL,
    table_name  text        NOT NULL,
    partitioned boolean     NOT NULL,                       -- false: adopted from somebody else, kept as it is
    created_at  timestamptz NOT NULL DEFAULT now(),
    maintained_at timestamptz,                              -- when partitions and retention were last looked after
    maintainer  text,                                       -- who does it now, and until when
    maintained_until timestamptz
);
INSERT INTO postrider.outbox (name, schema_name, table_name, partitioned)
VALUES ('postrider.event_outbox', 'postrider', 'event_outbox', true);

-- Each outbox has slots of its own.
ALTER TABLE postrider.outbox_slot
    ADD COLUMN outbox text NOT NULL DEFAULT 'postrider.event_outbox' REFERENCES postrider.outbox (name),
    DROP CONSTRAINT outbox_slot_pkey,
    ADD PRIMARY KEY (outbox, slot);
ALTER TABLE postrider.outbox_relay
    ADD COLUMN outbox text NOT NULL DEFAULT 'postrider.event_outbox',
    DROP CONSTRAINT outbox_relay_pkey,
    ADD PRIMARY KEY (outbox, relay);

-- ── What claims walk ────────────────────────────────────────────────────────────────────────────────────────────────
-- Rows that were never tried and have no time of their own, in order; and rows with a time of their own, by that time.
-- No index has published rows but the primary key and that of the aggregates: marking a row writes to two, not to five.
DROP INDEX postrider.event_outbox_claim;
DROP INDEX postrider.event_outbox_status;
CREATE INDEX event_outbox_new ON postrider.event_outbox (position)
    WHERE status = 'pending' AND available_at <= created_at;
CREATE INDEX event_outbox_timed ON postrider.event_outbox (available_at)
    WHERE status IN ('pending', 'failed') AND available_at > created_at;
CREATE INDEX event_outbox_status ON postrider.event_outbox (status, available_at) WHERE status <> 'published';

-- ── Making another outbox ───────────────────────────────────────────────────────────────────────────────────────────
-- Gives a table the trigger that registers ids and wakes relays. Ids live in a table of their own, because a unique index of
-- a partitioned table would have to contain created_at.
CREATE FUNCTION postrider.attend_outbox(schema_name text, table_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $make$
BEGIN
    EXECUTE format($sql$
        CREATE FUNCTION %1$I.%2$I() RETURNS trigger
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
        BEGIN
            INSERT INTO %1$I.%3$I (id, created_at) SELECT id, created_at FROM added;
            IF pg_try_advisory_xact_lock(1886352244, 0) OR pg_try_advisory_xact_lock(1886352244, 1) THEN
                PERFORM pg_notify('postrider_outbox', '');
            END IF;
            RETURN NULL;
        END
        $body$ $sql$, schema_name, table_name || '_added', table_name || '_id');
    EXECUTE format($sql$
        CREATE TRIGGER %2$I AFTER INSERT ON %1$I.%3$I
            REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION %1$I.%2$I() $sql$,
        schema_name, table_name || '_added', table_name);
END
$make$;

-- Makes an outbox of the same shape as postrider.event_outbox, with its own positions, ids and slots. Idempotent.
CREATE FUNCTION postrider.create_outbox(schema_name text, table_name text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $make$
DECLARE
    full_name text := schema_name || '.' || table_name;
BEGIN
    IF octet_length(table_name) > 40 THEN
        RAISE EXCEPTION 'an outbox''s table name has 40 bytes at most, so that its partitions can be named after it: %', table_name;
    END IF;
    IF EXISTS (SELECT FROM postrider.outbox o WHERE o.name = full_name) THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE SEQUENCE %I.%I AS bigint CACHE 1', schema_name, table_name || '_position');
    EXECUTE format('CREATE TABLE %I.%I (LIKE postrider.event_outbox INCLUDING DEFAULTS INCLUDING CONSTRAINTS '
        'INCLUDING GENERATED INCLUDING INDEXES) PARTITION BY RANGE (created_at)', schema_name, table_name);
    EXECUTE format('ALTER TABLE %1$I.%2$I ALTER COLUMN position SET DEFAULT nextval(%3$L)', schema_name, table_name,
        format('%I.%I', schema_name, table_name || '_position'));
    EXECUTE format('CREATE TABLE %1$I.%2$I PARTITION OF %1$I.%3$I DEFAULT', schema_name, table_name || '_default', table_name);
    EXECUTE format('CREATE TABLE %I.%I (id text PRIMARY KEY, created_at timestamptz NOT NULL)', schema_name, table_name || '_id');
    PERFORM postrider.attend_outbox(schema_name, table_name);
    INSERT INTO postrider.outbox (name, schema_name, table_name, partitioned) VALUES (full_name, schema_name, table_name, true);
    INSERT INTO postrider.outbox_slot (outbox, slot) SELECT full_name, generate_series(0, 63);
    RETURN true;
END
$make$;

-- ── Publishing with one SELECT ──────────────────────────────────────────────────────────────────────────────────────
-- A UUID v7: sorts by the time it was made.
CREATE FUNCTION postrider.new_id() RETURNS text
LANGUAGE sql VOLATILE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6),
        52, 1), 53, 1), 'hex')::uuid::text
$$;

-- Commits an event with whatever else the transaction writes, and returns its id:
--   SELECT postrider.publish('shop.order.placed', '{"total": "12.50"}', aggregate_id => '4711');
-- Runs with its owner's rights, so that a service needs no more than USAGE on the schema and EXECUTE on this function, and
-- can write nothing but new events.
CREATE FUNCTION postrider.publish(
    type           text,
    payload        jsonb,
    aggregate_id   text        DEFAULT NULL,
    group_id       text        DEFAULT NULL,
    subsidiary_id  text        DEFAULT NULL,
    ordering_key   text        DEFAULT NULL,                -- absent: that of the aggregate; '': no order at all
    id             text        DEFAULT NULL,
    available_at   timestamptz DEFAULT NULL,                -- not before this time
    occurred_at    timestamptz DEFAULT NULL,
    correlation_id text        DEFAULT NULL,
    causation_id   text        DEFAULT NULL,
    traceparent    text        DEFAULT NULL,
    tracestate     text        DEFAULT NULL,
    exchange       text        DEFAULT NULL,
    routing_key    text        DEFAULT NULL,
    target_queue   text        DEFAULT NULL,
    outbox         text        DEFAULT 'postrider.event_outbox'
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    event_id  text := COALESCE(publish.id, postrider.new_id());
    last_dot  int  := length(publish.type) - position('.' IN reverse(publish.type)) + 1;
    known     postrider.outbox;
BEGIN
    IF publish.type IS NULL OR position('.' IN publish.type) = 0 THEN
        RAISE EXCEPTION 'an event''s type has two words or more, with dots between them: %', publish.type
            USING HINT = 'For example shop.order.placed', ERRCODE = 'invalid_parameter_value';
    END IF;
    IF publish.payload IS NULL THEN
        RAISE EXCEPTION 'an event has a payload; for none, say ''{}''' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF publish.outbox = 'postrider.event_outbox' THEN
        INSERT INTO postrider.event_outbox (id, group_id, subsidiary_id, aggregate_type, aggregate_id, event_type, payload,
            available_at, occurred_at, ordering_key, causation_id, correlation_id, traceparent, tracestate, exchange,
            routing_key, target_queue)
        VALUES (event_id, publish.group_id, publish.subsidiary_id, left(publish.type, last_dot - 1), publish.aggregate_id,
            substr(publish.type, last_dot + 1), publish.payload, COALESCE(publish.available_at, now()),
            COALESCE(publish.occurred_at, now()), publish.ordering_key, publish.causation_id, publish.correlation_id,
            publish.traceparent, publish.tracestate, publish.exchange, publish.routing_key, publish.target_queue);
        RETURN event_id;
    END IF;
    SELECT * INTO known FROM postrider.outbox o WHERE o.name = publish.outbox;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no outbox %', publish.outbox
            USING HINT = 'SELECT name FROM postrider.outbox lists them', ERRCODE = 'invalid_parameter_value';
    END IF;
    EXECUTE format('INSERT INTO %I.%I (id, group_id, subsidiary_id, aggregate_type, aggregate_id, event_type, payload, '
        'available_at, occurred_at, ordering_key, causation_id, correlation_id, traceparent, tracestate, exchange, '
        'routing_key, target_queue) VALUES ($1%s, $2%s, $3%s, $4, $5%s, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)',
        known.schema_name, known.table_name,
        -- An adopted table may have columns of type uuid.
        postrider.outbox_cast(known, 'id'), postrider.outbox_cast(known, 'group_id'),
        postrider.outbox_cast(known, 'subsidiary_id'), postrider.outbox_cast(known, 'aggregate_id'))
    USING event_id, publish.group_id, publish.subsidiary_id, left(publish.type, last_dot - 1), publish.aggregate_id,
        substr(publish.type, last_dot + 1), publish.payload, COALESCE(publish.available_at, now()),
        COALESCE(publish.occurred_at, now()), publish.ordering_key, publish.causation_id, publish.correlation_id,
        publish.traceparent, publish.tracestate, publish.exchange, publish.routing_key, publish.target_queue;
    RETURN event_id;
END
$$;

-- The cast that a column of an outbox needs for text: '' or '::uuid'.
CREATE FUNCTION postrider.outbox_cast(known postrider.outbox, column_name text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN atttypid = 'uuid'::regtype THEN '::uuid' ELSE '' END FROM pg_attribute
    WHERE attrelid = format('%I.%I', known.schema_name, known.table_name)::regclass AND attname = column_name
$$;

REVOKE ALL ON FUNCTION postrider.attend_outbox(text, text), postrider.create_outbox(text, text),
    postrider.publish(text, jsonb, text, text, text, text, text, timestamptz, timestamptz, text, text, text, text, text, text,
        text, text) FROM PUBLIC;
