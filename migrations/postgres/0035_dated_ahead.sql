-- A row that says it was written more than a day from now is refused when it is written. It lay in the default partition, and kept the
-- partition of its week from being made; to have an event published later, `available_at` is there. Nothing is changed about rows that are
-- there already: where one is in the way of a partition, `postrider outbox archive` and the log say what to do.
-- Whoever writes with a clock that is ahead has a day of room. Not a CHECK: that would also be asked when a row is marked as published, and
-- of partitions that join the archive, and its text could not say what to do.
-- The trigger of a partitioned outbox, as before, but that it looks at the times on its way through the rows, which costs next to nothing: in
-- hours, because an interval of days asks for the time zone, for every row. What it calls then lies beside it, so that its owner needs no right
-- on another schema.
CREATE OR REPLACE FUNCTION postrider.attend_outbox(schema_name text, table_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $make$
BEGIN
    EXECUTE format($sql$
        CREATE OR REPLACE FUNCTION %1$I.%2$I(created_at timestamptz) RETURNS timestamptz
        LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
        BEGIN
            RAISE EXCEPTION 'created_at is more than a day ahead: %%; leave it out, and set available_at to publish an event later',
                created_at USING ERRCODE = 'check_violation';
        END
        $body$ $sql$, schema_name, table_name || '_ahead');
    EXECUTE format($sql$
        CREATE OR REPLACE FUNCTION %1$I.%2$I() RETURNS trigger
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
        BEGIN
            INSERT INTO %1$I.%3$I (id, created_at) SELECT id, CASE WHEN created_at > now() + interval '24 hours'
                THEN %1$I.%4$I(created_at) ELSE created_at END FROM added;
            IF pg_try_advisory_xact_lock(1886352244, 0) OR pg_try_advisory_xact_lock(1886352244, 1) THEN
                PERFORM pg_notify('postrider_outbox', '');
            END IF;
            RETURN NULL;
        END
        $body$ $sql$, schema_name, table_name || '_added', table_name || '_id', table_name || '_ahead');
    IF EXISTS (SELECT FROM pg_trigger WHERE tgrelid = format('%I.%I', schema_name, table_name)::regclass
            AND tgname = table_name || '_added') THEN
        RETURN;
    END IF;
    EXECUTE format($sql$
        CREATE TRIGGER %2$I AFTER INSERT ON %1$I.%3$I
            REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION %1$I.%2$I() $sql$,
        schema_name, table_name || '_added', table_name);
END
$make$;

DO $$
BEGIN
    PERFORM postrider.attend_outbox(known.schema_name, known.table_name) FROM postrider.outbox known WHERE known.partitioned;
END
$$;

-- The function that publishes takes the name of an outbox's table without its schema, as the configuration does, and says which there are.
CREATE OR REPLACE FUNCTION postrider.publish(
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
    most      int  := COALESCE(NULLIF(current_setting('postrider.max_payload_bytes', true), ''), '262144');
BEGIN
    IF publish.type IS NULL OR position('.' IN publish.type) = 0 THEN
        RAISE EXCEPTION 'an event''s type has two words or more, with dots between them: %', publish.type
            USING HINT = 'For example shop.order.placed', ERRCODE = 'invalid_parameter_value';
    END IF;
    IF publish.payload IS NULL THEN
        RAISE EXCEPTION 'an event has a payload; for none, say ''{}''' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF octet_length(publish.payload::text) > most THEN
        RAISE EXCEPTION 'the payload has % bytes, more than the % allowed', octet_length(publish.payload::text), most
            USING HINT = 'Store the body elsewhere, such as in an object store, and send a reference to it',
                ERRCODE = 'program_limit_exceeded';
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
    -- Its whole name, or that of its table where no other outbox has it.
    SELECT * INTO known FROM postrider.outbox o WHERE o.name = publish.outbox OR o.table_name = publish.outbox
        AND NOT EXISTS (SELECT FROM postrider.outbox twin WHERE twin.table_name = o.table_name AND twin.name <> o.name);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no outbox %, or more than one; there are %', publish.outbox,
            (SELECT string_agg(o.name, ', ' ORDER BY o.name) FROM postrider.outbox o)
            USING HINT = 'Name it with its schema, such as public.my_outbox', ERRCODE = 'invalid_parameter_value';
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
