//! Fifth step: every line is also kept in the tenant's base currency, at the rate of its day.
//!
//! Each line is rounded half to even by itself, so what balanced in its own currency may be a few minor units off in base. That
//! residue is a line of its own on the rounding account, with no amount but a base amount: the entry balances in every currency
//! and in base. Base amounts that an import brings along may be off by as much and no more.

use crate::account::Side;
use crate::chart::Chart;
use crate::entry::{Balanced, Draft, DraftLine, Line};
use crate::refusal::Refusal;

/// The entry with its base amounts.
pub fn convert(draft: Draft, chart: &Chart) -> Result<Balanced, Refusal> {
    let mut lines = Vec::with_capacity(draft.lines.len() + 1);
    for line in &draft.lines {
        lines.push(in_base(line, &draft, chart)?);
    }
    if let Some(line) = residue(&lines, chart)? {
        lines.push(line);
    }
    Ok(Balanced { draft, lines })
}

fn in_base(line: &DraftLine, draft: &Draft, chart: &Chart) -> Result<Line, Refusal> {
    let base = chart.book.base_currency;
    let (base_amount, rate) = match &line.base {
        Some((base_amount, rate)) => (*base_amount, rate.clone()),
        None if line.currency == base => (line.amount.minor(), None),
        None => {
            let (number, rate) = chart.rate(line.currency, draft.effective_on)?;
            (line.amount.converted(line.currency, base, number)?, Some(rate))
        }
    };
    Ok(Line {
        account: line.account.clone(),
        side: line.side,
        amount: line.amount.minor(),
        currency: line.currency,
        base_amount,
        rate,
    })
}

fn residue(lines: &[Line], chart: &Chart) -> Result<Option<Line>, Refusal> {
    let sum: i128 = lines.iter().map(|line| line.side.sign() * i128::from(line.base_amount)).sum();
    if sum == 0 {
        return Ok(None);
    }
    let base = chart.book.base_currency;
    // Rounding moves a line by half a unit at most. What is more was brought along, and is no rounding.
    if sum.unsigned_abs() > lines.len() as u128 {
        let of = |side: Side| {
            let same = lines.iter().filter(|line| line.side == side);
            base.show(same.map(|line| i128::from(line.base_amount)).sum())
        };
        let (debits, credits) = (of(Side::Debit), of(Side::Credit));
        return Err(Refusal::Unbalanced { currency: base, debits, credits });
    }
    let none = || Refusal::NoRoundingAccount(format!("{} {base}", base.show(sum)));
    let account = chart.book.rounding_account.clone().ok_or_else(none)?;
    chart.account(&account)?;
    let base_amount = i64::try_from(sum.abs()).map_err(|_| none())?;
    let side = if sum > 0 { Side::Credit } else { Side::Debit };
    Ok(Some(Line { account, side, amount: 0, currency: base, base_amount, rate: None }))
}
