//! Replaces a queue by one with other arguments and the same name, without losing a message.
//!
//! RabbitMQ cannot change a queue's arguments, and a name is there once. So the messages wait in a queue beside it
//! (`NAME.postrider-replacing`) while the old one goes and the new one comes:
//!
//! 1. see that RabbitMQ takes the new queue, under another name; carry what is in the old one aside, while it is still bound
//!    and consumed;
//! 2. bind the queue beside it like the old one, then unbind the old one: for a moment both get everything;
//! 3. close the old queue, hold back the wait queues that lead to it, carry the rest, and wait until its consumers have
//!    settled what they have;
//! 4. delete it and declare the new one, in one breath; consumers come back;
//! 5. carry everything back, bind the new queue, unbind the one beside it, carry the rest, delete what was only for this.
//!
//! Where this stands is read from the broker each time: which of the two queues exist, and with which arguments. So a crash
//! of this process, of a node or of a connection at any point is mended by running it again, and until then messages are in
//! one queue or the other. An exclusive queue keeps two processes from doing this at the same time; it and every deletion
//! use one connection, so that who lost the lock cannot delete any more.
//!
//! What may happen: a message that is published while bindings move, or stands behind one for which the new queue has no room, may
//! arrive twice, with the same id, or change places with its neighbours. What may not: that a confirmed message is lost.

mod beside;
mod carrier;
mod waits;

pub(super) use carrier::EXCHANGE;

use std::time::Duration;

use self::carrier::{Carrier, Way};
use self::waits::Held;
use super::desk::Desk;
use super::line::Line;
use super::management::Management;
use crate::broker::{BrokerError, BrokerErrorKind};
use crate::clock::Clock;
use crate::topology::Queue;
use crate::topology::observed::{self, Observed};
use crate::topology::plan::{aside_of, queue_differences};

/// What is behind the names of exchanges through which messages come back.
pub(super) const BACK: &str = ".postrider-back";
/// The same for the way aside.
const ASIDE: &str = ".postrider-aside";

/// With so few left in a queue the bindings move: the rest is carried in a moment.
const FEW: u64 = 200;
/// Silence on a queue that has nothing more to give.
const SILENCE: Duration = Duration::from_millis(200);
/// RabbitMQ's statistics are at most this old: queues report every 5 s, and the reports are gathered every 5 s.
const STALE: Duration = Duration::from_secs(11);
/// RabbitMQ 3.10 writes down which quorum queues it has up to a second late; a younger one does not survive a crash of all
/// its nodes, so nothing is put into it before.
const REGISTERED: Duration = Duration::from_secs(2);
/// What was routed to a queue before it was unbound has arrived by then.
const ROUTED: Duration = Duration::from_secs(2);

/// One replacement, on one connection.
pub(super) struct Replacement<'a> {
    pub(super) line: &'a Line,
    pub(super) management: &'a Management,
    pub(super) clock: &'a Clock,
    /// How the broker was found: its version, its default queue type, our rights.
    pub(super) broker: &'a Observed,
    /// The queue as it should be.
    pub(super) wanted: &'a Queue,
    /// How long one answer may take.
    pub(super) limit: Duration,
    /// How long to wait for consumers that do not settle.
    pub(super) patience: Duration,
    /// Told what happens, for people.
    pub(super) tell: &'a (dyn Fn(String) + Send + Sync),
}

/// Where a replacement stands.
enum Stage {
    /// The old queue is there, with this type.
    Old(observed::Queue),
    /// Between the old and the new.
    Between,
    /// The new one is there, and what belongs into it is beside it.
    New,
    /// All is done.
    Done,
}

impl Replacement<'_> {
    /// Does what is left to do. An error leaves nothing lost; the same call goes on from there.
    pub(super) async fn run(&self) -> Result<(), BrokerError> {
        let mut desk = Desk::new(self.line, self.limit);
        desk.lock(&format!("{}.postrider-lock", self.wanted.name))
            .await
            .map_err(|error| self.locked(error))?;
        loop {
            match self.stage().await? {
                Stage::Old(exists) => self.retire(&mut desk, &exists).await?,
                Stage::Between => desk.queue(self.wanted).await?,
                Stage::New => self.bring_back(&mut desk).await?,
                Stage::Done => {
                    desk.close().await;
                    return Ok(());
                }
            }
        }
    }

    async fn stage(&self) -> Result<Stage, BrokerError> {
        let (name, aside) = (self.name(), self.aside());
        let exists = self.management.queue(self.vhost(), name).await?;
        let beside = self.management.queue(self.vhost(), &aside).await?;
        Ok(match (exists, beside) {
            (Some(exists), _) if !queue_differences(self.wanted, &exists, self.broker).is_empty() => {
                Stage::Old(exists)
            }
            (Some(_), Some(_)) => Stage::New,
            (Some(_), None) => Stage::Done,
            (None, _) => Stage::Between,
        })
    }

    /// Empties the old queue and exchanges it for the new one.
    async fn retire(&self, desk: &mut Desk<'_>, exists: &observed::Queue) -> Result<(), BrokerError> {
        self.try_out(desk).await?;
        self.prepare_aside(desk).await?;
        let mut carrier = self.carrier(self.name(), ASIDE, Way::Aside).await?;
        let shut = self.shut(desk, &mut carrier, exists).await;
        carrier.close().await;
        let (held, closed) = match shut {
            Ok(shut) => shut,
            Err(error) => return Err(self.undo(desk, error).await),
        };
        let left = match desk.swap(self.wanted, exists.kind() == "classic").await {
            Ok(left) => left,
            // As when a message came to an open queue at the last moment.
            Err(error) => {
                self.let_go(held).await;
                return Err(self.undo(desk, error).await);
            }
        };
        if left > 0 {
            (self.tell)(format!(
                "queue {}: {left} messages that were published to it by its name in its last moment went with it",
                self.name()
            ));
        }
        let opened = if closed { self.reopen_in_the_end().await } else { Ok(()) };
        held.release().await;
        opened?;
        (self.tell)(format!("queue {}: exchanged for the new one", self.name()));
        self.clock.sleep(REGISTERED).await;
        Ok(())
    }

    /// Takes out what is in the old queue, and lets nothing more into it. What is held back for that, and whether the queue is closed.
    async fn shut(
        &self,
        desk: &mut Desk<'_>,
        carrier: &mut Carrier,
        exists: &observed::Queue,
    ) -> Result<(Held, bool), BrokerError> {
        self.carry_most(desk, carrier, self.name(), "aside").await?;
        self.move_bindings(self.name(), &self.aside()).await?;
        // Held back before it is closed: a message that expires towards a closed queue is lost.
        let queues = self.management.queues(self.vhost()).await?;
        let held = Held::take(self.line, &queues, self.name(), self.limit).await?;
        let emptied = async {
            self.carry_for(carrier, ROUTED).await?;
            let closed = self.close(exists).await?;
            self.empty(desk, carrier).await?;
            Ok::<_, BrokerError>(closed)
        };
        match emptied.await {
            Ok(closed) => Ok((held, closed)),
            Err(error) => {
                self.let_go(held).await;
                Err(error)
            }
        }
    }

    /// Opens the old queue again, then gives back what is held: a message that expires towards a closed queue is lost.
    async fn let_go(&self, held: Held) {
        if self.broker.may_set_policies
            && let Err(error) = self.reopen_in_the_end().await
        {
            tracing::warn!(queue = self.name(), %error, "the queue could not be opened again; trying again");
        }
        held.release().await;
    }

    /// Carries everything back into the queue that has the name now, and removes what was only for this.
    async fn bring_back(&self, desk: &mut Desk<'_>) -> Result<(), BrokerError> {
        if self.broker.may_set_policies {
            self.reopen().await?;
        }
        let aside = self.aside();
        self.prepare_exchange(desk, BACK, self.name()).await?;
        let mut carrier = self.carrier(&aside, BACK, Way::Back).await?;
        self.carry_most(desk, &mut carrier, &aside, "back").await?;
        self.move_bindings(&aside, self.name()).await?;
        let mut quiet_since = self.clock.monotonic();
        loop {
            let some = carrier.carry(SILENCE).await?;
            if some > 0 || desk.look(&aside).await?.ready > 0 {
                quiet_since = self.clock.monotonic();
            } else if self.clock.since(quiet_since) >= ROUTED {
                break;
            }
        }
        carrier.close().await;
        self.clear_trial(desk).await?;
        // The queue beside goes last: as long as it is there, somebody knows that there is something to finish.
        desk.delete_exchange(&self.exchange(ASIDE), false).await?;
        desk.delete_exchange(&self.exchange(BACK), false).await?;
        if self.broker.may_set_policies {
            self.management.delete_policy(self.vhost(), &format!("postrider.queue.{aside}")).await?;
        }
        desk.delete_queue(&aside).await?;
        (self.tell)(format!("queue {}: everything is back in it", self.name()));
        Ok(())
    }

    async fn carrier(&self, from: &str, end: &str, way: Way) -> Result<Carrier, BrokerError> {
        Carrier::open(self.line, from, &self.exchange(end), way, self.limit).await
    }

    /// Carries until few are left, or until it is clear that more arrive than can be carried.
    async fn carry_most(
        &self,
        desk: &mut Desk<'_>,
        carrier: &mut Carrier,
        from: &str,
        whither: &str,
    ) -> Result<(), BrokerError> {
        let enough = desk.look(from).await?.ready.saturating_mul(2) + 50_000;
        let (mut moved, mut told) = (0_u64, self.clock.monotonic());
        loop {
            let some = carrier.carry(SILENCE).await? as u64;
            moved += some;
            if self.clock.since(told) >= Duration::from_secs(10) {
                told = self.clock.monotonic();
                (self.tell)(format!("queue {}: {moved} messages moved {whither}", self.name()));
            }
            let left = desk.look(from).await?.ready;
            // Nothing comes although something is there: its active consumer gets it.
            if left <= FEW || some == 0 || moved > enough {
                (self.tell)(format!("queue {}: {moved} messages moved {whither}, {left} left", self.name()));
                return Ok(());
            }
        }
    }

    /// Carries whatever comes for a while.
    async fn carry_for(&self, carrier: &mut Carrier, long: Duration) -> Result<(), BrokerError> {
        let since = self.clock.monotonic();
        while self.clock.since(since) < long {
            carrier.carry(SILENCE).await?;
        }
        Ok(())
    }

    /// Binds one queue like another, then unbinds the other. In between both get everything.
    async fn move_bindings(&self, from: &str, to: &str) -> Result<(), BrokerError> {
        let bindings = self.management.bindings_of(self.vhost(), from).await?;
        let ours = [ASIDE, BACK].map(|end| self.exchange(end));
        let moved =
            bindings.iter().filter(|binding| !binding.source.is_empty() && !ours.contains(&binding.source));
        for binding in moved.clone() {
            self.management.bind(self.vhost(), binding, to).await?;
        }
        for binding in moved {
            self.management.unbind(self.vhost(), binding).await?;
        }
        Ok(())
    }

    /// Waits until nothing is in the old queue: nothing ready, and nothing with a consumer.
    ///
    /// The first is asked exactly, the second is a statistic: believed once it is younger than the last thing that happened.
    /// Who publishes to it by its name can keep it from ever being empty, so that has its time, too.
    async fn empty(&self, desk: &mut Desk<'_>, carrier: &mut Carrier) -> Result<(), BrokerError> {
        let enough = desk.look(self.name()).await?.ready.saturating_mul(2) + 50_000;
        let mut last_change = self.clock.monotonic();
        // What was there is gone since then, and something has come again and again.
        let (mut coming_since, mut came) = (last_change, 0_u64);
        let mut unsettled = None;
        let mut told = false;
        loop {
            let some = carrier.carry(SILENCE).await? as u64;
            came += some;
            let left = desk.look(self.name()).await?.ready;
            if some > 0 || left > 0 {
                if left > FEW || self.clock.since(last_change) >= STALE {
                    coming_since = self.clock.monotonic();
                }
                last_change = self.clock.monotonic();
                let long = self.clock.since(coming_since) >= self.patience.max(STALE);
                if some > 0 && (long || came > enough) {
                    return Err(self.never_empty(came));
                }
                continue;
            }
            let quiet = self.clock.since(last_change);
            if quiet < STALE {
                self.clock.sleep(SILENCE).await;
                continue;
            }
            let now =
                self.management.queue(self.vhost(), self.name()).await?.and_then(|queue| queue.messages);
            if now == Some(0) {
                return Ok(());
            }
            if now != unsettled {
                // Somebody settles: that is progress.
                (unsettled, last_change) = (now, self.clock.monotonic());
            }
            if !told {
                told = true;
                (self.tell)(format!(
                    "queue {}: waiting for its consumers to settle what they have",
                    self.name()
                ));
            }
            if quiet >= self.patience.max(STALE) {
                return Err(BrokerError::new(
                    BrokerErrorKind::Mismatch,
                    format!(
                        "{} messages of queue {} are with consumers that have not settled them for {} s; the queue is left as it \
                         was and nothing is lost: stop or mend those consumers and apply again",
                        now.unwrap_or(0),
                        self.name(),
                        self.patience.as_secs()
                    ),
                ));
            }
        }
    }

    fn never_empty(&self, came: u64) -> BrokerError {
        let told = format!(
            "{came} messages came into queue {} since its bindings were moved, and more are coming: somebody publishes to it by its \
             name (the default exchange); the queue is left as it was and nothing is lost: pause who does so and apply again",
            self.name()
        );
        BrokerError::new(BrokerErrorKind::Mismatch, told)
    }

    /// Puts everything back into the old queue. If that fails too, the messages wait beside it until this is run again.
    async fn undo(&self, desk: &mut Desk<'_>, why: BrokerError) -> BrokerError {
        if why.is_transient() {
            return why;
        }
        match self.bring_back(desk).await {
            Ok(()) => why,
            Err(error) => BrokerError::new(
                why.kind,
                format!("{}; and not everything could be put back ({error}): apply again", why.message),
            ),
        }
    }

    fn locked(&self, error: BrokerError) -> BrokerError {
        if error.kind == BrokerErrorKind::Denied && error.message.contains("exclusive") {
            let told = format!(
                "queue {} is being replaced by another process; wait until it has finished",
                self.name()
            );
            // It may be a connection of ours that RabbitMQ has not yet buried.
            return BrokerError::new(BrokerErrorKind::Unavailable, told).because(error);
        }
        error
    }

    fn vhost(&self) -> &str {
        &self.broker.vhost
    }

    fn name(&self) -> &str {
        self.wanted.name.as_str()
    }

    fn aside(&self) -> String {
        aside_of(&self.wanted.name)
    }

    fn exchange(&self, end: &str) -> String {
        format!("{}{end}", self.wanted.name)
    }
}
