-- A row whose times are beyond what a reader of them can hold (infinity, the year 30000) is refused when it is written: it would stop the
-- relay at every claim, and every list that has it. What is there already gets times that can be read. Every row is looked at twice while writers
-- wait: on a large outbox, migrate at a quiet time.
DO $$
DECLARE
    known postrider.outbox;
BEGIN
    FOR known IN SELECT * FROM postrider.outbox WHERE partitioned LOOP
        EXECUTE format($sql$
            UPDATE %1$I.%2$I SET
                created_at   = CASE WHEN created_at >= '0001-01-01Z' AND created_at < '9999-12-30Z' THEN created_at ELSE now() END,
                available_at = LEAST(GREATEST(available_at, '0001-01-01Z'), '9999-12-29Z'),
                occurred_at  = LEAST(GREATEST(occurred_at, '0001-01-01Z'), '9999-12-29Z')
            WHERE LEAST(created_at, available_at, occurred_at) < '0001-01-01Z'
               OR GREATEST(created_at, available_at, occurred_at) >= '9999-12-30Z' $sql$, known.schema_name, known.table_name);
        EXECUTE format($sql$
            ALTER TABLE %1$I.%2$I ADD CONSTRAINT times_are_of_years_1_to_9999 CHECK (
                created_at   >= '0001-01-01Z' AND created_at   < '9999-12-30Z' AND
                available_at >= '0001-01-01Z' AND available_at < '9999-12-30Z' AND
                occurred_at  >= '0001-01-01Z' AND occurred_at  < '9999-12-30Z') $sql$, known.schema_name, known.table_name);
    END LOOP;
END
$$;
