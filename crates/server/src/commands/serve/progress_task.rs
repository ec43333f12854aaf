//! Job progress as a task of `serve`: the view in Redis is kept, and items that nobody needs are forgotten.

use std::time::Duration;

use postrider::progress::view::{self, ViewConfig};
use tokio_util::sync::CancellationToken;

use crate::commands::Context;
use crate::config::Config;
use crate::wiring::{self, WholeStore};

/// How often items of finished jobs are forgotten, and of how many jobs at a time.
const FORGET_EVERY: Duration = Duration::from_mins(10);
const FORGET_JOBS: u32 = 100;
/// How often to look for jobs that are done and were not announced.
const ANNOUNCE_EVERY: Duration = Duration::from_mins(1);
/// How often where no job is Redis's own: a look reads the hashes of all jobs.
const ANNOUNCE_SELDOM: Duration = Duration::from_mins(10);

/// Starts it, until `stop`. Redis need not be there yet: what changes meanwhile is shown when it is.
pub(super) fn start<S: WholeStore>(
    store: &S,
    context: &Context,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let (config, clock) = (&context.config, context.clock.clone());
    if let Some(view) = wiring::job_view(config)? {
        tokio::spawn(view::keep(store.clone(), view, clock.clone(), view_config(config), stop.clone()));
    }
    if let Some(progress) = wiring::jobs_in_redis(store, context)? {
        let clock = clock.clone();
        // Such a job is announced by whoever crosses the finish line. If he dies before he can, this does it, under the same id.
        let announcing = async move {
            let mut pause = ANNOUNCE_EVERY;
            loop {
                clock.sleep(pause).await;
                pause = match progress.announce_late().await {
                    Ok(0) => ANNOUNCE_SELDOM,
                    Ok(_) => ANNOUNCE_EVERY,
                    Err(error) => {
                        tracing::debug!(%error, "jobs that are done could not be looked at; trying again");
                        ANNOUNCE_EVERY
                    }
                };
            }
        };
        tokio::spawn(stop.clone().run_until_cancelled_owned(announcing));
    }
    let (store, keep) = (store.clone(), config.settings.progress.keep_items());
    let forgetting = async move {
        loop {
            match store.forget_items(keep, FORGET_JOBS).await {
                Ok(0) => clock.sleep(FORGET_EVERY).await,
                Ok(items) => tracing::info!(items, "items of jobs that are long done were forgotten"),
                Err(error) => {
                    tracing::warn!(%error, "items of finished jobs are not forgotten yet; tried again later");
                    clock.sleep(FORGET_EVERY).await;
                }
            }
        }
    };
    tokio::spawn(stop.clone().run_until_cancelled_owned(forgetting));
    Ok(())
}

fn view_config(config: &Config) -> ViewConfig {
    let progress = &config.settings.progress;
    let defaults = ViewConfig::default();
    ViewConfig {
        poll_interval: Duration::from_millis(progress.poll_interval_ms),
        ttl: progress.ttl(),
        memory_alert: f64::from(progress.memory_alert_percent) / 100.0,
        // Often enough that nothing expires unseen.
        archive_interval: defaults.archive_interval.min(progress.ttl() / 4),
        ..defaults
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Environment, Flags};

    #[test]
    fn the_binary_and_the_library_have_the_same_defaults() {
        let config = Config::load(&Flags::default(), &Environment::default()).unwrap();
        assert_eq!(view_config(&config), ViewConfig::default());
        assert_eq!(config.settings.progress.completed, postrider::progress::JOB_COMPLETED);
    }
}
