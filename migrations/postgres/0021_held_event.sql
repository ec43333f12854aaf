-- The unique key of a held event begins with the event. For a consumer that the statistics do not know yet, PostgreSQL took the index of
-- the keys for as good as that of the events, and read all that the consumer holds for every event that was let go.
ALTER TABLE postrider.held_event
    DROP CONSTRAINT held_event_consumer_name_event_id_key,
    ADD CONSTRAINT held_event_event UNIQUE (event_id, consumer_name);
