-- What is final is not replaced. INSERT OR REPLACE deletes the row that is in its way, and SQLite fires no trigger for that unless a
-- connection asks for it: what is final may not be in anybody's way.
CREATE TRIGGER ledger_entry_replace BEFORE INSERT ON ledger_entry
WHEN EXISTS (SELECT 1 FROM ledger_entry WHERE tenant = NEW.tenant AND number = NEW.number)
  OR EXISTS (SELECT 1 FROM ledger_entry WHERE tenant = NEW.tenant AND source_event = NEW.source_event)
  OR EXISTS (SELECT 1 FROM ledger_entry WHERE tenant = NEW.tenant AND refers_to = NEW.refers_to AND refers_to IS NOT NULL)
BEGIN SELECT RAISE(ABORT, 'ledger_entry is final: there is an entry with this number, event or reference'); END;
CREATE TRIGGER ledger_line_replace BEFORE INSERT ON ledger_line
WHEN EXISTS (SELECT 1 FROM ledger_line WHERE tenant = NEW.tenant AND entry = NEW.entry AND line = NEW.line)
BEGIN SELECT RAISE(ABORT, 'ledger_line is final: post a reversal instead'); END;
CREATE TRIGGER ledger_checkpoint_replace BEFORE INSERT ON ledger_checkpoint
WHEN EXISTS (SELECT 1 FROM ledger_checkpoint WHERE tenant = NEW.tenant AND last_number = NEW.last_number)
BEGIN SELECT RAISE(ABORT, 'ledger_checkpoint is final'); END;
CREATE TRIGGER ledger_rules_replace BEFORE INSERT ON ledger_rules
WHEN EXISTS (SELECT 1 FROM ledger_rules WHERE tenant = NEW.tenant AND version = NEW.version)
BEGIN SELECT RAISE(ABORT, 'ledger_rules is final: add a new version instead'); END;

-- Income statements leave the closing entries of a year out.
CREATE INDEX ledger_entry_closing ON ledger_entry (tenant, number) WHERE kind = 6;
