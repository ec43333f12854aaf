//! `[[consumer]]`: a consumer by name, its queue, and how it works.

use postrider::consumer::{BreakerConfig, Concurrency, ConsumerConfig};
use postrider::topology::{ConsumerName, QueueName};
use serde::Deserialize;

use super::Config;
use super::retry::Delay;

/// `[[consumer]]`. What it does not say is as the library has it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsumerShort {
    pub(in crate::config) name: ConsumerName,
    pub(in crate::config) queue: Option<QueueName>,
    prefetch: Option<u16>,
    min_concurrency: Option<usize>,
    max_concurrency: Option<usize>,
    handler_timeout: Option<Delay>,
    max_rate: Option<f64>,
    breaker_failures: Option<usize>,
    breaker_pause: Option<Delay>,
    breaker_max_pause: Option<Delay>,
    max_crashes: Option<u32>,
    pub(in crate::config) key_prefix: Option<String>,
    pub(in crate::config) inbox: Option<ConsumerName>,
}

impl ConsumerShort {
    /// How it works, or what is wrong with that.
    pub(in crate::config) fn config(&self) -> Result<ConsumerConfig, String> {
        self.over(ConsumerConfig::default())
    }

    /// The same for one that usually works otherwise: a push subscription.
    pub(in crate::config) fn over(&self, usual: ConsumerConfig) -> Result<ConsumerConfig, String> {
        let (concurrency, breaker) = (usual.concurrency, usual.breaker);
        let min =
            self.min_concurrency.unwrap_or(concurrency.min.min(self.max_concurrency.unwrap_or(usize::MAX)));
        let max = self.max_concurrency.unwrap_or(concurrency.max.max(min));
        let rule =
            |holds: bool, rule: &str| if holds { Ok(()) } else { Err(format!("{} {rule}", self.name)) };
        rule(self.prefetch != Some(0), "has prefetch = 0; it is at least 1")?;
        rule(min >= 1, "has min_concurrency = 0; it is at least 1")?;
        rule(min <= max, "has a min_concurrency above its max_concurrency")?;
        let rate = self.max_rate.is_none_or(|rate| rate > 0.0 && rate.is_finite());
        rule(rate, "has a max_rate that is no number above 0; leave it out for no limit")?;
        let limit = self.handler_timeout.map_or(usual.handler_limit, |limit| limit.0);
        rule(!limit.is_zero(), "has a handler_timeout of nothing")?;
        let pause = self.breaker_pause.map_or(breaker.pause, |pause| pause.0);
        let max_pause = self.breaker_max_pause.map_or(breaker.max_pause.max(pause), |pause| pause.0);
        rule(pause <= max_pause, "has a breaker_pause above its breaker_max_pause")?;
        Ok(ConsumerConfig {
            prefetch: self.prefetch.unwrap_or(usual.prefetch),
            concurrency: Concurrency { min, max },
            handler_limit: limit,
            max_rate: self.max_rate.or(usual.max_rate),
            breaker: BreakerConfig {
                failures: self.breaker_failures.unwrap_or(breaker.failures),
                pause,
                max_pause,
            },
            max_crashes: self.max_crashes.unwrap_or(usual.max_crashes),
            poll_interval: usual.poll_interval,
            key_prefix: self.key_prefix.clone().or(usual.key_prefix),
            inbox: self.inbox.clone().or(usual.inbox),
        })
    }
}

impl Config {
    /// The consumers that the configuration knows, push subscriptions too: the queue of each, and how it works.
    pub(crate) fn consuming(&self) -> Vec<(ConsumerName, QueueName, ConsumerConfig)> {
        let named = |name: &ConsumerName| self.settings.consumer.iter().find(|short| short.name == *name);
        let own = self.own.consumers.iter().filter_map(|registration| {
            let config = named(&registration.name)?.config().ok()?;
            Some((registration.name.clone(), registration.service.name().clone(), config))
        });
        let layout = &self.own.layout;
        let pushed = self.push.iter().filter_map(|pushed| {
            let service = pushed.subscription.service(&layout.services, &layout.exchange).ok()?;
            let config = self.push_consumer(&pushed.subscription);
            Some((pushed.subscription.name.clone(), service.name().clone(), config))
        });
        let pushed: Vec<_> = pushed.collect();
        let beside = own.filter(|(name, ..)| !pushed.iter().any(|(other, ..)| other == name));
        beside.collect::<Vec<_>>().into_iter().chain(pushed.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<ConsumerConfig, String> {
        let short: ConsumerShort =
            toml::from_str(&format!("name = 'mail'\n{text}")).map_err(|e| e.to_string())?;
        short.config()
    }

    #[test]
    fn a_consumer_says_what_differs() {
        let usual = config("").unwrap();
        assert_eq!(format!("{usual:?}"), format!("{:?}", ConsumerConfig::default()));
        let usual = ConsumerConfig { prefetch: 7, max_rate: Some(3.0), ..ConsumerConfig::default() };
        let short: ConsumerShort = toml::from_str("name = 'mail'\nmax_crashes = 9").unwrap();
        let over = short.over(usual).unwrap();
        assert_eq!((over.prefetch, over.max_rate, over.max_crashes), (7, Some(3.0), 9));
        let mine = config("max_concurrency = 4\nmax_rate = 12.5\nhandler_timeout = '1m'").unwrap();
        assert_eq!(mine.concurrency, Concurrency { min: 4, max: 4 });
        assert_eq!((mine.max_rate, mine.handler_limit.as_secs()), (Some(12.5), 60));
    }

    #[test]
    fn what_cannot_be_is_told() {
        for (text, told) in [
            ("prefetch = 0", "at least 1"),
            ("min_concurrency = 0", "at least 1"),
            ("min_concurrency = 5\nmax_concurrency = 4", "above"),
            ("max_rate = 0.0", "no number above 0"),
            ("handler_timeout = '0s'", "nothing"),
            ("breaker_pause = '2m'\nbreaker_max_pause = '1m'", "above"),
        ] {
            let error = config(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
