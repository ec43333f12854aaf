-- The index of an outbox's aggregates has the time of publishing behind them. A mark changes none of the other columns that are indexed, and
-- where that is so PostgreSQL takes every full page of an index for one that versions of the same rows have filled, and looks each of them up in
-- the table before it splits the page: a third of what a mark cost. With a column that the mark changes it does not. Whoever looks for an
-- aggregate finds it by the first two columns as before. The index is built while writers wait: on a large outbox, migrate at a quiet time.
DO $$
DECLARE
    known postrider.outbox;
    old   name;
BEGIN
    FOR known IN SELECT * FROM postrider.outbox WHERE partitioned LOOP
        SELECT c.relname INTO old FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
            WHERE i.indrelid = format('%I.%I', known.schema_name, known.table_name)::regclass
                AND pg_get_indexdef(i.indexrelid) LIKE '%(aggregate_type, aggregate_id)';
        CONTINUE WHEN old IS NULL;
        EXECUTE format('DROP INDEX %I.%I', known.schema_name, old);
        EXECUTE format('CREATE INDEX %I ON %I.%I (aggregate_type, aggregate_id, published_at)', old, known.schema_name, known.table_name);
    END LOOP;
END
$$;
