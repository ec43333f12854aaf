-- Published events that are sent again, to one queue or to their exchange: a row that has a message as it is may name either.
ALTER TABLE postrider.event_outbox DROP CONSTRAINT verbatim_goes_to_one_queue;
-- The archive has the rules of the outbox, where there is one.
ALTER TABLE IF EXISTS postrider.event_outbox_archive DROP CONSTRAINT IF EXISTS verbatim_goes_to_one_queue;
