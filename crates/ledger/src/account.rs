//! The chart of accounts.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::money::Currency;

/// The code of an account, unique within its tenant: `1200`, `receivable:alice`. Colons make a tree.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AccountCode(Arc<str>);

/// Why a text is no account code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the account code {0:?} is not one: 1 to 128 bytes, words joined by colons, no spaces, quotes or control characters"
)]
pub struct InvalidCode(pub String);

impl AccountCode {
    /// Checks the text and takes it.
    pub fn new(text: &str) -> Result<Self, InvalidCode> {
        let stray = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | ';' | '{' | '}');
        let words = text.split(':').all(|word| !word.is_empty());
        if text.is_empty() || text.len() > 128 || !words || text.contains(stray) {
            return Err(InvalidCode(text.chars().take(64).collect()));
        }
        Ok(Self(text.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The account that this one lies below: `receivable` of `receivable:alice`.
    pub fn parent(&self) -> Option<&str> {
        self.0.rsplit_once(':').map(|(parent, _)| parent)
    }
}

impl std::borrow::Borrow<str> for AccountCode {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AccountCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for AccountCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl TryFrom<String> for AccountCode {
    type Error = InvalidCode;
    fn try_from(text: String) -> Result<Self, InvalidCode> {
        Self::new(&text)
    }
}

impl From<AccountCode> for String {
    fn from(code: AccountCode) -> Self {
        code.0.as_ref().to_owned()
    }
}

impl std::str::FromStr for AccountCode {
    type Err = InvalidCode;
    fn from_str(text: &str) -> Result<Self, InvalidCode> {
        Self::new(text)
    }
}

/// What an account is in the balance sheet or the income statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccountType {
    /// What one has.
    Asset,
    /// What one owes.
    Liability,
    /// What belongs to the owners.
    Equity,
    /// What was earned.
    Income,
    /// What was spent.
    Expense,
}

impl AccountType {
    /// All of them, in the order of a balance sheet.
    pub const ALL: [Self; 5] = [Self::Asset, Self::Liability, Self::Equity, Self::Income, Self::Expense];

    /// Its name, as tables keep it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Asset => "asset",
            Self::Liability => "liability",
            Self::Equity => "equity",
            Self::Income => "income",
            Self::Expense => "expense",
        }
    }

    /// By its name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// The side on which it grows, unless the account says otherwise.
    pub fn normal_side(self) -> Side {
        match self {
            Self::Asset | Self::Expense => Side::Debit,
            Self::Liability | Self::Equity | Self::Income => Side::Credit,
        }
    }
}

/// One of the two sides of every entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The left one.
    Debit,
    /// The right one.
    Credit,
}

impl Side {
    /// The other one.
    #[must_use]
    pub fn opposite(self) -> Self {
        match self {
            Self::Debit => Self::Credit,
            Self::Credit => Self::Debit,
        }
    }

    /// 1 and 2, as tables and the chain have them.
    pub fn number(self) -> u8 {
        match self {
            Self::Debit => 1,
            Self::Credit => 2,
        }
    }

    /// By its number.
    pub fn from_number(number: i16) -> Option<Self> {
        match number {
            1 => Some(Self::Debit),
            2 => Some(Self::Credit),
            _ => None,
        }
    }

    /// Debits count up, credits count down.
    pub fn sign(self) -> i128 {
        match self {
            Self::Debit => 1,
            Self::Credit => -1,
        }
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debit => "debit",
            Self::Credit => "credit",
        }
    }
}

/// An account of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Account {
    /// Its code.
    pub code: AccountCode,
    /// Its name, for people.
    #[serde(default)]
    pub name: String,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: AccountType,
    /// The side on which it grows; that of its type when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normal_side: Option<Side>,
    /// The one currency it takes; any when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<Currency>,
    /// Whether entries may use it.
    #[serde(default = "yes")]
    pub active: bool,
    /// Whether accounts below it (`receivable:alice`) are opened by the first entry that names them.
    #[serde(default)]
    pub opens_children: bool,
}

fn yes() -> bool {
    true
}

impl Account {
    /// The side on which it grows.
    pub fn normal_side(&self) -> Side {
        self.normal_side.unwrap_or_else(|| self.kind.normal_side())
    }

    /// An account below this one, opened by its first entry: it is what its parent is.
    #[must_use]
    pub fn child(&self, code: AccountCode) -> Self {
        Self { code, name: String::new(), ..self.clone() }
    }
}

/// What is to become of an account. What is absent stays as it is, or, of a new one, is as accounts usually are.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccountChange {
    /// Its code.
    pub code: AccountCode,
    /// Its name, for people.
    #[serde(default)]
    pub name: Option<String>,
    /// What it is. A new account needs it.
    #[serde(default, rename = "type")]
    pub kind: Option<AccountType>,
    /// The side on which it grows.
    #[serde(default)]
    pub normal_side: Option<Side>,
    /// The one currency it takes.
    #[serde(default)]
    pub currency: Option<Currency>,
    /// Whether entries may use it.
    #[serde(default)]
    pub active: Option<bool>,
    /// Whether accounts below it are opened by the first entry that names them.
    #[serde(default)]
    pub opens_children: Option<bool>,
}

impl AccountChange {
    /// Of this account, and nothing yet.
    pub fn new(code: AccountCode) -> Self {
        let (name, kind, normal_side, currency) = (None, None, None, None);
        Self { code, name, kind, normal_side, currency, active: None, opens_children: None }
    }

    /// The account that it makes of the one that is there; nothing where there is none and it does not say what it is.
    pub fn made(self, there: Option<&Account>) -> Option<Account> {
        Some(Account {
            name: self.name.or_else(|| there.map(|there| there.name.clone())).unwrap_or_default(),
            kind: self.kind.or(there.map(|there| there.kind))?,
            normal_side: self.normal_side.or(there.and_then(|there| there.normal_side)),
            currency: self.currency.or(there.and_then(|there| there.currency)),
            active: self.active.or(there.map(|there| there.active)).unwrap_or(true),
            opens_children: self.opens_children.or(there.map(|there| there.opens_children)).unwrap_or(false),
            code: self.code,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_words_joined_by_colons() {
        for good in ["1200", "receivable:alice", "Forderung:Jürgen", "a:b:c"] {
            assert!(AccountCode::new(good).is_ok(), "{good}");
        }
        for bad in ["", ":", "a:", ":a", "a b", "a\n", "\"a\"", "{x}"] {
            assert!(AccountCode::new(bad).is_err(), "{bad:?}");
        }
        assert_eq!(AccountCode::new("a:b:c").unwrap().parent(), Some("a:b"));
    }

    #[test]
    fn what_a_change_does_not_name_stays() {
        let account = |json: &str| serde_json::from_str::<Account>(json).unwrap();
        let made = |change: &str, there: Option<&Account>| {
            serde_json::from_str::<AccountChange>(change).unwrap().made(there)
        };
        let there = account(
            r#"{"code": "r", "name": "R", "type": "asset", "currency": "EUR", "active": false, "opens_children": true}"#,
        );
        assert_eq!(made(r#"{"code": "r"}"#, Some(&there)), Some(there.clone()));
        let renamed = Account { name: "Debtors".to_owned(), ..there.clone() };
        assert_eq!(made(r#"{"code": "r", "type": "asset", "name": "Debtors"}"#, Some(&there)), Some(renamed));
        let opened = Account { active: true, opens_children: false, ..there.clone() };
        let change = r#"{"code": "r", "active": true, "opens_children": false}"#;
        assert_eq!(made(change, Some(&there)), Some(opened));
        assert_eq!(made(r#"{"code": "n"}"#, None), None, "nobody says what it is");
        let new = account(r#"{"code": "n", "type": "equity"}"#);
        assert_eq!(made(r#"{"code": "n", "type": "equity"}"#, None), Some(new));
    }
}
