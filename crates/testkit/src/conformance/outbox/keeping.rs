//! What people see of an outbox, and how it is kept small.

use std::time::Duration;

use postrider::store::{
    Archive, HouseRules, Housekeeping, Outbox, OutboxDesk, OutboxStatus, PublishResult, RowFilter, Unpark,
};

use super::super::store::{Desk, StoreFixture, due, free, id, keyed};
use super::super::until;

fn dead() -> PublishResult {
    PublishResult::Failed { error: "no queue wanted it".into(), retry_after: None }
}

/// A dead head, with everything behind it.
pub async fn parked_keys_are_seen_and_flow_again_when_unparked<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([keyed("a1", "a"), keyed("a2", "a"), keyed("a3", "a"), keyed("b1", "b"), free("f1")]).await;
    let rows = desk.expect_due(["a1", "a2", "a3", "b1", "f1"]).await;
    desk.settle(&rows[..1], &dead()).await;
    desk.settle(&rows[4..], &dead()).await;
    let key = rows[0].envelope.ordering_key.clone().unwrap();

    let parked = desk.store.parked(10).await.unwrap();
    assert_eq!(parked.len(), 1);
    assert_eq!((parked[0].key.as_str(), parked[0].event_id.as_str()), (key.as_str(), "a1"));
    assert_eq!(parked[0].waiting, 2);
    assert_eq!(parked[0].error.as_deref(), Some("no queue wanted it"));
    let backlog = desk.store.backlog().await.unwrap();
    assert_eq!((backlog.dead, backlog.parked_keys), (2, 1));

    let before = desk.store.lease(&desk.relay, super::super::store::LEASE).await.unwrap();
    assert_eq!(desk.store.unpark(&Unpark::Key(key.clone())).await.unwrap(), [id("a1")]);
    assert_eq!(desk.store.unpark(&Unpark::Event(id("f1"))).await.unwrap(), [id("f1")]);
    assert!(desk.store.unpark(&Unpark::Key(key)).await.unwrap().is_empty(), "nothing is dead any more");
    let after = desk.store.lease(&desk.relay, super::super::store::LEASE).await.unwrap();
    assert_ne!(before, after, "the relay learns that it has to look again");

    let rows = desk.expect_due(["a1", "b1", "f1"]).await;
    desk.publish(&rows).await;
    desk.publish(&desk.expect_due(["a2", "a3"]).await).await;
    assert!(desk.store.parked(10).await.unwrap().is_empty());
}

/// By state, key and aggregate type; one with its payload.
pub async fn rows_can_be_listed_and_found<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let payload = postrider::Payload::json(&serde_json::json!({ "total": "12.50" })).unwrap();
    desk.commit([keyed("one", "a").payload(payload), keyed("two", "b"), free("three")]).await;
    let rows = desk.expect_due(["one", "two", "three"]).await;
    desk.publish(&rows[..1]).await;
    let list = async |filter: RowFilter| -> Vec<String> {
        desk.store.list(&filter, 10).await.unwrap().rows.into_iter().map(|row| row.id).collect()
    };
    assert_eq!(list(RowFilter::default()).await, ["three", "two", "one"], "the newest first");
    let pending = RowFilter { status: Some(OutboxStatus::Pending), ..RowFilter::default() };
    assert_eq!(list(pending).await, ["three", "two"]);
    let key = rows[1].envelope.ordering_key.clone();
    assert_eq!(list(RowFilter { key, ..RowFilter::default() }).await, ["two"]);
    let other = RowFilter { aggregate_type: Some("shop.refund".into()), ..RowFilter::default() };
    assert!(list(other).await.is_empty());
    let last_word = RowFilter { event_type: Some("placed".into()), ..RowFilter::default() };
    assert_eq!(list(last_word).await.len(), 3);
    let nobody = Some(postrider::envelope::TenantId::new("nobody").unwrap());
    assert!(list(RowFilter { tenant: nobody, ..RowFilter::default() }).await.is_empty());
    // Page by page, until there is no next one.
    let (mut seen, mut before) = (Vec::new(), None);
    loop {
        let page = desk.store.list(&RowFilter { before, ..RowFilter::default() }, 1).await.unwrap();
        seen.extend(page.rows.into_iter().map(|row| row.id));
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    assert_eq!(seen, ["three", "two", "one"]);

    let found = desk.store.find(&id("one")).await.unwrap().unwrap();
    assert_eq!((found.status.as_str(), found.event_type.as_str()), ("published", "shop.order.placed"));
    assert!(found.published_at.is_some());
    let payload: serde_json::Value = serde_json::from_str(&found.payload.unwrap()).unwrap();
    assert_eq!(payload, serde_json::json!({ "total": "12.50" }));
    assert!(desk.store.find(&id("none")).await.unwrap().is_none());
}

/// Many at once, whichever transactions they were committed in.
pub async fn committed_events_are_told_from_others<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let payload = postrider::Payload::json(&serde_json::json!({ "total": "12.50" })).unwrap();
    desk.commit([keyed("one", "a").payload(payload.clone()), free("two")]).await;
    desk.commit([free("three")]).await;
    let known = desk.store.committed(&["three", "none", "one", "é '\"{}", "two"].map(id)).await.unwrap();
    let ids: std::collections::BTreeSet<_> = known.keys().map(ToString::to_string).collect();
    assert_eq!(ids.into_iter().collect::<Vec<_>>(), ["one", "three", "two"]);
    assert!(known[&id("one")].is_repeated_by(&keyed("one", "a").payload(payload)));
    assert!(!known[&id("one")].is_repeated_by(&keyed("one", "a")), "it says something else");
    assert!(known[&id("two")].is_repeated_by(&free("two")));
    assert!(desk.store.committed(&[id("none")]).await.unwrap().is_empty());
    assert!(desk.store.committed(&[]).await.unwrap().is_empty());
}

/// Whatever is not published stays, however old.
pub async fn only_old_published_rows_are_removed<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([free("published"), keyed("dead", "a"), keyed("behind", "a"), free("waiting")]).await;
    let rows = desk.expect_due(["published", "dead", "behind", "waiting"]).await;
    desk.publish(&rows[..1]).await;
    desk.settle(&rows[1..2], &dead()).await;

    let rules = HouseRules { keep: Duration::from_hours(1), ..HouseRules::default() };
    let forecast = desk.store.would_keep_house(&rules).await.unwrap();
    let kept = desk.store.keep_house(&desk.relay, &rules).await.unwrap().unwrap();
    assert_eq!((forecast.removed, forecast.archived), (kept.removed, kept.archived));
    assert_eq!(kept.removed, 0, "nothing is old");
    let rules = HouseRules { keep: Duration::ZERO, ..rules };
    until("the old row to go", async || {
        let kept = desk.store.keep_house(&desk.relay, &rules).await.unwrap()?;
        (kept.removed == 1).then_some(())
    })
    .await;
    assert!(desk.store.find(&id("published")).await.unwrap().is_none());
    for name in ["dead", "behind", "waiting"] {
        assert!(desk.store.find(&id(name)).await.unwrap().is_some(), "{name} is gone");
    }
    // Its id is forgotten with it.
    desk.commit([free("published")]).await;
    assert_eq!(due(&desk.expect_due(["waiting", "published"]).await).len(), 2);
}

/// One JSON document a line, compressed; the rows go when the file is there.
pub async fn what_is_removed_can_be_archived_to_files<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let names: Vec<String> = (0..30).map(|n| format!("event-{n:02}")).collect();
    desk.commit(names.iter().map(|name| free(name))).await;
    desk.publish(&desk.expect_due(&names).await).await;
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::Files(folder.path().join("archive"));
    let rules = HouseRules { keep: Duration::ZERO, archive, ..HouseRules::default() };
    until("the rows to go", async || {
        desk.store.keep_house(&desk.relay, &rules).await.unwrap();
        desk.store.list(&RowFilter::default(), 1).await.unwrap().rows.is_empty().then_some(())
    })
    .await;
    let mut archived = Vec::new();
    for file in std::fs::read_dir(folder.path().join("archive")).unwrap() {
        let path = file.unwrap().path();
        assert!(path.to_string_lossy().ends_with(".jsonl.gz"), "{}", path.display());
        let unpacked = std::process::Command::new("gzip").arg("-cd").arg(&path).output().unwrap();
        for line in String::from_utf8(unpacked.stdout).unwrap().lines() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            archived.push(row["id"].as_str().unwrap().to_owned());
        }
    }
    archived.sort();
    assert_eq!(archived, names);
}

/// Where SQL finds them.
pub async fn what_is_removed_can_be_archived_to_a_table<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([free("one"), keyed("two", "a")]).await;
    desk.publish(&desk.expect_due(["one", "two"]).await).await;
    let rules = HouseRules { keep: Duration::ZERO, archive: Archive::Table, ..HouseRules::default() };
    let mut archived = 0;
    until("the rows to go", async || {
        let kept = desk.store.keep_house(&desk.relay, &rules).await.unwrap().unwrap();
        archived += kept.archived;
        desk.store.list(&RowFilter::default(), 1).await.unwrap().rows.is_empty().then_some(())
    })
    .await;
    assert_eq!(archived, 2);
}
