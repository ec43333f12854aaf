//! Fourth step: the draft is a journal entry. Two lines or more, on accounts that exist and are active and take the currency,
//! debits equal to credits in every currency, for a day of the years that books have.

use std::collections::BTreeMap;

use crate::account::Side;
use crate::chart::Chart;
use crate::entry::{Draft, EntryKind};
use crate::money::Currency;
use crate::period::YEARS;
use crate::refusal::Refusal;

/// The most lines of an entry.
const MAX_LINES: usize = 1000;
/// The longest description, in bytes.
const MAX_DESCRIPTION: usize = 1000;
/// The longest metadata, names and values together, in bytes.
const MAX_METADATA: usize = 8000;

/// Refuses what is no journal entry.
pub fn check(draft: &Draft, chart: &Chart) -> Result<(), Refusal> {
    texts(draft)?;
    let day = draft.effective_on;
    if draft.kind != EntryKind::Seal && !YEARS.contains(&day.year()) {
        return Err(Refusal::BadDate(day.to_string()));
    }
    if draft.kind == EntryKind::Seal {
        return if draft.lines.is_empty() { Ok(()) } else { Err(Refusal::TooManyLines(draft.lines.len())) };
    }
    match draft.lines.len() {
        few @ ..=1 => return Err(Refusal::TooFewLines(few)),
        many if many > MAX_LINES => return Err(Refusal::TooManyLines(many)),
        _ => {}
    }
    // What undoes an entry, or carries on what is held, may touch accounts that were closed since.
    let undoes = matches!(draft.kind, EntryKind::Reversal | EntryKind::Void | EntryKind::Closing);
    for line in &draft.lines {
        if undoes && chart.accounts.contains_key(&line.account) {
            continue;
        }
        let found = chart.account(&line.account)?;
        if let Some(takes) = found.currency()
            && takes != line.currency
        {
            let (account, given) = (line.account.clone(), line.currency);
            return Err(Refusal::WrongCurrency { account, takes, given });
        }
    }
    balanced(draft)
}

fn texts(draft: &Draft) -> Result<(), Refusal> {
    let metadata = draft.metadata.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]);
    let all = metadata.clone().chain([draft.description.as_str()]);
    if all.into_iter().any(|text| text.contains('\0')) {
        return Err(Refusal::BadText("contains a NUL character"));
    }
    if draft.description.len() > MAX_DESCRIPTION {
        return Err(Refusal::BadText("is a description of more than 1000 bytes"));
    }
    if metadata.map(str::len).sum::<usize>() > MAX_METADATA {
        return Err(Refusal::BadText("is metadata of more than 8000 bytes"));
    }
    Ok(())
}

fn balanced(draft: &Draft) -> Result<(), Refusal> {
    let mut sums: BTreeMap<Currency, (i128, i128)> = BTreeMap::new();
    for line in &draft.lines {
        let (debits, credits) = sums.entry(line.currency).or_default();
        match line.side {
            Side::Debit => *debits += i128::from(line.amount.minor()),
            Side::Credit => *credits += i128::from(line.amount.minor()),
        }
    }
    match sums.into_iter().find(|(_, (debits, credits))| debits != credits) {
        None => Ok(()),
        Some((currency, (debits, credits))) => {
            let (debits, credits) = (currency.show(debits), currency.show(credits));
            Err(Refusal::Unbalanced { currency, debits, credits })
        }
    }
}
