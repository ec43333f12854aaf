-- Who appends wakes relays also while others have transactions open that have appended. Of those that commit at the same time, two at most
-- notify, because PostgreSQL lets only one that does commit at a time. But two that stayed open for a minute after their INSERT kept everybody
-- else from it for as long, and a relay that polls found what these committed up to a second late. So the two turns are others five times a
-- second, and a transaction that has one asks for no other: it keeps that of the moment in which it appended first. A lock for each moment
-- of a long load would fill the one table of locks that a server has.
-- An outbox that was adopted gets this by `postrider db adopt`.
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
        DECLARE
            turn int := (date_part('epoch', clock_timestamp()) * 5)::bigint %% 1000000000 * 2;
        BEGIN
            INSERT INTO %1$I.%3$I (id, created_at) SELECT id, CASE WHEN created_at > now() + interval '24 hours'
                THEN %1$I.%4$I(created_at) ELSE created_at END FROM added;
            IF current_setting('postrider.woke', true) IS DISTINCT FROM 'yes'
                AND (pg_try_advisory_xact_lock(1886352244, turn) OR pg_try_advisory_xact_lock(1886352244, turn + 1))
            THEN
                PERFORM pg_notify('postrider_outbox', ''), set_config('postrider.woke', 'yes', true);
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
    PERFORM postrider.attend_outbox(known.schema_name, known.table_name) FROM postrider.outbox known
        WHERE known.partitioned AND to_regclass(format('%I.%I', known.schema_name, known.table_name)) IS NOT NULL;
END
$$;
