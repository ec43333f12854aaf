-- Which relay streams an outbox. While one does, all slots are its own and the other relays stand by.
ALTER TABLE postrider.outbox
    ADD COLUMN streamer       text,
    ADD COLUMN streamer_until timestamptz,
    ADD COLUMN stream_slot    text;                         -- its replication slot, which ends with its connection
