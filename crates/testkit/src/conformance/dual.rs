//! What every store must know of a migration: its phase, who obeys it, and what became of every copy.

use std::time::Duration;

use postrider::envelope::PayloadHash;
use postrider::migration::{
    Definition, Delivered, DeliveryResult, Halves, LatencyRule, Lead, Legacy, LegacyFormat, MigrationName,
    P99, Parity, Phase, Standing,
};
use postrider::store::{
    Backend, CopyResult, DualPublishing, Operations, OutboxRow, PhaseTurn, PublishResult, RowResult,
    StoreErrorKind,
};
use postrider::topology::{BindingKey, ExchangeName, QueueName};

use super::store::{Desk, StoreFixture, due, free};
use super::until;

const LEASE: Duration = Duration::from_mins(1);

fn definition() -> Definition {
    Definition {
        name: MigrationName::new("old-bus").unwrap(),
        exchange: ExchangeName::new("shop.events").unwrap(),
        events: vec![BindingKey::new("#").unwrap()],
        legacy: Legacy {
            exchange: ExchangeName::new("shop.legacy").unwrap(),
            queue: Some(QueueName::new("shop.old").unwrap()),
            waits: vec![QueueName::new("shop.old.wait.5s").unwrap()],
            routing_key: None,
            format: LegacyFormat::Bare,
        },
        block_on_legacy: false,
        latency: LatencyRule::default(),
    }
}

impl<S: Backend> Desk<S> {
    async fn standing(&self) -> Standing {
        self.store.migrations_of_buses().await.unwrap().remove(0)
    }

    async fn turn(&self, to: Phase) -> bool {
        let from_version = self.standing().await.version;
        self.turn_from(from_version, to).await
    }

    async fn turn_from(&self, from_version: i64, to: Phase) -> bool {
        let turn = PhaseTurn {
            name: definition().name,
            from_version,
            to,
            by: "ann".to_owned(),
            reason: "it is time".to_owned(),
            forced: vec!["parity was not proven".to_owned()],
        };
        self.store.turn_migration(&turn).await.unwrap()
    }

    /// The relay obeys the newest version.
    async fn obey(&self) {
        let version = self.store.course().await.unwrap().unwrap().version;
        self.store.obeys(&self.relay, version, P99::default()).await.unwrap();
    }

    async fn settled(&self) -> bool {
        self.store.settle_course().await.unwrap()
    }

    /// A migration that every relay obeys.
    async fn started(&self) {
        self.store.start_migration(&definition(), "ann", "we move").await.unwrap();
        self.obey().await;
        assert!(self.settled().await);
    }

    async fn settle_both(&self, rows: &[OutboxRow], result: &PublishResult, legacy: &DeliveryResult) {
        let both = |row: &OutboxRow| RowResult {
            row: row.row,
            result: result.clone(),
            delivered: Some(Delivered {
                event_id: row.envelope.id.clone(),
                new: match result {
                    PublishResult::Published => DeliveryResult::Confirmed,
                    PublishResult::Failed { error, .. } => DeliveryResult::Failed(error.clone()),
                    PublishResult::Postponed { .. } => DeliveryResult::Pending,
                },
                legacy: legacy.clone(),
            }),
        };
        let recorded = self.store.settle(&self.relay, rows.iter().map(both).collect()).await.unwrap();
        assert_eq!(recorded, rows.len());
    }

    /// Copies that are due, as soon as some are.
    async fn copies(&self) -> Vec<OutboxRow> {
        until("copies to be due", async || {
            let copies = self.store.claim_copies(100, LEASE).await.unwrap();
            (!copies.is_empty()).then_some(copies)
        })
        .await
    }
}

/// Once for ever, in the audit log, with all that was said.
pub async fn a_migration_is_started_once<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    assert_eq!(desk.store.course().await.unwrap(), None);
    desk.store.start_migration(&definition(), "ann", "we move").await.unwrap();
    let again = desk.store.start_migration(&definition(), "bob", "").await.unwrap_err();
    assert_eq!(again.kind, StoreErrorKind::Duplicate);
    let other = Definition { name: MigrationName::new("another").unwrap(), ..definition() };
    assert_eq!(
        desk.store.start_migration(&other, "bob", "").await.unwrap_err().kind,
        StoreErrorKind::Duplicate
    );
    let course = desk.store.course().await.unwrap().unwrap();
    assert_eq!((course.phase, course.settled), (Phase::Dual, false));
    assert_eq!(*course.definition, definition());
    let log = desk.store.log_of("migration/old-bus", 10).await.unwrap();
    assert_eq!((log.len(), log[0].actor.as_str(), log[0].action.as_str()), (1, "ann", "migration.start"));
}

/// Of two who know the same version one moves it on; what stood against it is in the log.
pub async fn a_phase_is_changed_by_one_of_two<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.started().await;
    let version = desk.standing().await.version;
    assert!(desk.turn_from(version, Phase::Cutover).await);
    assert!(!desk.turn_from(version, Phase::Suspended).await);
    let standing = desk.standing().await;
    assert_eq!((standing.phase, standing.settled), (Phase::Cutover, false));
    assert!(standing.version > version);
    assert!(desk.turn(Phase::Finished).await);
    assert_eq!(desk.store.course().await.unwrap(), None);
    let log = desk.store.log_of("migration/old-bus", 10).await.unwrap();
    let actions: Vec<_> = log.iter().map(|entry| entry.action.as_str()).collect();
    assert_eq!(actions, ["migration.finished", "migration.cutover", "migration.start"]);
    assert!(log[1].detail.as_ref().unwrap().to_string().contains("parity was not proven"));
}

/// With the mark, and counted apart; a copy that failed comes again, and is forgotten when it has arrived.
pub async fn a_copy_is_tried_until_it_is_confirmed<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.started().await;
    desk.commit([free("one"), free("two")]).await;
    let rows = desk.expect_due(["one", "two"]).await;
    desk.settle_both(&rows[..1], &PublishResult::Published, &DeliveryResult::Confirmed).await;
    desk.settle_both(&rows[1..], &PublishResult::Published, &DeliveryResult::Failed("no queue".to_owned()))
        .await;
    assert!(desk.claim().await.is_empty(), "a failed copy holds up nothing");
    let standing = desk.standing().await;
    assert_eq!((standing.new.confirmed, standing.legacy.confirmed, standing.legacy.failed), (2, 1, 1));
    assert_eq!(standing.legacy_error.as_deref(), Some("no queue"));

    let copies = desk.copies().await;
    assert_eq!((due(&copies), copies[0].attempts), (vec!["two".to_owned()], 1));
    assert!(desk.store.claim_copies(100, LEASE).await.unwrap().is_empty(), "it is taken");
    let position = copies[0].row.position;
    let again = CopyResult::Failed("still no queue".to_owned(), Duration::ZERO);
    desk.store.settle_copies(vec![(position, again)]).await.unwrap();
    let copies = desk.copies().await;
    assert_eq!(copies[0].attempts, 2);
    let away = CopyResult::Unknown(Duration::ZERO);
    desk.store.settle_copies(vec![(position, away)]).await.unwrap();
    assert_eq!(desk.copies().await[0].attempts, 2, "an outage is no attempt");
    desk.store.settle_copies(vec![(position, CopyResult::Confirmed)]).await.unwrap();
    let standing = desk.standing().await;
    assert_eq!((standing.legacy.confirmed, standing.legacy.failed, standing.legacy.pending), (2, 0, 0));
}

/// Which is why neither half is sent twice for the other's sake.
pub async fn halves_that_arrived_are_known<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.started().await;
    desk.commit([free("one")]).await;
    let rows = desk.expect_due(["one"]).await;
    let retry_after = Some(Duration::from_millis(50));
    let failed = PublishResult::Failed { error: "no queue".to_owned(), retry_after };
    desk.settle_both(&rows, &failed, &DeliveryResult::Confirmed).await;
    let position = rows[0].row.position;
    let known = desk.store.confirmed_halves(vec![position, position + 1]).await.unwrap();
    assert_eq!(known, [(position, Halves { new: false, legacy: true })]);
    assert!(desk.store.claim_copies(100, LEASE).await.unwrap().is_empty(), "the row itself is tried again");
    let rows = desk.expect_due(["one"]).await;
    desk.settle_both(&rows, &PublishResult::Published, &DeliveryResult::Confirmed).await;
    let known = desk.store.confirmed_halves(vec![position]).await.unwrap();
    assert_eq!(known, [(position, Halves { new: true, legacy: true })]);
}

/// A relay that has not seen the phase yet does no harm.
pub async fn what_was_published_before_a_relay_knew_gets_its_copy<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([free("before")]).await;
    desk.publish(&desk.expect_due(["before"]).await).await;
    // Times are whole microseconds.
    desk.clock.sleep(Duration::from_millis(5)).await;
    desk.store.start_migration(&definition(), "ann", "").await.unwrap();
    desk.commit([free("unaware")]).await;
    desk.publish(&desk.expect_due(["unaware"]).await).await;
    assert!(!desk.settled().await, "the relay does not obey yet");
    desk.obey().await;
    assert!(desk.settled().await && desk.settled().await);
    assert!(desk.store.course().await.unwrap().unwrap().settled);
    assert_eq!(due(&desk.copies().await), ["unaware"]);
}

/// Nothing is missing on the old bus after it.
pub async fn a_rollback_copies_what_went_to_the_new_bus_alone<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.started().await;
    desk.commit([free("both")]).await;
    let rows = desk.expect_due(["both"]).await;
    desk.settle_both(&rows, &PublishResult::Published, &DeliveryResult::Confirmed).await;
    desk.clock.sleep(Duration::from_millis(5)).await;
    assert!(desk.turn(Phase::Cutover).await);
    desk.obey().await;
    assert!(desk.settled().await);
    desk.commit([free("alone"), free("alone too")]).await;
    desk.publish(&desk.expect_due(["alone", "alone too"]).await).await;
    assert!(desk.store.claim_copies(100, LEASE).await.unwrap().is_empty());
    assert!(desk.turn(Phase::Dual).await);
    assert!(!desk.settled().await);
    desk.obey().await;
    assert!(desk.settled().await);
    let copies = desk.copies().await;
    assert_eq!(due(&copies), ["alone", "alone too"]);
    let not_wanted = copies.iter().map(|row| (row.row.position, CopyResult::NotWanted)).collect();
    desk.store.settle_copies(not_wanted).await.unwrap();
    assert_eq!(desk.standing().await.legacy.pending, 0);
}

/// In pages, with what became of their copies; also those that have none, of which copies can be owed.
pub async fn published_rows_are_found_for_a_comparison<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.started().await;
    desk.commit((0..5).map(|number| free(&format!("e{number}")))).await;
    let rows = desk.expect_due(["e0", "e1", "e2", "e3", "e4"]).await;
    desk.settle_both(&rows[..3], &PublishResult::Published, &DeliveryResult::Confirmed).await;
    desk.settle_both(&rows[3..4], &PublishResult::Published, &DeliveryResult::Failed("no".to_owned())).await;
    let (first, last) = (rows[0].row.position, rows[4].row.position);
    let page = desk.store.published_rows(first, last, 2).await.unwrap();
    let found: Vec<_> = page.iter().map(|(row, copy)| (row.envelope.id.as_str(), copy.clone())).collect();
    assert_eq!(found, [("e1", Some(DeliveryResult::Confirmed)), ("e2", Some(DeliveryResult::Confirmed))]);
    let page = desk.store.published_rows(rows[2].row.position, last, 2).await.unwrap();
    assert_eq!(page.len(), 1, "what is not published is not there");
    assert_eq!(page[0].1, Some(DeliveryResult::Failed("no".to_owned())));
    let hash: PayloadHash = page[0].0.envelope.payload.hash();
    assert_eq!(hash, rows[3].envelope.payload.hash());

    // A relay that knows of no migration marks the row alone.
    let since = desk.store.course().await.unwrap().unwrap().since;
    let uncopied = async || desk.store.uncopied_rows(since, first, last, 10).await.unwrap();
    assert_eq!(due(&uncopied().await), Vec::<String>::new());
    desk.publish(&rows[4..]).await;
    let page = desk.store.published_rows(rows[3].row.position, last, 2).await.unwrap();
    assert_eq!((page[0].0.envelope.id.as_str(), &page[0].1), ("e4", &None));
    assert_eq!(due(&uncopied().await), ["e4"]);
    let later = desk.after(Duration::from_mins(1));
    assert!(desk.store.uncopied_rows(later, first, last, 10).await.unwrap().is_empty());
    for _ in 0..2 {
        desk.store.owe_copies(vec![(last, rows[4].envelope.id.clone())]).await.unwrap();
    }
    assert!(uncopied().await.is_empty());
    assert_eq!(desk.standing().await.legacy.pending, 1);

    let parity =
        Parity { holds: true, compared: 4, version: desk.standing().await.version, ..Parity::default() };
    desk.store.keep_parity(&definition().name, &parity).await.unwrap();
    assert_eq!(desk.standing().await.parity, Some(parity));
    assert_eq!(desk.store.forget_deliveries(desk.after(Duration::from_secs(5)), 100).await.unwrap(), 7);
}

/// A migration of another database, which began a while ago by its own clock.
fn lead(version: i64, phase: Phase) -> Lead {
    let started_at = jiff::Timestamp::from_second(1_000_000).unwrap();
    Lead { definition: definition(), phase, version, started_at, age: Duration::from_secs(5) }
}

/// Phase by phase, never back, and its relays obey it as one that was started here.
pub async fn a_migration_of_another_database_is_followed<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let there = desk.store.there().await.unwrap();
    assert_eq!(there.followed, None);
    desk.store.follow(&lead(41, Phase::Dual), there.now).await.unwrap();
    let course = desk.store.course().await.unwrap().unwrap();
    assert_eq!((course.phase, &*course.definition, course.settled), (Phase::Dual, &definition(), false));
    assert_eq!(course.since, there.now);
    desk.obey().await;
    assert!(desk.settled().await);
    let follows = desk.standing().await.follows.unwrap();
    assert_eq!((follows.version, follows.started_at), (41, lead(41, Phase::Dual).started_at));
    assert_eq!(desk.store.leads().await.unwrap(), [], "it is led by nobody here");

    desk.store.follow(&lead(43, Phase::Cutover), there.now).await.unwrap();
    assert!(!desk.settled().await, "the relay obeys the phase before");
    desk.obey().await;
    assert!(desk.settled().await);
    for old in [lead(42, Phase::Dual), lead(43, Phase::Dual)] {
        desk.store.follow(&old, there.now).await.unwrap();
        assert_eq!(desk.standing().await.phase, Phase::Cutover, "it does not go back");
    }
    let taken = desk.store.start_migration(&definition(), "bob", "").await.unwrap_err();
    assert_eq!(taken.kind, StoreErrorKind::Duplicate);
    let mut other = lead(7, Phase::Dual);
    other.definition.name = MigrationName::new("another").unwrap();
    let taken = desk.store.follow(&other, there.now).await.unwrap_err();
    assert_eq!(taken.kind, StoreErrorKind::Duplicate);

    desk.store.follow(&lead(44, Phase::Finished), there.now).await.unwrap();
    assert_eq!(desk.store.course().await.unwrap(), None);
    let followed = desk.store.there().await.unwrap().followed.unwrap();
    assert_eq!((followed.leader.version, followed.phase), (44, Phase::Finished));
    desk.store.follow(&other, there.now).await.unwrap();
    assert_eq!(desk.store.course().await.unwrap().unwrap().definition.name, other.definition.name);
    let own = desk.store.start_migration(&definition(), "bob", "").await.unwrap_err();
    assert_eq!(own.kind, StoreErrorKind::Duplicate);
}

/// What was published here since the phase began there, before anybody here knew; and what went to the new bus alone.
pub async fn what_a_follower_missed_is_copied<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let since = desk.store.there().await.unwrap().now;
    desk.commit([free("early")]).await;
    desk.publish(&desk.expect_due(["early"]).await).await;
    desk.store.follow(&lead(1, Phase::Dual), since).await.unwrap();
    desk.obey().await;
    assert!(desk.settled().await);
    let copies = desk.copies().await;
    assert_eq!(due(&copies), ["early"]);
    let confirmed = vec![(copies[0].row.position, CopyResult::Confirmed)];
    desk.store.settle_copies(confirmed).await.unwrap();

    let since = desk.store.there().await.unwrap().now;
    desk.store.follow(&lead(2, Phase::Cutover), since).await.unwrap();
    desk.obey().await;
    desk.commit([free("alone")]).await;
    desk.publish(&desk.expect_due(["alone"]).await).await;
    let since = desk.store.there().await.unwrap().now;
    desk.store.follow(&lead(3, Phase::Dual), since).await.unwrap();
    desk.obey().await;
    assert!(desk.settled().await);
    assert_eq!(due(&desk.copies().await), ["alone"], "the first one has its copy");
}
