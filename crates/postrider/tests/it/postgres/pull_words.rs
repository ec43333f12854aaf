//! Words that processes leave for each other's desks.

use std::time::Duration;

use postrider::pull::{PullWord, Said, Verdict};
use postrider::store::PullWords as _;

use super::{execute, store};

fn word(desk: &str, lease: &str, said: Said) -> PullWord {
    PullWord { desk: desk.to_owned(), lease: lease.to_owned(), said }
}

#[tokio::test]
async fn a_word_is_for_its_desk_answered_once_and_removed() {
    let (postgres, _database) = store().await;
    // A reason is whatever a worker sends.
    let retry =
        Verdict::Retry { reason: "a \0 and a \" and an é".to_owned(), after: Some(Duration::from_secs(5)) };
    let words = vec![
        word("here", "lease_1", Said::Settle(retry)),
        word("here", "lease_2", Said::Extend(Duration::from_millis(1500))),
        word("there", "lease_3", Said::Settle(Verdict::Reject { reason: String::new() })),
    ];
    let numbers = postgres.leave_words(words.clone()).await.unwrap();
    assert_eq!(numbers.len(), 3);
    let heard = postgres.words_for(vec!["here".to_owned()]).await.unwrap();
    assert_eq!(heard.iter().map(|(_, word)| word.clone()).collect::<Vec<_>>(), words[..2]);
    assert_eq!(postgres.word_answers(&numbers).await.unwrap(), []);

    postgres.answer_words(vec![(heard[0].0, true), (heard[1].0, false)]).await.unwrap();
    assert_eq!(postgres.words_for(vec!["here".to_owned()]).await.unwrap(), [], "they are answered");
    let mut answers = postgres.word_answers(&numbers).await.unwrap();
    answers.sort();
    assert_eq!(answers, [("lease_1".to_owned(), true), ("lease_2".to_owned(), false)]);

    postgres.remove_words(&numbers).await.unwrap();
    assert_eq!(postgres.words_for(vec!["there".to_owned()]).await.unwrap(), [], "nobody acts on it any more");
    postgres.answer_words(vec![(numbers[2], true)]).await.unwrap();
    assert_eq!(postgres.word_answers(&numbers).await.unwrap(), []);
}

#[tokio::test]
async fn what_nobody_came_back_for_is_gone_after_an_hour() {
    let (postgres, _database) = store().await;
    let left = || vec![word("gone", "lease_1", Said::Settle(Verdict::Ack))];
    postgres.leave_words(left()).await.unwrap();
    let aged =
        execute(&postgres, "UPDATE postrider.pull_word SET said_at = now() - interval '61 minutes'").await;
    assert_eq!(aged.unwrap(), 1);
    let fresh = postgres.leave_words(left()).await.unwrap();
    let found = postgres.words_for(vec!["gone".to_owned()]).await.unwrap();
    assert_eq!(found.iter().map(|(number, _)| *number).collect::<Vec<_>>(), fresh);
}
