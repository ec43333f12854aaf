//! Checkpoints against the entries they stand for, and against the keys that may sign them.

use std::collections::BTreeSet;

use postrider::envelope::TenantId;
use postrider::store::StoreError;

use super::{Problem, Scope};
use crate::books::{Books, Head};
use crate::checkpoint::{PublicKey, root};

/// What was checked.
#[derive(Default)]
pub(super) struct Anchors {
    pub(super) checked: usize,
    pub(super) signed_by: BTreeSet<PublicKey>,
    /// The first entry that no checkpoint stands for; the one after the head where all are signed.
    pub(super) unsigned_from: u64,
}

/// Checks every checkpoint of the entries in scope. `vouched` is the entry up to which there were checkpoints when a seal was made: nothing
/// else in the chain tells that the newest one is gone.
pub(super) async fn check<B: Books>(
    books: &B,
    tenant: &TenantId,
    scope: &Scope,
    (head, vouched): (&Head, u64),
    problems: &mut Vec<Problem>,
) -> Result<Anchors, StoreError> {
    let mut anchors = Anchors::default();
    let mut next = 1;
    let checkpoints = books.checkpoints(tenant).await?;
    // Read after them: one that was signed meanwhile stands for entries beyond the head that was verified, and they are there.
    let newest = books.head(tenant).await?.map_or(head.number, |now| now.number.max(head.number));
    for checkpoint in checkpoints {
        let name = format!("the checkpoint of entries {} to {}", checkpoint.first, checkpoint.last);
        if checkpoint.first != next {
            problems.push(Problem::new(
                "checkpoint_gap",
                Some(next),
                format!("{name} does not follow the one before"),
            ));
        }
        next = checkpoint.last + 1;
        if checkpoint.last <= scope.after {
            continue;
        }
        anchors.checked += 1;
        let signer = PublicKey(checkpoint.public_key);
        anchors.signed_by.insert(signer);
        if !scope.keys.is_empty() && !scope.keys.contains(&signer) {
            let text = format!("{name} is signed by {signer}, which is none of the keys that were named");
            problems.push(Problem::new("checkpoint_foreign_key", Some(checkpoint.last), text));
        }
        if !checkpoint.is_signed(tenant) {
            problems.push(Problem::new(
                "checkpoint_unsigned",
                Some(checkpoint.last),
                format!("{name} has a wrong signature"),
            ));
        }
        if checkpoint.last > newest {
            let text = format!("{name} names entries that are gone");
            problems.push(Problem::new("entries_missing", Some(checkpoint.last), text));
            continue;
        }
        let hashes = books.hashes(tenant, checkpoint.first, checkpoint.last).await?;
        if hashes.last() != Some(&checkpoint.head) || root(&hashes) != checkpoint.root {
            let text = format!("{name} stands for other entries than these");
            problems.push(Problem::new("checkpoint_differs", Some(checkpoint.last), text));
        }
    }
    anchors.unsigned_from = next;
    if next <= vouched {
        let text =
            format!("a seal says that entries up to {vouched} were signed; the checkpoint of {next} is gone");
        problems.push(Problem::new("checkpoint_gap", Some(next), text));
    }
    // Whoever names a key wants entries that it vouches for: with the checkpoints gone, nothing would be compared with it.
    if !scope.keys.is_empty() && next == 1 && head.number > 0 {
        let text = format!(
            "none of the entries 1 to {} is signed: there is no checkpoint, and a key was named",
            head.number
        );
        problems.push(Problem::new("checkpoints_missing", Some(1), text));
    }
    Ok(anchors)
}
