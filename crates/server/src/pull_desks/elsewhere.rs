//! Leases of other processes: what a worker says of one is left for the desk that gave it, which answers.
//!
//! Behind a load balancer a worker's requests go anywhere. The desk that gave a lease is its only judge, so a lease is settled once,
//! whoever is told. If its process is gone there is no answer, and the delivery comes again by itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use postrider::pull::{LeaseKey, LeaseToken, PullWord, Said, Verdict};
use postrider::store::{Admission, StoreError};
use postrider::topology::{ConsumerName, QueueName};
use tokio_util::sync::CancellationToken;

use super::{PullDesks, Told};
use crate::wiring::WholeStore;

/// A process that workers pull from looks this often for what others were told about them.
const LISTEN: Duration = Duration::from_millis(200);
/// Who left word looks this often for the answer …
const ASK: Duration = Duration::from_millis(100);
/// … and takes a process that does not answer within this for gone.
const PATIENCE: Duration = Duration::from_secs(5);

impl<S: WholeStore> PullDesks<S> {
    /// Says it of leases that this process did not give, each with its token as it was read.
    pub(super) async fn say_elsewhere(
        &self,
        consumer: &ConsumerName,
        leases: Vec<(String, LeaseToken)>,
        said: &Said,
    ) -> Result<Told, StoreError> {
        if *said == Said::Settle(Verdict::Ack) {
            return self.ack_elsewhere(consumer, leases).await;
        }
        let numbers = self.store.leave_words(words(&leases, said)).await?;
        let deadline = self.clock.monotonic() + PATIENCE.min(self.longest_wait());
        let mut answers = HashMap::new();
        while answers.len() < numbers.len() && self.clock.monotonic() < deadline {
            self.clock.sleep(ASK).await;
            answers = self.store.word_answers(&numbers).await?.into_iter().collect();
        }
        if !numbers.is_empty() {
            self.store.remove_words(&numbers).await?;
        }
        let mut told = Told::default();
        for (lease, _) in leases {
            let taken = answers.get(&lease).copied().unwrap_or(false);
            told.put(lease, taken);
        }
        Ok(told)
    }

    /// Marks the events as applied: whoever has the deliveries finds the marks, also if the process that gave the leases is gone. If it is
    /// not, it is told, so that the next event of the key need not wait for the lease to run out. An event that was applied with another
    /// payload is not marked.
    async fn ack_elsewhere(
        &self,
        consumer: &ConsumerName,
        leases: Vec<(String, LeaseToken)>,
    ) -> Result<Told, StoreError> {
        let arrivals: Vec<_> = leases.iter().map(|(_, token)| token.arrival().clone()).collect();
        let mut tx = self.store.begin().await?;
        let shared = self.config.inbox_of(consumer);
        let admitted = self.store.admit(&mut tx, shared.as_ref().unwrap_or(consumer), &arrivals).await?;
        self.store.commit(tx).await?;
        // In a shared inbox the same id is the same event, whatever it says.
        let marked = |admission: &Admission| shared.is_some() || *admission != Admission::Conflict;
        let (mut told, mut news) = (Told::default(), Vec::new());
        for ((lease, token), admission) in leases.into_iter().zip(&admitted) {
            if marked(admission) {
                news.push((lease.clone(), token));
            }
            told.put(lease, marked(admission));
        }
        if let Err(error) = self.store.leave_words(words(&news, &Said::Settle(Verdict::Ack))).await {
            tracing::debug!(%error, "an ack stands, and its desk finds out when the lease runs out");
        }
        Ok(told)
    }

    /// Does what other processes were told about leases of this one, until `stop`.
    pub(super) async fn listen(self: Arc<Self>, stop: CancellationToken) {
        while stop.run_until_cancelled(self.clock.sleep(LISTEN)).await.is_some() {
            if let Err(error) = self.hear().await {
                tracing::debug!(%error, "what other processes were told about leases was not read");
            }
        }
    }

    async fn hear(&self) -> Result<(), StoreError> {
        let open = self.open.lock().await;
        let desks: HashMap<String, _> =
            open.values().map(|open| (open.desk.name().to_owned(), open.desk.clone())).collect();
        drop(open);
        if desks.is_empty() {
            return Ok(());
        }
        let (mut answers, mut acked) = (Vec::new(), Vec::new());
        for (number, word) in self.store.words_for(desks.keys().cloned().collect()).await? {
            let taken = desks.get(&word.desk).is_some_and(|desk| desk.hear(&word.lease, &word.said));
            if word.said == Said::Settle(Verdict::Ack) {
                // Nobody waits to hear about an ack.
                acked.push(number);
            } else {
                answers.push((number, taken));
            }
        }
        if !answers.is_empty() {
            self.store.answer_words(answers).await?;
        }
        if !acked.is_empty() {
            self.store.remove_words(&acked).await?;
        }
        Ok(())
    }

    /// The token, if another desk of this store gave it for a delivery of this queue's consumer: its signature says so. What is said of a lease under another queue's name is
    /// said of nothing.
    pub(super) async fn of_another(
        &self,
        queue: &QueueName,
        consumer: &ConsumerName,
        token: &str,
    ) -> Result<Option<LeaseToken>, StoreError> {
        let token = match self.open(queue).await {
            Some(desk) => desk.of_another(token),
            None => LeaseToken::read(token, self.key().await?),
        };
        Ok(token.filter(|token| token.consumer() == consumer))
    }

    /// What leases are signed with, here and in every other process on this store.
    pub(super) async fn key(&self) -> Result<&LeaseKey, StoreError> {
        let ask = || self.store.lease_key(LeaseKey::fresh(&self.clock));
        self.key.get_or_try_init(ask).await
    }
}

fn words(leases: &[(String, LeaseToken)], said: &Said) -> Vec<PullWord> {
    let word = |(lease, token): &(String, LeaseToken)| PullWord {
        desk: token.desk().to_owned(),
        lease: lease.clone(),
        said: said.clone(),
    };
    leases.iter().map(word).collect()
}
