//! Dead letters corrected and sent as new events, and what a replay keeps: its order, and its count where that is wanted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postrider::dead_letter::{Correction, failed_attempts};
use postrider::operation::LetterPlan;
use postrider::settlement::RetryPolicy;
use postrider::store::{LetterFilter, LetterStatus, OperationKind};
use postrider::topology::OnDead;
use postrider::{Event, Failure};
use postrider_testkit::effects::Effects;
use serde_json::json;

use super::ordering::{Applied, in_order, note, numbered};
use super::stage::Stage;
use super::triage::{carry_out, letters, placed, replay};

const KEYS: [&str; 3] = ["order-1", "order-2", "order-3"];

/// What the correction does not fit stays open; everything else is applied, each key in its order, under ids of its own.
pub(super) async fn what_is_corrected_takes_effect_in_order_as_new_events<S: Effects>(mut stage: Stage<S>) {
    stage.order = Some(OnDead::Continue);
    let applied = Applied::default();
    let noted = applied.clone();
    let running = stage
        .start(move |event| {
            match event.envelope.payload.parse::<serde_json::Value>().unwrap_or_default()["currency"].as_str()
            {
                Some("EUR") => note(&noted, event),
                _ => Err(Failure::permanent("no such currency").class("currency")),
            }
        })
        .await;
    let priced = |key: &str, number: u64, currency: &str| -> Event {
        numbered(key, number).json(&json!({ "number": number, "currency": currency })).unwrap()
    };
    for number in 0..5 {
        for key in KEYS {
            stage.commit(priced(key, number, "USD")).await;
        }
    }
    let other = stage.commit(priced("order-4", 0, "gold")).await;
    letters(&stage, LetterFilter::open(), 16).await;
    let patch = r#"[{"op":"test","path":"/currency","value":"USD"},{"op":"replace","path":"/currency","value":"EUR"}]"#;
    let edit = Some(Correction::patch(patch).unwrap());
    // A canary first, then the rest.
    for limit in [Some(2), None] {
        let plan = LetterPlan { edit: edit.clone(), limit, ..LetterPlan::default() };
        carry_out(&stage, OperationKind::EditLetters, &plan).await;
    }
    let account = stage.account(&running, |account| account.applied == 15).await;
    assert!(account.holds() && account.committed == 31, "{account:?}");
    in_order(&applied, &KEYS, 5);
    assert_eq!(stage.effects().await, 15);
    let left = letters(&stage, LetterFilter::open(), 1).await.remove(0);
    assert_eq!(left.event_id.as_deref(), Some(other.as_str()));
    let gone = LetterFilter { status: Some(LetterStatus::Discarded), ..LetterFilter::default() };
    assert!(letters(&stage, gone, 15).await.iter().all(|letter| letter.replaced_by.is_some()));
}

/// Through the outbox and back into an ordered queue, key by key.
pub(super) async fn what_is_replayed_keeps_its_order<S: Effects>(mut stage: Stage<S>) {
    stage.order = Some(OnDead::Continue);
    let (applied, mended) = (Applied::default(), Arc::new(AtomicBool::new(false)));
    let (noted, seen) = (applied.clone(), mended.clone());
    let running = stage
        .start(move |event| {
            if seen.load(Ordering::SeqCst) { note(&noted, event) } else { Err(Failure::permanent("not yet")) }
        })
        .await;
    super::ordering::commit_all(&stage, &KEYS, 10).await;
    letters(&stage, LetterFilter::open(), 30).await;
    mended.store(true, Ordering::SeqCst);
    replay(&stage, &LetterPlan::default()).await;
    stage.account(&running, |account| account.applied == 30).await;
    in_order(&applied, &KEYS, 10);
}

/// With a fresh budget it would be tried three times again; with its old count it is tried once, and dies.
pub(super) async fn a_count_that_is_kept_goes_on_and_every_attempt_is_told<S: Effects>(mut stage: Stage<S>) {
    stage.retry = RetryPolicy::fixed(2, Duration::from_millis(20));
    let _running = stage
        .start(|event| {
            Err(Failure::transient(format_args!("no answer to call {}", event.attempt)).class("smtp"))
        })
        .await;
    let id = stage.commit(placed()).await;
    for (keep_count, attempts) in
        [(true, &[1, 2, 3][..]), (false, &[1, 2, 3, 3]), (false, &[1, 2, 3, 3, 1, 2, 3])]
    {
        let letter = letters(&stage, LetterFilter::open(), 1).await.remove(0);
        assert_eq!((stage.attempts(&id), letter.attempts), (attempts.to_vec(), 3));
        let whole = stage.store.letter(letter.id).await.unwrap().unwrap().letter;
        let told: Vec<_> = failed_attempts(&whole.headers)
            .into_iter()
            .map(|one| (one.attempt, one.class.unwrap_or_default(), one.error))
            .collect();
        let call = |attempt: u32| (attempt, "smtp".to_owned(), format!("no answer to call {attempt}"));
        assert_eq!(told, [call(1), call(2)]);
        replay(&stage, &LetterPlan { keep_count, ..LetterPlan::default() }).await;
    }
}
