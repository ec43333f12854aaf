//! Periods: which days take entries.
//!
//! A day that no period covers is open. Posting reads the periods after it has locked the books, and so does closing: an
//! entry is either in the trial balance that a closing seals, or it meets a closed period.

use jiff::ToSpan as _;
use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use crate::refusal::Refusal;

/// The years that books have. A day of another one is a slip of somebody's pen, and PostgreSQL cannot keep all of them.
pub const YEARS: std::ops::RangeInclusive<i16> = 1900..=2999;

/// What may be posted into a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeriodState {
    /// Everything.
    Open,
    /// What people post by hand (adjustments); events no longer.
    Closing,
    /// Nothing; may be opened again.
    Closed,
    /// Nothing, for ever.
    Locked,
}

impl PeriodState {
    const ALL: [Self; 4] = [Self::Open, Self::Closing, Self::Closed, Self::Locked];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closing => "closing",
            Self::Closed => "closed",
            Self::Locked => "locked",
        }
    }

    /// What happened to a period that has it now.
    pub fn reached(self) -> &'static str {
        match self {
            Self::Open => "opened",
            Self::Closing => "is closing",
            Self::Closed => "closed",
            Self::Locked => "locked",
        }
    }

    /// By its name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// Whether the one may follow the other.
    pub fn may_become(self, next: Self) -> bool {
        match (self, next) {
            (Self::Locked, _) => false,
            (_, Self::Locked) => self == Self::Closed,
            _ => self != next,
        }
    }
}

/// A run of days.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Period {
    /// Its name, such as `2026-03`.
    pub name: String,
    /// Its first day.
    pub starts_on: Date,
    /// Its last day.
    pub ends_on: Date,
    /// What may be posted into it.
    pub state: PeriodState,
}

impl Period {
    /// The period that a name stands for: a year (`2026`), a quarter (`2026-Q1`) or a month (`2026-03`), of the years that books have.
    pub fn named(name: &str, state: PeriodState) -> Option<Self> {
        let (year, part) = name.split_once('-').unwrap_or((name, ""));
        // A number may be read of a text with a sign, too.
        if year.len() != 4 || name.contains('+') {
            return None;
        }
        let year: i16 = year.parse().ok().filter(|year| YEARS.contains(year))?;
        let (month, months) = match part.as_bytes() {
            [] => (1, 12),
            [b'Q', quarter @ b'1'..=b'4'] => (i8::try_from(3 * (quarter - b'1') + 1).ok()?, 3),
            [_, _] => (part.parse().ok()?, 1),
            _ => return None,
        };
        let starts_on = Date::new(year, month, 1).ok()?;
        let ends_on = starts_on.checked_add(months.months()).ok()?.yesterday().ok()?;
        Some(Self { name: name.to_owned(), starts_on, ends_on, state })
    }

    /// Whether a day lies in it.
    pub fn covers(&self, day: Date) -> bool {
        (self.starts_on..=self.ends_on).contains(&day)
    }

    /// Whether they share a day.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.starts_on <= other.ends_on && other.starts_on <= self.ends_on
    }
}

/// What to do with an event whose day lies in a period that is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackDated {
    /// Refuse it: it becomes a dead letter.
    #[default]
    Refuse,
    /// Post it on the next open day, with its own day in the metadata.
    NextOpen,
}

impl BackDated {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::NextOpen => "next_open",
        }
    }

    /// By its name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Refuse, Self::NextOpen].into_iter().find(|policy| policy.as_str() == name)
    }
}

/// Who posts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poster {
    /// A rule, for an event.
    Event,
    /// A person, by hand.
    Person,
}

/// The day that an entry may count for: its own, or the next open one where the policy says so.
pub fn open_day(periods: &[Period], day: Date, poster: Poster, policy: BackDated) -> Result<Date, Refusal> {
    let takes = |period: &Period| match period.state {
        PeriodState::Open => true,
        PeriodState::Closing => poster == Poster::Person,
        PeriodState::Closed | PeriodState::Locked => false,
    };
    let mut candidate = day;
    // Each round passes one period, so there are no more rounds than periods.
    while let Some(closed) = periods.iter().find(|period| period.covers(candidate) && !takes(period)) {
        let next = closed.ends_on.tomorrow().ok();
        if let (BackDated::NextOpen, Some(next)) = (policy, next) {
            candidate = next;
        } else {
            let (period, state) = (closed.name.clone(), closed.state.as_str());
            return Err(Refusal::PeriodClosed { day, period, state });
        }
    }
    Ok(candidate)
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    fn period(name: &str, state: PeriodState) -> Period {
        Period::named(name, state).unwrap()
    }

    #[test]
    fn names_stand_for_days() {
        for (name, first, last) in [
            ("2024-02", date(2024, 2, 1), date(2024, 2, 29)),
            ("2025-02", date(2025, 2, 1), date(2025, 2, 28)),
            ("2026-Q4", date(2026, 10, 1), date(2026, 12, 31)),
            ("2026", date(2026, 1, 1), date(2026, 12, 31)),
        ] {
            let period = period(name, PeriodState::Open);
            assert_eq!((period.starts_on, period.ends_on), (first, last), "{name}");
        }
        for bad in [
            "2026-13", "2026-Q5", "26-01", "2026-1", "2026-+3", "+026", "march", "", "2026-é", "0026-03",
            "0000",
        ] {
            assert_eq!(Period::named(bad, PeriodState::Open), None, "{bad}");
        }
    }

    #[test]
    fn closed_days_are_refused_or_moved_on() {
        let periods = [period("2026-01", PeriodState::Locked), period("2026-02", PeriodState::Closed)];
        let on = |day, policy| open_day(&periods, day, Poster::Event, policy);
        let refusal = on(date(2026, 1, 31), BackDated::Refuse).unwrap_err();
        assert_eq!(refusal.code(), "period_closed");
        assert!(refusal.to_string().contains("cannot be opened again"), "{refusal}");
        let refusal = on(date(2026, 2, 1), BackDated::Refuse).unwrap_err();
        assert!(refusal.to_string().ends_with("; reopen it, or give the event a later date"), "{refusal}");
        assert_eq!(on(date(2026, 1, 31), BackDated::NextOpen), Ok(date(2026, 3, 1)));
        assert_eq!(on(date(2025, 12, 31), BackDated::Refuse), Ok(date(2025, 12, 31)));
    }

    #[test]
    fn people_may_adjust_while_a_period_closes() {
        let periods = [period("2026-01", PeriodState::Closing)];
        let day = date(2026, 1, 15);
        assert!(open_day(&periods, day, Poster::Event, BackDated::Refuse).is_err());
        assert_eq!(open_day(&periods, day, Poster::Person, BackDated::Refuse), Ok(day));
    }

    #[test]
    fn a_lock_is_for_ever() {
        assert!(PeriodState::Closed.may_become(PeriodState::Open));
        assert!(PeriodState::Closed.may_become(PeriodState::Locked));
        assert!(!PeriodState::Open.may_become(PeriodState::Locked));
        assert!(!PeriodState::Locked.may_become(PeriodState::Open));
    }
}
