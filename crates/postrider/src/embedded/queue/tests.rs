//! A queue in memory, without tables: what comes in which order, and who gets what.

use super::*;
use crate::topology::QueueName;

fn queue() -> QueueState {
    QueueState::new(Queue::quorum(QueueName::new("q").unwrap()), 0)
}

fn entry(seq: i64) -> Entry {
    let content = Content {
        message: Message::default(),
        exchange: ExchangeName::default_exchange(),
        routing_key: RoutingKey::new("q").unwrap(),
    };
    Entry {
        seq,
        row: seq,
        shared: false,
        expires_at: None,
        redelivered: false,
        returned: 0,
        content: Arc::new(content),
    }
}

fn join(queue: &mut QueueState, number: u64, prefetch: usize) {
    queue.join(number, prefetch, Arc::new(Notify::new()));
}

fn commit(queue: &mut QueueState, seqs: impl IntoIterator<Item = i64>) {
    for seq in seqs {
        queue.committed(entry(seq), seq - 1);
    }
    queue.deliver(0);
}

fn fetch(queue: &mut QueueState, number: u64) -> Vec<i64> {
    queue.fetch(number, usize::MAX).iter().map(|entry| entry.seq).collect()
}

#[test]
fn commits_that_are_told_out_of_order_wait_for_a_look_at_the_tables() {
    let mut queue = queue();
    join(&mut queue, 1, 10);
    commit(&mut queue, [3, 4]);
    assert_eq!(fetch(&mut queue, 1), [0; 0]);
    assert!(queue.start_reading());
    commit(&mut queue, [1, 2]);
    // The tables had all four when they were looked at.
    for seq in 1..=4 {
        queue.was_read(seq, Some(entry(seq)));
    }
    queue.reading = false;
    queue.deliver(0);
    assert_eq!(fetch(&mut queue, 1), [1, 2, 3, 4]);
    commit(&mut queue, [5]);
    assert_eq!(fetch(&mut queue, 1), [5]);
}

#[test]
fn a_place_that_was_rolled_back_leaves_a_gap_that_reading_closes() {
    let mut queue = queue();
    join(&mut queue, 1, 10);
    commit(&mut queue, [1]);
    commit(&mut queue, [4]);
    assert_eq!(fetch(&mut queue, 1), [1]);
    assert!(queue.start_reading());
    assert!(!queue.start_reading(), "one reads at a time");
    queue.was_read(4, Some(entry(4)));
    queue.reading = false;
    commit(&mut queue, [5]);
    assert_eq!(fetch(&mut queue, 1), [4, 5]);
}

#[test]
fn a_queue_that_nobody_looks_at_keeps_nothing_in_memory() {
    let mut queue = queue();
    commit(&mut queue, 1..=1000);
    assert!(!queue.start_reading());
    assert_eq!(queue.ready.len(), 0);
    join(&mut queue, 1, 1);
    assert!(queue.start_reading());
}

#[test]
fn the_window_is_bounded() {
    let mut queue = queue();
    join(&mut queue, 1, 1);
    commit(&mut queue, 1..=5000);
    assert!(queue.ready.len() <= WINDOW_LEN);
    assert!(!queue.start_reading(), "there is enough in memory");
    assert!(queue.more);
}

#[test]
fn verdicts_of_others_and_second_verdicts_are_void() {
    let mut queue = queue();
    join(&mut queue, 1, 10);
    join(&mut queue, 2, 10);
    commit(&mut queue, [1, 2]);
    assert_eq!((fetch(&mut queue, 1), fetch(&mut queue, 2)), (vec![1], vec![2]));
    assert!(queue.settle(2, [(1, Verdict::Ack)]).is_empty());
    assert_eq!(queue.settle(1, [(1, Verdict::Ack), (1, Verdict::Ack)]).seqs(), [1]);
    // A consumer that goes while its ack is being written does not get it back.
    queue.leave(1);
    queue.settled(&[1]);
    queue.deliver(0);
    assert_eq!((fetch(&mut queue, 2), queue.unsettled()), (vec![], 1));
}

#[test]
fn what_could_not_be_settled_comes_again() {
    let mut queue = queue();
    join(&mut queue, 1, 2);
    commit(&mut queue, [1, 2, 3]);
    assert_eq!(fetch(&mut queue, 1), [1, 2]);
    let settling = queue.settle(1, [(1, Verdict::Ack)]);
    queue.give_back(&settling.seqs());
    queue.deliver(0);
    let again = queue.fetch(1, 10);
    assert_eq!((again[0].seq, again[0].redelivered), (1, true));
}

#[test]
fn what_is_due_is_taken_in_order_and_not_delivered() {
    let mut queue = queue();
    queue.settings.message_ttl = Some(std::time::Duration::from_micros(10));
    for seq in 1..=3 {
        queue.committed(Entry { expires_at: Some(seq * 10), ..entry(seq) }, seq - 1);
    }
    join(&mut queue, 1, 10);
    assert_eq!(queue.next_due(), Some(10));
    queue.deliver(20);
    assert_eq!(fetch(&mut queue, 1), [3]);
    let due: Vec<_> = queue.take_due(20, 10).iter().map(|entry| entry.seq).collect();
    assert_eq!(due, [1, 2]);
    assert!(queue.is_moving(), "they are neither here nor there");
    assert_eq!(queue.unsettled(), 1, "what is being expired waits here until it is elsewhere");
}

#[test]
fn nobody_waits_longer_because_the_clock_was_set_back() {
    let mut queue = queue();
    queue.settings.message_ttl = Some(std::time::Duration::from_secs(5));
    let second = 1_000_000;
    queue.committed(Entry { expires_at: Some(3_605 * second), ..entry(1) }, 0);
    assert!(queue.take_due(3_600 * second, 10).is_empty());
    // A little, as time servers do, changes nothing.
    assert!(queue.take_due(3_599 * second, 10).is_empty());
    assert_eq!(queue.next_due(), Some(3_605 * second));
    // More begins the wait anew, and nobody leaves before his time.
    assert!(queue.take_due(0, 10).is_empty());
    assert_eq!(queue.next_due(), Some(5 * second));
    assert_eq!(queue.take_due(5 * second, 10).len(), 1);
}

fn coming(messages: u64) -> Load {
    Load { messages, bytes: 0 }
}

fn small(overflow: &str) -> QueueState {
    let mut queue = queue();
    queue.settings.arguments.insert("x-max-length".to_owned(), crate::topology::Argument::Int(2));
    queue.settings.arguments.insert("x-overflow".to_owned(), overflow.into());
    queue
}

#[test]
fn a_full_queue_gives_up_its_oldest_and_never_what_is_in_a_consumers_hands() {
    let mut queue = small("drop-head");
    commit(&mut queue, 1..=2);
    assert!(!queue.start_pushing_out() && !queue.refuses(coming(9)));
    join(&mut queue, 1, 1);
    commit(&mut queue, 3..=5);
    assert!(queue.start_pushing_out());
    assert!(!queue.start_pushing_out(), "somebody does it already");
    let surplus = queue.take_surplus(10).unwrap();
    // There is no dead-letter target: they are gone.
    assert_eq!((surplus.done.len(), surplus.seqs()), (2, vec![2, 3]), "1 is delivered");
    queue.settled(&surplus.seqs());
    assert!(queue.take_surplus(10).is_none());
    queue.leave(1);
    assert!(queue.start_pushing_out(), "1 came back to the front");
    assert_eq!(queue.take_surplus(10).unwrap().seqs(), [1]);
}

#[test]
fn a_full_queue_that_refuses_keeps_what_it_has() {
    let mut queue = small("reject-publish");
    assert!(!queue.refuses(coming(1)) && queue.refuses(coming(2)));
    commit(&mut queue, 1..=3);
    assert!(queue.refuses(coming(0)) && !queue.start_pushing_out());
}

/// Those that are only in the tables count, and the oldest is pushed out when it was read.
#[test]
fn what_is_not_read_yet_counts() {
    let mut queue = small("drop-head");
    queue.more = true;
    queue.unread = coming(3);
    assert!(queue.start_reading() && !queue.start_pushing_out());
    for seq in 1..=3 {
        queue.was_read(seq, Some(entry(seq)));
    }
    assert_eq!(queue.unread, coming(0));
    assert!(queue.start_pushing_out());
    assert_eq!(queue.take_surplus(10).unwrap().seqs(), [1]);
}

fn sized(seq: i64, bytes: usize) -> Entry {
    let content = Content {
        message: Message { body: vec![b'x'; bytes].into(), ..Message::default() },
        exchange: ExchangeName::default_exchange(),
        routing_key: RoutingKey::new("q").unwrap(),
    };
    Entry { content: Arc::new(content), ..entry(seq) }
}

fn of_ten_bytes(overflow: &str) -> QueueState {
    let mut queue = queue();
    queue.settings.policy.max_length_bytes = Some(10);
    queue.settings.arguments.insert("x-overflow".to_owned(), overflow.into());
    queue
}

#[test]
fn bytes_are_pushed_out_until_the_rest_fits() {
    let mut queue = of_ten_bytes("drop-head");
    for (seq, bytes) in [(1, 4), (2, 4), (3, 2)] {
        queue.committed(sized(seq, bytes), seq - 1);
    }
    assert!(!queue.start_pushing_out(), "ten bytes are not too many");
    queue.committed(sized(4, 5), 3);
    assert!(queue.start_pushing_out());
    let surplus = queue.take_surplus(10).unwrap().seqs();
    assert_eq!(surplus, [1, 2]);
    queue.settled(&surplus);
    assert!(queue.take_surplus(10).is_none());
    queue.committed(sized(5, 11), 4);
    assert!(queue.start_pushing_out());
    assert_eq!(queue.take_surplus(10).unwrap().seqs(), [3, 4, 5], "one that never fits goes too");
}

#[test]
fn a_queue_with_all_its_bytes_refuses_until_some_are_gone() {
    let mut queue = of_ten_bytes("reject-publish");
    queue.committed(sized(1, 9), 0);
    let none = Load::default();
    assert!(!queue.refuses(none), "there is room for a byte: whatever comes next is taken");
    assert!(queue.refuses(Load { messages: 1, bytes: 1 }));
    queue.committed(sized(2, 100), 1);
    assert!(queue.refuses(none) && !queue.start_pushing_out());
    join(&mut queue, 1, 1);
    queue.deliver(0);
    assert!(queue.refuses(none));
    queue.settle(1, [(1, Verdict::Ack)]);
    queue.deliver(0);
    assert!(!queue.refuses(none), "what is in a consumer's hands does not count");
}

/// A limit that comes later: what was counted in the tables is not counted again when it is told or read.
#[test]
fn what_was_counted_is_counted_once() {
    let mut queue = of_ten_bytes("drop-head");
    queue.counted(Load { messages: 2, bytes: 8 }, 2);
    queue.committed(sized(2, 4), 1);
    assert_eq!(queue.unread, Load { messages: 2, bytes: 8 });
    queue.was_read(1, Some(sized(1, 4)));
    queue.committed(sized(2, 4), 1);
    assert_eq!((queue.unread, queue.ready_load), (Load::default(), Load { messages: 2, bytes: 8 }));
}
