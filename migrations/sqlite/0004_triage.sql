-- Triage: dead letters that can be found, grouped and sent again, and the operations that do it.

-- A message that is sent again as it was: the row has an id of its own, event_id is the event that the message carries.
ALTER TABLE event_outbox ADD COLUMN event_id TEXT;
-- Its properties and headers as JSON; body is the body.
ALTER TABLE event_outbox ADD COLUMN verbatim BLOB;
-- Opened again should this row die.
ALTER TABLE event_outbox ADD COLUMN dead_letter_id INTEGER;
CREATE INDEX event_outbox_again ON event_outbox (event_id, target_queue) WHERE event_id IS NOT NULL;

ALTER TABLE dead_letter ADD COLUMN aggregate_id TEXT;
ALTER TABLE dead_letter ADD COLUMN ordering_key TEXT;
-- The dead letter whose replay died here, and how often it was replayed before.
ALTER TABLE dead_letter ADD COLUMN replay_of INTEGER;
ALTER TABLE dead_letter ADD COLUMN replays INTEGER NOT NULL DEFAULT 0;
-- The event that was sent in its place, edited.
ALTER TABLE dead_letter ADD COLUMN replaced_by TEXT;
-- Why a replay could not be published; it is open again.
ALTER TABLE dead_letter ADD COLUMN replay_error TEXT;

-- People look at what is open, the newest first; dead_letter_dead_at is for the rest.
DROP INDEX dead_letter_fingerprint;
CREATE INDEX dead_letter_open ON dead_letter (dead_at) WHERE status = 'open';
CREATE INDEX dead_letter_open_queue ON dead_letter (queue, dead_at) WHERE status = 'open';
CREATE INDEX dead_letter_by_group ON dead_letter (fingerprint, dead_at);

-- What failed for the same reason, counted as it is collected and resolved, so that a page of groups counts nothing.
CREATE TABLE dead_letter_group (
    fingerprint   TEXT PRIMARY KEY,
    consumer_name TEXT,
    queue         TEXT NOT NULL,
    event_type    TEXT,
    reason        TEXT NOT NULL,
    error_class   TEXT,
    -- Of the first of them.
    error         TEXT NOT NULL,
    open          INTEGER NOT NULL,
    total         INTEGER NOT NULL,
    first_at      INTEGER NOT NULL,
    last_at       INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX dead_letter_group_open ON dead_letter_group (last_at, fingerprint) WHERE open > 0;
CREATE INDEX dead_letter_group_last ON dead_letter_group (last_at, fingerprint);

CREATE TABLE dead_letter_hour (
    fingerprint TEXT NOT NULL,
    hour        INTEGER NOT NULL,
    letters     INTEGER NOT NULL,
    PRIMARY KEY (fingerprint, hour)
) WITHOUT ROWID;

-- Whoever changes a dead letter, by whatever tool, changes the counts in the same transaction.
CREATE TRIGGER dead_letter_added AFTER INSERT ON dead_letter BEGIN
    INSERT INTO dead_letter_group VALUES (NEW.fingerprint, NEW.consumer_name, NEW.queue, NEW.event_type, NEW.reason,
            NEW.error_class, substr(NEW.error, 1, 500), NEW.status = 'open', 1, NEW.dead_at, NEW.dead_at)
        ON CONFLICT (fingerprint) DO UPDATE SET
            open = open + excluded.open, total = total + 1,
            first_at = min(first_at, excluded.first_at), last_at = max(last_at, excluded.last_at);
    INSERT INTO dead_letter_hour VALUES (NEW.fingerprint, NEW.dead_at - NEW.dead_at % 3600000000, 1)
        ON CONFLICT (fingerprint, hour) DO UPDATE SET letters = letters + 1;
END;
CREATE TRIGGER dead_letter_changed AFTER UPDATE OF status ON dead_letter
WHEN (OLD.status = 'open') <> (NEW.status = 'open') BEGIN
    UPDATE dead_letter_group SET open = open + iif(NEW.status = 'open', 1, -1) WHERE fingerprint = NEW.fingerprint;
END;

INSERT INTO dead_letter_group
    SELECT fingerprint, min(consumer_name), min(queue), min(event_type), min(reason), min(error_class),
           substr(min(error), 1, 500), count(*) FILTER (WHERE status = 'open'), count(*), min(dead_at), max(dead_at)
    FROM dead_letter GROUP BY fingerprint;
INSERT INTO dead_letter_hour
    SELECT fingerprint, dead_at - dead_at % 3600000000, count(*) FROM dead_letter GROUP BY 1, 2;

-- Operations: who runs one, and what it still has to do. An item goes when its work commits, so that what is left after a
-- crash is exactly what was not done; what was done is in the audit log.
ALTER TABLE operation ADD COLUMN skipped INTEGER NOT NULL DEFAULT 0;
ALTER TABLE operation ADD COLUMN reason TEXT;
ALTER TABLE operation ADD COLUMN lease_owner TEXT;
ALTER TABLE operation ADD COLUMN lease_until INTEGER;
CREATE TABLE operation_item (
    operation_id TEXT NOT NULL REFERENCES operation (id) ON DELETE CASCADE,
    seq          INTEGER NOT NULL,
    subject      TEXT NOT NULL,
    PRIMARY KEY (operation_id, seq)
) WITHOUT ROWID;
CREATE INDEX audit_log_subject ON audit_log (subject, id);

-- The last turn of everything that is done by schedule. Of all processes one takes a turn.
CREATE TABLE schedule (
    name    TEXT PRIMARY KEY,
    last_at INTEGER NOT NULL
) WITHOUT ROWID;
