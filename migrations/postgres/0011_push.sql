-- Push: subscriptions made over the API, what signs their requests, and what their last attempts came to.

CREATE TABLE postrider.push_subscription (
    name       text        PRIMARY KEY,                 -- that of its consumer
    settings   jsonb       NOT NULL,                    -- where its events come from, where they go, and how
    version    bigint      NOT NULL DEFAULT 1,          -- grows with every change, so that who runs it takes it up
    created_by text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- In a table of their own, so that nothing that lists subscriptions can show them.
CREATE TABLE postrider.push_secret (
    subscription text        NOT NULL REFERENCES postrider.push_subscription ON DELETE CASCADE,
    no           bigint      GENERATED ALWAYS AS IDENTITY,
    secret       text        NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,                           -- set when another one takes its place
    PRIMARY KEY (subscription, no)
);

-- The last attempts at each endpoint. Never what was sent.
CREATE TABLE postrider.push_attempt (
    consumer_name text        NOT NULL,
    no            bigint      GENERATED ALWAYS AS IDENTITY,
    event_id      text        NOT NULL,
    attempt       integer     NOT NULL,
    at            timestamptz NOT NULL,
    took_ms       bigint      NOT NULL,
    status        integer,
    error         text,
    answer        text        NOT NULL,
    PRIMARY KEY (consumer_name, no)
);
CREATE INDEX push_attempt_event ON postrider.push_attempt (consumer_name, event_id);
