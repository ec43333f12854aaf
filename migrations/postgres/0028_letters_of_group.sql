-- The open letters of one group, the newest first: a page of them reads as many entries as it shows. dead_letter_by_group has the resolved ones
-- too, so a page had to look at each letter, and without statistics PostgreSQL preferred to put all open letters through a bitmap.
-- The index is built while collectors wait; what they would store stays in its queue.
CREATE INDEX dead_letter_open_group ON postrider.dead_letter (fingerprint, dead_at, id) WHERE status = 'open';
