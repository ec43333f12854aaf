//! What every implementation of the books must do: post once, balance, keep the chain, find what was changed.

mod changing;
mod checkpointing;
mod correcting;
mod posting;
mod refusing;
mod sealing;
mod stating;
mod verifying;

pub use changing::*;
pub use checkpointing::*;
pub use correcting::*;
pub use posting::*;
pub use refusing::*;
pub use sealing::*;
pub use stating::*;
pub use verifying::*;

use std::future::Future;

use postrider::envelope::TenantId;
use postrider::{Clock, Event, Payload};
use postrider_ledger::account::{Account, AccountCode};
use postrider_ledger::books::{Books, Receipt};
use postrider_ledger::chart::Book;
use postrider_ledger::money::Currency;
use postrider_ledger::pipeline::{Answer, Arrival};
use postrider_ledger::rules::ready;
use postrider_ledger::verify::{Scope, Verification};
use postrider_ledger::{Ledger, chart::DayRate};

/// A database of its own.
pub trait BooksFixture: Send + Sync {
    /// The books.
    type Books: Books;

    /// The books. A case that asks again gets another handle on the same database.
    fn books(&self) -> impl Future<Output = Self::Books> + Send;

    /// Runs a statement past the ledger and past the triggers, as somebody with a shell would. `{}` before a table's name
    /// stands for its schema.
    fn tamper(&self, statement: &str) -> impl Future<Output = ()> + Send;

    /// Runs a statement past the ledger, with the triggers on. Says whether it was let through.
    fn try_statement(&self, statement: &str) -> impl Future<Output = bool> + Send;
}

/// A rule that promises.
pub(super) const PENDING: &str = "[[rule]]\nname='hold'\nmatch='#'\npending=true\n\
    line=[{account='receivable:bob',debit='payload.total'},{account='sales',credit='payload.total'}]";

/// A ledger with the ready rules for one tenant, whose base currency is EUR.
pub(super) struct Desk<B> {
    pub(super) ledger: Ledger<B>,
    pub(super) tenant: TenantId,
}

impl<B: Books> Desk<B> {
    pub(super) async fn open<F: BooksFixture<Books = B>>(fixture: &F) -> Self {
        Self::open_for(fixture, "acme").await
    }

    pub(super) async fn open_for<F: BooksFixture<Books = B>>(fixture: &F, tenant: &str) -> Self {
        let ledger = Ledger::new(fixture.books().await, Clock::system());
        let tenant = TenantId::new(tenant).unwrap();
        let mut book = Book::new(tenant.clone(), currency("EUR"));
        book.rounding_account = Some(code("rounding"));
        book.retained_account = Some(code("retained-earnings"));
        "ecb".clone_into(&mut book.rate_source);
        assert!(ledger.open_books(&book, &chart(), ready::RULES).await.unwrap());
        Self { ledger, tenant }
    }

    /// Another process on the same books.
    pub(super) async fn another<F: BooksFixture<Books = B>>(&self, fixture: &F) -> Self {
        Self { ledger: Ledger::new(fixture.books().await, Clock::system()), tenant: self.tenant.clone() }
    }

    pub(super) async fn post(&self, arrivals: &[Arrival]) -> Vec<Answer> {
        self.ledger.post(&self.tenant, arrivals).await.unwrap()
    }

    /// Posts one, and expects it to be posted.
    pub(super) async fn posted(&self, arrival: Arrival) -> Receipt {
        match self.post(&[arrival]).await.pop() {
            Some(Answer::Posted(receipt)) => receipt,
            other => panic!("it was not posted: {other:?}"),
        }
    }

    /// Posts one, and expects it to be refused.
    pub(super) async fn refused(&self, arrival: Arrival) -> &'static str {
        match self.post(&[arrival]).await.pop() {
            Some(Answer::Refused(refusal)) => refusal.code(),
            other => panic!("it was not refused: {other:?}"),
        }
    }

    /// Debits less credits of an account, now.
    pub(super) async fn held(&self, account: &str, in_currency: &str) -> i64 {
        let balances = self.ledger.books().balances(&self.tenant).await.unwrap();
        let (account, currency) = (code(account), currency(in_currency));
        let found =
            balances.iter().find(|balance| balance.account == account && balance.currency == currency);
        found.map_or(0, |balance| balance.sums.debits - balance.sums.credits)
    }

    /// Verifies the books.
    pub(super) async fn verified(&self) -> Verification {
        self.ledger.verify(&self.tenant, Scope::default()).await.unwrap().unwrap()
    }

    /// Verifies the books, and expects nothing wrong.
    pub(super) async fn holds(&self) {
        let verification = self.verified().await;
        assert!(verification.holds() && verification.balances_compared, "{verification:?}");
        let trial = self.ledger.trial_balance(&self.tenant, None).await.unwrap();
        assert!(trial.totals.iter().all(|total| total.balanced), "{trial:?}");
    }
}

pub(super) fn code(text: &str) -> AccountCode {
    AccountCode::new(text).unwrap()
}

pub(super) fn currency(text: &str) -> Currency {
    Currency::new(text).unwrap()
}

#[derive(serde::Deserialize)]
struct Accounts {
    account: Vec<Account>,
}

/// The chart of the ready rules.
pub fn chart() -> Vec<Account> {
    toml::from_str::<Accounts>(ready::CHART).unwrap().account
}

/// An order of alice's that was completed on 2026-03-01.
pub fn order(id: &str, total: &str, in_currency: &str) -> Arrival {
    let payload = format!(
        r#"{{"orderId": "{id}", "customerId": "alice", "total": {total}, "tax": 1.00, "currency": "{in_currency}", "completedAt": "2026-03-01"}}"#
    );
    event("ecommerce.order.completed", id, &payload)
}

pub(super) fn event(event_type: &str, id: &str, payload: &str) -> Arrival {
    let event = Event::new(event_type).unwrap().id(id).unwrap().tenant("acme").unwrap();
    let event = event.payload(Payload::new("application/json", payload.to_owned()));
    Arrival::event(event.into_envelope(&Clock::system()))
}

pub(super) fn rate(quote: &str, day: &str, rate: &str) -> DayRate {
    DayRate {
        source: "ecb".to_owned(),
        base: currency("EUR"),
        quote: currency(quote),
        day: day.parse().unwrap(),
        rate: rate.parse().unwrap(),
    }
}
