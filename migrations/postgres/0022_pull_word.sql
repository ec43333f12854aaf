-- Pull in several processes: what a worker said of a lease to a process that did not give it, for the one that did.
CREATE TABLE postrider.pull_word (
    no      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- The desk that gave the lease.
    desk    text NOT NULL,
    lease   text NOT NULL,
    said    text NOT NULL,
    said_at timestamptz NOT NULL DEFAULT now(),
    -- Whether the lease still ran and did it; nothing until its desk has answered.
    taken   boolean
);
CREATE INDEX pull_word_unanswered ON postrider.pull_word (desk, no) WHERE taken IS NULL;
