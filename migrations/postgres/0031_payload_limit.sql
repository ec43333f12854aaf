-- The function that publishes from any language keeps to the limit that the other ways have (limits.max_payload_bytes). It cannot read the
-- configuration: where that says otherwise, ALTER DATABASE … SET postrider.max_payload_bytes = … says it here.
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
