//! Plain-text accounting: the journal as hledger and beancount read it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::account::{Account, AccountCode, AccountType};
use crate::chart::Chart;
use crate::entry::Sealed;
use crate::money::Currency;

/// Writes for hledger.
pub struct Hledger {
    accounts: Vec<(AccountCode, AccountType)>,
    /// Those that were declared: hledger's strict mode asks for that.
    currencies: BTreeSet<Currency>,
}

impl Hledger {
    /// With the accounts of a chart.
    pub fn new(chart: &Chart) -> Self {
        let accounts = sorted(chart).into_iter().map(|account| (account.code.clone(), account.kind));
        Self { accounts: accounts.collect(), currencies: BTreeSet::new() }
    }

    pub(super) fn head(&self) -> String {
        let mut text = String::new();
        for (code, kind) in &self.accounts {
            let letter = match kind {
                AccountType::Asset => 'A',
                AccountType::Liability => 'L',
                AccountType::Equity => 'E',
                AccountType::Income => 'R',
                AccountType::Expense => 'X',
            };
            let _ = writeln!(text, "account {}  ; type: {letter}", hledger_name(code));
        }
        text + "\n"
    }

    pub(super) fn entry(&mut self, entry: &Sealed) -> String {
        let said: String =
            entry.description.chars().map(|c| if c.is_control() || c == ';' { ' ' } else { c }).collect();
        let mut text = String::new();
        for line in entry.lines.iter().filter(|line| line.amount > 0) {
            if self.currencies.insert(line.currency) {
                // The sample needs a mark for decimals, also where there are none.
                let point = if line.currency.digits() == 0 { "." } else { "" };
                let _ = writeln!(text, "commodity {} {}{point}\n", line.currency, line.currency.show(0));
            }
        }
        let _ = writeln!(text, "{} * ({}) {}", entry.effective_on, entry.number, said.trim());
        for line in entry.lines.iter().filter(|line| line.amount > 0) {
            let amount = line.currency.show(line.side.sign() * i128::from(line.amount));
            let _ = writeln!(text, "    {}  {} {amount}", hledger_name(&line.account), line.currency);
        }
        text + "\n"
    }
}

/// What hledger would read as a mark of the posting, and not as the beginning of its account, gets something before it; and so does what
/// looks like that already, so that no two accounts have one name.
fn hledger_name(code: &AccountCode) -> String {
    let is_mark = code.as_str().trim_start_matches('_').starts_with(['(', '[', '*', '!']);
    format!("{}{code}", if is_mark { "_" } else { "" })
}

/// Writes for beancount, whose accounts begin with one of five words and whose parts begin with a capital.
pub struct Beancount {
    names: BTreeMap<AccountCode, String>,
}

impl Beancount {
    /// With names for the accounts of a chart.
    pub fn new(chart: &Chart) -> Self {
        let (mut names, mut taken) = (BTreeMap::new(), BTreeSet::new());
        for account in sorted(chart) {
            let wanted = beancount_name(account);
            let mut name = wanted.clone();
            let mut number = 2;
            while !taken.insert(name.clone()) {
                name = format!("{wanted}-{number}");
                number += 1;
            }
            names.insert(account.code.clone(), name);
        }
        Self { names }
    }

    pub(super) fn head(&self) -> String {
        let mut text = String::new();
        for (code, name) in &self.names {
            // No code has a quote in it, but it may have a backslash.
            let code = code.as_str().replace('\\', "\\\\");
            let _ = writeln!(text, "1900-01-01 open {name}\n  code: \"{code}\"");
        }
        text + "\n"
    }

    pub(super) fn entry(&self, entry: &Sealed) -> String {
        let clean = |c: char| if c.is_control() { ' ' } else { c };
        let said: String = entry.description.chars().map(clean).collect();
        let said = said.replace('\\', "\\\\").replace('"', "\\\"");
        let mut text = format!("{} * \"{said}\"\n  entry: \"{}\"\n", entry.effective_on, entry.number);
        for line in entry.lines.iter().filter(|line| line.amount > 0) {
            let amount = line.currency.show(line.side.sign() * i128::from(line.amount));
            let name = self.names.get(&line.account).map_or("Equity:Unknown", String::as_str);
            let _ = writeln!(text, "  {name}  {amount} {}", line.currency);
        }
        text + "\n"
    }
}

fn sorted(chart: &Chart) -> Vec<&Account> {
    let mut accounts: Vec<&Account> = chart.accounts.values().collect();
    accounts.sort_by(|left, right| left.code.cmp(&right.code));
    accounts
}

fn beancount_name(account: &Account) -> String {
    let root = match account.kind {
        AccountType::Asset => "Assets",
        AccountType::Liability => "Liabilities",
        AccountType::Equity => "Equity",
        AccountType::Income => "Income",
        AccountType::Expense => "Expenses",
    };
    account.code.as_str().split(':').fold(root.to_owned(), |name, word| {
        let mut part = String::new();
        for c in word.chars() {
            match c {
                'a'..='z' if part.is_empty() => part.push(c.to_ascii_uppercase()),
                'A'..='Z' | 'a'..='z' | '0'..='9' => part.push(c),
                '-' if !part.is_empty() => part.push(c),
                // Whatever else, by its number.
                other => {
                    let _ = write!(part, "{}{:04X}", if part.is_empty() { "U" } else { "-u" }, other as u32);
                }
            }
        }
        format!("{name}:{part}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_beancount_takes() {
        let name = |code: &str| {
            let json = serde_json::json!({"code": code, "type": "asset"});
            beancount_name(&serde_json::from_value(json).unwrap())
        };
        assert_eq!(name("receivable:alice"), "Assets:Receivable:Alice");
        assert_eq!(name("1200"), "Assets:1200");
        assert_eq!(name("tax-payable:é_x"), "Assets:Tax-payable:U00E9-u005Fx");
    }

    #[test]
    fn a_backslash_is_one_that_beancount_reads() {
        let code = AccountCode::new("receivable:house\\bob").unwrap();
        let beancount = Beancount { names: [(code, "Assets:Receivable:Bob".to_owned())].into() };
        assert!(beancount.head().contains("code: \"receivable:house\\\\bob\""), "{}", beancount.head());
    }

    #[test]
    fn hledger_takes_no_name_for_a_mark() {
        for (code, name) in [
            ("bank", "bank"),
            ("(x)", "_(x)"),
            ("[x]", "_[x]"),
            ("*x", "_*x"),
            ("!", "_!"),
            ("_(x)", "__(x)"),
            ("_x", "_x"),
            ("a:(x)", "a:(x)"),
        ] {
            assert_eq!(hledger_name(&AccountCode::new(code).unwrap()), name);
        }
    }
}
