//! Closing: periods change their state, and a year's result is carried to retained earnings.
//!
//! Every change of a period's state is recorded in the chain by a seal: an entry without lines whose payload hash is that of the trial
//! balance up to the period's last day. It locks the books as posting does, so every entry is either in the trial balance that a closing
//! seals, or refused.

use std::collections::{BTreeSet, HashMap};

use jiff::civil::Date;
use postrider::EventId;
use postrider::envelope::TenantId;

use crate::account::{Account, AccountCode, AccountType, Side};
use crate::books::{Balance, Books, Change, Receipt, Sums};
use crate::chain::Hash;
use crate::chart::Chart;
use crate::correcting::{hash_of, receipt};
use crate::entry::{Draft, DraftLine, EntryKind, Metadata, Source};
use crate::error::LedgerError;
use crate::keeping::takes_results;
use crate::ledger::Ledger;
use crate::money::{Amount, Currency};
use crate::period::{Period, PeriodState};
use crate::pipeline::{Answer, Arrival};
use crate::refusal::Refusal;

/// Pairs of account and currency in one closing entry.
const PAIRS: usize = 400;

/// The trial balance as the text that is hashed: a line for each account and currency in the order of the bytes of their names, with
/// tabs between account, currency, debits, credits, base debits and base credits, in minor units.
pub fn trial_balance_text(balances: &[Balance]) -> String {
    use std::fmt::Write as _;
    let mut sorted: Vec<&Balance> = balances.iter().collect();
    sorted.sort_by(|left, right| (&left.account, left.currency).cmp(&(&right.account, right.currency)));
    let mut text = String::new();
    for Balance { account, currency, sums } in sorted {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{account}\t{currency}\t{}\t{}\t{}\t{}",
            sums.debits, sums.credits, sums.base_debits, sums.base_credits
        );
    }
    text
}

/// What accounts are, as the text that is hashed: a line for each in the order of the bytes of its code, with tabs between code, type,
/// normal side and the one currency it takes, which is empty for any. None of these changes once an account has entries.
pub fn accounts_text<'a>(accounts: impl IntoIterator<Item = &'a Account>) -> String {
    use std::fmt::Write as _;
    let mut sorted: Vec<&Account> = accounts.into_iter().collect();
    sorted.sort_by(|left, right| left.code.cmp(&right.code));
    let mut text = String::new();
    for account in sorted {
        let (kind, side) = (account.kind.as_str(), account.normal_side().as_str());
        let currency = account.currency.as_ref().map_or("", Currency::code);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}\t{kind}\t{side}\t{currency}", account.code);
    }
    text
}

impl<B: Books> Ledger<B> {
    /// Opens, closes or locks a period, which is made if it is not there. Returns the receipt of the seal that records it; nothing where
    /// the period has that state already.
    pub async fn set_period(
        &self,
        tenant: &TenantId,
        period: &Period,
    ) -> Result<Option<Receipt>, LedgerError> {
        // The chain remembers that there were checkpoints: whoever deletes the newest one cannot take this back. Read before the lock, so that
        // nobody waits for a second connection with the books in hand; one that is signed meanwhile is for the next seal.
        let signed_to = self.books.checkpoints(tenant).await?.last().map_or(0, |newest| newest.last);
        let (mut tx, head, chart) = self.locked(tenant).await?;
        let there = chart.periods.iter().find(|there| there.name == period.name);
        // Its days are those that it was made with.
        let period = &Period { state: period.state, ..there.unwrap_or(period).clone() };
        let before = there.map_or(PeriodState::Open, |there| there.state);
        if there.is_some() && before == period.state {
            return Ok(None);
        }
        if there.is_some() && !before.may_become(period.state)
            || there.is_none() && period.state == PeriodState::Locked
        {
            let (name, from, to) = (&period.name, before.as_str(), period.state.as_str());
            return Err(LedgerError::Invalid(format!("the period {name} is {from} and cannot become {to}")));
        }
        let clash = chart.periods.iter().find(|other| other.name != period.name && other.overlaps(period));
        if let Some(other) = clash {
            let text = format!("the period {} shares days with {}", period.name, other.name);
            return Err(LedgerError::Invalid(text));
        }
        // The seal first: it is posted by the chart of before, which the version still names.
        let seal = self.seal(&mut tx, tenant, period, (&head.hash, signed_to, &chart)).await?;
        let arrivals = [Arrival::Draft(Box::new(seal))];
        let mut answers = self.post_locked(&mut tx, tenant, head, &arrivals).await?.answers;
        let sealed = receipt(answers.pop())?;
        self.books.change(&mut tx, tenant, &Change::Period(period.clone())).await?;
        self.end(tx).await?;
        Ok(Some(sealed))
    }

    async fn seal(
        &self,
        tx: &mut B::Tx,
        tenant: &TenantId,
        period: &Period,
        (head, signed_to, chart): (&Hash, u64, &Chart),
    ) -> Result<Draft, LedgerError> {
        let balances = self.books.movements_in(tx, tenant, None, Some(period.ends_on)).await?;
        let hash = hash_of(&trial_balance_text(&balances));
        let posted = self.books.movements_in(tx, tenant, None, None).await?;
        let accounts: BTreeSet<&AccountCode> = posted.iter().map(|balance| &balance.account).collect();
        let accounts = accounts.into_iter().filter_map(|code| chart.accounts.get(code));
        // The hash of the head, because producers choose the ids of events, and none can know it before: with a number in its place an event
        // under the id of the next seal kept the period from being closed.
        let id = format!("seal:{}:{head}", period.name);
        let event = EventId::new(id).map_err(|error| LedgerError::Invalid(error.to_string()))?;
        let metadata = [
            ("period", period.name.clone()),
            ("starts_on", period.starts_on.to_string()),
            ("ends_on", period.ends_on.to_string()),
            ("state", period.state.as_str().to_owned()),
            ("trial_balance", hash.to_string()),
            ("accounts", hash_of(&accounts_text(accounts)).to_string()),
            ("base_currency", chart.book.base_currency.to_string()),
            ("signed_to", signed_to.to_string()),
        ];
        Ok(Draft {
            source: Source { event, payload_hash: hash, rule: String::new() },
            kind: EntryKind::Seal,
            effective_on: period.ends_on,
            description: format!("Period {} {}", period.name, period.state.reached()),
            metadata: metadata.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            refers_to: None,
            lines: Vec::new(),
        })
    }

    /// Carries what income and expense accounts hold at the end of a day to retained earnings. Does nothing the second time, and refuses what
    /// the closing of a later year has carried already.
    pub async fn close_year(&self, tenant: &TenantId, last_day: Date) -> Result<Vec<Receipt>, LedgerError> {
        let (mut tx, head, chart) = self.locked(tenant).await?;
        let none = || LedgerError::Invalid("the books name no account for retained earnings".to_owned());
        let retained = chart.book.retained_account.clone().ok_or_else(none)?;
        takes_results(&chart, &retained)?;
        let is_result = |account: &AccountCode| {
            let kind = chart.accounts.get(account).map(|account| account.kind);
            matches!(kind, Some(AccountType::Income | AccountType::Expense))
        };
        let balances = self.books.movements_in(&mut tx, tenant, None, Some(last_day)).await?;
        let results: Vec<Balance> =
            balances.into_iter().filter(|balance| is_result(&balance.account)).collect();
        if let Some((closing, since)) = self.books.posted_since_closing(&mut tx, tenant, last_day).await? {
            not_carried_before(&results, closing, &since, last_day)?;
        }
        let mut arrivals = Vec::new();
        for (part, pairs) in (1..).zip(results.chunks(PAIRS)) {
            let lines = closing_lines(pairs, &retained)?;
            if lines.is_empty() {
                continue;
            }
            takes_all(&chart, &retained, &lines)?;
            // The hash of the head, so that no closing which was imported has the same id.
            let id = format!("close:{last_day}:{}:{part}", head.hash);
            let event = EventId::new(id).map_err(|error| LedgerError::Invalid(error.to_string()))?;
            arrivals.push(Arrival::Draft(Box::new(Draft {
                source: Source {
                    event,
                    payload_hash: hash_of(&trial_balance_text(pairs)),
                    rule: String::new(),
                },
                kind: EntryKind::Closing,
                effective_on: last_day,
                description: format!("Result of the year to {last_day}"),
                metadata: Metadata::new(),
                refers_to: None,
                lines,
            })));
        }
        let answers = self.post_locked(&mut tx, tenant, head, &arrivals).await?.answers;
        let receipts =
            answers.into_iter().map(|answer: Answer| receipt(Some(answer))).collect::<Result<_, _>>()?;
        if !arrivals.is_empty() {
            self.end(tx).await?;
        }
        Ok(receipts)
    }
}

/// Refuses results that the closing of a later year has carried already: it took whatever was held by then, of earlier years, too. What came
/// in for a day of this year only after it was not carried by anybody.
fn not_carried_before(
    results: &[Balance],
    closing: u64,
    since: &[Balance],
    last_day: Date,
) -> Result<(), LedgerError> {
    let net = |sums: &Sums| {
        let debits_less = |debits: i64, credits: i64| i128::from(debits) - i128::from(credits);
        (debits_less(sums.debits, sums.credits), debits_less(sums.base_debits, sums.base_credits))
    };
    let came_in: HashMap<(&AccountCode, Currency), (i128, i128)> =
        since.iter().map(|late| ((&late.account, late.currency), net(&late.sums))).collect();
    let late =
        |result: &Balance| came_in.get(&(&result.account, result.currency)).copied().unwrap_or_default();
    let is_nothing = |result: &Balance| net(&result.sums) == (0, 0);
    match results.iter().find(|result| !is_nothing(result) && net(&result.sums) != late(result)) {
        None => Ok(()),
        Some(Balance { account, .. }) => Err(LedgerError::Invalid(format!(
            "entry {closing} closed a later year, and carried with it what {account} held at the end of {last_day}; reverse the closings of \
             later years, then close the years in their order"
        ))),
    }
}

/// Lines that bring every account to zero, against retained earnings, one currency at a time.
fn closing_lines(pairs: &[Balance], retained: &AccountCode) -> Result<Vec<DraftLine>, Refusal> {
    let mut lines = Vec::new();
    let mut totals: std::collections::BTreeMap<Currency, (i128, i128)> = std::collections::BTreeMap::new();
    for Balance { account, currency, sums } in pairs {
        let net = i128::from(sums.credits) - i128::from(sums.debits);
        let base_net = i128::from(sums.base_credits) - i128::from(sums.base_debits);
        put(&mut lines, account, *currency, net, base_net)?;
        let (total, base_total) = totals.entry(*currency).or_default();
        (*total, *base_total) = (*total + net, *base_total + base_net);
    }
    for (currency, (total, base_total)) in totals {
        put(&mut lines, retained, currency, -total, -base_total)?;
    }
    Ok(lines)
}

/// Refuses a result in a currency that retained earnings do not take: of closings the pipeline asks no account what it takes.
fn takes_all(chart: &Chart, retained: &AccountCode, lines: &[DraftLine]) -> Result<(), Refusal> {
    let Some(takes) = chart.account(retained)?.currency() else { return Ok(()) };
    let is_other = |line: &&DraftLine| {
        line.account == *retained && line.amount != Amount::NONE && line.currency != takes
    };
    match lines.iter().find(is_other) {
        None => Ok(()),
        Some(line) => {
            let (account, given) = (retained.clone(), line.currency);
            Err(Refusal::WrongCurrency { account, takes, given })
        }
    }
}

/// Debits a positive net, credits a negative one. Where the base amount has the other sign it gets a line of its own.
fn put(
    lines: &mut Vec<DraftLine>,
    account: &AccountCode,
    currency: Currency,
    net: i128,
    base_net: i128,
) -> Result<(), Refusal> {
    let mut push = |net: i128, base_net: i128| {
        let side = if net + base_net > 0 { Side::Debit } else { Side::Credit };
        let fits = |amount: i128| {
            i64::try_from(amount.abs()).map_err(|_| Refusal::AmountTooLarge { amount: currency.show(net) })
        };
        let amount = Amount::held(fits(net)?).unwrap_or(Amount::NONE);
        let base = Some((fits(base_net)?, None));
        lines.push(DraftLine { account: account.clone(), side, amount, currency, base });
        Ok(())
    };
    match (net.signum(), base_net.signum()) {
        (0, 0) => Ok(()),
        (one, other) if one * other < 0 => push(net, 0).and_then(|()| push(0, base_net)),
        _ => push(net, base_net),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A database of another collation lists `a:b` before `B`, or behind `ab`: the text that a seal hashes knows bytes alone.
    #[test]
    fn the_text_of_a_trial_balance_is_ordered_by_bytes() {
        let balance = |(account, currency): (&str, &str)| Balance {
            account: AccountCode::new(account).unwrap(),
            currency: Currency::new(currency).unwrap(),
            sums: Sums { debits: 7, base_debits: 6, ..Sums::default() },
        };
        let listed =
            [("ab", "EUR"), ("a:b", "USD"), ("a:b", "EUR"), ("é", "EUR"), ("a-c", "EUR"), ("B", "EUR")];
        let text = trial_balance_text(&listed.map(balance));
        let accounts: Vec<_> = text.lines().map(|line| line.split_at(line.find("\t7").unwrap()).0).collect();
        assert_eq!(accounts, ["B\tEUR", "a-c\tEUR", "a:b\tEUR", "a:b\tUSD", "ab\tEUR", "é\tEUR"]);
        assert!(text.starts_with("B\tEUR\t7\t0\t6\t0\n"), "{text}");
    }

    #[test]
    fn what_a_later_year_has_carried_is_not_carried_again() {
        let held = |credits: i64| Balance {
            account: AccountCode::new("sales").unwrap(),
            currency: Currency::new("EUR").unwrap(),
            sums: Sums { credits, base_credits: credits, ..Sums::default() },
        };
        let day = jiff::civil::date(2025, 12, 31);
        let check = |held: Balance, since: &[Balance]| not_carried_before(&[held], 3, since, day);
        assert!(check(held(0), &[]).is_ok(), "nothing is left of it");
        assert!(check(held(10), &[held(10)]).is_ok(), "all of it came in later");
        for since in [vec![], vec![held(4)]] {
            let told = check(held(10), &since).unwrap_err().to_string();
            assert!(told.starts_with("entry 3 closed a later year"), "{told}");
        }
    }

    #[test]
    fn the_text_of_accounts_says_what_they_are_and_not_what_they_are_called() {
        let mut bank = Account {
            code: AccountCode::new("bank").unwrap(),
            name: "Bank".to_owned(),
            kind: AccountType::Asset,
            normal_side: None,
            currency: Some(Currency::new("EUR").unwrap()),
            active: true,
            opens_children: false,
        };
        let sales = Account {
            code: AccountCode::new("a:sales").unwrap(),
            kind: AccountType::Income,
            currency: None,
            ..bank.clone()
        };
        let text = "a:sales\tincome\tcredit\t\nbank\tasset\tdebit\tEUR\n";
        assert_eq!(accounts_text([&bank, &sales]), text);
        (bank.name, bank.active, bank.normal_side) = ("Till".to_owned(), false, Some(Side::Debit));
        assert_eq!(accounts_text([&sales, &bank]), text, "the side is that of its type, said or not");
        bank.normal_side = Some(Side::Credit);
        assert_ne!(accounts_text([&sales, &bank]), text);
    }
}
