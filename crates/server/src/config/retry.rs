//! `retry = { … }` of a queue: when to retry and when to give up, in short form.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider::settlement::{FailureMatch, RetryOverride, RetryPolicy, Treat};
use serde::{Deserialize, Deserializer, de::Error as _};

/// The longest ladder: every step is a queue.
const MOST_TIERS: usize = 50;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct RetryShort {
    #[serde(default = "max_retries")]
    max_retries: u32,
    delays: Option<Vec<Delay>>,
    exponential: Option<ExponentialShort>,
    #[serde(default)]
    jitter_percent: u8,
    #[serde(default)]
    defer: Vec<Delay>,
    #[serde(default)]
    class: BTreeMap<String, OverrideShort>,
    #[serde(default)]
    status: BTreeMap<String, OverrideShort>,
}

/// `exponential = { base = "1s", factor = 2.0, max = "10m", steps = 8 }`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExponentialShort {
    base: Delay,
    #[serde(default = "two")]
    factor: f64,
    max: Delay,
    steps: u32,
}

/// `[queue.retry.class.timeout]` and `[queue.retry.status.4xx]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct OverrideShort {
    treat: Option<Treat>,
    max_retries: Option<u32>,
    delays: Option<Vec<Delay>>,
}

/// A time such as `5s`, `1m 30s` or `2h`.
#[derive(Debug, Clone, Copy)]
pub(in crate::config) struct Delay(pub(in crate::config) Duration);

fn two() -> f64 {
    2.0
}

fn max_retries() -> u32 {
    RetryPolicy::default().max_retries
}

impl Default for RetryShort {
    fn default() -> Self {
        Self {
            max_retries: max_retries(),
            delays: None,
            exponential: None,
            jitter_percent: 0,
            defer: Vec::new(),
            class: BTreeMap::new(),
            status: BTreeMap::new(),
        }
    }
}

impl<'de> Deserialize<'de> for Delay {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wrong =
            || D::Error::custom("a delay is text with a unit, such as \"500ms\", \"5s\", \"15m\" or \"2h\"");
        let toml::Value::String(text) = toml::Value::deserialize(deserializer)? else { return Err(wrong()) };
        let delay = text.parse::<jiff::SignedDuration>().map_err(|_| wrong())?;
        Duration::try_from(delay).map(Self).map_err(|_| wrong())
    }
}

impl RetryShort {
    /// The policy, or what is wrong with it.
    pub(in crate::config) fn whole(&self) -> Result<RetryPolicy, String> {
        let mut policy = match (&self.delays, &self.exponential) {
            (Some(_), Some(_)) => {
                return Err("has delays and exponential; keep one of them".to_owned());
            }
            (Some(delays), None) => RetryPolicy::ladder(self.max_retries, durations(delays)),
            (None, Some(ladder)) => ladder.policy(self.max_retries)?,
            (None, None) => RetryPolicy { max_retries: self.max_retries, ..RetryPolicy::default() },
        };
        if policy.max_retries > 0 && policy.delays.is_empty() {
            return Err("retries without delays; give delays, or max_retries = 0".to_owned());
        }
        if self.jitter_percent > 90 {
            return Err(format!("has jitter_percent = {}; it is from 0 to 90", self.jitter_percent));
        }
        policy = policy.jitter(self.jitter_percent);
        policy.defer = durations(&self.defer).collect();
        for (class, exception) in &self.class {
            policy = policy.overriding(exception.on(FailureMatch::Class(class.clone()))?);
        }
        // The exact ones first: the first that matches counts.
        let mut statuses = Vec::new();
        for (text, exception) in &self.status {
            let (from, to) = status(text)?;
            statuses.push((to - from, exception.on(FailureMatch::Status(from, to))?));
        }
        statuses.sort_by_key(|(width, _)| *width);
        policy = statuses.into_iter().fold(policy, |policy, (_, exception)| policy.overriding(exception));
        let tiers = policy.tiers();
        if tiers.len() > MOST_TIERS {
            return Err(format!("has {} different delays, each a queue; at most {MOST_TIERS}", tiers.len()));
        }
        let fits = |tier: &Duration| (1..=u128::from(u32::MAX)).contains(&tier.as_millis());
        if tiers.iter().all(fits) {
            return Ok(policy);
        }
        Err("has a delay of less than a millisecond, or of more than 49 days".to_owned())
    }
}

impl ExponentialShort {
    fn policy(&self, max_retries: u32) -> Result<RetryPolicy, String> {
        if !(1.0..=100.0).contains(&self.factor) {
            return Err(format!("grows by the factor {}; it is from 1 to 100", self.factor));
        }
        if !(1..=20).contains(&self.steps) {
            return Err(format!("has {} exponential steps; it is from 1 to 20", self.steps));
        }
        let Self { base, factor, max, steps } = self;
        Ok(RetryPolicy::exponential(max_retries, base.0, *factor, max.0, *steps))
    }
}

impl OverrideShort {
    fn on(&self, on: FailureMatch) -> Result<RetryOverride, String> {
        let delays = self.delays.as_ref().map(|delays| durations(delays).collect::<Vec<_>>());
        if delays.as_ref().is_some_and(Vec::is_empty) {
            return Err(format!("has an exception for {on:?} with an empty list of delays"));
        }
        Ok(RetryOverride { treat: self.treat, max_retries: self.max_retries, delays, on })
    }
}

fn durations(delays: &[Delay]) -> impl Iterator<Item = Duration> + '_ {
    delays.iter().map(|delay| delay.0)
}

/// `429`, `4xx` or `500-503`.
fn status(text: &str) -> Result<(u16, u16), String> {
    let wrong = || format!("has an exception for status {text:?}; write 429, 4xx or 500-503");
    let number = |text: &str| text.trim().parse::<u16>().ok().filter(|status| (100..600).contains(status));
    let range = if let Some(class) = text.strip_suffix("xx").and_then(|class| class.parse::<u16>().ok()) {
        (1..6).contains(&class).then_some((class * 100, class * 100 + 99))
    } else if let Some((from, to)) = text.split_once('-') {
        number(from).zip(number(to)).filter(|(from, to)| from <= to)
    } else {
        number(text).map(|status| (status, status))
    };
    range.ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> Result<RetryPolicy, String> {
        let short: RetryShort = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        short.whole()
    }

    #[test]
    fn every_setting_has_its_place() {
        let policy = whole(
            "max_retries = 7\nexponential = { base = '1s', max = '1m', steps = 4 }\njitter_percent = 20\n\
             defer = ['500ms']\n[class.timeout]\nmax_retries = 3\n[status.4xx]\ntreat = 'transient'\n\
             [status.404]\ntreat = 'permanent'",
        )
        .unwrap();
        assert_eq!((policy.max_retries, policy.delays.len(), policy.jitter_percent), (7, 4, 20));
        let on: Vec<_> = policy.overrides.iter().map(|other| other.on.clone()).collect();
        let status = FailureMatch::Status;
        assert_eq!(on, [FailureMatch::Class("timeout".to_owned()), status(404, 404), status(400, 499)]);
        assert_eq!(policy.tiers()[0], Duration::from_millis(500));
        assert_eq!(whole("").unwrap(), RetryPolicy::default());
    }

    #[test]
    fn what_cannot_be_is_told() {
        for (text, told) in [
            ("delays = []", "without delays"),
            ("delays = ['0s']", "less than a millisecond"),
            ("delays = ['5000h']", "49 days"),
            ("delays = ['99999999999999h']\njitter_percent = 90", "49 days"),
            ("delays = [5]", "text with a unit"),
            ("delays = ['5s']\nexponential = { base = '1s', max = '1m', steps = 4 }", "keep one"),
            ("exponential = { base = '1s', max = '1m', steps = 40 }", "from 1 to 20"),
            ("exponential = { base = '1s', factor = 0.5, max = '1m', steps = 4 }", "from 1 to 100"),
            ("jitter_percent = 91", "from 0 to 90"),
            ("[status.teapot]\nmax_retries = 1", "write 429, 4xx"),
            ("[class.timeout]\ndelays = []", "empty list"),
            ("[class.timeout]\ntreat = 'badly'", "badly"),
        ] {
            let error = whole(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
