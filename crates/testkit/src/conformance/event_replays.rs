//! What every store must keep to when published events are sent again: those that were meant, under their ids, and applied
//! again only on purpose.

use std::time::Duration;

use jiff::Timestamp;
use postrider::Clock;
use postrider::archive::Shelf;
use postrider::envelope::{Payload, TenantId, WireFormat};
use postrider::operation::{
    Ended, EventPlan, EventWork, Runner, RunnerConfig, plan_events, shelf, start_events,
};
use postrider::settlement::RetryPolicy;
use postrider::store::{
    Admission, AppliedIn, Archive, Arrival, Backend, EventFilter, HouseRules, OutboxRow, Registration,
    RowFilter,
};
use postrider::store::{
    Housekeeping as _, Inbox as _, InboxMemory as _, Operations as _, OutboxDesk as _, Registrations as _,
    Store as _,
};
use postrider::topology::{ConsumerName, ExchangeKind, ServiceQueue, Topology};
use tokio_util::sync::CancellationToken;

use super::audit::{count, scope};
use super::broker::{exchange, queue};
use super::store::{Desk, StoreFixture, free, id, keyed};
use super::until;

/// Every event of an aggregate type, where it went.
fn every(aggregate_type: &str) -> EventPlan {
    EventPlan {
        filter: EventFilter {
            aggregate_type: Some(aggregate_type.to_owned()),
            event_type: None,
            tenant: None,
            from: Timestamp::UNIX_EPOCH,
            to: Timestamp::MAX,
        },
        limit: None,
        to_queue: None,
        reapply: false,
        exchange: exchange("shop"),
        format: WireFormat::Envelope,
        formats: [].into(),
        outbox: None,
        routing_key: None,
    }
}

/// Replays to the end, and says what is due then.
async fn replay<S: Backend>(desk: &Desk<S>, plan: &EventPlan) -> Vec<OutboxRow> {
    replay_with(desk, plan, None).await
}

async fn replay_with<S: Backend>(desk: &Desk<S>, plan: &EventPlan, files: Option<&Shelf>) -> Vec<OutboxRow> {
    let clock = Clock::system();
    let id = start_events(&desk.store, &clock, plan, files, None, "ada", Some("new consumer"))
        .await
        .unwrap()
        .unwrap();
    let runner = Runner::new(desk.store.clone(), clock.clone(), RunnerConfig::default());
    let ended = runner.run(id, &EventWork::new(clock), &CancellationToken::new()).await.unwrap();
    assert_eq!(ended, Some(Ended::Done));
    desk.claim().await
}

fn sent(rows: &[OutboxRow]) -> Vec<&str> {
    rows.iter().map(|row| row.verbatim.as_ref().unwrap().properties.message_id.as_deref().unwrap()).collect()
}

async fn publish_all<S: Backend>(desk: &Desk<S>) {
    let rows = desk.claim().await;
    desk.publish(&rows).await;
}

/// One registered consumer of what the audit's scope reads.
fn consumer() -> Registration {
    let shop = exchange("shop");
    let retry = RetryPolicy::ladder(3, [Duration::from_millis(300)]);
    let service = ServiceQueue::new("orders", retry).unwrap().bind(&shop, "shop.order.#").unwrap();
    let topology = Topology::default().exchange(shop.clone(), ExchangeKind::Topic).service(&service);
    Registration {
        name: ConsumerName::new("order-consumer").unwrap(),
        inbox: None,
        applied_in: AppliedIn::Inbox,
        service,
        topology,
        exchange: shop,
        since: None,
        push: None,
    }
}

/// In their order, and once: what is sent again is no event of its own.
pub async fn published_events_are_sent_again_under_their_ids<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([keyed("one", "a"), free("two")]).await;
    publish_all(&desk).await;
    desk.commit([keyed("waiting", "a")]).await;
    let plan = EventPlan { limit: Some(5), ..every("shop.order") };
    let survey = plan_events(&desk.store, &plan, None, Some(4.0)).await.unwrap();
    assert_eq!((survey.events, survey.total, survey.takes), (2, 2, Some(Duration::from_millis(500))));
    let rows = replay(&desk, &plan).await;
    assert_eq!(rows[0].envelope.id, id("waiting"), "live events do not wait for it");
    let again = &rows[1..];
    assert_eq!(sent(again), ["one", "two"]);
    for row in again {
        assert!(row.verbatim.as_ref().unwrap().header("x-replay-id").is_some_and(|mark| mark.contains('/')));
        assert_eq!(row.exchange, Some(exchange("shop")));
        assert_eq!(row.routing_key.as_ref().unwrap().as_str(), "shop.order.placed");
        assert_eq!((&row.target_queue, row.dead_letter), (&None, None));
    }
    let log = desk.store.log_of("event/one", 10).await.unwrap();
    assert_eq!((log[0].actor.as_str(), log[0].reason.as_deref()), ("ada", Some("new consumer")));
    publish_all(&desk).await;
    assert_eq!(
        plan_events(&desk.store, &plan, None, None).await.unwrap().events,
        3,
        "the replay is not among them"
    );
    let counted = count(&desk.store, &scope()).await;
    assert_eq!(counted.committed, 3);
}

/// By the words of the type, the tenant and the time.
pub async fn only_matching_events_are_sent_again<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let other = postrider::Event::new("shop.order.paid").unwrap().id("paid").unwrap();
    let bill = postrider::Event::new("shop.bill.placed").unwrap().id("bill").unwrap();
    let mut acme = free("acme");
    acme.tenant.group = Some(TenantId::new("acme").unwrap());
    desk.commit([free("plain"), other, bill, acme]).await;
    publish_all(&desk).await;
    let with = |change: fn(&mut EventFilter)| {
        let mut plan = EventPlan { to_queue: Some(queue("one")), ..every("shop.order") };
        change(&mut plan.filter);
        plan
    };
    let of_type = with(|filter| filter.event_type = Some("paid".to_owned()));
    let rows = replay(&desk, &of_type).await;
    assert_eq!((sent(&rows), &rows[0].target_queue), (vec!["paid"], &Some(queue("one"))));
    desk.publish(&rows).await;
    let rows = replay(&desk, &with(|filter| filter.tenant = Some(TenantId::new("acme").unwrap()))).await;
    assert_eq!(sent(&rows), ["acme"]);
    desk.publish(&rows).await;
    let rows = replay(&desk, &EventPlan { limit: Some(2), ..every("shop.order") }).await;
    assert_eq!(sent(&rows), ["plain", "paid"], "the oldest first");
    for nothing in [
        with(|filter| filter.to = filter.from),
        with(|filter| filter.from = filter.to),
        with(|filter| filter.event_type = Some("gone".to_owned())),
    ] {
        assert_eq!(plan_events(&desk.store, &nothing, None, None).await.unwrap().total, 0);
        let started =
            start_events(&desk.store, &desk.clock, &nothing, None, None, "ada", None).await.unwrap();
        assert_eq!(started, None);
    }
    assert_eq!(desk.store.operations(None, 10).await.unwrap().len(), 3, "of nothing comes no operation");
}

/// And then each of them once; nobody else forgets anything.
pub async fn an_inbox_forgets_on_purpose_alone<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.store.register(vec![consumer()]).await.unwrap();
    desk.commit([free("one"), free("two")]).await;
    publish_all(&desk).await;
    desk.apply("order-consumer", &["one", "two"]).await;
    desk.apply("another", &["one", "two"]).await;
    let admits = async |consumer: &str, event: &str| {
        let arrival =
            Arrival { event_id: id(event), tenant: None, payload_hash: Payload::empty_object().hash() };
        let mut tx = desk.store.begin().await.unwrap();
        let told = desk
            .store
            .admit(&mut tx, &ConsumerName::new(consumer).unwrap(), &[arrival])
            .await
            .unwrap()
            .remove(0);
        desk.store.commit(tx).await.unwrap();
        told == Admission::New
    };
    replay(&desk, &every("shop.order")).await;
    publish_all(&desk).await;
    assert!(!admits("order-consumer", "one").await, "it is known");

    let plan = EventPlan { reapply: true, limit: Some(1), ..every("shop.order") };
    replay(&desk, &plan).await;
    let counted = count(&desk.store, &scope()).await;
    assert_eq!((counted.applied, counted.unpublished), (1, 1), "it waits to be applied again");
    publish_all(&desk).await;
    assert!(admits("order-consumer", "one").await, "once more");
    assert!(!admits("order-consumer", "one").await, "and not twice");
    assert!(!admits("order-consumer", "two").await, "it was not sent again");
    assert!(!admits("another", "one").await, "it does not get there");
}

/// The plan says who would take them for new.
pub async fn a_plan_tells_who_has_forgotten<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.store.register(vec![consumer()]).await.unwrap();
    desk.commit([free("one"), free("two")]).await;
    publish_all(&desk).await;
    desk.apply("order-consumer", &["one", "two"]).await;
    let plan = every("shop.order");
    assert_eq!(plan_events(&desk.store, &plan, None, None).await.unwrap().forgotten, []);
    until("the marks to be forgotten", async || {
        let forgotten = desk.store.forget("suite", Duration::ZERO, 100).await.unwrap()?;
        (forgotten.marks == 2).then_some(())
    })
    .await;
    let forgotten = plan_events(&desk.store, &plan, None, None).await.unwrap().forgotten;
    assert_eq!((forgotten[0].consumer.as_str(), forgotten[0].events), ("order-consumer", 2));
    let elsewhere = EventPlan { to_queue: Some(queue("another")), ..plan };
    assert_eq!(plan_events(&desk.store, &elsewhere, None, None).await.unwrap().forgotten, []);
}

/// Also what is archived between the plan and its turn.
pub async fn archived_events_are_sent_again<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let archive = async || {
        let rules = HouseRules { keep: Duration::ZERO, archive: Archive::Table, ..HouseRules::default() };
        until("the rows to go", async || {
            desk.store.keep_house(&desk.relay, &rules).await.unwrap();
            desk.store.list(&RowFilter::default(), 1).await.unwrap().rows.is_empty().then_some(())
        })
        .await;
    };
    desk.commit([keyed("one", "a"), free("two")]).await;
    publish_all(&desk).await;
    archive().await;
    desk.commit([free("three")]).await;
    publish_all(&desk).await;
    let rows = replay(&desk, &every("shop.order")).await;
    assert_eq!(sent(&rows), ["one", "two", "three"]);
    desk.publish(&rows).await;
    archive().await;
    let rows = replay(&desk, &every("shop.order")).await;
    assert_eq!(sent(&rows), ["one", "two", "three"], "an archived replay is no event");
}

/// A replay may take days. What retention removes meanwhile, or writes to files that the operation does not read any more, goes with it.
pub async fn what_leaves_the_outbox_while_a_replay_waits_is_sent<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::system();
    for (number, to) in [Archive::Nowhere, Archive::Files(folder.path().to_owned())].into_iter().enumerate() {
        let kind = format!("shop.order{number}");
        let event = |id: &str| {
            let event = postrider::Event::new(format!("{kind}.placed")).unwrap();
            event.id(format!("{id}{number}")).unwrap().aggregate_id("a").unwrap()
        };
        desk.commit([event("one"), event("two")]).await;
        publish_all(&desk).await;
        let plan = every(&kind);
        let id = start_events(&desk.store, &clock, &plan, None, None, "ada", None).await.unwrap().unwrap();
        let rules = HouseRules { keep: Duration::ZERO, archive: to, ..HouseRules::default() };
        until("the rows to go", async || {
            desk.store.keep_house(&desk.relay, &rules).await.unwrap();
            desk.store.list(&RowFilter::default(), 1).await.unwrap().rows.is_empty().then_some(())
        })
        .await;
        let runner = Runner::new(desk.store.clone(), clock.clone(), RunnerConfig::default());
        let ended = runner.run(id, &EventWork::new(clock.clone()), &CancellationToken::new()).await.unwrap();
        assert_eq!(ended, Some(Ended::Done));
        let rows = desk.claim().await;
        assert_eq!(sent(&rows), [format!("one{number}"), format!("two{number}")]);
        assert_eq!(desk.store.operation(id).await.unwrap().unwrap().skipped, 0);
        desk.publish(&rows).await;
    }
}

/// From files, the archive table and the outbox together: each event once, in the order of the outbox, and as it was. A runner that is
/// lost in the middle leaves exactly the rest to the next one, wherever the files are by then.
pub async fn events_come_back_from_archive_files<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let folder = tempfile::tempdir().unwrap();
    let archive = async |to: Archive| {
        let rules = HouseRules { keep: Duration::ZERO, archive: to, ..HouseRules::default() };
        until("the rows to go", async || {
            desk.store.keep_house(&desk.relay, &rules).await.unwrap();
            desk.store.list(&RowFilter::default(), 1).await.unwrap().rows.is_empty().then_some(())
        })
        .await;
    };
    let text = postrider::Event::new("shop.order.noted").unwrap().id("text").unwrap();
    let text = text.payload(Payload::new("text/plain", &b"\xff\x00 not JSON"[..]));
    desk.commit([keyed("one", "a"), keyed("two", "a"), text, free("bill")]).await;
    publish_all(&desk).await;
    archive(Archive::Files(folder.path().to_owned())).await;
    desk.commit([keyed("three", "a")]).await;
    publish_all(&desk).await;
    archive(Archive::Table).await;
    desk.commit([keyed("four", "a")]).await;
    publish_all(&desk).await;

    let plan = every("shop.order");
    let files = shelf(&desk.store, &plan, folder.path()).unwrap();
    let survey = plan_events(&desk.store, &plan, Some(&files), None).await.unwrap();
    assert_eq!((survey.in_files, survey.archived, survey.live, survey.total), (4, 1, 1, 6));
    let canary = EventPlan { limit: Some(3), format: WireFormat::Bare, ..plan.clone() };
    let rows = replay_with(&desk, &canary, Some(&files)).await;
    assert_eq!(sent(&rows), ["one", "two", "text"], "the oldest first, wherever they are");
    assert_eq!(rows[2].verbatim.as_ref().unwrap().body.as_ref(), b"\xff\x00 not JSON");
    desk.publish(&rows).await;

    let clock = Clock::system();
    let id = start_events(&desk.store, &clock, &plan, Some(&files), Some(8.0), "ada", None)
        .await
        .unwrap()
        .unwrap();
    drop(folder);
    let work = EventWork::new(clock.clone());
    let config = RunnerConfig { lease: Duration::from_secs(1), ..RunnerConfig::default() };
    let runner = || Runner::new(desk.store.clone(), clock.clone(), config.clone());
    let part = async || Some(desk.store.operation(id).await.unwrap()?.done).filter(|done| *done > 0);
    let lost = runner();
    let stop = CancellationToken::new();
    tokio::select! {
        _ = lost.run(id, &work, &stop) => panic!("it was to be lost on the way"),
        done = until("a part of the operation", part) => assert!(done < 6),
    }
    until("the lease to end", async || {
        runner().run(id, &work, &stop).await.unwrap().filter(|ended| *ended == Ended::Done)
    })
    .await;
    let rows = desk.claim().await;
    assert_eq!(sent(&rows), ["one", "two", "text", "bill", "three", "four"]);
    let operation = desk.store.operation(id).await.unwrap().unwrap();
    assert_eq!((operation.done, operation.skipped, operation.total), (6, 0, 6));
}
