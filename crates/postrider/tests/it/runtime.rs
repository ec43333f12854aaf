//! Relay, consumer and collector together, the same scenarios on the embedded backend and on real servers.

mod scenarios;
mod stage;
mod triage;

use postrider_testkit::servers::shared;

use self::stage::Stage;

/// One test per scenario and backend.
macro_rules! scenarios {
    ($($scenario:ident),* $(,)?) => {
        mod embedded {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $scenario() {
                    let folder = tempfile::tempdir().unwrap();
                    let stage = super::Stage::embedded(&folder.path().join("events.db")).await;
                    super::scenarios::$scenario(stage).await;
                }
            )*
        }

        mod servers {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $scenario() {
                    let shared = super::shared().unwrap();
                    let (database, vhost) = (shared.database().await.unwrap(), shared.vhost().await.unwrap());
                    let stage = super::Stage::servers(&database.url, &vhost.amqp_url).await;
                    super::scenarios::$scenario(stage).await;
                }
            )*
        }
    };
}

scenarios!(
    ten_retries_mean_eleven_calls_and_a_dead_letter_that_tells_why,
    a_rejected_event_is_not_tried_again,
    a_panic_and_a_slow_handler_fail_their_attempt_alone,
    what_is_no_event_or_nobodys_becomes_a_dead_letter,
    a_duplicate_is_absorbed_and_a_conflict_is_told,
    a_deferred_event_comes_again_as_the_same_attempt,
    a_failed_handler_leaves_no_effect,
    stopping_finishes_what_was_begun,
    an_unroutable_event_fails_alone_and_is_dead_in_the_end,
    follow_up_events_commit_with_the_effects,
);
