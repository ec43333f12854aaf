-- A row whose INSERT names a position of 0 or less is refused when it is written: relays go through an outbox from its first position on, which
-- is 1, so it was taken and never published. What is there already gets a place of its own at the end, in the order it has, and is published.
-- Every row is looked at once while writers wait: on a large outbox, migrate at a quiet time.
DO $$
DECLARE
    known postrider.outbox;
BEGIN
    FOR known IN SELECT * FROM postrider.outbox WHERE partitioned LOOP
        EXECUTE format($sql$
            UPDATE %1$I.%2$I late SET position = fresh.place
            FROM (SELECT old.position, old.created_at, nextval(%3$L) AS place
                  FROM (SELECT position, created_at FROM %1$I.%2$I WHERE position <= 0 ORDER BY position, created_at) old) fresh
            WHERE late.position = fresh.position AND late.created_at = fresh.created_at $sql$,
            known.schema_name, known.table_name, format('%I.%I', known.schema_name, known.table_name || '_position'));
        EXECUTE format('ALTER TABLE %I.%I ADD CONSTRAINT position_is_positive CHECK (position > 0)',
            known.schema_name, known.table_name);
    END LOOP;
END
$$;
