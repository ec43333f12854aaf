-- Marks events that are all new, and says whether they were. ON CONFLICT looks each one up first, and writes each twice (the row, and that it
-- stays), for the sake of duplicates, which are rare: a batch without any is spared that. With one among them nothing is marked.
-- Runs with its caller's rights.
CREATE FUNCTION postrider.inbox_mark(consumer text, ids text[], groups text[], hashes bytea[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO postrider.event_inbox (consumer_name, event_id, group_id, payload_hash)
        SELECT consumer, event_id, group_id, payload_hash
        FROM unnest(ids, groups, hashes) AS arrival (event_id, group_id, payload_hash);
    RETURN true;
EXCEPTION WHEN unique_violation THEN
    RETURN false;
END
$$;
