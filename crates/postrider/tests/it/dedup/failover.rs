//! PostgreSQL as it was before: a replica that lagged is promoted, or a snapshot of the disk is put back. Redis still has notes of commits
//! that are gone.

use std::path::Path;
use std::process::Command;

use postrider::consumer::ConsumerState;
use postrider::postgres::Postgres;
use postrider_testkit::effects::Effects as _;
use postrider_testkit::servers::{self, Redis};
use sqlx::{Connection as _, PgConnection};

use super::mail::Mail;
use super::proxy::Proxy;
use super::{accelerator, postgres, quick, until};

/// Asks a server past everything else.
async fn ask(url: &str, sql: &'static str) -> i64 {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap()
}

async fn tell(url: &str, sql: &'static str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
}

async fn effects(store: &Postgres) -> Vec<String> {
    let effects = store.effects().await.unwrap_or_default();
    let mut ids: Vec<_> = effects.into_iter().map(|(_, id)| id.to_string()).collect();
    ids.sort();
    ids
}

const EFFECTS: &str = "SELECT count(*) FROM effect";

#[tokio::test(flavor = "multi_thread")]
async fn what_a_promoted_replica_never_heard_of_is_applied_whatever_redis_says() {
    let (primary, redis) = (servers::Postgres::start().await.unwrap(), Redis::start().await.unwrap());
    let proxy = Proxy::to(&primary.url()).await;
    let cache = accelerator(&redis.url(), quick()).await;
    let mail = Mail::start(postgres(&proxy.url).await, &cache).await;
    let replica = primary.start_replica().await.unwrap();
    let [kept, lost, later] = ["kept", "lost", "later"].map(Mail::event);
    let noted = async |id: &str| redis.cli(&["GET", &format!("mail:ik::{id}")]).await.unwrap();
    mail.deliver(&kept).await;
    until(async || noted("kept").await.contains("COMPLETED")).await;
    until(async || ask(&replica.url(), EFFECTS).await == 1).await;
    // It hears no more.
    tell(&replica.url(), "ALTER SYSTEM SET primary_conninfo = ''").await;
    tell(&replica.url(), "SELECT pg_reload_conf()").await;
    until(async || ask(&replica.url(), "SELECT count(*) FROM pg_stat_wal_receiver").await == 0).await;
    mail.deliver(&lost).await;
    until(async || noted("lost").await.contains("COMPLETED")).await;
    assert_eq!(ask(&replica.url(), EFFECTS).await, 1);

    primary.kill().unwrap();
    mail.deliver(&later).await;
    until(async || matches!(mail.status.state(), ConsumerState::Tripped(_))).await;
    tell(&replica.url(), "SELECT pg_promote()").await;
    proxy.lead_to(&replica.url());
    // Both come again, as from a broker that did not hear of their acks.
    mail.deliver_all([&kept, &lost]).await;
    until(async || effects(&mail.store).await.len() == 3).await;
    until(async || mail.status.duplicates() == 1).await;
    assert_eq!(effects(&mail.store).await, ["kept", "later", "lost"]);
    assert_eq!((mail.status.applied(), mail.status.dead()), (4, 0));
    // And the notes are about the new history.
    mail.deliver_all([&kept, &lost]).await;
    until(async || mail.status.duplicates() == 3).await;
    assert_eq!(mail.calls(), 4);
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success(), "{} was not copied", from.display());
}

/// Delivers events until one of them is looked up. Where a server was away, the first are for a probe, and those are for the store alone.
async fn until_redis_is_asked(mail: &Mail, redis: &Redis, word: &str) {
    let mut number = 0;
    until(async || {
        number += 1;
        mail.deliver(&Mail::event(&format!("{word}_{number}"))).await;
        redis.cli(&["KEYS", &format!("mail:ik::{word}_*")]).await.unwrap().contains(word)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_the_disk_that_is_put_back_is_another_history() {
    let (server, redis) = (servers::Postgres::start().await.unwrap(), Redis::start().await.unwrap());
    let cache = accelerator(&redis.url(), quick()).await;
    let mail = Mail::start(postgres(&server.url()).await, &cache).await;
    let (data, snapshot) = (server.folder().join("data"), server.folder().join("snapshot"));
    server.stop().await.unwrap();
    copy(&data, &snapshot);
    server.restart().await.unwrap();
    until_redis_is_asked(&mail, &redis, "before").await;
    let event = Mail::event("lost");
    mail.deliver(&event).await;
    until(async || redis.cli(&["GET", "mail:ik::lost"]).await.unwrap().contains("COMPLETED")).await;
    assert!(effects(&mail.store).await.contains(&"lost".to_owned()));

    server.stop().await.unwrap();
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(&snapshot, &data).unwrap();
    // As long as it is away nothing that was noted is believed: who works finds out.
    mail.deliver(&Mail::event("later")).await;
    until(async || matches!(mail.status.state(), ConsumerState::Tripped(_))).await;
    server.restart().await.unwrap();
    until(async || effects(&mail.store).await == ["later"]).await;
    until_redis_is_asked(&mail, &redis, "probe").await;
    mail.deliver(&event).await;
    until(async || effects(&mail.store).await.contains(&"lost".to_owned())).await;
    assert_eq!((mail.status.duplicates(), mail.status.dead()), (0, 0));
}
