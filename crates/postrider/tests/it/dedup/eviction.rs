//! A Redis that forgets, and one that is too old for `SET … NX GET`.

use std::time::Duration;

use bytes::Bytes;
use postrider::dedup::{AcceleratorConfig, CacheHealth, Seen, Status};
use postrider_testkit::effects::Effects as _;
use postrider_testkit::servers::{Redis, shared};

use super::mail::Mail;
use super::{accelerator, postgres, quick, sighting, until};

/// A number in what Redis says of itself.
async fn figure(redis: &Redis, section: &str, name: &str) -> u64 {
    let said = redis.cli(&["INFO", section]).await.unwrap();
    let line = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {said}")).trim().parse().unwrap()
}

/// How often a command was carried out.
async fn count(redis: &Redis, command: &str) -> u64 {
    let said = redis.cli(&["INFO", "commandstats"]).await.unwrap();
    let line = said.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn while_keys_are_evicted_each_event_is_applied_once() {
    const EVENTS: usize = 1_500;
    let (database, redis) =
        (shared().unwrap().migrated_database().await.unwrap(), Redis::start().await.unwrap());
    let cache = accelerator(&redis.url(), quick()).await;
    let mail = Mail::start(postgres(&database.url).await, &cache).await;
    // Room for some hundred keys more than it has.
    let room = figure(&redis, "memory", "used_memory").await + 300_000;
    redis.cli(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]).await.unwrap();
    redis.cli(&["CONFIG", "SET", "maxmemory", &room.to_string()]).await.unwrap();

    let events: Vec<_> = (0..EVENTS).map(|number| Mail::event(&format!("evt_{number}"))).collect();
    let mut duplicates = 0;
    for (number, some) in events.chunks(100).enumerate() {
        // With every hundred come some of the oldest, of the latest and of themselves again.
        let again = events[..50].iter().chain(&events[(number * 100).saturating_sub(50)..number * 100]);
        let again: Vec<_> = again.chain(&some[..50]).filter(|_| number > 0).collect();
        duplicates += again.len() as u64;
        mail.deliver_all(some.iter().chain(again)).await;
    }
    let status = &mail.status;
    until(async || status.applied() == EVENTS as u64 && status.duplicates() == duplicates).await;
    let evicted = figure(&redis, "stats", "evicted_keys").await;
    assert!(evicted > 100, "only {evicted} keys were evicted");
    assert_eq!((status.retried(), status.dead(), mail.calls()), (0, 0, EVENTS));
    assert_eq!(mail.store.effects().await.unwrap().len(), EVENTS);
    // What was forgotten is known again once it was asked for.
    let oldest = &events[0];
    until(async || {
        mail.deliver(oldest).await;
        redis.cli(&["GET", "mail:ik::evt_0"]).await.unwrap().contains("COMPLETED")
    })
    .await;
}

/// A user who may not ask for the version is served as if the server were an old one: in two commands.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_may_be_old_is_asked_in_two_commands() {
    let redis = Redis::start().await.unwrap();
    redis.cli(&["ACL", "SETUSER", "old", "on", ">secret", "~*", "&*", "+@all", "-info"]).await.unwrap();
    let url = redis.url().replace("redis://", "redis://old:secret@");
    let limits = AcceleratorConfig { limit: Duration::from_secs(10), ..quick() };
    let cache = accelerator(&url, limits).await;
    assert!(!cache.is_degraded());
    let all: Vec<_> = (0..3).map(|number| sighting(&cache, &format!("evt_{number}"))).collect();
    let before = count(&redis, "get").await;
    assert_eq!(cache.look(&all).await, vec![Seen::New; 3]);
    assert_eq!(count(&redis, "get").await, before + 3, "one GET beside each SET");
    assert_eq!(cache.look(&all).await, vec![Seen::Processing; 3]);

    let answer = Bytes::from_static(b"42");
    cache.note(&all[0], Status::Completed, Some(&answer));
    cache.note(&all[1], Status::Failed, None);
    let noted = [Seen::CompletedSame(Some(answer)), Seen::Failed, Seen::Processing];
    until(async || cache.look(&all).await == noted).await;
    // A note never makes a key that is gone.
    redis.cli(&["DEL", "mail:ik::evt_1"]).await.unwrap();
    cache.note(&all[1], Status::Completed, None);
    cache.note(&all[2], Status::Failed, None);
    until(async || redis.cli(&["GET", "mail:ik::evt_2"]).await.unwrap().contains("FAILED")).await;
    assert_eq!(redis.cli(&["EXISTS", "mail:ik::evt_1"]).await.unwrap(), "0");

    // Full: what is new is refused, and what is known still answers.
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]).await.unwrap();
    let more = [all[0].clone(), sighting(&cache, "evt_9")];
    let seen = cache.look(&more).await;
    assert_eq!(seen, [noted[0].clone(), Seen::New]);
    assert_eq!(redis.cli(&["EXISTS", "mail:ik::evt_9"]).await.unwrap(), "0");
    assert!(!cache.is_degraded());
    assert_eq!(cache.health().await, CacheHealth::Full);
}
