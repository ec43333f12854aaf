-- An order and its event, in one transaction:  psql "$DATABASE_URL" -f publish.sql
\set ON_ERROR_STOP on
CREATE TABLE IF NOT EXISTS public.example_order (id text PRIMARY KEY, total numeric NOT NULL);

BEGIN;
INSERT INTO public.example_order VALUES ('sql-1', 12.50) ON CONFLICT DO NOTHING;
SELECT postrider.publish('shop.order.placed', jsonb_build_object('order', 'sql-1', 'total', '12.50'),
    aggregate_id => 'sql-1', group_id => 'acme') AS event_id;
COMMIT;

-- Scheduled: published in an hour.
SELECT postrider.publish('shop.order.reminded', '{"order": "sql-1"}', aggregate_id => 'sql-1', group_id => 'acme',
    available_at => now() + interval '1 hour') AS event_id;
