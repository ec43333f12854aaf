-- Triage: dead letters that can be found, grouped and sent again, and the operations that do it.

-- ── Outbox: messages that are sent again as they were ───────────────────────────────────────────────────────────────
-- Such a row has an id of its own; `event_id` is the event that its message carries, if it carries one. It goes to its
-- target_queue alone, and the audit counts it as a place where that event waits, never as another event.
ALTER TABLE postrider.event_outbox
    ADD COLUMN event_id       text CONSTRAINT event_id_has_1_to_128_bytes CHECK (octet_length(event_id) BETWEEN 1 AND 128),
    ADD COLUMN verbatim       bytea,                        -- properties and headers as JSON; `body` is the body
    ADD COLUMN dead_letter_id bigint,                       -- opened again should this row die
    ADD CONSTRAINT verbatim_goes_to_one_queue CHECK (verbatim IS NULL OR (target_queue IS NOT NULL AND body IS NOT NULL));
CREATE INDEX event_outbox_again ON postrider.event_outbox (event_id, target_queue) WHERE event_id IS NOT NULL;
-- Finds one event's row by the time that event_outbox_id has for it. Small, and all but free to keep.
CREATE INDEX event_outbox_created_at ON postrider.event_outbox USING brin (created_at);

-- ── Dead letters ────────────────────────────────────────────────────────────────────────────────────────────────────
ALTER TABLE postrider.dead_letter
    ADD COLUMN aggregate_id text,
    ADD COLUMN ordering_key text,
    ADD COLUMN replay_of    bigint,                         -- the dead letter whose replay died here
    ADD COLUMN replays      integer NOT NULL DEFAULT 0,     -- how often it was replayed before it died here
    ADD COLUMN replaced_by  text,                           -- the event that was sent in its place, edited
    ADD COLUMN replay_error text;                           -- why a replay could not be published; it is open again

UPDATE postrider.dead_letter
    SET fingerprint = left(md5(concat_ws('/', consumer_name, queue, event_type, reason, error_class)), 16)
    WHERE fingerprint IS NULL;
ALTER TABLE postrider.dead_letter ALTER COLUMN fingerprint SET NOT NULL;

-- People look at what is open, the newest first; dead_letter_dead_at is for the rest.
DROP INDEX postrider.dead_letter_queue;
DROP INDEX postrider.dead_letter_fingerprint;
CREATE INDEX dead_letter_open ON postrider.dead_letter (dead_at, id) WHERE status = 'open';
CREATE INDEX dead_letter_open_queue ON postrider.dead_letter (queue, dead_at, id) WHERE status = 'open';
CREATE INDEX dead_letter_by_group ON postrider.dead_letter (fingerprint, dead_at, id);

-- What failed for the same reason, counted as it is collected and resolved, so that a page of groups counts nothing.
CREATE TABLE postrider.dead_letter_group (
    fingerprint   text        PRIMARY KEY,
    consumer_name text,
    queue         text        NOT NULL,
    event_type    text,
    reason        text        NOT NULL,
    error_class   text,
    error         text        NOT NULL,                     -- of the first of them
    open          bigint      NOT NULL,
    total         bigint      NOT NULL,
    first_at      timestamptz NOT NULL,
    last_at       timestamptz NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX dead_letter_group_open ON postrider.dead_letter_group (last_at, fingerprint) WHERE open > 0;
CREATE INDEX dead_letter_group_last ON postrider.dead_letter_group (last_at, fingerprint);

CREATE TABLE postrider.dead_letter_hour (
    fingerprint text        NOT NULL,
    hour        timestamptz NOT NULL,
    letters     bigint      NOT NULL,
    PRIMARY KEY (fingerprint, hour)
) WITH (fillfactor = 70);

-- Whoever changes a dead letter, by whatever tool, changes the counts in the same transaction. In the order of fingerprints,
-- so that two transactions wait for each other instead of deadlocking.
CREATE FUNCTION postrider.dead_letter_added() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO postrider.dead_letter_group AS known
        SELECT fingerprint, min(consumer_name), min(queue), min(event_type), min(reason), min(error_class),
               left((array_agg(error ORDER BY id))[1], 500), count(*) FILTER (WHERE status = 'open'), count(*),
               min(dead_at), max(dead_at)
        FROM added GROUP BY fingerprint ORDER BY fingerprint
        ON CONFLICT (fingerprint) DO UPDATE SET
            open = known.open + EXCLUDED.open, total = known.total + EXCLUDED.total,
            first_at = least(known.first_at, EXCLUDED.first_at), last_at = greatest(known.last_at, EXCLUDED.last_at);
    INSERT INTO postrider.dead_letter_hour AS known
        SELECT fingerprint, date_trunc('hour', dead_at, 'UTC'), count(*) FROM added GROUP BY 1, 2 ORDER BY 1, 2
        ON CONFLICT (fingerprint, hour) DO UPDATE SET letters = known.letters + EXCLUDED.letters;
    RETURN NULL;
END
$$;
CREATE TRIGGER dead_letter_added AFTER INSERT ON postrider.dead_letter
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION postrider.dead_letter_added();

CREATE FUNCTION postrider.dead_letter_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    changed record;
BEGIN
    FOR changed IN
        SELECT fingerprint, sum(opened) AS opened FROM (
            SELECT fingerprint, count(*) AS opened FROM after_it WHERE status = 'open' GROUP BY fingerprint
            UNION ALL
            SELECT fingerprint, -count(*) FROM before_it WHERE status = 'open' GROUP BY fingerprint
        ) AS both_sides GROUP BY fingerprint HAVING sum(opened) <> 0 ORDER BY fingerprint
    LOOP
        UPDATE postrider.dead_letter_group SET open = open + changed.opened WHERE fingerprint = changed.fingerprint;
    END LOOP;
    RETURN NULL;
END
$$;
CREATE TRIGGER dead_letter_changed AFTER UPDATE ON postrider.dead_letter
    REFERENCING OLD TABLE AS before_it NEW TABLE AS after_it
    FOR EACH STATEMENT EXECUTE FUNCTION postrider.dead_letter_changed();

INSERT INTO postrider.dead_letter_group
    SELECT fingerprint, min(consumer_name), min(queue), min(event_type), min(reason), min(error_class),
           left((array_agg(error ORDER BY id))[1], 500), count(*) FILTER (WHERE status = 'open'), count(*),
           min(dead_at), max(dead_at)
    FROM postrider.dead_letter GROUP BY fingerprint;
INSERT INTO postrider.dead_letter_hour
    SELECT fingerprint, date_trunc('hour', dead_at, 'UTC'), count(*) FROM postrider.dead_letter GROUP BY 1, 2;

-- ── Operations ──────────────────────────────────────────────────────────────────────────────────────────────────────
ALTER TABLE postrider.operation
    ADD COLUMN skipped bigint NOT NULL DEFAULT 0,           -- items that needed nothing any more
    ADD COLUMN reason  text;                                -- why somebody did it

-- What an operation still has to do, in order. An item goes when its work commits, so that what is left after a crash is
-- exactly what was not done; what was done is in the audit log.
CREATE TABLE postrider.operation_item (
    operation_id uuid   NOT NULL REFERENCES postrider.operation (id) ON DELETE CASCADE,
    seq          bigint NOT NULL,
    subject      text   NOT NULL,
    PRIMARY KEY (operation_id, seq)
);
CREATE INDEX operation_unfinished ON postrider.operation (created_at) WHERE state IN ('planned', 'running');
CREATE INDEX audit_log_subject ON postrider.audit_log (subject, id);

-- The last turn of everything that is done by schedule. Of all processes one takes a turn.
CREATE TABLE postrider.schedule (
    name    text        PRIMARY KEY,
    last_at timestamptz NOT NULL
);
