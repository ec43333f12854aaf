//! Where a relay reads in the outbox, so that what it has done with costs nothing any more.
//!
//! Positions are given out before they are committed, so a row may appear behind others that were read long ago. Two
//! places follow from that. `ahead` is how far was read: a relay that has much to do goes on from there. `low` is the
//! low-water mark: nothing new can appear at or before it, because every transaction that was writing when the outbox
//! reached it has ended. Looks begin there, past the remains of all that was published, even when a long transaction
//! elsewhere keeps the database from clearing them away. As a net, everything is looked at once a minute.
//!
//! A row that was read ahead may have been written after one that appeared behind: if both have the same key, the other goes
//! first. So rows with keys that were read ahead wait for a look from the low-water mark ([`Seen`]).
//!
//! Pure: it is told the time and what was found.

use std::time::Duration;

use jiff::Timestamp;

use super::flow::Flow;
use crate::store::{Ask, Horizon, OutboxRow, Wanted};

/// However busy it is, look for rows that were committed late this often; and so often while rows with keys wait for it, unless
/// the look itself takes long.
const LATE: Duration = Duration::from_millis(100);
const UNSURE: Duration = Duration::from_millis(20);
/// And for rows whose time has come.
const TIMED: Duration = Duration::from_millis(250);
/// And at everything.
const NET: Duration = Duration::from_mins(1);
/// Older partitions are left to the net: a transaction that takes longer than this before it writes is rare.
const OLDEST: Duration = Duration::from_hours(24);

/// How far a relay has read.
#[derive(Default)]
pub(super) struct Reading {
    /// Rows appear in the order of their positions, so nothing appears behind what was read.
    in_order: bool,
    low: i64,
    since: Option<Timestamp>,
    ahead: i64,
    /// The last look found as much as it asked for.
    more: bool,
    looked_at: Option<Duration>,
    /// How long the last look from the low-water mark took.
    look_took: Duration,
    timed_at: Option<Duration>,
    net_at: Option<Duration>,
    /// The next mark, once its writers have ended.
    candidate: Option<Horizon>,
    horizon: Option<(i64, Timestamp)>,
    under_way: Option<UnderWay>,
    /// As many timed rows are asked for now.
    timed_limit: Option<usize>,
    /// Timed rows would be looked for again at once: new ones have their turn first.
    timed_last: bool,
}

/// A claim that was asked and not answered yet.
struct UnderWay {
    at: Duration,
    limit: usize,
    from_low: bool,
    horizon: Option<(i64, Timestamp)>,
    /// Meanwhile it turned out that rows after this position, written since this time, have to be read again.
    again: Option<(i64, Option<Timestamp>)>,
}

/// What the rows of a claim say of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nothing: they have a time of their own.
    Timed,
    /// Nothing of what was read before.
    Ahead,
    /// Up to this position there is nothing else.
    All(i64),
}

impl Reading {
    /// From the beginning of an outbox whose rows appear in the order of their positions, or do not.
    pub(super) fn new(in_order: bool) -> Self {
        Self { in_order, ..Self::default() }
    }

    /// All that can still appear is after this position.
    pub(super) fn low(&self) -> i64 {
        self.low
    }

    /// Whether it is time for a look from the low-water mark, because rows wait for it.
    pub(super) fn is_unsure_due(&self, now: Duration) -> bool {
        self.looked_at.is_none_or(|at| now >= at + UNSURE.max(4 * self.look_took))
    }

    /// Whether there is anything to ask for though nothing was announced.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        let since = |at: Option<Duration>, interval| at.is_none_or(|at| now >= at + interval);
        self.more || since(self.timed_at, TIMED) || since(self.net_at, NET)
    }

    /// Whether the last look found as much as it asked for, or something has to be read again.
    pub(super) fn has_more(&self) -> bool {
        self.more
    }

    /// Whether the claim under way began at the low-water mark.
    pub(super) fn is_from_low(&self) -> bool {
        self.under_way.as_ref().is_some_and(|asked| asked.from_low)
    }

    /// The next look for new rows begins at the low-water mark, and is due.
    pub(super) fn look_from_low(&mut self) {
        self.more = true;
        self.looked_at = None;
    }

    /// What to ask for now; `sure` if rows wait for a look from the low-water mark.
    pub(super) fn ask(&mut self, now: Duration, limit: usize, sure: bool, flow: &Flow) -> Ask {
        let ask =
            |wanted| Ask { limit, wanted, held: None, in_hand: flow.positions(), without: flow.crowded() };
        if !self.timed_last && self.timed_at.is_none_or(|at| now >= at + TIMED) {
            self.timed_at = Some(now);
            self.timed_limit = Some(limit);
            return ask(Wanted::Timed);
        }
        self.timed_last = false;
        if self.net_at.is_none_or(|at| now >= at + NET) {
            self.net_at = Some(now);
            self.start_over();
        }
        let from_low = sure || !self.more || self.looked_at.is_none_or(|at| now >= at + LATE);
        if from_low {
            self.looked_at = Some(now);
        }
        self.under_way = Some(UnderWay { at: now, limit, from_low, horizon: self.horizon, again: None });
        ask(Wanted::New { after: if from_low { self.low } else { self.ahead }, since: self.since })
    }

    /// What was found.
    pub(super) fn found(&mut self, now: Duration, rows: &[OutboxRow]) -> Seen {
        if let Some(limit) = self.timed_limit.take() {
            // There are more of them.
            if rows.len() >= limit {
                self.timed_at = None;
            }
            // However many there are, and however long they take to find, new ones have their turn.
            self.timed_last = self.timed_at.is_none_or(|at| now >= at + TIMED);
            return Seen::Timed;
        }
        let Some(asked) = self.under_way.take() else { return Seen::Ahead };
        let last = rows.last().map_or(0, |row| row.row.position);
        let mut seen = Seen::Ahead;
        self.more = rows.len() >= asked.limit;
        self.ahead = self.ahead.max(last);
        if self.in_order {
            self.low = self.low.max(self.ahead);
        }
        let read_to = if self.more { last } else { i64::MAX };
        if asked.from_low {
            self.look_took = now.saturating_sub(asked.at);
            seen = Seen::All(read_to);
        }
        if asked.from_low
            && let Some((position, at)) = asked.horizon
        {
            self.low = self.low.max(position.min(read_to));
            if !self.more {
                self.since = at.checked_sub(OLDEST).ok();
            }
        }
        if let Some((after, since)) = asked.again {
            self.read_again(after, since);
        }
        seen
    }

    /// The claim was not answered.
    pub(super) fn failed(&mut self) {
        // Where only these cannot be looked for, new ones go on.
        self.timed_last = self.timed_limit.take().is_some();
        if let Some(UnderWay { again: Some((after, since)), .. }) = self.under_way.take() {
            self.read_again(after, since);
        }
        self.more = true;
    }

    /// Rows after this position were left out, and may go now. They follow a row that was written then, perhaps in a partition that is old by
    /// now: without them the younger ones would go first.
    pub(super) fn again(&mut self, after: i64, written: Timestamp) {
        self.read_again(after, written.checked_sub(OLDEST).ok());
    }

    /// Everything has to be read again: slots were taken over.
    pub(super) fn start_over(&mut self) {
        self.read_again(0, None);
    }

    /// Rows after this position have to be read again, as far as they were written since then; absent, all of them.
    pub(super) fn read_again(&mut self, after: i64, since: Option<Timestamp>) {
        self.low = self.low.min(after);
        self.ahead = self.ahead.min(after);
        // None is all there is, and less than any time.
        self.since = self.since.min(since);
        self.more = true;
        self.looked_at = None;
        if let Some(asked) = &mut self.under_way {
            let (other, at) = asked.again.unwrap_or((after, since));
            asked.again = Some((other.min(after), at.min(since)));
        }
    }

    /// How far the outbox is written, and by whom. The mark rises to the last such point whose writers have all ended.
    pub(super) fn see(&mut self, seen: Horizon) {
        let done = self
            .candidate
            .as_ref()
            .is_none_or(|candidate| !candidate.writers.iter().any(|writer| seen.writers.contains(writer)));
        if done && let Some(passed) = self.candidate.replace(seen) {
            self.horizon = Some((passed.position, passed.at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::tests::row;

    const SECOND: Duration = Duration::from_secs(1);

    /// The next ask for new rows, past those for timed ones.
    fn new(reading: &mut Reading, now: Duration) -> i64 {
        loop {
            match reading.ask(now, 10, false, &Flow::new(10)).wanted {
                Wanted::New { after, .. } => return after,
                _ => _ = reading.found(SECOND, &[]),
            }
        }
    }

    fn rows(positions: std::ops::RangeInclusive<i64>) -> Vec<OutboxRow> {
        positions.map(row).collect()
    }

    fn horizon(position: i64, writers: &[&str]) -> Horizon {
        Horizon {
            position,
            at: Timestamp::UNIX_EPOCH,
            log: crate::store::LogPosition::default(),
            writers: writers.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn a_full_claim_is_followed_by_the_next_rows() {
        let mut reading = Reading::default();
        assert_eq!(new(&mut reading, SECOND), 0);
        reading.found(SECOND, &rows(1..=10));
        assert!(reading.is_due(SECOND));
        assert_eq!(new(&mut reading, SECOND), 10);
        reading.found(SECOND, &rows(11..=12));
        assert!(!reading.is_due(SECOND), "now it waits to be told");
        assert_eq!(new(&mut reading, SECOND), 0, "and then looks for late commits too");
    }

    #[test]
    fn where_rows_appear_in_order_what_was_read_is_not_looked_at_again() {
        let mut reading = Reading::new(true);
        new(&mut reading, SECOND);
        reading.found(SECOND, &rows(1..=5));
        assert_eq!(new(&mut reading, SECOND), 5);
        reading.again(2, Timestamp::UNIX_EPOCH);
        reading.found(SECOND, &rows(6..=7));
        assert_eq!(new(&mut reading, SECOND), 2, "but what was left out is");
    }

    #[test]
    fn the_mark_rises_when_those_who_wrote_before_it_have_ended() {
        let mut reading = Reading::default();
        new(&mut reading, SECOND);
        reading.found(SECOND, &rows(1..=5));
        reading.see(horizon(5, &["slow"]));
        reading.see(horizon(9, &["slow", "other"]));
        new(&mut reading, SECOND);
        reading.found(SECOND, &[]);
        assert_eq!(new(&mut reading, SECOND), 0, "slow may still commit position 3");
        reading.found(SECOND, &[]);
        reading.see(horizon(12, &["third"]));
        assert_eq!(new(&mut reading, SECOND), 0, "one look from the bottom with that knowledge");
        reading.found(SECOND, &[]);
        assert_eq!(new(&mut reading, SECOND), 5);
    }

    #[test]
    fn the_mark_does_not_pass_what_a_full_claim_left_unread() {
        let mut reading = Reading::default();
        reading.see(horizon(100, &[]));
        reading.see(horizon(100, &[]));
        new(&mut reading, SECOND);
        reading.found(SECOND, &rows(1..=10));
        assert_eq!(new(&mut reading, SECOND * 2), 10);
        reading.found(SECOND, &rows(11..=12));
        assert_eq!(new(&mut reading, SECOND * 3), 100);
    }

    #[test]
    fn what_was_left_out_is_read_again_even_if_a_claim_is_under_way() {
        let mut reading = Reading::default();
        reading.see(horizon(100, &[]));
        reading.see(horizon(100, &[]));
        new(&mut reading, SECOND);
        reading.again(7, Timestamp::UNIX_EPOCH);
        reading.found(SECOND, &[]);
        assert!(reading.is_due(SECOND));
        assert_eq!(new(&mut reading, SECOND), 7);
    }

    #[test]
    fn what_follows_an_old_row_is_read_again_in_old_partitions_too() {
        let day = Duration::from_hours(24);
        let old = Timestamp::UNIX_EPOCH - day * 3;
        let mut reading = Reading::default();
        reading.see(horizon(100, &[]));
        reading.see(horizon(100, &[]));
        new(&mut reading, SECOND);
        reading.found(SECOND, &[]);
        assert_eq!(reading.since, Some(Timestamp::UNIX_EPOCH - OLDEST));
        new(&mut reading, SECOND);
        reading.again(7, old);
        assert_eq!(reading.since, Some(old - OLDEST));
        // The claim under way says nothing of them.
        reading.found(SECOND, &[]);
        assert_eq!(new(&mut reading, SECOND), 7);
        assert_eq!(reading.since, Some(old - OLDEST));
        reading.found(SECOND, &[]);
        assert_eq!(reading.since, Some(Timestamp::UNIX_EPOCH - OLDEST), "they are read");
        new(&mut reading, SECOND);
        reading.again(8, Timestamp::UNIX_EPOCH + day);
        assert_eq!(reading.since, Some(Timestamp::UNIX_EPOCH - OLDEST), "a young row takes no look at less");
    }

    #[test]
    fn timed_rows_are_asked_for_now_and_then_and_in_turns_with_new_ones_while_there_are_more() {
        let mut reading = Reading::default();
        let wanted = |reading: &mut Reading, now| reading.ask(now, 10, false, &Flow::new(10)).wanted;
        assert_eq!(wanted(&mut reading, SECOND), Wanted::Timed);
        reading.found(SECOND, &rows(1..=10));
        assert!(matches!(wanted(&mut reading, SECOND), Wanted::New { .. }), "they wait for none of these");
        reading.found(SECOND, &[]);
        assert_eq!(wanted(&mut reading, SECOND), Wanted::Timed);
        reading.found(SECOND, &rows(11..=12));
        assert!(matches!(wanted(&mut reading, SECOND), Wanted::New { .. }));
        reading.found(SECOND, &[]);
        assert!(matches!(wanted(&mut reading, SECOND), Wanted::New { .. }), "there are no more");
        reading.found(SECOND, &[]);
        assert_eq!(wanted(&mut reading, SECOND * 2), Wanted::Timed);
    }

    #[test]
    fn rows_read_ahead_are_sure_after_a_look_from_the_bottom() {
        let mut reading = Reading::default();
        new(&mut reading, SECOND);
        assert_eq!(reading.found(SECOND, &rows(1..=10)), Seen::All(10));
        new(&mut reading, SECOND);
        assert_eq!(reading.found(SECOND, &rows(11..=20)), Seen::Ahead);
        assert!(!reading.is_unsure_due(SECOND + UNSURE / 2));
        assert!(reading.is_unsure_due(SECOND + UNSURE));
        let ask = reading.ask(SECOND, 10, true, &Flow::new(10));
        assert_eq!(ask.wanted, Wanted::New { after: 0, since: None });
        assert_eq!(reading.found(SECOND, &rows(21..=22)), Seen::All(i64::MAX));
    }

    #[test]
    fn once_a_minute_it_looks_at_everything() {
        let mut reading = Reading::default();
        reading.see(horizon(100, &[]));
        reading.see(horizon(100, &[]));
        new(&mut reading, SECOND);
        reading.found(SECOND, &[]);
        assert_eq!(new(&mut reading, SECOND * 2), 100);
        reading.found(SECOND, &[]);
        assert_eq!(new(&mut reading, SECOND * 70), 0);
    }
}
