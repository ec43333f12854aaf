-- What may change after a declaration (policies), and arguments that the embedded broker only keeps, both as JSON.

ALTER TABLE broker_exchange ADD COLUMN policy TEXT CHECK (policy IS NULL OR json_valid(policy));
ALTER TABLE broker_queue ADD COLUMN policy TEXT CHECK (policy IS NULL OR json_valid(policy));
ALTER TABLE broker_queue ADD COLUMN arguments TEXT CHECK (arguments IS NULL OR json_valid(arguments));
