-- The unique key of an entry's event begins with the event. Under a tenant that the statistics do not know yet, PostgreSQL took the index
-- of the numbers for as good as that of the events, and read all of the tenant's entries for every event of a batch.
ALTER TABLE postrider.ledger_entry
    DROP CONSTRAINT ledger_entry_source,
    ADD CONSTRAINT ledger_entry_source UNIQUE (source_event, tenant);
