//! Signed checkpoints, and what they prove.

use postrider_ledger::checkpoint::{Key, PublicKey};
use postrider_ledger::verify::Scope;

use super::{BooksFixture, Desk, order};

/// Signed checkpoints follow each other, prove single entries, and notice when the whole chain was written anew.
pub async fn checkpoints_prove_entries<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let key = Key::from_seed([7; 32]);
    assert!(desk.ledger.checkpoint(&desk.tenant, &key).await.unwrap().is_none());
    for (from, to) in [(1, 5), (6, 8)] {
        let batch: Vec<_> = (from..=to).map(|n| order(&format!("o-{n}"), "10.00", "EUR")).collect();
        desk.post(&batch).await;
        let made = desk.ledger.checkpoint(&desk.tenant, &key).await.unwrap().unwrap();
        assert_eq!((made.first, made.last), (from, to));
    }
    assert_eq!(desk.verified().await.checkpoints, 2);
    for entry in 1..=8 {
        let proven = desk.ledger.prove(&desk.tenant, entry).await.unwrap().unwrap();
        assert_eq!(proven.proof.root(&proven.hash), proven.checkpoint.root);
    }
    // Whoever names a key that he knows takes nobody else's signature for a proof.
    for (seed, holds) in [(7, true), (8, false)] {
        let ledger = desk.ledger.clone().trusting([PublicKey(Key::from_seed([seed; 32]).public())]);
        let proven = ledger.prove(&desk.tenant, 1).await.unwrap().unwrap();
        assert_eq!(proven.holds(&desk.tenant), holds, "{seed}");
    }
    // An entry that was changed is proved by nothing, though its stored hash is what it was.
    fixture.tamper("UPDATE {}ledger_line SET amount = amount + 1 WHERE entry = 3 AND line = 1").await;
    for (entry, holds) in [(2, true), (3, false), (4, true)] {
        let proven = desk.ledger.prove(&desk.tenant, entry).await.unwrap().unwrap();
        assert_eq!(proven.holds(&desk.tenant), holds, "{entry}");
    }
    fixture.tamper("UPDATE {}ledger_line SET amount = amount - 1 WHERE entry = 3 AND line = 1").await;
    let found = desk.verified().await;
    assert_eq!((found.unsigned_entries, found.unsigned_from), (0, None));
    desk.posted(order("o-9", "10.00", "EUR")).await;
    let found = desk.verified().await;
    assert_eq!((found.unsigned_entries, found.unsigned_from), (1, Some(9)));
    assert!(desk.ledger.prove(&desk.tenant, 9).await.unwrap().is_none());
    desk.holds().await;
    let pinned = async |key: &Key| {
        let scope = Scope { keys: vec![PublicKey(key.public())], ..Scope::default() };
        desk.ledger.verify(&desk.tenant, scope).await.unwrap().unwrap()
    };
    let found = pinned(&key).await;
    assert!(found.holds() && found.key_pinned && found.signed_by == [PublicKey(key.public())], "{found:?}");
    // Somebody signs everything anew, with a key of their own: only who knows the key sees it.
    fixture.tamper("DELETE FROM {}ledger_checkpoint").await;
    let codes: Vec<_> = pinned(&key).await.problems.iter().map(|problem| problem.code).collect();
    assert_eq!(codes, ["checkpoints_missing"], "a key was named, and nothing is signed");
    desk.holds().await;
    desk.ledger.checkpoint(&desk.tenant, &Key::from_seed([8; 32])).await.unwrap().unwrap();
    assert!(!desk.verified().await.key_pinned);
    desk.holds().await;
    let codes: Vec<_> = pinned(&key).await.problems.iter().map(|problem| problem.code).collect();
    assert_eq!(codes, ["checkpoint_foreign_key"]);
    fixture.tamper("UPDATE {}ledger_checkpoint SET last_number = 8 WHERE last_number = 9").await;
    let codes: Vec<_> = desk.verified().await.problems.iter().map(|problem| problem.code).collect();
    assert!(codes.contains(&"checkpoint_unsigned") && codes.contains(&"checkpoint_differs"), "{codes:?}");
}

/// A checkpoint that is signed while books are verified stands for entries beyond the head that was read, and for none that are gone.
pub async fn a_checkpoint_that_is_signed_meanwhile_is_no_alarm<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let key = Key::from_seed([7; 32]);
    desk.posted(order("o-0", "10.00", "EUR")).await;
    for n in 1..=20 {
        let signing = async {
            desk.posted(order(&format!("o-{n}"), "10.00", "EUR")).await;
            desk.ledger.checkpoint(&desk.tenant, &key).await.unwrap().unwrap();
        };
        let scope = Scope { after: 1, ..Scope::default() };
        let (found, ()) = tokio::join!(desk.ledger.verify(&desk.tenant, scope), signing);
        let found = found.unwrap().unwrap();
        assert!(found.holds(), "{found:?}");
    }
    desk.holds().await;
}
