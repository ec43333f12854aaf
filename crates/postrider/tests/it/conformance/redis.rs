//! Redis alone under the progress suite: a prefix of the shared server's database 1.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use postrider::progress::{Announcer, ProgressError};
use postrider::redis::{JobKeys, Redis, RedisConfig, RedisProgress};
use postrider::{Clock, Envelope, Event};
use postrider_testkit::conformance::progress::ProgressFixture;
use postrider_testkit::servers::shared;

postrider_testkit::progress_conformance!(Corner::new());

/// Hears everything that is announced.
#[derive(Clone, Default)]
pub(crate) struct Ear(Arc<Mutex<Vec<Envelope>>>);

impl Ear {
    pub(crate) fn heard(&self) -> Vec<Envelope> {
        self.0.lock().unwrap().clone()
    }
}

#[async_trait]
impl Announcer for Ear {
    async fn announce(&self, event: Event) -> Result<(), ProgressError> {
        self.0.lock().unwrap().push(event.into_envelope(&Clock::system()));
        Ok(())
    }
}

struct Corner {
    progress: RedisProgress,
    ear: Ear,
}

impl Corner {
    async fn new() -> Self {
        let shared = shared().unwrap();
        let redis = Redis::connect(RedisConfig::new(format!("{}/1", shared.redis_url))).await.unwrap();
        let keys = JobKeys::new(shared.redis_prefix(), JobKeys::TTL).unwrap();
        let ear = Ear::default();
        Self { progress: RedisProgress::new(redis, keys, Arc::new(ear.clone()), Clock::system()), ear }
    }
}

impl ProgressFixture for Corner {
    type Progress = RedisProgress;

    fn progress(&self) -> RedisProgress {
        self.progress.clone()
    }

    async fn announced(&self) -> Vec<Envelope> {
        self.ear.heard()
    }
}
