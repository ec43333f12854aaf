//! Redis Cluster as the authority, and as the view: jobs are all over it, each in one slot, and slots may move.

use std::sync::Arc;

use futures_util::future::try_join_all;
use postrider::Clock;
use postrider::progress::view::{Shown, View as _};
use postrider::progress::{ItemId, JobFilter, NewJob, ProgressStore as _, Status, Total};
use postrider::redis::{JobKeys, Redis, RedisConfig, RedisProgress, RedisView};
use postrider_testkit::servers::Redis as Server;

use super::{closed, done, job, sqlite};
use crate::conformance::redis::Ear;

struct World {
    nodes: [Server; 3],
    redis: Redis,
    progress: RedisProgress,
    ear: Ear,
}

async fn world() -> World {
    let nodes = Server::start_cluster().await.unwrap();
    let redis = Redis::connect(RedisConfig::new(nodes[0].url())).await.unwrap();
    let ear = Ear::default();
    let progress =
        RedisProgress::new(redis.clone(), JobKeys::default(), Arc::new(ear.clone()), Clock::system());
    World { nodes, redis, progress, ear }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_job_of_a_cluster_is_announced_once() {
    let World { nodes, redis, progress, ear } = world().await;
    let ids: Vec<String> = (0..30).map(|number| format!("project-{number}")).collect();
    for id in &ids {
        progress.init(&NewJob::new(id).unwrap()).await.unwrap();
        progress.set_total(&job(id), Total::from(3_u32)).await.unwrap();
        progress.end_discovery(&job(id)).await.unwrap();
    }
    // Every item is delivered twice, all at the same time.
    let deliveries = ids.iter().flat_map(|id| ["a", "b", "c", "a", "b", "c"].map(|item| (id, item)));
    let marking = deliveries.map(async |(id, item)| progress.mark(&job(id), &done(&[item])).await);
    let marked = try_join_all(marking).await.unwrap();
    assert_eq!(marked.iter().map(|marked| marked.counted).sum::<u64>(), 90);
    let mut heard: Vec<_> = ear.heard().into_iter().map(|event| event.id).collect();
    heard.sort();
    heard.dedup();
    assert_eq!((heard.len(), ear.heard().len()), (30, 30));

    for node in &nodes {
        let keys: usize = node.cli(&["DBSIZE"]).await.unwrap().parse().unwrap();
        assert!(keys > 0, "a node has no jobs");
    }
    let all = JobFilter { status: Some(Status::Done), limit: 100, ..JobFilter::default() };
    assert_eq!(progress.list(&all).await.unwrap().len(), 30);

    // A store's jobs are shown there too, and how full the fullest node is can be told.
    let (store, _folder) = sqlite().await;
    let view = RedisView::new(redis, JobKeys::default());
    let mut stored = Vec::new();
    for number in 0..10 {
        stored.push(closed(&store, &format!("stored-{number}"), 1).await);
    }
    assert_eq!(view.show(&stored).await.unwrap(), vec![Shown::Written; 10]);
    assert_eq!(view.look(&job("stored-3")).await.unwrap().as_ref(), Some(&stored[3]));
    assert_eq!(view.finished().await.unwrap().len(), 30, "those of a store are not Redis's own");
    nodes[1].cli(&["CONFIG", "SET", "maxmemory", "1gb"]).await.unwrap();
    assert!(view.memory_used().await.unwrap().is_some_and(|used| used > 0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_goes_on_while_the_cluster_moves_it_to_another_node() {
    let World { nodes, progress, ear, .. } = world().await;
    progress.init(&NewJob::new("7").unwrap()).await.unwrap();
    progress.add_total(&job("7"), ItemId::new("page-1").unwrap(), Total::from(3_u32)).await.unwrap();
    progress.end_discovery(&job("7")).await.unwrap();
    progress.mark(&job("7"), &done(&["a"])).await.unwrap();

    let slot = nodes[0].cli(&["CLUSTER", "KEYSLOT", "smap:proj:7"]).await.unwrap();
    let mut keys = Vec::new();
    for node in &nodes {
        keys.push(node.cli(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]).await.unwrap());
    }
    let from = keys.iter().position(|keys| !keys.is_empty()).unwrap();
    let keys: Vec<&str> = keys[from].lines().collect();
    assert_eq!(keys.len(), 3, "all keys of a job are in one slot: {keys:?}");
    let (from, to) = (&nodes[from], &nodes[(from + 1) % 3]);
    let (from_id, to_id) =
        (from.cli(&["CLUSTER", "MYID"]).await.unwrap(), to.cli(&["CLUSTER", "MYID"]).await.unwrap());
    let set_slot = async |node: &Server, words: &[&str]| {
        let said = node.cli(&[&["CLUSTER", "SETSLOT", &slot], words].concat()).await.unwrap();
        assert_eq!(said, "OK");
    };
    set_slot(to, &["IMPORTING", &from_id]).await;
    set_slot(from, &["MIGRATING", &to_id]).await;
    let url = to.url();
    let port = url.rsplit_once(':').unwrap().1;
    let migrate = [&["MIGRATE", "127.0.0.1", port, "", "0", "5000", "KEYS"], keys.as_slice()].concat();
    assert_eq!(from.cli(&migrate).await.unwrap(), "OK");

    // The old node has no keys any more and still has the slot: it says ASK.
    assert_eq!(progress.mark(&job("7"), &done(&["b", "a"])).await.unwrap().counted, 1);
    for node in &nodes {
        set_slot(node, &["NODE", &to_id]).await;
    }
    // Now it says MOVED.
    assert_eq!(progress.mark(&job("7"), &done(&["c", "b"])).await.unwrap().counted, 1);
    assert_eq!(progress.mark(&job("7"), &done(&["c"])).await.unwrap().repeated, 1);
    assert_eq!(progress.get(&job("7")).await.unwrap().unwrap().status, Status::Done);
    assert_eq!(ear.heard().len(), 1);
}
