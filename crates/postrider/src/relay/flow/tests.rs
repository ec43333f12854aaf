//! What may go out, and what waits.

use super::*;
use crate::relay::tests::{keyed, row};

fn positions(rows: &[OutboxRow]) -> Vec<i64> {
    rows.iter().map(|row| row.row.position).collect()
}

fn flow(rows: Vec<OutboxRow>) -> Flow {
    let mut flow = Flow::new(CROWD);
    flow.take(1, i64::MAX, rows);
    flow
}

#[test]
fn one_of_each_key_at_a_time_and_the_free_ones_at_once() {
    let mut flow = flow(vec![keyed(1, "a"), row(2), keyed(3, "a"), keyed(4, "b"), row(5)]);
    let first = flow.next(10);
    assert_eq!(positions(&first), [1, 2, 4, 5]);
    assert!(flow.next(10).is_empty());
    flow.confirmed(&first[0]);
    assert_eq!(positions(&flow.next(10)), [3]);
    assert_eq!(flow.len(), 5, "in hand until they are settled");
}

#[test]
fn what_a_stream_brings_keeps_the_order_of_its_commits() {
    let mut flow = flow(vec![keyed(1, "a")]);
    let mut out = flow.next(10);
    flow.take_streamed(i64::MAX, vec![keyed(3, "a"), keyed(2, "a")]);
    for next in [3, 2] {
        flow.confirmed(&out[0]);
        out = flow.next(10);
        assert_eq!(positions(&out), [next]);
    }
}

#[test]
fn a_failed_row_holds_back_its_key_alone_until_claims_know_it() {
    let mut flow = flow(vec![keyed(1, "a"), keyed(2, "a"), keyed(3, "b"), keyed(4, "b")]);
    let first = flow.next(10);
    flow.failed(&first[0]);
    flow.confirmed(&first[1]);
    assert_eq!(positions(&flow.next(10)), [4]);
    // A claim that was asked before the failure was recorded still has the rows behind it.
    flow.settled(1, first[0].envelope.ordering_key.as_ref(), 2);
    flow.take(2, i64::MAX, vec![keyed(2, "a")]);
    assert!(flow.next(10).is_empty());
    // One that was asked later has only what may go: the head itself, when its time has come.
    flow.take(3, i64::MAX, vec![keyed(1, "a")]);
    assert_eq!(positions(&flow.next(10)), [1]);
}

#[test]
fn the_mark_of_an_earlier_row_does_not_unblock_a_key() {
    let mut flow = flow(vec![keyed(1, "a"), keyed(2, "a"), keyed(3, "a")]);
    let first = flow.next(10);
    flow.confirmed(&first[0]);
    let second = flow.next(10);
    flow.failed(&second[0]);
    // Only the first is marked, so the store does not know yet that the second failed.
    flow.settled(1, None, 1);
    flow.take(2, i64::MAX, vec![keyed(3, "a")]);
    assert!(flow.next(10).is_empty());
}

#[test]
fn what_waits_behind_a_row_that_recovers_is_taken_from_no_claim_of_before() {
    let mut flow = flow(vec![keyed(2, "a")]);
    let head = flow.next(10);
    flow.confirmed(&head[0]);
    flow.recovered(&head[0]);
    // Asked for before the mark was known to be recorded, and answered after: it began behind position 3.
    flow.take(2, i64::MAX, vec![keyed(8, "a")]);
    assert!(flow.next(10).is_empty());
    flow.settled(2, head[0].envelope.ordering_key.as_ref(), 2);
    flow.take(2, i64::MAX, vec![keyed(8, "a")]);
    assert!(flow.next(10).is_empty());
    flow.take(3, i64::MAX, vec![keyed(3, "a"), keyed(8, "a")]);
    assert_eq!(positions(&flow.next(10)), [3]);
}

#[test]
fn what_is_in_hand_is_not_taken_twice() {
    let mut flow = flow(vec![keyed(1, "a"), row(2)]);
    flow.take(2, i64::MAX, vec![keyed(1, "a"), row(2), row(3)]);
    assert_eq!(positions(&flow.next(10)), [1, 2, 3]);
}

#[test]
fn what_nobody_knows_goes_again_first() {
    let mut flow = flow(vec![row(1), row(2), row(3)]);
    let sent = flow.next(2);
    flow.unknown(sent);
    assert_eq!(positions(&flow.next(10)), [1, 2, 3]);
}

#[test]
fn a_row_that_comes_late_goes_in_its_place() {
    let mut flow = flow(vec![keyed(1, "a"), keyed(5, "a")]);
    flow.take(2, i64::MAX, vec![keyed(3, "a")]);
    let mut order = Vec::new();
    while let Some(row) = flow.next(1).pop() {
        order.push(row.row.position);
        flow.confirmed(&row);
    }
    assert_eq!(order, [1, 3, 5]);
}

#[test]
fn a_row_that_was_read_ahead_waits_for_one_that_was_committed_behind_it() {
    let mut flow = flow(vec![keyed(1, "a"), row(9)]);
    let sent = flow.next(10);
    flow.confirmed(&sent[0]);
    flow.take_unsure(2, 5, vec![keyed(12, "a"), row(13)]);
    assert_eq!(positions(&flow.next(10)), [13]);
    // The look saw what was committed behind, and not yet as far as the row that waits.
    flow.take_sure(3, 5, 8, vec![keyed(8, "a")]);
    let first = flow.next(10);
    assert_eq!(positions(&first), [8]);
    flow.take_sure(4, 8, i64::MAX, Vec::new());
    assert!(flow.next(10).is_empty());
    flow.confirmed(&first[0]);
    assert_eq!(positions(&flow.next(10)), [12]);
}

#[test]
fn a_row_that_was_read_ahead_goes_with_the_head_that_failed() {
    let mut flow = flow(vec![keyed(1, "a")]);
    let first = flow.next(1);
    flow.take_unsure(2, 0, vec![keyed(2, "a"), keyed(3, "b")]);
    flow.failed(&first[0]);
    flow.take_sure(3, 0, i64::MAX, Vec::new());
    assert_eq!(positions(&flow.next(10)), [3]);
}

#[test]
fn what_a_crowded_key_left_out_is_read_again_from_where_it_could_still_appear() {
    let rows: Vec<_> = (1..=300).map(|position| keyed(position, "hot")).collect();
    let mut flow = Flow::new(CROWD);
    flow.take(1, 17, rows);
    let again = std::iter::from_fn(|| flow.next(1).pop().map(|row| flow.confirmed(&row))).flatten().next();
    assert_eq!(again, Some(17));
}

#[test]
fn a_crowded_key_is_left_out_of_claims_until_most_of_it_is_gone() {
    let rows: Vec<_> = (1..=300).map(|position| keyed(position, "hot")).collect();
    let mut flow = flow(rows);
    assert_eq!(flow.crowded().len(), 1);
    let mut again = None;
    let mut sent = 0;
    while again.is_none() {
        let row = flow.next(1).pop().unwrap();
        sent += 1;
        again = flow.confirmed(&row);
    }
    assert_eq!(again, Some(300), "claims go on after the last one in hand");
    assert!((230..=240).contains(&sent), "{sent}");
    assert!(flow.crowded().is_empty());
}

#[test]
fn rows_of_lost_slots_are_let_go_unless_they_are_in_flight() {
    let mut flow = flow(vec![keyed(1, "a"), keyed(2, "a"), row(3)]);
    let flying = flow.next(1);
    flow.let_go(&HashSet::from([0]), 1);
    assert_eq!(flow.len(), 1);
    assert!(!flow.is_ready());
    // It comes back to us: the head in flight is not doubled, and its followers wait for it.
    flow.take(2, i64::MAX, vec![keyed(1, "a"), keyed(2, "a")]);
    assert!(flow.next(10).is_empty());
    flow.confirmed(&flying[0]);
    assert_eq!(positions(&flow.next(10)), [2]);
}

/// Rows that a stream brought: nobody knows their slot, so they are let go with any, and the claim under way has only what follows them.
#[test]
fn what_follows_streamed_rows_that_were_let_go_is_taken_from_no_claim_of_before() {
    let streamed = |position, key| OutboxRow { slot: None, ..keyed(position, key) };
    let mut flow = Flow::new(CROWD);
    flow.take(0, 0, vec![streamed(1, "a"), streamed(2, "a"), streamed(3, "b"), streamed(4, "c")]);
    let flying = flow.next(1);
    flow.let_go(&HashSet::from([7]), 5);
    assert_eq!(flow.len(), 1, "the first of a is on its way");
    flow.take(5, 0, vec![keyed(10, "a"), keyed(11, "b"), keyed(12, "c")]);
    assert!(flow.next(10).is_empty(), "claim 5 left 2, 3 and 4 out");
    flow.take(6, 0, vec![keyed(2, "a"), keyed(3, "b"), keyed(4, "c"), keyed(11, "b")]);
    assert_eq!(positions(&flow.next(10)), [3, 4]);

    flow.drop_flying(flying, 6);
    flow.take(6, 0, vec![keyed(10, "a")]);
    assert!(flow.next(10).is_empty(), "claim 6 left 1 out");
    flow.take(7, 0, vec![keyed(1, "a"), keyed(2, "a")]);
    assert_eq!(positions(&flow.next(10)), [1]);
}

#[test]
fn what_is_read_ahead_of_a_crowded_key_is_left_where_it_is() {
    let end = i64::try_from(CROWD).unwrap() + 1;
    let mut flow = flow((1..=end).map(|position| keyed(position, "a")).collect());
    let key = keyed(1, "a").envelope.ordering_key.unwrap();
    assert!(flow.is_crowded(&key));
    // It was asked for before that, and the looks since then leave the key out.
    flow.take_unsure(2, 0, vec![keyed(end + 50, "a")]);
    assert_eq!(flow.unsure(), 0);
    flow.take_sure(3, 0, i64::MAX, Vec::new());
    assert_eq!(flow.len(), CROWD + 1);
}

#[test]
fn a_crowded_key_is_read_again_from_where_it_was_left_out_first() {
    let end = i64::try_from(CROWD).unwrap() + 1;
    let mut flow = Flow::new(CROWD);
    flow.take(1, 100, (101..=100 + end).map(|position| keyed(position, "a")).collect());
    // By now the low-water mark has passed rows that were left out.
    flow.take(0, 1_000, vec![keyed(2_000, "a")]);
    let mut left_out = None;
    while let [row] = &flow.next(1)[..]
        && left_out.is_none()
    {
        left_out = flow.confirmed(row);
    }
    assert_eq!(left_out, Some(100));
}
