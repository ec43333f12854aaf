-- A parked event names the dead letter that its key waits for. Others may have its event id: those of messages that contradict it.
ALTER TABLE postrider.held_event ADD COLUMN letter text;
