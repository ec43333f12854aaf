//! Redis: facts, and errors that say what to do.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests say what went wrong by panicking")]

use std::time::Duration;

use postrider::redis::{Redis, RedisConfig, RedisErrorKind, RedisTls};
use postrider_testkit::servers::{Redis as Server, shared};

fn quick(url: &str) -> RedisConfig {
    RedisConfig { limit: Duration::from_secs(2), ..RedisConfig::new(url) }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_says_what_it_is() {
    let redis = Redis::connect(quick(&shared().unwrap().redis_url)).await.unwrap();
    redis.ping().await.unwrap();
    let facts = redis.facts().await.unwrap();
    assert!(!facts.version.is_empty() && !facts.maxmemory_policy.is_empty(), "{facts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_said_without_the_password() {
    let url = shared().unwrap().redis_url;
    let wrong = Redis::connect(quick(&url.replace("redis://", "redis://:s3cret@"))).await.unwrap_err();
    assert_eq!(wrong.kind, RedisErrorKind::Denied, "{wrong}");
    let nobody = Redis::connect(quick("redis://:s3cret@127.0.0.1:1/")).await.unwrap_err();
    assert_eq!(nobody.kind, RedisErrorKind::Unavailable, "{nobody}");
    let nonsense = Redis::connect(quick("redis:s3cret@@@")).await.unwrap_err();
    assert_eq!(nonsense.kind, RedisErrorKind::Config, "{nonsense}");
    let no_such_database = Redis::connect(quick(&format!("{url}/99"))).await.unwrap_err();
    assert_eq!(no_such_database.kind, RedisErrorKind::Config, "{no_such_database}");
    assert!(no_such_database.to_string().contains("REDIS_STATE_DB=0"), "{no_such_database}");
    for error in [wrong, nobody, nonsense] {
        assert!(!format!("{error:?} {error}").contains("s3cret"), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_is_found_again_and_a_hung_one_is_not_waited_for() {
    let server = Server::start().await.unwrap();
    let redis = Redis::connect(quick(&server.url())).await.unwrap();
    server.kill().unwrap();
    assert!(redis.ping().await.unwrap_err().is_transient());
    server.restart().await.unwrap();
    tokio::time::timeout(Duration::from_secs(10), async { while redis.ping().await.is_err() {} })
        .await
        .unwrap();
    server.pause().unwrap();
    assert!(redis.ping().await.unwrap_err().is_transient());
    server.resume().unwrap();
    tokio::time::timeout(Duration::from_secs(10), async { while redis.ping().await.is_err() {} })
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_with_an_authority_of_our_own() {
    let server = Server::start_tls().await.unwrap();
    let untrusted = Redis::connect(quick(&server.url())).await.unwrap_err();
    assert_eq!(untrusted.kind, RedisErrorKind::Denied, "{untrusted}");
    let ca_file = server.ca_file().map(ToOwned::to_owned);
    let tls = RedisTls { ca_file, ..RedisTls::default() };
    Redis::connect(RedisConfig { tls, ..quick(&server.url()) }).await.unwrap().ping().await.unwrap();
}
