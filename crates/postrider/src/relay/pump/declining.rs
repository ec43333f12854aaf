//! Rows that a queue did not take, though the broker is there: it is full, or has no leader for a moment.
//!
//! They go out again a few times from here, because an election is soon over and leaves no trace then. After that they wait in the store
//! like rows that failed, so that a queue that stays full holds up nothing but what goes there.

use std::collections::HashMap;
use std::time::Duration;

use super::super::outgoing::postponed;
use super::{Pump, Step};
use crate::migration::Delivered;
use crate::store::{Outbox, OutboxRow};

/// So often a row goes out again from here,
const TIMES: u32 = 3;
/// after this long, doubled each time.
const PAUSE: Duration = Duration::from_millis(500);
/// So many rows are remembered; beyond that, what was tried before waits as long as it may.
const REMEMBERED: usize = 100_000;
/// After so many more, the delay is as long as it gets.
const LONG: u32 = 3;

/// How often each row was declined, and how many wait here to go out again.
#[derive(Default)]
pub(super) struct Declined {
    times: HashMap<i64, u32>,
    waiting: usize,
    /// Some were forgotten: what was tried before may have been declined very often.
    forgot: bool,
}

impl Declined {
    /// The row was confirmed, or has another fate.
    pub(super) fn forget(&mut self, position: i64) {
        if !self.times.is_empty() {
            self.times.remove(&position);
        }
    }

    /// Whether the row waits here: not too often, and not with so many others that there is no room for those that flow. How often it
    /// was declined; where it does not wait here, beyond what it may have waited.
    fn waits_here(&mut self, position: i64, tried: bool, room: usize) -> Result<u32, u32> {
        if self.times.len() >= REMEMBERED {
            self.times.clear();
            self.forgot = true;
        }
        let before = if tried && self.forgot { TIMES + LONG } else { 0 };
        let times = self.times.entry(position).or_insert(before);
        *times += 1;
        if *times > TIMES || self.waiting >= room {
            return Err(times.saturating_sub(TIMES).max(1));
        }
        self.waiting += 1;
        Ok(*times)
    }
}

impl<S: Outbox> Pump<S> {
    /// What arrived on one side of a migration is recorded with the row: whoever tries it next need not send it there again.
    pub(super) fn decline(&mut self, rows: Vec<(OutboxRow, String, Option<Delivered>)>) {
        let room = self.relay.config.batch_size.max(1);
        let (mut waiting, mut most) = (Vec::new(), 0);
        let (mut postponed_now, mut first) = (0_usize, None);
        for (row, why, delivered) in rows {
            match self.declined.waits_here(row.row.position, row.attempts > 0, room) {
                Ok(times) => {
                    most = most.max(times);
                    waiting.push(row);
                }
                Err(times) => {
                    postponed_now += 1;
                    first.get_or_insert_with(|| (row.envelope.id.clone(), why.clone()));
                    let result = postponed(&row, why, times, &self.relay.config, &self.relay.clock);
                    self.fails(&row);
                    self.is_done(row, result, delivered);
                }
            }
        }
        // Once for all of them: behind a full queue there may be very many.
        if let Some((event_id, why)) = first {
            tracing::warn!(%event_id, %why, events = postponed_now, "a queue does not take events; others are published meanwhile");
        }
        if !waiting.is_empty() {
            let (clock, pause) = (self.relay.clock.clone(), PAUSE * 2_u32.pow(most - 1));
            self.start_here(async move {
                clock.sleep(pause).await;
                Step::Again(waiting)
            });
        }
    }

    pub(super) fn again(&mut self, rows: Vec<OutboxRow>) {
        self.declined.waiting = self.declined.waiting.saturating_sub(rows.len());
        self.go_out_again(rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_waits_here_a_few_times_and_then_in_the_store() {
        let mut declined = Declined::default();
        for times in 1..=TIMES {
            assert_eq!(declined.waits_here(7, false, 10), Ok(times));
        }
        for times in 1..=5 {
            assert_eq!(declined.waits_here(7, false, 10), Err(times), "ever longer");
        }
        declined.forget(7);
        assert_eq!(declined.waits_here(7, false, 10), Ok(1));
        // Where too many were remembered, one that was tried before goes back to the store at once.
        declined.forgot = true;
        assert_eq!(declined.waits_here(8, true, 10), Err(LONG + 1));
    }

    #[test]
    fn those_that_wait_leave_room_for_others() {
        let mut declined = Declined::default();
        let here: Vec<_> = (0..5).map(|position| declined.waits_here(position, false, 3).is_ok()).collect();
        assert_eq!(here, [true, true, true, false, false]);
    }
}
