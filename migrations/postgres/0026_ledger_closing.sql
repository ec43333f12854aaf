-- Income statements leave the closing entries of a year out: this finds them without reading a tenant's other entries.
CREATE INDEX ledger_entry_closing ON postrider.ledger_entry (tenant, number) WHERE kind = 6;
