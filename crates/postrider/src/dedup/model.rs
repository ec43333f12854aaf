//! A model of two consumers, one event and a cache, in small steps: every order of steps, with crashes, a cache that forgets or is
//! away, notes that come late or never, redeliveries, failed handlers and commits whose outcome is unknown.
//!
//! What the consumers decide is decided by the real code ([`Seen::of`], [`Seen::course`], [`note`]); the store and the cache are
//! simulated. Schedules are drawn from a seed, which a failure prints. At the end of each the dust is let settle, and the
//! checker looks: one effect, every other payload reported, every duplicate answered with the first answer.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::cache::Found;
use super::record::{Record, Status};
use super::seen::{Course, Seen, note};
use crate::envelope::{Payload, PayloadHash};
use crate::handler::Failure;
use crate::settlement::Outcome;

/// Which rules are played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rules {
    /// Ours.
    Ours,
    /// Those of the FIS document, with our inbox behind them: PROCESSING with the same payload is a duplicate.
    ProcessingIsDuplicate,
    /// Those of the FIS document as they stand: the cache decides alone.
    CacheAlone,
}

/// A delivery: which of two payloads it has.
type Message = usize;

/// Where a consumer stands.
#[derive(Debug, Clone, Default, PartialEq)]
enum At {
    #[default]
    Idle,
    /// It has a delivery.
    Taken(Message),
    /// The store is to be asked.
    Ask(Message),
    /// It is marked, not committed.
    Handling(Message),
    /// The transaction is over.
    Decided(Message, Outcome, Option<Bytes>),
}

#[derive(Default)]
struct World {
    queue: Vec<Message>,
    consumers: [At; 2],
    /// Committed: which payload was applied, and the answer.
    inbox: Option<(Message, Bytes)>,
    effects: Vec<(Message, Bytes)>,
    cache: Option<Vec<u8>>,
    cache_is_up: bool,
    /// Notes on their way.
    notes: Vec<Vec<u8>>,
    lineage: u32,
    attempts: u32,
    failures_left: u32,
    /// Deliveries that ended, and how.
    conflicts: Vec<Message>,
    wrong: Vec<String>,
}

struct Draw(u64);

impl Draw {
    /// A number below `n` (xorshift).
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 16) % n as u64).unwrap()
    }
}

fn hashes() -> [PayloadHash; 2] {
    ["{\"amount\":1}", "{\"amount\":2}"].map(|text| Payload::new("application/json", text).hash())
}

struct Model {
    rules: Rules,
    hashes: [PayloadHash; 2],
    world: World,
}

impl Model {
    fn new(rules: Rules, hashes: [PayloadHash; 2], messages: &[Message]) -> Self {
        let world =
            World { queue: messages.to_vec(), cache_is_up: true, failures_left: 2, ..World::default() };
        Self { rules, hashes, world }
    }

    fn lineage(&self) -> String {
        format!("db/{}/mail", self.world.lineage)
    }

    fn record(&self, message: Message, status: Status, answer: Option<&Bytes>) -> Vec<u8> {
        Record {
            status,
            payload_hash: self.hashes[message].to_string(),
            response_body: answer.map(|answer| String::from_utf8(answer.to_vec()).unwrap()),
            created_at: jiff::Timestamp::UNIX_EPOCH,
            owner: String::new(),
            lease_until: None,
            lineage: self.lineage(),
        }
        .to_bytes()
    }

    fn course(&self, seen: Seen, found: &Found, message: Message) -> Course {
        if self.rules == Rules::Ours {
            return seen.course();
        }
        let Found::Value(bytes) = found else { return Course::AskStore };
        let same =
            Record::read(bytes).filter(|record| record.payload_hash == self.hashes[message].to_string());
        match same {
            Some(record) if record.status != Status::Failed => Course::Duplicate(record.response()),
            _ => Course::AskStore,
        }
    }

    /// SET NX and GET, in one.
    fn look(&mut self, message: Message) -> Course {
        if !self.world.cache_is_up {
            return Course::AskStore;
        }
        let found = if let Some(bytes) = &self.world.cache {
            Found::Value(bytes.clone())
        } else {
            self.world.cache = Some(self.record(message, Status::Processing, None));
            Found::Nothing
        };
        let seen = Seen::of(&found, self.hashes[message], &self.lineage());
        self.course(seen, &found, message)
    }

    /// Whether the other consumer holds an uncommitted mark, for which this one has to wait.
    fn has_to_wait(&self, me: usize) -> bool {
        self.rules != Rules::CacheAlone && matches!(self.world.consumers[1 - me], At::Handling(_))
    }

    /// The next step of a consumer. `twist` makes it go wrong where it can.
    fn step(&mut self, me: usize, twist: bool) {
        let at = std::mem::take(&mut self.world.consumers[me]);
        self.world.consumers[me] = match at {
            At::Idle => match self.world.queue.pop() {
                Some(message) => At::Taken(message),
                None => At::Idle,
            },
            At::Taken(message) => match self.look(message) {
                Course::Duplicate(answer) => {
                    self.judge_duplicate(message, answer.as_ref());
                    At::Idle
                }
                Course::AskStore => At::Ask(message),
            },
            At::Ask(message) if self.has_to_wait(me) => At::Ask(message),
            At::Ask(message) => match self.world.inbox.clone() {
                Some((applied, answer)) if applied == message => {
                    At::Decided(message, Outcome::Duplicate, Some(answer))
                }
                Some(_) => At::Decided(message, Outcome::Conflict, None),
                None => At::Handling(message),
            },
            At::Handling(message) => self.handle(message, twist),
            At::Decided(message, outcome, answer) => self.settle(message, &outcome, answer.as_ref()),
        };
    }

    /// Fails, or commits; with a twist, commits without being told so.
    fn handle(&mut self, message: Message, twist: bool) -> At {
        if twist && self.world.failures_left > 0 {
            self.world.failures_left -= 1;
            return At::Decided(message, Outcome::Failed(Failure::transient("no luck")), None);
        }
        self.world.attempts += 1;
        let answer = Bytes::from(self.world.attempts.to_string());
        if self.rules != Rules::CacheAlone {
            self.world.inbox = Some((message, answer.clone()));
        }
        self.world.effects.push((message, answer.clone()));
        if twist && self.rules != Rules::CacheAlone {
            return At::Ask(message);
        }
        At::Decided(message, Outcome::Applied, Some(answer))
    }

    fn settle(&mut self, message: Message, outcome: &Outcome, answer: Option<&Bytes>) -> At {
        if let Some(status) = note(outcome) {
            let answer = answer.filter(|_| status == Status::Completed);
            let note = self.record(message, status, answer);
            self.world.notes.push(note);
        }
        match outcome {
            Outcome::Duplicate => self.judge_duplicate(message, answer),
            Outcome::Conflict => self.world.conflicts.push(message),
            Outcome::Failed(_) => self.world.queue.insert(0, message),
            _ => {}
        }
        At::Idle
    }

    /// A duplicate that is acked has to have its effect, and the first answer.
    fn judge_duplicate(&mut self, message: Message, answer: Option<&Bytes>) {
        match self.world.effects.first() {
            Some((applied, first)) if *applied == message => {
                if answer != Some(first) {
                    self.world.wrong.push(format!("a duplicate got {answer:?} and not {first:?}"));
                }
            }
            Some(_) => self.world.wrong.push("another payload was taken for a duplicate".to_owned()),
            None => self.world.wrong.push("an event without an effect was taken for a duplicate".to_owned()),
        }
    }

    /// Dies: what it had goes back to the queue, and its transaction is gone.
    fn crash(&mut self, me: usize) {
        match std::mem::take(&mut self.world.consumers[me]) {
            At::Idle => {}
            At::Taken(message) | At::Ask(message) | At::Handling(message) | At::Decided(message, ..) => {
                self.world.queue.push(message);
            }
        }
    }

    /// SET XX.
    fn write_note(&mut self, index: usize) {
        let note = self.world.notes.swap_remove(index);
        if self.world.cache.is_some() && self.world.cache_is_up {
            self.world.cache = Some(note);
        }
    }

    /// One thing happens.
    fn happen(&mut self, draw: &mut Draw) {
        let me = draw.below(2);
        match draw.below(24) {
            0 => self.crash(me),
            1 => self.world.cache = None,
            2 => self.world.cache_is_up = !self.world.cache_is_up,
            3 => self.world.lineage += 1,
            4..=6 if !self.world.notes.is_empty() => {
                let index = draw.below(self.world.notes.len());
                self.write_note(index);
            }
            7 if !self.world.notes.is_empty() => _ = self.world.notes.pop(),
            kind => self.step(me, kind == 8),
        }
    }

    /// Nothing goes wrong any more, and everything comes to its end. Then the checker looks.
    fn check(mut self, messages: &[Message]) -> Result<(), String> {
        let mut steps = 0;
        while !self.world.queue.is_empty() || self.world.consumers.iter().any(|at| *at != At::Idle) {
            self.step(steps % 2, false);
            while !self.world.notes.is_empty() {
                self.write_note(0);
            }
            steps += 1;
            if steps > 1_000 {
                return Err("it never ends".to_owned());
            }
        }
        let [(applied, _)] = self.world.effects.as_slice() else {
            return Err(format!("{} effects", self.world.effects.len()));
        };
        if let Some(wrong) = self.world.wrong.first() {
            return Err(wrong.clone());
        }
        let others = messages.iter().filter(|message| *message != applied).count();
        if self.world.conflicts.len() < others || self.world.conflicts.contains(applied) {
            let told = self.world.conflicts.len();
            return Err(format!("{others} deliveries had another payload, {told} conflicts were reported"));
        }
        Ok(())
    }
}

/// Plays schedules, and tells what was wrong, each with the first schedule that shows it.
fn explore(rules: Rules, schedules: u64) -> BTreeMap<String, u64> {
    let (hashes, mut wrongs) = (hashes(), BTreeMap::new());
    let decks: [&[Message]; 4] = [&[0], &[0, 0], &[0, 0, 1], &[0, 1, 0, 1]];
    for seed in 1..=schedules {
        let mut draw = Draw(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let messages = decks[draw.below(decks.len())];
        let mut model = Model::new(rules, hashes, messages);
        for _ in 0..10 + draw.below(40) {
            model.happen(&mut draw);
        }
        if let Err(wrong) = model.check(messages) {
            wrongs.entry(wrong).or_insert(seed);
        }
    }
    wrongs
}

#[test]
fn no_schedule_loses_or_repeats_an_effect() {
    let wrongs = explore(Rules::Ours, 150_000);
    assert!(wrongs.is_empty(), "what was wrong, and in which schedule first: {wrongs:?}");
}

#[test]
fn the_checker_sees_the_event_that_the_document_loses() {
    let wrongs = explore(Rules::ProcessingIsDuplicate, 10_000);
    assert!(wrongs.contains_key("0 effects"), "{wrongs:?}");
}

#[test]
fn the_checker_sees_what_a_cache_alone_does() {
    let wrongs = explore(Rules::CacheAlone, 10_000);
    assert!(wrongs.contains_key("0 effects") && wrongs.contains_key("2 effects"), "{wrongs:?}");
}
