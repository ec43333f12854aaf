//! `[[triage.rule]]`: which dead letters are replayed by schedule.

use postrider::operation::LetterPlan;
use postrider::store::LetterFilter;
use postrider::topology::{ConsumerName, QueueName};
use postrider::triage::{Rule, Schedule};
use serde::Deserialize;

use super::retry::Delay;

/// What is done with dead letters without being asked.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Triage {
    pub(crate) rule: Vec<RuleShort>,
}

/// One rule.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleShort {
    name: String,
    every: Option<Delay>,
    daily: Option<String>,
    consumer: Option<ConsumerName>,
    queue: Option<QueueName>,
    event_type: Option<String>,
    reason: Option<String>,
    error_class: Option<String>,
    text: Option<String>,
    rate: Option<f64>,
    limit: Option<u64>,
    max_rounds: Option<u32>,
}

/// A letter that a rule replayed so often is left for people, unless the rule says otherwise.
const MAX_ROUNDS: u32 = 3;

impl Triage {
    /// The rules, written out. An error names the setting and what is wrong with it.
    pub(super) fn rules(&self) -> Result<Vec<Rule>, (&'static str, String)> {
        let rules: Vec<Rule> = self
            .rule
            .iter()
            .map(RuleShort::whole)
            .collect::<Result<_, _>>()
            .map_err(|error| ("triage.rule", error))?;
        let mut names = std::collections::BTreeSet::new();
        match rules.iter().find(|rule| !names.insert(&rule.name)) {
            Some(twice) => {
                Err(("triage.rule", format!("{} is there twice; a rule's name is its own", twice.name)))
            }
            None => Ok(rules),
        }
    }
}

impl RuleShort {
    fn whole(&self) -> Result<Rule, String> {
        let name = &self.name;
        if name.trim().is_empty() {
            return Err("a rule needs a name".to_owned());
        }
        let schedule =
            match (self.every, &self.daily) {
                (Some(every), None) if every.0.as_secs() >= 1 => Schedule::Every(every.0),
                (Some(_), None) => return Err(format!("{name}: every must be a second at least")),
                (None, Some(time)) => Schedule::Daily(time_of_day(time).ok_or_else(|| {
                    format!("{name}: daily is a time in UTC such as \"03:30\", not {time:?}")
                })?),
                _ => return Err(format!("{name}: give either every (\"15m\") or daily (\"03:30\", UTC)")),
            };
        if self.rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
            return Err(format!("{name}: rate must be above 0; leave it out for no limit"));
        }
        let filter = LetterFilter {
            consumer: self.consumer.clone(),
            queue: self.queue.clone(),
            event_type: self.event_type.clone(),
            reason: self.reason.clone(),
            error_class: self.error_class.clone(),
            // An empty text is in everything.
            text: self.text.clone().filter(|text| !text.is_empty()),
            ..LetterFilter::default()
        };
        if filter == LetterFilter::default() {
            return Err(format!(
                "{name}: say which dead letters, by consumer, queue, event_type, reason, error_class or text"
            ));
        }
        if self.limit == Some(0) {
            return Err(format!("{name}: limit must be 1 at least; leave it out for no limit"));
        }
        let max_rounds = self.max_rounds.unwrap_or(MAX_ROUNDS);
        if max_rounds == 0 {
            return Err(format!("{name}: max_rounds must be 1 at least"));
        }
        let plan = LetterPlan { filter, limit: self.limit, ..LetterPlan::default() };
        Ok(Rule { name: name.clone(), plan, schedule, rate: self.rate, max_rounds })
    }
}

/// Seconds after midnight.
fn time_of_day(text: &str) -> Option<u32> {
    let (hour, minute) = text.split_once(':')?;
    let (hour, minute): (u32, u32) = (hour.parse().ok()?, minute.parse().ok()?);
    (hour < 24 && minute < 60).then_some(hour * 3600 + minute * 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(toml: &str) -> Result<Vec<Rule>, String> {
        let triage: Triage = toml::from_str(toml).map_err(|error| error.to_string())?;
        triage.rules().map_err(|(_, problem)| problem)
    }

    #[test]
    fn a_rule_says_which_letters_and_when() {
        let rule = rules("[[rule]]\nname = \"smtp\"\nevery = \"15m\"\nerror_class = \"smtp\"\nrate = 10")
            .unwrap()
            .remove(0);
        assert_eq!(rule.schedule, Schedule::Every(std::time::Duration::from_mins(15)));
        assert_eq!((rule.max_rounds, rule.rate), (3, Some(10.0)));
    }

    #[test]
    fn a_rule_that_says_too_little_is_refused() {
        for (toml, problem) in [
            ("[[rule]]\nname = \"a\"\nevery = \"1h\"", "say which dead letters"),
            ("[[rule]]\nname = \"a\"\nevery = \"1h\"\ntext = \"\"", "say which dead letters"),
            ("[[rule]]\nname = \"a\"\nqueue = \"q\"\nevery = \"1h\"\nlimit = 0", "limit must be 1"),
            ("[[rule]]\nname = \"a\"\nqueue = \"q\"", "either every"),
            ("[[rule]]\nname = \"a\"\nqueue = \"q\"\ndaily = \"25:00\"", "a time in UTC"),
            ("[[rule]]\nname = \"a\"\nqueue = \"q\"\nevery = \"1h\"\nmax_rounds = 0", "max_rounds"),
        ] {
            let said = rules(toml).unwrap_err();
            assert!(said.contains(problem), "{said}");
        }
    }
}
