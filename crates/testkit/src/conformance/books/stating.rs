//! Statements of accounts.

use postrider_ledger::books::Books;
use postrider_ledger::correcting::Remark;
use postrider_ledger::statement::Movement;

use super::{BooksFixture, Desk, code, order};

/// A statement of an account ends in its balance, and page by page it is the same.
pub async fn a_statement_ends_in_the_balance<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.post(&[order("o-1", "10.00", "EUR"), order("o-2", "5.00", "EUR")]).await;
    desk.ledger.reverse(&desk.tenant, 1, &Remark::default()).await.unwrap();
    let alice = code("receivable:alice");
    let whole = desk.ledger.statement(&desk.tenant, &alice, None, 100).await.unwrap();
    let balances: Vec<_> = whole.movements.iter().map(|Movement { balance, .. }| balance.as_str()).collect();
    assert_eq!(balances, ["10.00", "15.00", "5.00"]);
    assert_eq!(whole.earlier, None);

    let newest = desk.ledger.statement(&desk.tenant, &alice, None, 1).await.unwrap();
    assert_eq!(newest.movements, whole.movements[2..]);
    // What is posted meanwhile changes nothing about what was before.
    desk.post(&[order("o-3", "7.00", "EUR")]).await;
    let (mut pages, mut earlier) = (newest.movements, newest.earlier);
    while let Some(place) = earlier {
        let page = desk.ledger.statement(&desk.tenant, &alice, Some(&place), 1).await.unwrap();
        pages.splice(0..0, page.movements);
        earlier = page.earlier;
    }
    assert_eq!(pages, whole.movements);
    let newest = desk.ledger.statement(&desk.tenant, &alice, None, 1).await.unwrap();
    assert_eq!(newest.movements[0].balance, "12.00");
    assert_eq!(desk.ledger.books().head(&desk.tenant).await.unwrap().unwrap().number, 4);
}
