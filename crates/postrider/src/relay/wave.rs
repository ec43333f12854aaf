//! A batch in waves: no two events of one ordering key are in flight together.

use std::collections::{HashMap, VecDeque};

use crate::envelope::OrderingKey;
use crate::store::OutboxRow;

/// Rows in the order they may be published. The next wave has the next row of every key whose last one was confirmed.
pub(super) struct Waves {
    free: Vec<OutboxRow>,
    keyed: HashMap<OrderingKey, VecDeque<OutboxRow>>,
}

impl Waves {
    /// Rows in the order of their positions.
    pub(super) fn new(rows: Vec<OutboxRow>) -> Self {
        let mut waves = Self { free: Vec::new(), keyed: HashMap::new() };
        for row in rows {
            match row.envelope.ordering_key.clone() {
                Some(key) => waves.keyed.entry(key).or_default().push_back(row),
                None => waves.free.push(row),
            }
        }
        waves
    }

    /// The rows that may be published together now.
    pub(super) fn next(&mut self) -> Option<Vec<OutboxRow>> {
        let mut wave = std::mem::take(&mut self.free);
        wave.extend(self.keyed.values_mut().filter_map(VecDeque::pop_front));
        self.keyed.retain(|_, rest| !rest.is_empty());
        (!wave.is_empty()).then_some(wave)
    }

    /// Leaves the rest of this row's key for a later claim.
    pub(super) fn block(&mut self, row: &OutboxRow) {
        if let Some(key) = &row.envelope.ordering_key {
            self.keyed.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::envelope::Event;
    use crate::store::RowId;

    fn row(position: i64, aggregate: Option<&str>) -> OutboxRow {
        let (clock, _) = Clock::manual(jiff::Timestamp::UNIX_EPOCH);
        let mut event = Event::new("order.changed").unwrap();
        if let Some(id) = aggregate {
            event = event.aggregate_id(id).unwrap();
        }
        OutboxRow {
            row: RowId { position, created_at: jiff::Timestamp::UNIX_EPOCH },
            envelope: event.into_envelope(&clock),
            exchange: None,
            routing_key: None,
            target_queue: None,
            attempts: 0,
            verbatim: None,
            dead_letter: None,
        }
    }

    fn positions(wave: Option<Vec<OutboxRow>>) -> Vec<i64> {
        let mut positions: Vec<_> = wave.unwrap_or_default().iter().map(|row| row.row.position).collect();
        positions.sort_unstable();
        positions
    }

    #[test]
    fn one_of_each_key_at_a_time_and_the_free_ones_at_once() {
        let mut waves = Waves::new(vec![
            row(1, Some("a")),
            row(2, None),
            row(3, Some("a")),
            row(4, Some("b")),
            row(5, None),
        ]);
        assert_eq!(positions(waves.next()), [1, 2, 4, 5]);
        assert_eq!(positions(waves.next()), [3]);
        assert!(waves.next().is_none());
    }

    #[test]
    fn a_failed_row_holds_back_its_key_alone() {
        let mut waves =
            Waves::new(vec![row(1, Some("a")), row(2, Some("a")), row(3, Some("b")), row(4, Some("b"))]);
        let first = waves.next().unwrap();
        waves.block(first.iter().find(|row| row.row.position == 1).unwrap());
        assert_eq!(positions(waves.next()), [4]);
    }
}
