//! What every store must do for people who look for dead letters.

use std::time::Duration;

use postrider::Clock;
use postrider::envelope::{AggregateId, OrderingKey, TenantId};
use postrider::store::{
    Backend, DeadLetter, GroupQuery, LetterFilter, LetterId, LetterQuery, LetterStatus, NewOperation,
    OperationKind, Resolution, SCANNED, Turn,
};
use postrider::store::{DeadLetters as _, InboxMemory as _, Operations as _, Store as _, Triage as _};
use postrider::topology::{ConsumerName, QueueName};

use super::dead_letters::{bare, whole};
use super::soon;
use super::store::{Desk, StoreFixture, id};

/// A letter of this second, with a key that says its number.
pub(super) fn letter(n: i64) -> DeadLetter {
    bare(&format!("letter-{n:06}"), n)
}

async fn keys<S: Backend>(store: &S, query: &LetterQuery) -> Vec<String> {
    let page = store.letters(query).await.unwrap();
    let mut keys = Vec::new();
    for summary in page.letters {
        keys.push(store.letter(summary.id).await.unwrap().unwrap().letter.key);
    }
    keys
}

pub(super) async fn all_ids<S: Backend>(store: &S) -> Vec<LetterId> {
    let query = LetterQuery { limit: 10_000, ..LetterQuery::default() };
    let mut ids: Vec<_> =
        store.letters(&query).await.unwrap().letters.iter().map(|letter| letter.id).collect();
    ids.sort_unstable();
    ids
}

/// Writes an operation without items.
pub(super) async fn operation<S: Backend>(store: &S, tx: &mut S::Tx, kind: OperationKind) -> uuid::Uuid {
    let id = Clock::system().new_id();
    let plan = serde_json::json!({});
    let new = NewOperation { id, kind, plan, rate: None, created_by: "suite".to_owned(), reason: None };
    store.create_operation(tx, &new).await.unwrap();
    id
}

async fn resolve<S: Backend>(store: &S, letters: &[LetterId], status: LetterStatus) {
    let mut tx = store.begin().await.unwrap();
    let by = operation(store, &mut tx, OperationKind::DiscardLetters).await;
    let resolved: Vec<_> = letters.iter().map(|letter| Resolution::plain(*letter, status)).collect();
    store.resolve(&mut tx, by, &resolved).await.unwrap();
    store.commit(tx).await.unwrap();
}

/// Each alone, and all of them together.
pub async fn every_filter_finds_its_letters<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let mut special = DeadLetter {
        aggregate_id: Some(AggregateId::new("order-42").unwrap()),
        queue: QueueName::new("orders").unwrap(),
        body: "{\"name\": \"Größe\"}".into(),
        ..whole("special", 50)
    };
    special.tenant = Some(TenantId::new("acme").unwrap());
    let mut letters: Vec<_> = (0..100).map(letter).collect();
    letters.push(special.clone());
    store.collect(letters).await.unwrap();
    let at = special.dead_at;
    let only = |filter: LetterFilter| LetterQuery { filter, turn: Turn::Newest, limit: 10 };
    let filters = [
        LetterFilter { consumer: special.consumer.clone(), ..LetterFilter::default() },
        LetterFilter { queue: Some(special.queue.clone()), ..LetterFilter::open() },
        LetterFilter { queue: Some(special.queue.clone()), ..LetterFilter::default() },
        LetterFilter { event_type: special.event_type.clone(), ..LetterFilter::default() },
        LetterFilter { event_id: special.event_id.clone(), ..LetterFilter::open() },
        LetterFilter { reason: Some(special.reason.clone()), ..LetterFilter::open() },
        LetterFilter { error_class: special.error_class.clone(), ..LetterFilter::open() },
        LetterFilter { fingerprint: Some(special.fingerprint()), ..LetterFilter::open() },
        LetterFilter { tenant: special.tenant.clone(), ..LetterFilter::open() },
        LetterFilter { aggregate_id: special.aggregate_id.clone(), ..LetterFilter::open() },
        LetterFilter { text: Some("SMTP Says".to_owned()), ..LetterFilter::open() },
        LetterFilter { text: Some("Größe".to_owned()), ..LetterFilter::open() },
        LetterFilter { min_attempts: Some(11), ..LetterFilter::open() },
        LetterFilter {
            consumer: special.consumer.clone(),
            tenant: special.tenant.clone(),
            fingerprint: Some(special.fingerprint()),
            since: Some(at),
            until: Some(at + Duration::from_secs(1)),
            min_attempts: Some(11),
            max_attempts: Some(11),
            max_replays: Some(0),
            ..LetterFilter::open()
        },
    ];
    for filter in filters {
        assert_eq!(keys(&store, &only(filter.clone())).await, ["special"], "{filter:?}");
    }
    let since = LetterFilter { since: Some(letter(98).dead_at), ..LetterFilter::open() };
    assert_eq!(keys(&store, &only(since)).await, ["letter-000099", "letter-000098"]);
    let until = LetterFilter { until: Some(letter(2).dead_at), ..LetterFilter::default() };
    assert_eq!(keys(&store, &only(until)).await, ["letter-000001", "letter-000000"]);
    let none = LetterFilter { text: Some("100% \\ ' \" _ \0".to_owned()), ..LetterFilter::open() };
    assert!(keys(&store, &only(none)).await.is_empty());
    let ids = all_ids(&store).await;
    let by_id = LetterFilter { ids: vec![ids[3], ids[1]], ..LetterFilter::open() };
    assert_eq!(keys(&store, &only(by_id)).await, ["letter-000003", "letter-000001"]);
    resolve(&store, &ids[..1], LetterStatus::Discarded).await;
    let discarded = LetterFilter { status: Some(LetterStatus::Discarded), ..LetterFilter::default() };
    assert_eq!(keys(&store, &only(discarded)).await, ["letter-000000"]);
}

/// Also where many died in the same moment.
pub async fn pages_go_both_ways_without_a_gap<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    // Three of every moment.
    let letters = (0..31).map(|n| DeadLetter { dead_at: letter(n / 3).dead_at, ..letter(n) });
    store.collect(letters.collect()).await.unwrap();
    let mut query = LetterQuery { filter: LetterFilter::open(), turn: Turn::Newest, limit: 10 };
    let (mut seen, mut last) = (Vec::new(), None);
    loop {
        let page = store.letters(&query).await.unwrap();
        seen.extend(page.letters.iter().map(|letter| letter.id));
        last = page.letters.last().map(postrider::store::LetterSummary::cursor).or(last);
        assert_eq!(page.stopped_at, None);
        let Some(next) = page.next else { break };
        query.turn = Turn::Before(next);
    }
    let mut sorted = seen.clone();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    assert_eq!((seen.len(), &seen), (31, &sorted));
    query.turn = Turn::After(last.unwrap());
    let newer = store.letters(&query).await.unwrap().letters;
    let newer: Vec<_> = newer.iter().map(|letter| letter.id).collect();
    assert_eq!(newer, seen[20..30]);
}

/// It says where, and nothing is passed over.
pub async fn a_search_that_no_index_answers_stops_and_goes_on<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let many = i64::from(SCANNED) + 10;
    for from in (0..many).step_by(2000) {
        store.collect((from..(from + 2000).min(many)).map(letter).collect()).await.unwrap();
    }
    store.collect(vec![DeadLetter { error: "the needle".to_owned(), ..letter(-5) }]).await.unwrap();
    let filter = LetterFilter { text: Some("Needle".to_owned()), ..LetterFilter::open() };
    let mut query = LetterQuery { filter, turn: Turn::Newest, limit: 10 };
    let first = store.letters(&query).await.unwrap();
    assert!(first.letters.is_empty());
    assert_eq!(first.stopped_at, Some(letter(10).dead_at));
    query.turn = Turn::Before(first.next.unwrap());
    let second = store.letters(&query).await.unwrap();
    assert_eq!((second.letters.len(), second.stopped_at, second.next), (1, None, None));
}

/// Whole, and with nothing changed.
pub async fn a_letter_comes_back_by_its_number<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let mut sent = whole("one", 1);
    sent.ordering_key = Some(OrderingKey::new("acme/shop.order/42").unwrap());
    store.collect(vec![sent.clone()]).await.unwrap();
    let number = all_ids(&store).await[0];
    let found = store.letter(number).await.unwrap().unwrap();
    assert_eq!(found.letter, sent);
    assert_eq!((found.summary.status, found.summary.body_bytes), (LetterStatus::Open, 256));
    assert_eq!(found.summary.fingerprint, sent.fingerprint());
    assert_eq!(store.letter(LetterId(number.0 + 1)).await.unwrap(), None);
}

fn groups(limit: usize) -> GroupQuery {
    // The letters are of the hour before.
    let now = letter(3600).dead_at;
    GroupQuery { filter: LetterFilter::open(), after: None, limit, hours: 24, now }
}

fn of_class(n: i64, class: &str) -> DeadLetter {
    DeadLetter { error_class: Some(class.to_owned()), error: format!("order {n} failed"), ..letter(n) }
}

/// Whatever is collected again, resolved or opened.
pub async fn groups_count_what_is_open_and_what_there_ever_was<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let letters: Vec<_> = (0..10).map(|n| of_class(n, if n < 7 { "smtp" } else { "disk" })).collect();
    store.collect(letters.clone()).await.unwrap();
    store.collect(letters.clone()).await.unwrap();
    let ids = all_ids(&store).await;
    resolve(&store, &ids[..2], LetterStatus::Replayed).await;
    let page = store.groups(&groups(10)).await.unwrap();
    let counts: Vec<_> = page.groups.iter().map(|group| (group.open, group.total)).collect();
    assert_eq!(counts, [(3, 3), (5, 7)]);
    let smtp = &page.groups[1];
    assert_eq!((smtp.first_at, smtp.last_at), (letters[0].dead_at, letters[6].dead_at));
    assert_eq!((smtp.error_class.as_deref(), smtp.error.as_str()), (Some("smtp"), "order 0 failed"));
    assert_eq!((smtp.hours.len(), smtp.hours.iter().sum::<u64>()), (24, 7));
    assert_eq!(smtp.samples, [ids[6], ids[5], ids[4]]);
    // What is resolved to the last shows no more, unless all is asked for.
    resolve(&store, &ids[7..], LetterStatus::Discarded).await;
    assert_eq!(store.groups(&groups(10)).await.unwrap().groups.len(), 1);
    let all = GroupQuery { filter: LetterFilter::default(), ..groups(10) };
    assert_eq!(store.groups(&all).await.unwrap().groups.len(), 2);
    let by_class = LetterFilter { error_class: Some("smtp".to_owned()), ..LetterFilter::open() };
    let found = store.groups(&GroupQuery { filter: by_class, ..groups(10) }).await.unwrap();
    assert_eq!(found.groups.len(), 1);
}

/// The newest first.
pub async fn groups_come_in_pages<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    store.collect((0..25).map(|n| of_class(n, &format!("class-{n}"))).collect()).await.unwrap();
    let (mut query, mut seen) = (groups(10), Vec::new());
    loop {
        let page = store.groups(&query).await.unwrap();
        seen.extend(page.groups.into_iter().map(|group| group.error_class.unwrap()));
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    let expected: Vec<_> = (0..25).rev().map(|n| format!("class-{n}")).collect();
    assert_eq!(seen, expected);
}

/// A tenant, a text.
pub async fn groups_of_what_they_do_not_know_are_counted_among_the_newest<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let of =
        |tenant: &str, n| DeadLetter { tenant: Some(TenantId::new(tenant).unwrap()), ..of_class(n, "smtp") };
    let letters = (0..5).map(|n| of("acme", n)).chain((5..9).map(|n| of("shadow", n)));
    store.collect(letters.collect()).await.unwrap();
    let ids = all_ids(&store).await;
    resolve(&store, &ids[8..], LetterStatus::Discarded).await;
    let asked = |tenant: &str, status| {
        let tenant = Some(TenantId::new(tenant).unwrap());
        GroupQuery { filter: LetterFilter { tenant, status, ..LetterFilter::default() }, ..groups(10) }
    };
    let page = store.groups(&asked("acme", Some(LetterStatus::Open))).await.unwrap();
    assert_eq!((page.groups.len(), page.groups[0].open, page.next), (1, 5, None));
    // They died of the same, and what is told of it is a tenant's own.
    let own = &page.groups[0];
    assert_eq!((own.error.as_str(), own.hours.iter().sum::<u64>()), ("order 4 failed", 5));
    assert_eq!(own.samples, [ids[4], ids[3], ids[2]]);
    let other = store.groups(&asked("shadow", None)).await.unwrap().groups.remove(0);
    assert_eq!((other.open, other.total, other.error.as_str()), (3, 4, "order 8 failed"));
    assert_eq!(other.samples, [ids[8], ids[7], ids[6]]);
}

/// What the inbox knows, what has no id, what died before.
pub async fn a_survey_counts_what_a_plan_needs<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let now = desk.clock.now();
    let of = |n: i64, event: Option<&str>| DeadLetter {
        event_id: event.map(id),
        ordering_key: Some(OrderingKey::new(format!("order/{n}")).unwrap()),
        aggregate_id: Some(AggregateId::new(format!("{}", n % 3)).unwrap()),
        event_type: Some("shop.order.placed".to_owned()),
        consumer: Some(ConsumerName::new("mail").unwrap()),
        first_failed_at: now + Duration::from_secs(n.unsigned_abs()),
        ..letter(n)
    };
    let mut again = of(3, Some("three"));
    again.headers.insert("x-replay-count".to_owned(), 2_i64.into());
    again.headers.insert("x-replay-id".to_owned(), "0199/7".into());
    desk.store.collect(vec![of(0, Some("zero")), of(1, Some("one")), of(2, None), again]).await.unwrap();
    desk.apply("mail", &["one"]).await;
    desk.apply("another", &["zero"]).await;
    let survey = desk.store.survey(&LetterFilter::open()).await.unwrap();
    assert_eq!((survey.letters, survey.applied, survey.unidentified), (4, 1, 1));
    assert_eq!((survey.replayed_before, survey.aggregates), (1, 3));
    assert_eq!(survey.queues, [("mail".to_owned(), 4)]);
    let few = LetterFilter { max_replays: Some(1), ..LetterFilter::open() };
    assert_eq!(desk.store.survey(&few).await.unwrap().letters, 3);
    // Aggregates are one whatever queue and type of event they are in; of another tenant or type they are others.
    let elsewhere = DeadLetter {
        queue: QueueName::new("another").unwrap(),
        event_type: Some("shop.order.paid".to_owned()),
        ..of(6, Some("six"))
    };
    let others = [
        DeadLetter { tenant: Some(TenantId::new("acme").unwrap()), ..of(9, Some("nine")) },
        DeadLetter { event_type: Some("shop.refund.paid".to_owned()), ..of(12, Some("twelve")) },
        DeadLetter { aggregate_id: None, ..of(15, Some("fifteen")) },
    ];
    desk.store.collect(others.into_iter().chain([elsewhere]).collect()).await.unwrap();
    assert_eq!(desk.store.survey(&LetterFilter::open()).await.unwrap().aggregates, 5);
    // What no queue wanted goes back to none.
    let unwanted = DeadLetter {
        queue: QueueName::new("unroutable").unwrap(),
        reason: "unroutable".to_owned(),
        ..of(18, Some("eighteen"))
    };
    desk.store.collect(vec![unwanted]).await.unwrap();
    let survey = desk.store.survey(&LetterFilter::open()).await.unwrap();
    assert_eq!((survey.letters, survey.unroutable), (9, 1));
    assert_eq!(survey.queues, [("another".to_owned(), 1), ("mail".to_owned(), 7)]);
}

/// Of the consumer's own inbox: what another has forgotten says nothing.
pub async fn a_survey_tells_what_the_inbox_has_forgotten<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let before = desk.clock.now() - Duration::from_hours(1);
    let of = |n: i64, consumer: &str| DeadLetter {
        consumer: Some(ConsumerName::new(consumer).unwrap()),
        first_failed_at: before,
        ..letter(n)
    };
    let later = DeadLetter { first_failed_at: desk.clock.now() + Duration::from_hours(1), ..of(3, "mail") };
    desk.store.collect(vec![of(0, "mail"), of(1, "mail"), of(2, "another"), later]).await.unwrap();
    desk.apply("mail", &["one"]).await;
    assert_eq!(desk.store.survey(&LetterFilter::open()).await.unwrap().forgotten, 0);
    desk.store.forget("suite", Duration::ZERO, 10).await.unwrap();
    assert_eq!(desk.store.survey(&LetterFilter::open()).await.unwrap().forgotten, 2);
}

/// In the order of first failure, and no more than was asked for.
pub async fn what_is_frozen_is_what_matched_then<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let late = DeadLetter { first_failed_at: letter(90).dead_at, ..letter(0) };
    store.collect(vec![late, letter(2), letter(1), letter(3)]).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    let by = operation(&store, &mut tx, OperationKind::ReplayLetters).await;
    assert_eq!(store.freeze(&mut tx, by, &LetterFilter::open(), None).await.unwrap(), 4);
    store.commit(tx).await.unwrap();
    store.collect(vec![letter(4)]).await.unwrap();
    let claim = postrider::store::Claim::This(by);
    let claimed = store.claim_operation(&claim, "suite", Duration::from_mins(1)).await.unwrap().unwrap();
    assert_eq!(claimed.total, 4);
    let mut tx = store.begin().await.unwrap();
    let items = store.next_items(&mut tx, by, "suite", 10, Duration::from_mins(1)).await.unwrap().unwrap();
    let mut taken = Vec::new();
    for item in &items {
        taken.push(store.take_open(&mut tx, &[item.parse().unwrap()]).await.unwrap().remove(0).letter.key);
    }
    store.rollback(tx).await.unwrap();
    assert_eq!(taken, ["letter-000001", "letter-000002", "letter-000003", "letter-000000"]);

    let mut tx = store.begin().await.unwrap();
    let canary = operation(&store, &mut tx, OperationKind::ReplayLetters).await;
    assert_eq!(store.freeze(&mut tx, canary, &LetterFilter::open(), Some(2)).await.unwrap(), 2);
    store.rollback(tx).await.unwrap();
}

/// Resolved is resolved.
pub async fn a_letter_is_taken_once<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    store.collect((0..3).map(letter).collect()).await.unwrap();
    let ids = all_ids(&store).await;
    resolve(&store, &ids[1..2], LetterStatus::Replayed).await;
    let mut tx = store.begin().await.unwrap();
    let taken = store.take_open(&mut tx, &[ids[2], ids[1], ids[0]]).await.unwrap();
    store.rollback(tx).await.unwrap();
    let taken: Vec<_> = taken.iter().map(|letter| letter.summary.id).collect();
    assert_eq!(taken, [ids[2], ids[0]]);
}

/// The other finds it resolved.
pub async fn of_two_who_take_one_letter_one_gets_it<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    store.collect((0..20).map(letter).collect()).await.unwrap();
    let ids = all_ids(&store).await;
    let take = |mut ids: Vec<LetterId>, turned: bool| {
        let store = store.clone();
        async move {
            if turned {
                ids.reverse();
            }
            let mut tx = store.begin().await.unwrap();
            let by = operation(&store, &mut tx, OperationKind::DiscardLetters).await;
            let taken = store.take_open(&mut tx, &ids).await.unwrap();
            let status = LetterStatus::Discarded;
            let resolved: Vec<_> =
                taken.iter().map(|letter| Resolution::plain(letter.summary.id, status)).collect();
            store.resolve(&mut tx, by, &resolved).await.unwrap();
            store.commit(tx).await.unwrap();
            taken.len()
        }
    };
    let both = async { tokio::join!(take(ids.clone(), false), take(ids.clone(), true)) };
    let (one, other) = soon("both", both).await;
    assert_eq!(one + other, 20);
}
