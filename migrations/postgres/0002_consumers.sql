-- Consumers: paused by name, events that take the process down, events held behind an earlier one of their key.

-- A row while a consumer is paused; every process that runs it looks here.
CREATE TABLE postrider.consumer_control (
    consumer_name text        PRIMARY KEY CHECK (octet_length(consumer_name) BETWEEN 1 AND 128),
    paused_by     text        NOT NULL,
    reason        text        NOT NULL,
    since         timestamptz NOT NULL DEFAULT now()
);

-- How often handling of an event began and never ended. Only redelivered events ever come here; they leave again when they are
-- settled, and stay for a month when they took the process down so often that they were given up.
CREATE TABLE postrider.consumer_crash (
    consumer_name text        NOT NULL,
    mark          text        NOT NULL,
    times         integer     NOT NULL DEFAULT 1,
    last_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_name, mark)
);

-- Events of ordered queues that wait for an earlier one of their key. A key is held while it has rows; the first is its head.
CREATE TABLE postrider.held_event (
    position      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer_name text        NOT NULL,
    ordering_key  text        NOT NULL,
    event_id      text        NOT NULL,
    state         text        NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'parked')),
    attempt       integer     NOT NULL,                     -- the one it waits for, from 1
    due_at        timestamptz NOT NULL,
    error         text        NOT NULL DEFAULT '',
    exchange      text        NOT NULL,
    routing_key   text        NOT NULL,
    head          bytea       NOT NULL,                     -- properties and headers, as JSON; not jsonb, which refuses NUL
    body          bytea       NOT NULL,
    held_at       timestamptz NOT NULL DEFAULT now(),
    lease_owner   text,
    lease_until   timestamptz,
    UNIQUE (consumer_name, event_id)
);
CREATE INDEX held_event_key ON postrider.held_event (consumer_name, ordering_key COLLATE "C", position);
