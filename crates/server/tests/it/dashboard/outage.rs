//! The dashboard while its database is away, and where there is no page: a page for people all the same.

use std::time::Duration;

use postrider::Clock;
use postrider_testkit::proxy::{Proxy, Weather};

use super::super::networked::servers;
use super::super::process::Folder;
use super::super::push::until;

#[test]
fn where_there_is_no_page_there_is_one_that_says_so() {
    let folder = Folder::new();
    let serving = folder.serve(&["--roles", "api,dashboard"]);
    for path in ["/dashboard/nosuch", "/dashboard/tokens/1/nosuch"] {
        let (status, head, page) = serving.http("GET", path, &[], "");
        assert!(status == 404 && head.contains("text/html"), "{path}: {head}");
        assert!(page.contains("no page at this address") && page.contains("Overview"), "{page}");
    }
    assert_eq!(serving.http("GET", "/dashboard/", &[], "").0, 303);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_database_a_page_says_so_soon_and_to_people() {
    let (folder, database, _vhost) = servers().await;
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    let (store, url) = Proxy::in_front_of(&database.url).await.unwrap();
    let folder = folder.with("DATABASE_URL", &url);
    let serving = folder.serve(&["--roles", "api,dashboard"]);
    let there = || serving.http("GET", "/dashboard/failures", &[], "").0 == 200;
    assert!(there());
    let clock = Clock::system();
    for weather in [Weather::Cut, Weather::HalfOpen] {
        store.set(weather);
        let begun = clock.monotonic();
        let (status, head, page) = serving.http("GET", "/dashboard/failures", &[], "");
        let took = clock.since(begun);
        assert!(status == 503 && head.contains("text/html"), "{weather:?}: {head}");
        for part in ["The database does not answer", "No event is lost", "postrider doctor"] {
            assert!(page.contains(part), "{weather:?}: {page}");
        }
        assert!(!page.contains("same id"), "that is for programs: {page}");
        // 3 s, and what a busy machine adds; a connection may take 10 s.
        assert!(took < Duration::from_secs(8), "{weather:?}: {took:?}");
        assert_eq!(serving.sign_in("prt_whoever").0, 503, "{weather:?}");
    }
    store.set(Weather::Clear);
    until(there).await;
}
