//! Outboxes in two databases, of which one keeps the migration: the other follows every phase, and nothing is proven, cut over or
//! finished while it cannot be asked.

use postrider::Clock;
use postrider::migration::{
    self, Comparing, Databases, Definition, MigrationError, MigrationName, Phase, Standing,
};
use postrider::postgres::{Postgres, PostgresConfig};
use postrider::store::{DualPublishing as _, Operations as _, PhaseTurn};
use postrider_testkit::proxy::{Proxy, Weather};
use postrider_testkit::servers::{TestDatabase, shared};

use super::{Buses, LIMIT, SHOP, commit, step, withheld};

/// A database that can be cut off.
struct Shop {
    store: Postgres,
    proxy: Proxy,
    _database: TestDatabase,
}

impl Shop {
    async fn open() -> Self {
        let database = shared().unwrap().migrated_database().await.unwrap();
        let (proxy, url) = Proxy::in_front_of(&database.url).await.unwrap();
        let store = Postgres::connect(PostgresConfig::new(&url), Clock::system()).await.unwrap();
        store.migrate().await.unwrap();
        Self { store, proxy, _database: database }
    }

    /// How many copies it has sent.
    fn copies(standing: &Standing) -> u64 {
        let there = standing.databases.iter().find(|one| one.database == SHOP).unwrap();
        there.legacy.confirmed
    }
}

/// Why a step was refused, in one line.
fn refused<T: std::fmt::Debug>(result: Result<T, MigrationError>) -> String {
    let error = result.unwrap_err();
    assert!(matches!(error, MigrationError::Obstacles(_)), "{error:?}");
    error.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn another_database_follows_every_phase() {
    let shop = Shop::open().await;
    let buses = Box::pin(Buses::with_other(2, Some(&shop.store))).await;
    // Published before anybody there can know.
    migration::start(&buses.databases, &buses.definition, &step(false)).await.unwrap();
    commit(&shop.store, 100..110).await;
    buses.obeyed().await;
    commit(&shop.store, 110..140).await;
    buses.commit(0..40).await;
    buses.arrive(80, 80).await;
    // What went out before its relay knew has a copy, and no more; marks come a moment after the messages.
    buses
        .until("all of it is recorded", async || {
            let standing = buses.standing().await;
            standing.settled && (standing.legacy.confirmed, Shop::copies(&standing)) == (80, 40)
        })
        .await;

    // Both are proven, and what one of them lacks is named.
    withheld(shop.store.pool(), 900).await;
    let both = async || {
        buses.commit(40..50).await;
        commit(&shop.store, 140..150).await;
        buses.marked().await;
    };
    let parity = buses.compare(20, both).await;
    assert_eq!((parity.holds, parity.compared, parity.missing), (false, 20, 1), "{parity:#?}");
    let why = refused(migration::cut_over(&buses.databases, &step(false)).await);
    assert!(why.contains("1 missing"), "{why}");
    buses.arrive(100, 101).await;
    let both = async || {
        buses.commit(50..60).await;
        commit(&shop.store, 150..160).await;
        buses.marked().await;
    };
    let parity = buses.compare(20, both).await;
    assert!(parity.holds && parity.compared == 20, "{parity:#?}");

    migration::cut_over(&buses.databases, &step(false)).await.unwrap();
    buses.obeyed().await;
    buses.commit(60..70).await;
    commit(&shop.store, 160..170).await;
    buses.arrive(140, 121).await;
    migration::roll_back(&buses.databases, &step(false)).await.unwrap();
    buses.obeyed().await;
    buses.arrive(140, 141).await;
    assert!(buses.standing().await.settled);

    migration::cut_over(&buses.databases, &step(true)).await.unwrap();
    buses.obeyed().await;
    let in_use = migration::finish(&buses.databases, buses.broker.as_ref(), &step(false)).await;
    let in_use = in_use.unwrap_err().to_string();
    assert!(in_use.contains("messages: 141,"), "{in_use}");
    buses.emptied("smtp_send_email").await;
    migration::finish(&buses.databases, buses.broker.as_ref(), &step(false)).await.unwrap();
    buses.until("the end is known there, too", async || shop.store.course().await.unwrap().is_none()).await;
    commit(&shop.store, 170..171).await;
    buses.until("events go on", async || buses.depth("smtp_send_email_v2").await == 141).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_settled_while_a_database_cannot_be_asked() {
    let shop = Shop::open().await;
    let buses = Box::pin(Buses::with_other(1, Some(&shop.store))).await;
    migration::start(&buses.databases, &buses.definition, &step(false)).await.unwrap();
    buses.obeyed().await;
    let both = async || {
        buses.commit(0..10).await;
        commit(&shop.store, 100..110).await;
        buses.marked().await;
    };
    assert!(buses.compare(20, both).await.holds);

    shop.proxy.set(Weather::Cut);
    let away = format!("the database {SHOP} cannot be asked: ");
    let standing = buses.standing().await;
    assert!(!standing.settled && standing.databases[0].error.is_some(), "{standing:#?}");
    let how = Comparing::default();
    let why = refused(migration::compare(&buses.sources, &buses.broker, &buses.clock, &how).await);
    assert!(why.contains(&away), "{why}");
    let why = refused(migration::cut_over(&buses.databases, &step(false)).await);
    assert!(why.contains(&away) && !why.contains("missing"), "{why}");
    assert!(!buses.databases.settle().await.unwrap());

    // Whoever forces it is in the log, with the name of the one that did not answer.
    migration::cut_over(&buses.databases, &step(true)).await.unwrap();
    let log = buses.store.log_of("migration/mail", 1).await.unwrap().remove(0);
    assert!(log.detail.unwrap().to_string().contains(&away));
    let why = refused(migration::finish(&buses.databases, buses.broker.as_ref(), &step(false)).await);
    assert!(why.contains(&away), "{why}");

    // Back again, it follows by itself.
    shop.proxy.set(Weather::Clear);
    buses.obeyed().await;
    commit(&shop.store, 110..120).await;
    buses.arrive(30, 20).await;
    // A rollback does not wait for it, and it misses nothing.
    shop.proxy.set(Weather::Cut);
    migration::roll_back(&buses.databases, &step(false)).await.unwrap();
    shop.proxy.set(Weather::Clear);
    buses.obeyed().await;
    buses.arrive(30, 30).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_that_a_follower_turns_off_are_off_everywhere() {
    let shop = Shop::open().await;
    let buses = Box::pin(Buses::with_other(1, Some(&shop.store))).await;
    migration::start(&buses.databases, &buses.definition, &step(false)).await.unwrap();
    buses.obeyed().await;
    // As its relay does when publishing takes too long.
    let turn = PhaseTurn {
        name: buses.definition.name.clone(),
        from_version: shop.store.course().await.unwrap().unwrap().version,
        to: Phase::Suspended,
        by: "relay:1".to_owned(),
        reason: "too slow".to_owned(),
        forced: Vec::new(),
    };
    assert!(shop.store.turn_migration(&turn).await.unwrap());
    buses.until("copies are off", async || buses.standing().await.phase == Phase::Suspended).await;
    buses.obeyed().await;
    let log = buses.store.log_of("migration/mail", 1).await.unwrap().remove(0);
    assert!(log.reason.unwrap().contains(SHOP));
    // Steps are taken where it is kept.
    let follower = Databases::new(shop.store.clone(), buses.clock.clone());
    let error = migration::roll_back(&follower, &step(false)).await.unwrap_err().to_string();
    assert!(error.contains("another database keeps it"), "{error}");
    migration::roll_back(&buses.databases, &step(false)).await.unwrap();
    buses.obeyed().await;
    buses.commit(0..1).await;
    commit(&shop.store, 100..101).await;
    buses.arrive(2, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_of_its_own_is_finished_first() {
    let shop = Shop::open().await;
    let buses = Box::pin(Buses::with_other(1, Some(&shop.store))).await;
    let own = Definition { name: MigrationName::new("chat").unwrap(), ..buses.definition.clone() };
    shop.store.start_migration(&own, "bob", "").await.unwrap();
    migration::start(&buses.databases, &buses.definition, &step(false)).await.unwrap();
    assert!(!buses.databases.settle().await.unwrap());
    let why = refused(migration::cut_over(&buses.databases, &step(false)).await);
    assert!(why.contains(&format!("the database {SHOP} has a migration chat of its own")), "{why}");
    let bobs = Databases::new(shop.store.clone(), buses.clock.clone());
    migration::cut_over(&bobs, &step(true)).await.unwrap();
    let version = shop.store.course().await.unwrap().unwrap().version;
    let end = PhaseTurn {
        name: own.name,
        from_version: version,
        to: Phase::Finished,
        by: "bob".to_owned(),
        reason: String::new(),
        forced: Vec::new(),
    };
    assert!(shop.store.turn_migration(&end).await.unwrap());
    assert!(migration::settled(&buses.databases, LIMIT).await.unwrap());
    commit(&shop.store, 0..10).await;
    buses.arrive(10, 10).await;
}
