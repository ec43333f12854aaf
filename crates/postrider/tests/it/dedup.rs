//! Redis in front of PostgreSQL: what it spares, what it costs when it is slow, and what happens when either is away.

mod eviction;
mod failover;
mod mail;
mod outage;
mod proxy;
mod statements;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use postrider::dedup::{Accelerator, AcceleratorConfig, Seen, Sighting, Standing};
use postrider::postgres::{Postgres, PostgresConfig};
use postrider::redis::{RedisCache, RedisConfig};
use postrider::store::{Inbox as _, InboxMemory as _};
use postrider::{Clock, Deduplicator, Payload};
use postrider_testkit::effects::Effects as _;
use postrider_testkit::servers::{self, Redis, shared};

use self::mail::Mail;
use self::proxy::Proxy;

const LIMIT: Duration = Duration::from_mins(1);

async fn until(mut so: impl AsyncFnMut() -> bool) {
    let clock = Clock::system();
    let start = clock.monotonic();
    while !so().await {
        assert!(clock.since(start) < LIMIT, "it did not come about within {LIMIT:?}");
        clock.sleep(Duration::from_millis(10)).await;
    }
}

async fn postgres(url: &str) -> Postgres {
    let store = Postgres::connect(PostgresConfig::new(url), Clock::system()).await.unwrap();
    store.migrate().await.unwrap();
    store
}

/// Patient with a busy machine, quick to look again.
fn quick() -> AcceleratorConfig {
    let (limit, pause) = (Duration::from_millis(500), Duration::from_millis(50));
    AcceleratorConfig { limit, pause, max_pause: pause, ..AcceleratorConfig::default() }
}

async fn accelerator(url: &str, config: AcceleratorConfig) -> Accelerator {
    let cache = RedisCache::new(RedisConfig::new(url), RedisCache::TTL);
    Accelerator::start(Arc::new(cache), Clock::system(), config).await.space("mail")
}

fn sighting(accelerator: &Accelerator, id: &str) -> Sighting {
    accelerator.sighting(None, id, Payload::new("text/plain", "same").hash(), &accelerator.stamp("history"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_known_duplicate_asks_the_database_nothing() {
    let database = shared().unwrap().migrated_database().await.unwrap();
    let redis = Redis::start().await.unwrap();
    let proxy = Proxy::to(&database.url).await;
    let mail = Mail::start(postgres(&proxy.url).await, &accelerator(&redis.url(), quick()).await).await;
    let event = Mail::event("evt_1");
    mail.deliver(&event).await;
    until(async || redis.cli(&["GET", "mail:ik::evt_1"]).await.unwrap().contains("COMPLETED")).await;

    // Nobody can read or write the inbox now.
    let mut locked = mail.store.pool().begin().await.unwrap();
    sqlx::query("LOCK TABLE postrider.event_inbox IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *locked)
        .await
        .unwrap();
    for _ in 0..300 {
        mail.deliver(&event).await;
    }
    until(async || mail.status.duplicates() == 300).await;
    locked.rollback().await.unwrap();
    // Nor anything else: what is asked now and then has nothing to do with deliveries.
    let before = proxy.questions();
    for number in 1..=100 {
        mail.deliver(&event).await;
        until(async || mail.status.duplicates() == 300 + number).await;
    }
    let asked = proxy.questions() - before;
    assert!(asked < 100, "the database was asked {asked} times about 100 duplicates");
    assert_eq!(mail.store.effects().await.unwrap().len(), 1);
}

/// The FIS document's step 8: neither a hot loop nor a lost event.
#[tokio::test(flavor = "multi_thread")]
async fn while_the_database_is_down_nothing_is_lost_and_nothing_spins() {
    let (server, redis) = (servers::Postgres::start().await.unwrap(), Redis::start().await.unwrap());
    let mail = Mail::start(postgres(&server.url()).await, &accelerator(&redis.url(), quick()).await).await;
    let before = Mail::event("before");
    mail.deliver(&before).await;
    until(async || mail.status.applied() == 1).await;

    server.kill().unwrap();
    let events: Vec<_> = (0..20).map(|number| Mail::event(&format!("evt_{number}"))).collect();
    for event in &events {
        mail.deliver(event).await;
        mail.deliver(event).await;
    }
    until(async || matches!(mail.status.state(), postrider::consumer::ConsumerState::Tripped(_))).await;
    server.restart().await.unwrap();
    until(async || mail.status.applied() == 21 && mail.status.duplicates() == 20).await;
    assert_eq!((mail.status.retried(), mail.status.dead()), (0, 0), "an outage costs no attempt");
    assert_eq!(mail.store.effects().await.unwrap().len(), 21);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefetch_of_250_costs_one_round_trip() {
    let redis = Redis::start().await.unwrap();
    let proxy = Proxy::to(&redis.url()).await;
    let accelerator = accelerator(&proxy.url, AcceleratorConfig { limit: LIMIT, ..quick() }).await;
    assert!(!accelerator.is_degraded());
    let sightings: Vec<_> = (0..250).map(|number| sighting(&accelerator, &format!("evt_{number}"))).collect();
    // Not a byte of an answer goes through before the last question came.
    proxy.hold_answers_until(250);
    assert_eq!(accelerator.look(&sightings).await, vec![Seen::New; 250]);
    proxy.hold_answers_until(250);
    assert_eq!(accelerator.look(&sightings).await, vec![Seen::Processing; 250]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_redis_is_left_alone_and_taken_back() {
    let redis = Redis::start().await.unwrap();
    let proxy = Proxy::to(&redis.url()).await;
    let accelerator = accelerator(&proxy.url, quick()).await;
    let one = [sighting(&accelerator, "evt_1")];
    assert_eq!(accelerator.look(&one).await, [Seen::New]);
    proxy.slow_down(Duration::from_secs(3));
    for _ in 0..3 {
        assert!(!accelerator.is_degraded());
        assert_eq!(accelerator.look(&one).await, [Seen::Unknown]);
    }
    assert!(accelerator.is_degraded());
    // From now on nobody waits: a thousand looks take no time, and it is not taken back while it is slow.
    for _ in 0..1000 {
        assert_eq!(accelerator.look(&one).await, [Seen::Unknown]);
    }
    proxy.slow_down(Duration::ZERO);
    until(async || !accelerator.is_degraded()).await;
    assert_eq!(accelerator.look(&one).await, [Seen::Processing]);
}

/// Notes may take longer than looks. That they are written does not hide that every look is late.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_late_for_looks_alone_is_left_alone() {
    let redis = Redis::start().await.unwrap();
    let proxy = Proxy::to(&redis.url()).await;
    let accelerator = accelerator(&proxy.url, quick()).await;
    let one = [sighting(&accelerator, "evt_1")];
    assert_eq!(accelerator.look(&one).await, [Seen::New]);
    proxy.slow_down(Duration::from_millis(800));
    for _ in 0..3 {
        assert!(!accelerator.is_degraded());
        assert_eq!(accelerator.look(&one).await, [Seen::Unknown]);
        accelerator.note(&one[0], postrider::dedup::Status::Completed, None);
        // The note is answered meanwhile.
        Clock::system().sleep(Duration::from_millis(1500)).await;
    }
    assert!(accelerator.is_degraded());
}

/// As after a failover that left the old address with a replica.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_writes_is_left_alone() {
    let redis = Redis::start().await.unwrap();
    let accelerator = accelerator(&redis.url(), quick()).await;
    redis.cli(&["REPLICAOF", "127.0.0.1", "1"]).await.unwrap();
    let one = [sighting(&accelerator, "evt_1")];
    until(async || accelerator.look(&one).await == [Seen::Unknown] && accelerator.is_degraded()).await;
    redis.cli(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
    until(async || !accelerator.is_degraded() && accelerator.look(&one).await == [Seen::New]).await;
}

/// The primary dies, and a replica that had not heard of the last events takes its place, under the same address.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_to_a_replica_that_lags_loses_and_repeats_nothing() {
    let database = shared().unwrap().migrated_database().await.unwrap();
    let (primary, replica) = (Redis::start().await.unwrap(), Redis::start().await.unwrap());
    let proxy = Proxy::to(&primary.url()).await;
    let accelerator = accelerator(&proxy.url, quick()).await;
    let mail = Mail::start(postgres(&database.url).await, &accelerator).await;
    let events: Vec<_> = (0..20).map(|number| Mail::event(&format!("evt_{number}"))).collect();
    let knows = async |id: &str| replica.cli(&["GET", &format!("mail:ik::{id}")]).await.unwrap();
    let url = primary.url();
    replica.cli(&["REPLICAOF", "127.0.0.1", url.rsplit_once(':').unwrap().1]).await.unwrap();
    for event in &events[..10] {
        mail.deliver(event).await;
    }
    until(async || knows("evt_9").await.contains("COMPLETED")).await;
    // It hears no more.
    replica.cli(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
    for event in &events[10..] {
        mail.deliver(event).await;
    }
    until(async || mail.status.applied() == 20).await;
    assert_eq!(knows("evt_15").await, "");

    primary.kill().unwrap();
    proxy.lead_to(&replica.url());
    for event in &events {
        mail.deliver(event).await;
    }
    until(async || mail.status.duplicates() == 20).await;
    assert_eq!(mail.store.effects().await.unwrap().len(), 20);
    // What the new primary had missed it learns from the next duplicate.
    until(async || {
        mail.deliver(&events[15]).await;
        knows("evt_15").await.contains("COMPLETED")
    })
    .await;
    assert_eq!((mail.status.applied(), mail.status.dead()), (20, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_was_never_there_degrades_and_is_found_when_it_comes() {
    let redis = Redis::start().await.unwrap();
    redis.kill().unwrap();
    let accelerator = accelerator(&redis.url(), quick()).await;
    assert!(accelerator.is_degraded());
    redis.restart().await.unwrap();
    until(async || !accelerator.is_degraded()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_done_is_answered_without_the_database() {
    let database = shared().unwrap().migrated_database().await.unwrap();
    let (store, redis) = (postgres(&database.url).await, Redis::start().await.unwrap());
    let once = Deduplicator::new(store.clone(), Clock::system(), "payments")
        .accelerated(&accelerator(&redis.url(), quick()).await);
    let hash = Payload::new("text/plain", "charge 5").hash();
    let Standing::Yours(claim) = once.claim("order-1", hash).await.unwrap() else { panic!("not ours") };
    assert!(matches!(once.claim("order-1", hash).await.unwrap(), Standing::InFlight(_)));
    assert!(once.complete(claim, Bytes::from_static(b"charged")).await.unwrap());
    until(async || redis.cli(&["GET", "payments:ik::order-1"]).await.unwrap().contains("COMPLETED")).await;

    let charged = Standing::Done(Bytes::from_static(b"charged"));
    let mut locked = store.pool().begin().await.unwrap();
    sqlx::query("LOCK TABLE postrider.claim IN ACCESS EXCLUSIVE MODE").execute(&mut *locked).await.unwrap();
    assert_eq!(once.claim("order-1", hash).await.unwrap(), charged);
    locked.rollback().await.unwrap();

    // Redis is no authority: another payload is the store's to judge, and so is what Redis has lost.
    let other = Payload::new("text/plain", "charge 500").hash();
    assert_eq!(once.claim("order-1", other).await.unwrap(), Standing::Conflict);
    redis.cli(&["FLUSHALL"]).await.unwrap();
    assert_eq!(once.claim("order-1", hash).await.unwrap(), charged);
    // What was given up can be tried again.
    let Standing::Yours(claim) = once.claim("order-2", hash).await.unwrap() else { panic!("not ours") };
    assert!(once.release(claim).await.unwrap());
    assert!(matches!(once.claim("order-2", hash).await.unwrap(), Standing::Yours(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_worker_at_a_time_looks_after_the_inbox() {
    let database = shared().unwrap().migrated_database().await.unwrap();
    let store = postgres(&database.url).await;
    let day = Duration::from_hours(24);
    assert!(store.forget("first", day, 10).await.unwrap().is_some());
    assert!(store.forget("second", day, 10).await.unwrap().is_none());
    assert!(store.forget("first", day, 10).await.unwrap().is_some());
    let end = "UPDATE postrider.duty SET until = now() - interval '1 second' WHERE name = 'inbox'";
    sqlx::query(end).execute(store.pool()).await.unwrap();
    assert!(store.forget("second", day, 10).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_databases_have_two_histories_and_anybody_may_ask() {
    let shared = shared().unwrap();
    let (one, two) = (shared.migrated_database().await.unwrap(), shared.migrated_database().await.unwrap());
    let (store, other) = (postgres(&one.url).await, postgres(&two.url).await);
    assert_ne!(store.lineage().await.unwrap(), other.lineage().await.unwrap());
    // With no right but to connect.
    let mut plain = store.pool().begin().await.unwrap();
    let role = format!("plain_{}", Clock::system().new_id().simple());
    sqlx::query(sqlx::AssertSqlSafe(format!("CREATE ROLE {role}"))).execute(&mut *plain).await.unwrap();
    sqlx::query(sqlx::AssertSqlSafe(format!("SET LOCAL ROLE {role}"))).execute(&mut *plain).await.unwrap();
    let asked = sqlx::query(
        "SELECT system_identifier, pg_walfile_name(pg_current_wal_lsn()) FROM pg_control_system()",
    );
    asked.fetch_one(&mut *plain).await.unwrap();
    plain.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_found_out_and_a_batch_reaches_all_of_its_nodes() {
    let nodes = Redis::start_cluster().await.unwrap();
    let accelerator = accelerator(&nodes[0].url(), AcceleratorConfig { limit: LIMIT, ..quick() }).await;
    let sightings: Vec<_> = (0..250).map(|number| sighting(&accelerator, &format!("evt_{number}"))).collect();
    assert_eq!(accelerator.look(&sightings).await, vec![Seen::New; 250]);
    for node in &nodes {
        let keys: usize = node.cli(&["DBSIZE"]).await.unwrap().parse().unwrap();
        assert!(keys > 0, "a node has no keys");
    }
    for sighting in &sightings {
        accelerator.note(sighting, postrider::dedup::Status::Completed, None);
    }
    until(async || accelerator.look(&sightings).await == vec![Seen::CompletedSame(None); 250]).await;
    assert!(!accelerator.is_degraded());
}
