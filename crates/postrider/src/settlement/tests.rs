//! Every row of the decision, and what holds for all of them.

use proptest::prelude::*;

use super::*;

fn settle(outcome: &Outcome, attempt: u32) -> Settlement {
    decide(outcome, attempt, &RetryPolicy::default(), Timestamp::UNIX_EPOCH, 0.5)
}

#[test]
fn ten_retries_mean_eleven_attempts() {
    let failed = Outcome::Failed(Failure::transient("smtp down"));
    for attempt in 1..=10 {
        assert_eq!(settle(&failed, attempt), Settlement::Retry { delay: Duration::from_secs(5) });
    }
    assert_eq!(settle(&failed, 11), Settlement::DeadLetter { reason: DeadReason::RetriesExhausted });
}

#[test]
fn what_can_never_succeed_is_not_retried() {
    for (outcome, reason) in [
        (Outcome::Failed(Failure::permanent("no such account")), DeadReason::Rejected),
        (Outcome::Conflict, DeadReason::Conflict),
        (Outcome::Malformed("truncated".into()), DeadReason::Malformed),
        (Outcome::NoHandler, DeadReason::NoHandler),
        (Outcome::Crashed { times: 3 }, DeadReason::Crashed),
    ] {
        assert_eq!(settle(&outcome, 1), Settlement::DeadLetter { reason });
    }
}

#[test]
fn a_receiver_may_ask_for_more_time_but_not_for_less() {
    let asked = |secs| Outcome::Failed(Failure::transient("busy").retry_after(Duration::from_secs(secs)));
    assert_eq!(settle(&asked(60), 1), Settlement::Retry { delay: Duration::from_mins(1) });
    assert_eq!(settle(&asked(1), 1), Settlement::Retry { delay: Duration::from_secs(5) });
}

#[test]
fn a_deferred_event_is_the_same_attempt_later() {
    let until = Timestamp::from_second(90).unwrap();
    for early in [Outcome::Failed(Failure::deferred(until)), Outcome::Early { until }] {
        assert_eq!(settle(&early, 11), Settlement::Defer { delay: Duration::from_secs(90) });
        let late = decide(&early, 1, &RetryPolicy::default(), Timestamp::from_second(100).unwrap(), 0.5);
        assert_eq!(late, Settlement::Defer { delay: Duration::ZERO });
    }
}

/// The table of the event-bus seed, row by row: what its `DROP`, `REQUEUE` and `ACK` mean here, with the seed's policy and
/// with our own.
#[test]
fn the_status_table_of_the_event_bus_seed() {
    #[derive(Debug, PartialEq)]
    enum Told {
        Retry,
        Defer,
        Dead,
    }
    let now = Timestamp::UNIX_EPOCH;
    let told = |status: u16, attempt: u32, policy: &RetryPolicy| {
        let failure = Failure::from_status(status, "said the service", None, now).unwrap();
        match decide(&Outcome::Failed(failure), attempt, policy, now, 0.5) {
            Settlement::Retry { .. } => Told::Retry,
            Settlement::Defer { .. } => Told::Defer,
            Settlement::DeadLetter { .. } => Told::Dead,
            Settlement::Ack => unreachable!("a failure is never acked"),
        }
    };
    let (seed, ours) = (RetryPolicy::event_bus(), RetryPolicy::default());
    for status in [429, 409, 500, 502, 503, 504, 599] {
        assert_eq!((told(status, 1, &seed), told(status, 1, &ours)), (Told::Retry, Told::Retry), "{status}");
        assert_eq!((told(status, 11, &seed), told(status, 11, &ours)), (Told::Dead, Told::Dead), "{status}");
    }
    assert_eq!((told(425, 11, &seed), told(425, 11, &ours)), (Told::Defer, Told::Defer));
    for status in [400, 401, 403, 404, 410, 422] {
        assert_eq!((told(status, 1, &seed), told(status, 1, &ours)), (Told::Retry, Told::Dead), "{status}");
        assert_eq!(told(status, 11, &seed), Told::Dead, "{status}");
    }
    assert_eq!(Failure::from_status(204, "", None, now), None, "2xx is success");
}

fn any_failure() -> impl Strategy<Value = Failure> {
    let kind = prop_oneof![
        Just(FailureKind::Transient),
        Just(FailureKind::Permanent),
        (0_i64..4_000_000_000).prop_map(|second| FailureKind::Deferred {
            until: Timestamp::from_second(second).unwrap_or(Timestamp::UNIX_EPOCH)
        }),
    ];
    let class = prop::option::of(prop_oneof![Just("timeout".to_owned()), Just("smtp".to_owned())]);
    (kind, class, prop::option::of(100_u16..600), prop::option::of(0_u64..100_000)).prop_map(
        |(kind, class, status, asked)| Failure {
            kind,
            message: "failed".to_owned(),
            class,
            status,
            retry_after: asked.map(Duration::from_secs),
        },
    )
}

fn any_policy() -> impl Strategy<Value = RetryPolicy> {
    let delays = || prop::collection::vec((1_u64..10_000_000).prop_map(Duration::from_millis), 0..6);
    let on = prop_oneof![
        Just(FailureMatch::Class("timeout".to_owned())),
        (100_u16..600, 0_u16..200).prop_map(|(from, more)| FailureMatch::Status(from, from + more)),
    ];
    let treat = prop::option::of(prop_oneof![Just(Treat::Transient), Just(Treat::Permanent)]);
    let exception = (on, treat, prop::option::of(0_u32..20), prop::option::of(delays()))
        .prop_map(|(on, treat, max_retries, delays)| RetryOverride { on, treat, max_retries, delays });
    (0_u32..20, delays(), 0_u8..=100, prop::collection::vec(exception, 0..3)).prop_map(
        |(max_retries, delays, jitter, overrides)| RetryPolicy {
            max_retries,
            delays,
            jitter_percent: jitter,
            overrides,
            defer: Vec::new(),
        },
    )
}

proptest! {
    /// Whatever fails, however the policy is: it is tried a limited number of times, never acked, and waits where there is
    /// a queue for it.
    #[test]
    fn every_failure_ends(failure in any_failure(), policy in any_policy(), draw in 0.0..1.0_f64) {
        let now = Timestamp::UNIX_EPOCH;
        let outcome = Outcome::Failed(failure.clone());
        let mut attempt = 1;
        loop {
            prop_assert!(attempt <= 21, "it never ends");
            match decide(&outcome, attempt, &policy, now, draw) {
                Settlement::Ack => prop_assert!(false, "a failure was acked"),
                Settlement::DeadLetter { .. } => break,
                Settlement::Defer { .. } => {
                    let deferred = matches!(failure.kind, FailureKind::Deferred { .. });
                    prop_assert!(deferred, "only what is too early is deferred");
                    break;
                }
                Settlement::Retry { delay } => {
                    let asked = failure.retry_after.unwrap_or_default();
                    prop_assert!(delay >= asked, "a receiver gets the time it asked for");
                    let tier = policy.tiers().contains(&delay) || delay == asked || delay.is_zero();
                    prop_assert!(tier, "{delay:?} is no tier of {:?}", policy.tiers());
                    attempt += 1;
                }
            }
        }
    }

    /// Success is acked and nothing else is, at any attempt.
    #[test]
    fn success_is_acked(attempt in 1_u32..100, policy in any_policy()) {
        for outcome in [Outcome::Applied, Outcome::Duplicate] {
            let settlement = decide(&outcome, attempt, &policy, Timestamp::UNIX_EPOCH, 0.0);
            prop_assert_eq!(settlement, Settlement::Ack);
        }
    }
}
