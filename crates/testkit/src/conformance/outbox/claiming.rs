//! Rows that are due are handed out in order, to one relay at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use postrider::Event;
use postrider::store::{Ask, Outbox, OutboxRow, PublishResult, RelayId, Store, Wanted};

use super::super::store::{Desk, LEASE, StoreFixture, due, free, keyed, relay};
use super::super::{PATIENCE, soon, until};

/// Which is the order in which they were appended.
pub async fn rows_are_claimed_in_the_order_of_positions<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let names: Vec<String> = (0..60).map(|n| format!("event-{n:02}")).collect();
    for (n, some) in names.chunks(3).enumerate() {
        desk.commit([
            free(&some[0]),
            keyed(&some[1], &format!("order-{}", n % 7)),
            keyed(&some[2], "order-0"),
        ])
        .await;
    }
    let rows = desk.expect_due(&names).await;
    assert!(rows.is_sorted_by(|a, b| a.row.position < b.row.position));
}

/// The first ones.
pub async fn a_claim_takes_no_more_than_its_limit<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let names: Vec<String> = (0..20).map(|n| format!("event-{n:02}")).collect();
    desk.commit(names.iter().map(|name| keyed(name, "order-1"))).await;
    desk.expect_due(&names).await;
    for some in names.chunks(7) {
        let rows = desk.store.claim(&desk.relay, Ask::everything(7)).await.unwrap();
        assert_eq!(due(&rows), some);
        desk.publish(&rows).await;
    }
    assert!(desk.claim().await.is_empty());
}

/// Claiming writes nothing.
pub async fn rows_are_claimed_again_until_settled<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([free("one"), keyed("two", "order-1")]).await;
    let first = desk.expect_due(["one", "two"]).await;
    let again = desk.expect_due(["one", "two"]).await;
    assert!(first.iter().zip(&again).all(|(first, again)| first.row == again.row));
    assert!(again.iter().all(|row| row.attempts == 0));
}

/// A relay that holds nothing gets nothing.
pub async fn nothing_is_claimed_without_a_lease<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([free("one"), keyed("two", "order-1")]).await;
    desk.expect_due(["one", "two"]).await;
    assert!(desk.store.claim(&relay("stranger"), Ask::everything(10)).await.unwrap().is_empty());
    desk.store.release(&desk.relay).await.unwrap();
    assert!(desk.claim().await.is_empty(), "it gave its lease back");
    assert!(!desk.store.lease(&desk.relay, LEASE).await.unwrap().is_empty());
    desk.expect_due(["one", "two"]).await;
}

/// Forty keys of three events, and some that are free.
fn mixed() -> Vec<Event> {
    let mut events = Vec::new();
    for round in 0..3 {
        events.extend((0..40).map(|key| keyed(&format!("k{key:02}-{round}"), &format!("order-{key}"))));
        events.extend((0..10).map(|n| free(&format!("free-{n}-{round}"))));
    }
    events
}

/// Every row once, every key in one share and in its order.
fn assert_divided(shares: &[Vec<OutboxRow>], count: usize) {
    let mut ids = BTreeSet::new();
    let mut homes = BTreeMap::new();
    for (n, share) in shares.iter().enumerate() {
        assert!(share.is_sorted_by(|a, b| a.row.position < b.row.position), "share {n} is out of order");
        for row in share {
            assert!(ids.insert(row.envelope.id.clone()), "{} is in two shares", row.envelope.id);
            if let Some(key) = &row.envelope.ordering_key {
                assert_eq!(*homes.entry(key.clone()).or_insert(n), n, "{key} is in two shares");
            }
        }
    }
    assert_eq!(ids.len(), count);
}

/// So a relay goes on claiming while it publishes.
pub async fn what_is_in_hand_is_left_out<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([keyed("one", "a"), free("two"), keyed("three", "a"), keyed("four", "b")]).await;
    let rows = desk.expect_due(["one", "two", "three", "four"]).await;
    let ask = Ask { in_hand: vec![rows[0].row.position, rows[1].row.position], ..Ask::everything(10) };
    assert_eq!(due(&desk.store.claim(&desk.relay, ask).await.unwrap()), ["three", "four"]);
    let without = rows[0].envelope.ordering_key.clone().into_iter().collect();
    let ask = Ask { without, ..Ask::everything(10) };
    assert_eq!(due(&desk.store.claim(&desk.relay, ask).await.unwrap()), ["two", "four"]);
}

/// New rows come by position, from where the relay asks; those with a time of their own come by themselves.
pub async fn new_and_timed_rows_are_asked_for_apart<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let before = desk.after(Duration::ZERO);
    desk.commit([free("one"), free("two"), keyed("three", "a")]).await;
    let rows = desk.expect_due(["one", "two", "three"]).await;
    let failed = PublishResult::Failed { error: "no queue".into(), retry_after: Some(Duration::ZERO) };
    desk.settle(&rows[1..2], &failed).await;
    let claim = async |wanted| {
        let ask = Ask { wanted, ..Ask::everything(10) };
        due(&desk.store.claim(&desk.relay, ask).await.unwrap())
    };
    let since = Some(before - Duration::from_hours(1));
    assert_eq!(claim(Wanted::New { after: 0, since }).await, ["one", "three"]);
    assert_eq!(claim(Wanted::New { after: rows[0].row.position, since: None }).await, ["three"]);
    until("the retry", async || Some(claim(Wanted::Timed).await).filter(|ids| ids == &["two"])).await;
}

/// Once those who write have ended, nothing appears before it any more.
pub async fn a_horizon_names_those_who_may_still_commit_before_it<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([free("one")]).await;
    let first = desk.expect_due(["one"]).await;
    let mut slow = desk.store.begin().await.unwrap();
    desk.store.append(&mut slow, vec![free("slow")]).await.unwrap();
    let horizon = desk.store.horizon().await.unwrap();
    assert!(horizon.position >= first[0].row.position);
    desk.store.commit(slow).await.unwrap();
    let rows = desk.expect_due(["one", "slow"]).await;
    let later = desk.store.horizon().await.unwrap();
    assert!(later.position >= rows[1].row.position);
    let announced =
        !horizon.writers.is_empty() && !later.writers.iter().any(|one| horizon.writers.contains(one));
    assert!(
        announced || rows[1].row.position > horizon.position,
        "{horizon:?} does not cover {:?}",
        rows[1].row
    );
}

/// Between them, the relays have every row once, whoever came first.
pub async fn relays_side_by_side_divide_the_rows<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let count = desk.commit(mixed()).await.len();
    let relays: Vec<RelayId> = vec![desk.relay.clone(), relay("second"), relay("third")];
    let lease = Duration::from_secs(20);
    let shares = until("every row to have a relay", async || {
        // Those who hold too much give up slots when they renew; those who hold too little take them then.
        for relay in &relays {
            desk.store.lease(relay, lease).await.unwrap();
        }
        let mut shares = Vec::new();
        for relay in &relays {
            shares.push(desk.store.claim(relay, Ask::everything(1_000)).await.unwrap());
        }
        (shares.iter().map(Vec::len).sum::<usize>() >= count).then_some(shares)
    })
    .await;
    assert_divided(&shares, count);
}

/// Their followers of the same key go ahead.
pub async fn scheduled_rows_wait_and_hold_up_nobody<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let later = desk.after(Duration::from_hours(1));
    desk.commit([
        keyed("later", "order-1").available_at(later),
        free("free later").available_at(later),
        keyed("two", "order-1"),
        free("three"),
    ])
    .await;
    let rows = desk.expect_due(["two", "three"]).await;
    desk.publish(&rows).await;
    assert!(desk.claim().await.is_empty());
}

/// When their time has come, and not before.
pub async fn scheduled_rows_are_claimed_when_due<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let soon = desk.after(Duration::from_millis(400));
    desk.commit([keyed("one", "order-1").available_at(soon), free("two").available_at(soon)]).await;
    desk.expect_due(["one", "two"]).await;
    let early = soon.duration_since(desk.clock.now());
    assert!(early.as_millis() <= 1, "claimed {early:?} early");
}

/// A transaction that began first and commits last is not forgotten, though the outbox has moved on.
pub async fn a_late_commit_is_not_skipped<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    for round in 0..3 {
        let (early, late) = (format!("early-{round}"), format!("late-{round}"));
        let mut slow = desk.store.begin().await.unwrap();
        desk.store.append(&mut slow, vec![keyed(&late, "slow")]).await.unwrap();
        let overtaking = async {
            desk.commit([keyed(&early, "quick")]).await;
        };
        tokio::pin!(overtaking);
        // Where writers take turns it waits for the slow one; where they do not, its row is published and done with.
        let overtook = tokio::time::timeout(Duration::from_millis(300), &mut overtaking).await.is_ok();
        if overtook {
            desk.publish(&desk.expect_due([&early]).await).await;
            assert!(desk.claim().await.is_empty());
        }
        desk.store.commit(slow).await.unwrap();
        if !overtook {
            overtaking.await;
            let both = desk.expect_due([&late, &early]).await;
            desk.publish(&both[1..]).await;
        }
        desk.publish(&desk.expect_due([&late]).await).await;
    }
}

/// Promptly: that is what a relay's latency hangs on.
pub async fn waiting_ends_when_something_is_appended<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let waiting = desk.store.wait(PATIENCE * 2);
    tokio::pin!(waiting);
    let mut commits = 0;
    // The first commit may be earlier than the ear for it; those after it are not.
    soon("the end of the wait", async {
        loop {
            desk.commit([free(&format!("event-{commits}"))]).await;
            commits += 1;
            if tokio::time::timeout(Duration::from_millis(500), &mut waiting).await.is_ok() {
                return;
            }
        }
    })
    .await;
    assert!(commits <= 4, "it took {commits} commits to end the wait");
}

/// When its time is over, something or nothing.
pub async fn waiting_ends_by_itself<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    for _ in 0..3 {
        soon("the end of the wait", desk.store.wait(Duration::from_millis(200))).await;
    }
}

/// A relay that was given a slot a moment ago must not take rows from its middle.
pub async fn only_the_slots_that_the_relay_knows_of_are_claimed<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([keyed("one", "a")]).await;
    desk.expect_due(["one"]).await;
    let held = desk.store.lease(&desk.relay, LEASE).await.unwrap();
    let claim = async |held: Vec<postrider::store::SlotLease>| {
        let ask = Ask { held: Some(held), ..Ask::everything(10) };
        due(&desk.store.claim(&desk.relay, ask).await.unwrap())
    };
    assert_eq!(claim(held.clone()).await, ["one"]);
    assert!(claim(Vec::new()).await.is_empty());
    let earlier =
        held.into_iter().map(|lease| postrider::store::SlotLease { epoch: lease.epoch - 1, ..lease });
    assert!(claim(earlier.collect()).await.is_empty(), "it changed hands since");
}
