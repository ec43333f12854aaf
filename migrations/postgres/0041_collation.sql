-- Keys are compared by their bytes, whatever order the database has for words. In the order of a language a comparison takes several times as
-- long, and an upgrade of the system's library may change that order under an index that was built by it.
-- This is for a schema that is made now. One that is in use stays as it is: it works the same, and to alter its columns would build large
-- indexes while writers wait, and break the prepared statements of whoever runs. Left out, too, are outbox tables: to alter what their
-- generated columns are made of, these would have to be taken away and written anew.
DO $$
DECLARE
    -- A column that a policy names cannot be altered.
    without text[] := ARRAY(SELECT format('DROP POLICY %I ON %I.%I', policyname, schemaname, tablename)
        FROM pg_policies WHERE schemaname = 'postrider');
    again text[] := ARRAY(SELECT format('CREATE POLICY %I ON %I.%I USING (%s)', policyname, schemaname, tablename, qual)
        FROM pg_policies WHERE schemaname = 'postrider');
    changes text[] := ARRAY(
        SELECT format('ALTER TABLE %s %s', i.indrelid::regclass,
            string_agg(DISTINCT format('ALTER COLUMN %I TYPE text COLLATE "C"', a.attname), ', '))
        FROM pg_index i
        JOIN pg_class c ON c.oid = i.indrelid AND c.relkind = 'r' AND NOT c.relispartition
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
            AND a.atttypid = 'text'::regtype AND a.attcollation = 'pg_catalog."default"'::regcollation
        WHERE c.relnamespace = 'postrider'::regnamespace
            AND NOT EXISTS (SELECT FROM pg_attribute g WHERE g.attrelid = i.indrelid AND g.attgenerated <> '')
        GROUP BY i.indrelid);
    statement text;
BEGIN
    IF EXISTS (SELECT FROM postrider.schema_version WHERE applied_at < now()) THEN
        RETURN;
    END IF;
    FOREACH statement IN ARRAY without || changes || again LOOP
        EXECUTE statement;
    END LOOP;
END
$$;

-- Further outboxes get a table of ids like that of the first.
CREATE OR REPLACE FUNCTION postrider.create_outbox(schema_name text, table_name text) RETURNS boolean
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
    EXECUTE format('CREATE TABLE %I.%I (LIKE postrider.event_outbox_id INCLUDING INDEXES)', schema_name, table_name || '_id');
    PERFORM postrider.attend_outbox(schema_name, table_name);
    INSERT INTO postrider.outbox (name, schema_name, table_name, partitioned) VALUES (full_name, schema_name, table_name, true);
    INSERT INTO postrider.outbox_slot (outbox, slot) SELECT full_name, generate_series(0, 63);
    RETURN true;
END
$make$;
