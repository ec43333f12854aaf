//! Second step: a rule makes a draft of an event. What a person wrote is a draft already.

use super::Arrival;
use crate::chart::Chart;
use crate::entry::Draft;
use crate::period::Poster;
use crate::refusal::Refusal;

/// The draft, and who wants it.
pub fn draft(arrival: &Arrival, chart: &Chart) -> Result<(Draft, Poster), Refusal> {
    match arrival {
        Arrival::Draft(draft) => Ok((Draft::clone(draft), Poster::Person)),
        Arrival::Event { envelope, hash } => {
            let draft = chart.rules.map(envelope, *hash, chart.book.base_currency)?;
            Ok((draft, Poster::Event))
        }
    }
}
