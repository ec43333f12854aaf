-- Published events that are sent again: the archive tells an event from a row that sent one again, as the outbox does.
ALTER TABLE event_outbox_archive ADD COLUMN event_id TEXT;
ALTER TABLE event_outbox_archive ADD COLUMN verbatim BLOB;
ALTER TABLE event_outbox_archive ADD COLUMN dead_letter_id INTEGER;
