//! Push: every row of the status table, what a body adds to it, and receivers that behave badly.

use std::sync::Arc;
use std::time::Duration;

use postrider::broker::HeaderValue;
use postrider::consumer::{BreakerConfig, ConsumerState};
use postrider::dedup::{Record, Status};
use postrider::envelope::wire;
use postrider::push::{
    Allowed, Attempts, Form, Push, SigningSecret, Source, StatusTable, Subscription, SystemNames,
};
use postrider::registry::Registry;
use postrider::runtime::{Running, Runtime};
use postrider::settlement::RetryPolicy;
use postrider::store::DeadLetter;
use postrider::topology::{ConsumerName, ExchangeKind, ExchangeName, OnDead, QueueName};
use postrider::{Event, EventId, WireFormat};
use postrider_testkit::effects::Effects;
use postrider_testkit::receiver::{Receiver, Reply, Request};

use super::idempotency::in_front;
use super::stage::{CONSUMER, Stage};

const STEP: Duration = Duration::from_millis(50);

/// What the stage's consumer is, when it pushes.
struct Pushing<S> {
    stage: Stage<S>,
    receiver: Receiver,
    attempts: Arc<Attempts>,
    running: Running<S>,
}

impl<S: Effects> Pushing<S> {
    async fn start(
        mut stage: Stage<S>,
        change: impl FnOnce(&mut Subscription),
        answer: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static,
    ) -> Self {
        stage.config.breaker = BreakerConfig { failures: 0, ..BreakerConfig::default() };
        let receiver = Receiver::start(answer).await;
        let source = Source::Queue(QueueName::new(CONSUMER).unwrap());
        let url = receiver.url().parse().unwrap();
        let mut subscription = Subscription::new(ConsumerName::new(CONSUMER).unwrap(), source, url);
        change(&mut subscription);
        let allowed = Allowed::new(&["127.0.0.1", "http"]).unwrap();
        let secrets = vec![SigningSecret::shared([1; 32]), SigningSecret::key_pair([2; 32])];
        let clock = stage.clock.clone();
        let sender = subscription.sender(secrets, allowed, Arc::new(SystemNames), clock.clone()).unwrap();
        let (attempts, pauses) = (Arc::new(Attempts::default()), Arc::new(stage.store.clone()));
        let push = Push::new(sender, subscription.status.clone(), attempts.clone(), pauses, clock);
        let running = stage.start_with(Registry::new().on_outside("#", push)).await;
        Self { stage, receiver, attempts, running }
    }

    /// Commits an order whose number is what the receiver answers by.
    async fn order(&self, number: &str) -> EventId {
        self.stage.commit(Event::new("order.placed").unwrap().aggregate_id(number).unwrap()).await
    }

    fn calls(&self, id: &EventId) -> Vec<Request> {
        let of = |request: &Request| request.header("webhook-id") == id.as_str();
        self.receiver.requests().into_iter().filter(of).collect()
    }

    async fn applied(&self, count: u64) {
        let account = self.stage.account(&self.running, |account| account.applied == count).await;
        assert!(account.holds(), "{account:?}");
    }
}

/// The status that an order asks for. 425 only the first time.
fn asked(request: &Request, before: usize) -> Reply {
    match request.header("x-aggregate-id").parse().unwrap() {
        425 if before > 0 => Reply::status(200),
        status => Reply::status(status),
    }
}

/// 425 without a time, for ever, on an ordered queue: the shortest wait lies between two calls.
pub(super) async fn who_only_says_later_is_not_asked_at_once<S: Effects>(stage: Stage<S>) {
    let wait = Duration::from_millis(300);
    let stage = Stage { retry: RetryPolicy::fixed(2, wait), order: Some(OnDead::Park), ..stage };
    let pushing = Pushing::start(stage, |_| (), |_, _| Reply::status(425)).await;
    let begun = pushing.stage.clock.monotonic();
    let id = pushing.order("later").await;
    pushing.stage.until(async || pushing.calls(&id).len() >= 4).await;
    let took = pushing.stage.clock.since(begun);
    assert!(took >= wait * 3, "four calls in {took:?}");
}

async fn play<S: Effects>(stage: Stage<S>, strict: bool, rows: &[(u16, usize, &str)]) {
    let stage = Stage { retry: RetryPolicy::fixed(2, STEP), ..stage };
    let table = StatusTable::new(&[].into(), strict).unwrap();
    let pushing = Pushing::start(stage, |subscription| subscription.status = table, asked).await;
    let mut ids = Vec::new();
    for (status, ..) in rows {
        ids.push(pushing.order(&status.to_string()).await);
    }
    let dead = rows.iter().filter(|(.., reason)| !reason.is_empty()).count();
    let letters = pushing.stage.dead_letters(dead).await;
    pushing.applied((rows.len() - dead) as u64).await;
    for ((status, calls, reason), id) in rows.iter().zip(&ids) {
        let attempts = pushing.calls(id);
        assert_eq!(attempts.len(), *calls, "{status}");
        let letter = letters.iter().find(|letter| letter.event_id.as_ref() == Some(id));
        assert_eq!(letter.map_or("", |letter| &letter.reason), *reason, "{status}");
        if let Some(letter) = letter {
            assert_eq!(final_status(letter), Some(i64::from(*status)));
            let told = letter.headers.get("x-final-retry-count").and_then(HeaderValue::as_int);
            assert_eq!(told, i64::try_from(*calls - 1).ok(), "{status}");
        }
        let numbers: Vec<_> = attempts.iter().map(|request| request.header("x-attempt").to_owned()).collect();
        let wanted: Vec<_> = if *status == 425 {
            vec!["1".to_owned(), "1".to_owned()]
        } else {
            (1..=*calls).map(|attempt| attempt.to_string()).collect()
        };
        assert_eq!(numbers, wanted, "{status}");
    }
}

fn final_status(letter: &DeadLetter) -> Option<i64> {
    letter.headers.get("x-final-status-code").and_then(HeaderValue::as_int)
}

pub(super) async fn every_status_is_settled_as_the_table_says<S: Effects>(stage: Stage<S>) {
    let rows = [
        (200, 1, ""),
        (204, 1, ""),
        (425, 2, ""),
        (302, 3, "retries_exhausted"),
        (408, 3, "retries_exhausted"),
        (409, 3, "retries_exhausted"),
        (429, 3, "retries_exhausted"),
        (500, 3, "retries_exhausted"),
        (503, 3, "retries_exhausted"),
        (400, 1, "rejected"),
        (401, 1, "rejected"),
        (404, 1, "rejected"),
        (422, 1, "rejected"),
    ];
    play(stage, false, &rows).await;
}

pub(super) async fn the_seeds_own_table_tries_every_4xx_again<S: Effects>(stage: Stage<S>) {
    let rows = [
        (201, 1, ""),
        (425, 2, ""),
        (400, 3, "retries_exhausted"),
        (404, 3, "retries_exhausted"),
        (410, 3, "retries_exhausted"),
        (500, 3, "retries_exhausted"),
    ];
    play(stage, true, &rows).await;
}

pub(super) async fn a_body_says_retry_or_reject<S: Effects>(stage: Stage<S>) {
    let stage = Stage { retry: RetryPolicy::fixed(1, STEP), ..stage };
    let answer = |request: &Request, _: usize| {
        Reply::Status(200, "", format!(r#"{{"status":"{}"}}"#, request.header("x-aggregate-id")))
    };
    let pushing = Pushing::start(stage, |_| {}, answer).await;
    let done = pushing.order("SUCCESS").await;
    let (retry, reject) = (pushing.order("RETRY").await, pushing.order("REJECT").await);
    let letters = pushing.stage.dead_letters(2).await;
    pushing.applied(1).await;
    let reason = |id: &EventId| {
        letters.iter().find(|letter| letter.event_id.as_ref() == Some(id)).map(|letter| letter.reason.clone())
    };
    assert_eq!(
        [reason(&retry).as_deref(), reason(&reject).as_deref()],
        [Some("retries_exhausted"), Some("rejected")]
    );
    assert_eq!([done, retry, reject].map(|id| pushing.calls(&id).len()), [1, 2, 1]);
}

pub(super) async fn a_gone_endpoint_is_paused_and_loses_nothing<S: Effects>(stage: Stage<S>) {
    let back = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_back = back.clone();
    let answer = move |_: &Request, _: usize| {
        Reply::status(if is_back.load(std::sync::atomic::Ordering::SeqCst) { 200 } else { 410 })
    };
    let pushing = Pushing::start(stage, |_| {}, answer).await;
    let id = pushing.order("1").await;
    let (store, status) = (&pushing.stage.store, pushing.running.consumers()[0].status.clone());
    pushing.stage.until(async || matches!(status.state(), ConsumerState::Paused(_))).await;
    let name = ConsumerName::new(CONSUMER).unwrap();
    let pause = store.pause_of(&name).await.unwrap().unwrap();
    assert!(pause.by == "push" && pause.reason.contains("410"), "{pause:?}");
    pushing.stage.account(&pushing.running, |account| account.waiting == 1 && account.holds()).await;

    back.store(true, std::sync::atomic::Ordering::SeqCst);
    assert!(store.resume(&name, "ann", "").await.unwrap());
    pushing.applied(1).await;
    let last = pushing.calls(&id).pop().unwrap();
    assert_eq!(last.header("x-attempt"), "1", "being gone uses up no attempt");
}

pub(super) async fn retry_after_is_kept_to<S: Effects>(stage: Stage<S>) {
    let answer = |_: &Request, before: usize| match before {
        0 => Reply::Status(503, "retry-after: 1\r\n", String::new()),
        _ => Reply::status(200),
    };
    let pushing = Pushing::start(stage, |_| {}, answer).await;
    pushing.order("1").await;
    pushing.applied(1).await;
    let times: Vec<_> = pushing.attempts.take().into_iter().map(|attempt| attempt.at).collect();
    let waited = times[1].duration_since(times[0]);
    assert!(waited.as_millis() >= 1000, "{waited:?}");
}

pub(super) async fn bad_receivers_fail_their_attempt_alone<S: Effects>(stage: Stage<S>) {
    let answer = |request: &Request, before: usize| match (request.header("x-aggregate-id"), before) {
        (_, 1..) => Reply::status(200),
        ("endless", _) => Reply::Endless,
        ("garbage", _) => Reply::Raw("this is not HTTP\r\n\r\n"),
        ("cut", _) => Reply::Raw("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort"),
        ("empty", _) => Reply::Raw(""),
        ("stalls", _) => Reply::Stalls,
        ("silence", _) => Reply::Silence,
        _ => Reply::status(200),
    };
    let short = |subscription: &mut Subscription| subscription.limit = Duration::from_millis(500);
    let pushing = Pushing::start(stage, short, answer).await;
    let kinds = ["endless", "garbage", "cut", "empty", "stalls", "silence", "fine"];
    let mut ids = Vec::new();
    for kind in kinds {
        ids.push(pushing.order(kind).await);
    }
    pushing.applied(kinds.len() as u64).await;
    let calls: Vec<_> = ids.iter().map(|id| pushing.calls(id).len()).collect();
    assert_eq!(calls, [2, 2, 2, 2, 2, 2, 1]);
    let attempts = pushing.attempts.take();
    let first =
        |kind: usize| attempts.iter().find(|one| one.event_id == ids[kind] && one.attempt == 1).unwrap();
    // An answer without an end is read as far as the limit of bytes, and is no success.
    assert!(first(0).answer.len() <= 2048 && first(0).status == Some(200));
    assert!(first(0).error.as_ref().unwrap().contains("longer than 65536 bytes"), "{:?}", first(0));
    for (kind, name) in kinds.iter().enumerate().take(6).skip(1) {
        let attempt = first(kind);
        assert!(attempt.status.is_none() && attempt.error.is_some(), "{name}: {attempt:?}");
    }
    assert!(first(5).error.as_ref().unwrap().contains("time limit"), "{:?}", first(5));
}

pub(super) async fn a_request_says_who_it_is_and_is_signed<S: Effects>(stage: Stage<S>) {
    let answer = |_: &Request, before: usize| Reply::status(if before == 0 { 500 } else { 200 });
    let change = |subscription: &mut Subscription| {
        subscription.form = Form::CloudEvents;
        subscription.headers.insert("authorization".to_owned(), "Bearer secret".to_owned());
    };
    let pushing = Pushing::start(stage, change, answer).await;
    let mut event = Event::new("order.placed").unwrap().aggregate_id("7").unwrap().tenant("acme").unwrap();
    event.trace.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
    event.attributes.set("source", "/shop/é").unwrap();
    event.attributes.set("comexampleother", "x").unwrap();
    let id = pushing.stage.commit(event.json(&serde_json::json!({"n": 1})).unwrap()).await;
    pushing.applied(1).await;
    let calls = pushing.calls(&id);
    assert_eq!(calls.len(), 2);
    for (request, attempt) in calls.iter().zip(["1", "2"]) {
        assert_eq!(request.body, br#"{"n":1}"#);
        for (name, value) in [
            ("content-type", "application/json"),
            ("authorization", "Bearer secret"),
            ("ce-type", "order.placed"),
            ("ce-id", id.as_str()),
            ("ce-subject", "7"),
            ("ce-source", "/shop/%C3%A9"),
            ("ce-comexampleother", "x"),
            ("x-event-id", id.as_str()),
            ("x-group-id", "acme"),
            ("x-attempt", attempt),
            ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ] {
            assert_eq!(request.header(name), value, "{name}");
        }
        let timestamp = request.header("webhook-timestamp").parse().unwrap();
        let signed = [SigningSecret::shared([1; 32]), SigningSecret::key_pair([2; 32])]
            .map(|secret| secret.sign(id.as_str(), timestamp, &request.body));
        assert_eq!(request.header("webhook-signature"), signed.join(" "));
    }
}

pub(super) async fn order_holds_at_the_endpoint<S: Effects>(stage: Stage<S>) {
    let stage = Stage { order: Some(OnDead::Continue), ..stage };
    let answer = |request: &Request, before: usize| {
        let third = request.body.windows(5).any(|part| part == br#""n":3"#);
        Reply::status(if third && before < 2 { 503 } else { 200 })
    };
    let pushing = Pushing::start(stage, |subscription| subscription.form = Form::Bare, answer).await;
    for number in 1..=6 {
        let event = Event::new("order.placed").unwrap().aggregate_id("same").unwrap();
        pushing.stage.commit(event.json(&serde_json::json!({ "n": number })).unwrap()).await;
    }
    pushing.applied(6).await;
    let seen: Vec<_> = pushing
        .receiver
        .requests()
        .iter()
        .map(|request| {
            serde_json::from_slice::<serde_json::Value>(&request.body).unwrap()["n"].as_u64().unwrap()
        })
        .collect();
    assert_eq!(seen, [1, 2, 3, 3, 3, 4, 5, 6]);
}

pub(super) async fn a_duplicate_is_not_sent_again<S: Effects>(stage: Stage<S>) {
    let pushing = Pushing::start(stage, |_| {}, |_, _| Reply::status(200)).await;
    let event = || Event::new("order.placed").unwrap().id("evt_1").unwrap();
    let message = |event: Event| {
        postrider::envelope::wire::encode(
            &event.into_envelope(&pushing.stage.clock),
            postrider::WireFormat::Envelope,
            0,
        )
    };
    let once = message(event());
    pushing.stage.deliver(once.clone()).await;
    pushing.stage.until(async || pushing.attempts.take().len() == 1).await;
    let status = pushing.running.consumers()[0].status.clone();
    pushing.stage.until(async || status.applied() == 1).await;
    pushing.stage.deliver(once).await;
    pushing.stage.deliver(message(event().json(&serde_json::json!({"other": 1})).unwrap())).await;
    let letter = pushing.stage.dead_letters(1).await.remove(0);
    assert_eq!(letter.reason, "conflict");
    pushing.stage.until(async || status.duplicates() == 1).await;
    assert_eq!(pushing.receiver.requests().len(), 1);
}

/// The inbox never heard of the event: it is Redis alone that keeps it from being sent.
pub(super) async fn what_redis_knows_is_not_asked_of_the_inbox<S: Effects>(mut stage: Stage<S>) {
    let redis = in_front(&mut stage).await;
    let event = Event::new("order.placed").unwrap().id("evt_1").unwrap().tenant("acme").unwrap();
    let envelope = event.into_envelope(&stage.clock);
    let record = Record {
        status: Status::Completed,
        payload_hash: envelope.payload.hash().to_string(),
        response_body: None,
        created_at: stage.clock.now(),
        owner: "somebody".to_owned(),
        lease_until: None,
        lineage: format!("{}/{CONSUMER}", stage.store.lineage().await.unwrap()),
    };
    let record = String::from_utf8(record.to_bytes()).unwrap();
    redis.cli(&["SET", "fis:ik:acme:evt_1", &record]).await.unwrap();
    let pushing = Pushing::start(stage, |_| {}, |_, _| Reply::status(200)).await;
    pushing.stage.deliver(wire::encode(&envelope, WireFormat::Envelope, 0)).await;
    let status = pushing.running.consumers()[0].status.clone();
    pushing.stage.until(async || status.duplicates() == 1).await;
    assert_eq!(pushing.receiver.requests().len(), 0);
}

/// Both share a process and a broker; one never answers.
pub(super) async fn a_slow_endpoint_holds_up_no_other<S: Effects>(stage: Stage<S>) {
    let hangs = Receiver::start(|_, _| Reply::Silence).await;
    let allowed = Allowed::new(&["127.0.0.1", "http"]).unwrap();
    let clock = stage.clock.clone();
    let source =
        Source::Keys { keys: vec!["order.#".to_owned()], ordered: false, retry: RetryPolicy::default() };
    let name = ConsumerName::new("hangs").unwrap();
    let slow = Subscription::new(name.clone(), source, hangs.url().parse().unwrap());
    let sender = slow.sender(Vec::new(), allowed, Arc::new(SystemNames), clock.clone()).unwrap();
    let pauses = Arc::new(stage.store.clone());
    let push = Push::new(sender, slow.status.clone(), Arc::default(), pauses, clock.clone());
    let exchange = ExchangeName::new("events").unwrap();
    let service = slow.service(&[], &exchange).unwrap();
    let pushing = Pushing::start(stage, |_| {}, |_, _| Reply::status(200)).await;
    let hanging = Runtime::new(pushing.stage.store.clone(), pushing.stage.broker.clone(), clock)
        .exchange(exchange.clone(), ExchangeKind::Topic)
        .relay(None)
        .events_from(exchange)
        .consumer_with(name, service, Registry::new().on_outside("#", push), slow.consumer_config())
        .start()
        .await
        .unwrap();
    for number in 0..50 {
        pushing.order(&number.to_string()).await;
    }
    pushing.applied(50).await;
    pushing.stage.until(async || !hangs.requests().is_empty()).await;
    assert_eq!(hanging.consumers()[0].status.applied(), 0);
}
