//! Two consumers, one event id and a cache. Deliveries of it have one of two payloads and are of one tenant or another, or name
//! none; they come one by one or two in a batch.
//!
//! The checker wants one effect, every delivery that is another event reported as a conflict, and every duplicate answered with
//! the answer of the effect that stands. A failover may lose the commit: whoever was acked comes again then, as from a queue
//! that is replayed, and has to be applied whatever the cache still says. A failover takes longer than the second between two
//! looks at the history, so nobody who works takes the old one for the new.

mod message;
mod played;

use std::collections::BTreeMap;

use bytes::Bytes;

use self::message::{Message, TENANTS};
use super::Draw;
use crate::dedup::cache::Found;
use crate::dedup::record::{Record, Status};
use crate::dedup::seen::{Course, Seen, note};
use crate::envelope::{EventId, PayloadHash, TenantId};
use crate::handler::Failure;
use crate::settlement::Outcome;
use crate::store::{Admission, Arrival, Mark};

/// Which rules are played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rules {
    /// Ours.
    Ours,
    /// Those of the FIS document, with our inbox behind them: PROCESSING with the same payload is a duplicate.
    ProcessingIsDuplicate,
    /// Those of the FIS document as they stand: the cache decides alone.
    CacheAlone,
    /// Ours, but a note is believed whatever history it is about.
    AnyHistory,
    /// Ours, but a note has the history of when it is written, instead of the one that was before the attempt.
    StampedLate,
    /// Ours, but all tenants share a key in the cache.
    OneKeyForAllTenants,
}

/// What became of a delivery, with its answer.
type Judged = (Message, Outcome, Option<Bytes>);
/// The history that a consumer took for the store's before its attempt; nothing where it did not know, and did not look.
type Stamp = Option<u32>;

/// Where a consumer stands with what it took together.
#[derive(Debug, Clone, Default, PartialEq)]
enum At {
    #[default]
    Idle,
    /// It has deliveries.
    Taken(Vec<Message>),
    /// The store is to be asked.
    Ask(Vec<Message>, Stamp),
    /// What is new is marked, not committed.
    Handling(Vec<Message>, Stamp),
    /// The transaction is over, in this history.
    Decided(Vec<Judged>, Stamp, u32),
}

#[derive(Default)]
struct World {
    queue: Vec<Message>,
    consumers: [At; 2],
    /// Which history each takes for the store's.
    known: [Stamp; 2],
    /// Committed, with the effects.
    inbox: Option<Mark>,
    effects: Vec<(Message, Bytes)>,
    cache: BTreeMap<usize, Vec<u8>>,
    cache_is_up: bool,
    /// Notes on their way.
    notes: Vec<(usize, Vec<u8>)>,
    history: u32,
    attempts: u32,
    failures_left: u32,
    /// Deliveries that were reported, in this history.
    conflicts: Vec<Message>,
    wrong: Vec<String>,
}

struct Model {
    rules: Rules,
    hashes: [PayloadHash; 2],
    deck: &'static [Message],
    world: World,
}

impl Model {
    fn new(rules: Rules, hashes: [PayloadHash; 2], deck: &'static [Message]) -> Self {
        let queue = deck.to_vec();
        let known = [Some(0); 2];
        let world = World { queue, known, cache_is_up: true, failures_left: 2, ..World::default() };
        Self { rules, hashes, deck, world }
    }

    fn arrival(&self, message: Message) -> Arrival {
        let tenant = TENANTS[message.tenant].map(|name| TenantId::new(name).unwrap());
        let payload_hash = self.hashes[message.payload];
        Arrival { event_id: EventId::new("evt_1").unwrap(), tenant, payload_hash }
    }

    fn key(&self, message: Message) -> usize {
        if self.rules == Rules::OneKeyForAllTenants { 0 } else { message.tenant }
    }

    fn record(&self, message: Message, status: Status, answer: Option<&Bytes>, history: u32) -> Vec<u8> {
        Record {
            status,
            payload_hash: self.hashes[message.payload].to_string(),
            response_body: answer.map(|answer| String::from_utf8(answer.to_vec()).unwrap()),
            created_at: jiff::Timestamp::UNIX_EPOCH,
            owner: String::new(),
            lease_until: None,
            lineage: self.lineage(history),
        }
        .to_bytes()
    }

    fn lineage(&self, history: u32) -> String {
        let history = if self.rules == Rules::AnyHistory { 0 } else { history };
        format!("db/{history}/mail")
    }

    fn course(&self, seen: Seen, found: &Found, message: Message) -> Course {
        if !matches!(self.rules, Rules::ProcessingIsDuplicate | Rules::CacheAlone) {
            return seen.course();
        }
        let Found::Value(bytes) = found else { return Course::AskStore };
        let hash = self.hashes[message.payload].to_string();
        match Record::read(bytes).filter(|record| record.payload_hash == hash) {
            Some(record) if record.status != Status::Failed => Course::Duplicate(record.response()),
            _ => Course::AskStore,
        }
    }

    /// SET NX and GET, in one.
    fn look(&mut self, message: Message, stamp: Stamp) -> Course {
        let Some(history) = stamp.filter(|_| self.world.cache_is_up) else { return Course::AskStore };
        let key = self.key(message);
        let found = if let Some(bytes) = self.world.cache.get(&key) {
            Found::Value(bytes.clone())
        } else {
            let record = self.record(message, Status::Processing, None, history);
            self.world.cache.insert(key, record);
            Found::Nothing
        };
        let seen = Seen::of(&found, self.hashes[message.payload], &self.lineage(history));
        self.course(seen, &found, message)
    }

    /// Whether the other consumer holds an uncommitted mark, for which this one has to wait.
    fn has_to_wait(&self, me: usize) -> bool {
        self.rules != Rules::CacheAlone && matches!(self.world.consumers[1 - me], At::Handling(..))
    }

    /// The next step of a consumer, and whether there was one. `twist` makes it go wrong where it can, or take two.
    fn step(&mut self, me: usize, twist: bool) -> bool {
        let at = std::mem::take(&mut self.world.consumers[me]);
        let before = at.clone();
        self.world.consumers[me] = match at {
            At::Idle => {
                let together = if twist { 2 } else { 1 };
                let left = self.world.queue.len().saturating_sub(together);
                let taken = self.world.queue.split_off(left);
                if taken.is_empty() { At::Idle } else { At::Taken(taken) }
            }
            At::Taken(messages) => {
                let stamp = self.world.known[me];
                let looked = messages.into_iter().map(|message| (message, self.look(message, stamp)));
                let mut unknown = Vec::new();
                for (message, course) in looked.collect::<Vec<_>>() {
                    match course {
                        Course::Duplicate(answer) => self.judge_duplicate(message, answer.as_ref()),
                        Course::AskStore => unknown.push(message),
                    }
                }
                if unknown.is_empty() { At::Idle } else { At::Ask(unknown, stamp) }
            }
            At::Ask(messages, stamp) if self.has_to_wait(me) => At::Ask(messages, stamp),
            At::Ask(messages, stamp) => {
                let judged = self.admit(&messages);
                if judged.iter().any(|(_, outcome, _)| *outcome == Outcome::Applied) {
                    At::Handling(messages, stamp)
                } else {
                    self.decided(judged, stamp)
                }
            }
            At::Handling(messages, stamp) => self.handle(messages, stamp, twist),
            At::Decided(judged, stamp, history) => self.settle(judged, stamp, history),
        };
        self.world.consumers[me] != before
    }

    /// What the inbox says of a batch: the second of the same id is judged by the first.
    fn admit(&self, messages: &[Message]) -> Vec<Judged> {
        let mut mark = self.world.inbox.clone();
        let judge = |message: &Message| {
            let arrival = self.arrival(*message);
            let Some(before) = &mark else {
                mark = Some(Mark::of(&arrival));
                return (*message, Outcome::Applied, None);
            };
            match before.judge(&arrival) {
                Admission::Duplicate(answer) => (*message, Outcome::Duplicate, answer),
                _ => (*message, Outcome::Conflict, None),
            }
        };
        messages.iter().map(judge).collect()
    }

    /// A duplicate has the first answer from here on, whatever happens to the store later.
    fn decided(&mut self, judged: Vec<Judged>, stamp: Stamp) -> At {
        for (message, outcome, answer) in &judged {
            if *outcome == Outcome::Duplicate {
                self.judge_duplicate(*message, answer.as_ref());
            }
        }
        At::Decided(judged, stamp, self.world.history)
    }

    /// Fails, or commits; with a twist, commits without being told so.
    fn handle(&mut self, messages: Vec<Message>, stamp: Stamp, twist: bool) -> At {
        if twist && self.world.failures_left > 0 {
            self.world.failures_left -= 1;
            let failed = |message| (message, Outcome::Failed(Failure::transient("no luck")), None);
            return self.decided(messages.into_iter().map(failed).collect(), stamp);
        }
        let mut judged = self.admit(&messages);
        self.world.attempts += 1;
        let answer = Bytes::from(self.world.attempts.to_string());
        for (message, outcome, told) in &mut judged {
            if *outcome == Outcome::Applied {
                self.world.effects.push((*message, answer.clone()));
                if self.rules != Rules::CacheAlone {
                    let mark = Mark::of(&self.arrival(*message));
                    self.world.inbox = Some(Mark { answer: Some(answer.clone()), ..mark });
                }
            }
            if *outcome != Outcome::Conflict {
                *told = Some(answer.clone());
            }
        }
        if twist && self.rules != Rules::CacheAlone {
            return At::Ask(messages, stamp);
        }
        self.decided(judged, stamp)
    }

    fn settle(&mut self, judged: Vec<Judged>, stamp: Stamp, history: u32) -> At {
        for (message, outcome, answer) in judged {
            let stamp =
                if self.rules == Rules::StampedLate { stamp.and(Some(self.world.history)) } else { stamp };
            if let (Some(status), Some(looked_in)) = (note(&outcome), stamp) {
                let answer = answer.as_ref().filter(|_| status == Status::Completed);
                let note = self.record(message, status, answer, looked_in);
                self.world.notes.push((self.key(message), note));
            }
            match outcome {
                Outcome::Conflict if history == self.world.history => self.world.conflicts.push(message),
                Outcome::Failed(_) => self.world.queue.insert(0, message),
                _ => {}
            }
        }
        At::Idle
    }

    /// A duplicate that is acked has to have its effect, and the answer of that.
    fn judge_duplicate(&mut self, message: Message, answer: Option<&Bytes>) {
        let wrong = match self.world.effects.first() {
            Some((applied, _)) if message.is_another_than(*applied) => {
                "another event was taken for a duplicate".to_owned()
            }
            Some((_, first)) if answer == Some(first) => return,
            Some((_, first)) => format!("a duplicate got {answer:?} and not {first:?}"),
            None => "an event without an effect was taken for a duplicate".to_owned(),
        };
        self.world.wrong.push(wrong);
    }

    /// Dies: what it had goes back to the queue, and its transaction is gone.
    fn crash(&mut self, me: usize) -> bool {
        let back: Vec<_> = match std::mem::take(&mut self.world.consumers[me]) {
            At::Idle => return false,
            At::Taken(messages) | At::Ask(messages, _) | At::Handling(messages, _) => messages,
            At::Decided(judged, ..) => judged.into_iter().map(|(message, ..)| message).collect(),
        };
        self.world.queue.extend(back);
        // Whoever comes up again asks first.
        self.world.known[me] = Some(self.world.history);
        true
    }

    /// Another server takes over, which may not have heard of the last commit. Transactions are gone and are tried again; what was
    /// acked for a commit that is lost comes again.
    fn fail_over(&mut self, lossy: bool) {
        self.world.history += 1;
        self.world.known = [None; 2];
        self.world.conflicts.clear();
        for consumer in &mut self.world.consumers {
            *consumer = match std::mem::take(consumer) {
                At::Handling(messages, stamp) => At::Ask(messages, stamp),
                at => at,
            };
        }
        self.world.queue.extend(self.deck);
        if lossy && self.rules != Rules::CacheAlone {
            self.world.inbox = None;
            self.world.effects.clear();
        }
    }

    /// SET XX.
    fn write_note(&mut self, index: usize) {
        let (key, note) = self.world.notes.swap_remove(index);
        if self.world.cache_is_up
            && let Some(value) = self.world.cache.get_mut(&key)
        {
            *value = note;
        }
    }

    /// One thing happens.
    fn happen(&mut self, draw: &mut Draw) {
        let (me, kind) = (draw.below(2), draw.below(26));
        let real = match kind {
            0 => self.crash(me),
            1 => self.world.cache.pop_first().is_some(),
            2 => {
                self.world.cache_is_up = !self.world.cache_is_up;
                true
            }
            3 => {
                self.fail_over(me == 0);
                true
            }
            4..=6 if !self.world.notes.is_empty() => {
                let index = draw.below(self.world.notes.len());
                draw.happened(index);
                self.write_note(index);
                true
            }
            7 if !self.world.notes.is_empty() => self.world.notes.pop().is_some(),
            8..=9 => self.world.known[me].replace(self.world.history) != Some(self.world.history),
            kind => self.step(me, kind < 13),
        };
        if real {
            draw.happened(kind * 2 + me);
        }
    }

    /// Nothing goes wrong any more, and everything comes to its end. Then the checker looks.
    fn check(mut self) -> Result<(), String> {
        self.world.known = [Some(self.world.history); 2];
        let mut steps = 0;
        while !self.world.queue.is_empty() || self.world.consumers.iter().any(|at| *at != At::Idle) {
            self.step(steps % 2, false);
            while !self.world.notes.is_empty() {
                self.write_note(0);
            }
            steps += 1;
            if steps > 5_000 {
                return Err("it never ends".to_owned());
            }
        }
        let [(applied, _)] = self.world.effects.as_slice() else {
            return Err(format!("{} effects", self.world.effects.len()));
        };
        if let Some(wrong) = self.world.wrong.first() {
            return Err(wrong.clone());
        }
        let others = self.deck.iter().filter(|message| message.is_another_than(*applied)).count();
        let told = self.world.conflicts.len();
        if told < others || self.world.conflicts.iter().any(|told| !told.is_another_than(*applied)) {
            return Err(format!("{others} deliveries were another event, {told} conflicts were reported"));
        }
        Ok(())
    }
}
