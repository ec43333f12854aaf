//! Relay, consumer and collector together, the same scenarios on the embedded backend and on real servers.

mod bad_input;
mod batches;
mod built;
mod controls;
mod corrections;
mod full_frames;
mod full_queue;
mod given_back;
mod given_up;
mod idempotency;
mod keys;
mod latency;
mod migrating;
mod ordering;
mod pulling;
mod pushing;
mod retrying;
mod rounds;
mod scenarios;
mod sharing;
mod stage;
mod triage;
mod waiting;

use postrider_testkit::servers::{RabbitVersion, shared};

use self::stage::Stage;

/// One test per scenario and backend; on servers, per version of RabbitMQ.
macro_rules! scenarios {
    ($($area:ident: [$($scenario:ident),* $(,)?])*) => {
        mod embedded {
            $($(
                #[tokio::test(flavor = "multi_thread")]
                async fn $scenario() {
                    let folder = tempfile::tempdir().unwrap();
                    let stage = super::Stage::embedded(&folder.path().join("events.db")).await;
                    super::$area::$scenario(stage).await;
                }
            )*)*
        }

        scenarios!(@servers servers Packaged: $($area: [$($scenario),*])*);
        scenarios!(@servers newer Newer: $($area: [$($scenario),*])*);
    };
    (@servers $module:ident $version:ident: $($area:ident: [$($scenario:ident),*])*) => {
        mod $module {
            $($(
                #[tokio::test(flavor = "multi_thread")]
                async fn $scenario() {
                    let shared = super::shared().unwrap();
                    let database = shared.migrated_database().await.unwrap();
                    let vhost = shared.vhost_on(super::RabbitVersion::$version).await.unwrap();
                    let stage = super::Stage::servers(&database.url, &vhost.amqp_url).await;
                    super::$area::$scenario(stage).await;
                }
            )*)*
        }
    };
}

scenarios!(
    scenarios: [
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
    ]
    retrying: [
        each_status_of_the_event_bus_table_is_settled_as_it_says,
        the_seeds_own_table_retries_every_4xx,
        the_flow_of_the_ratatoskr_seed,
        a_kind_of_failure_has_retries_of_its_own,
        retry_after_is_waited_for_in_steps,
        a_delayed_event_is_not_handled_early,
        a_message_without_a_time_is_delayed_from_its_first_receipt,
        a_delay_that_cannot_be_read_is_a_dead_letter,
        a_dead_letter_moved_back_by_hand_begins_anew,
        an_endless_error_is_cut_and_headers_of_every_type_survive,
    ]
    waiting: [
        each_retry_waits_in_its_own_tier_and_says_how_many_there_were,
        a_delay_counts_from_the_first_time_that_is_known,
        what_a_retry_loop_of_others_brings_back_is_still_what_it_was,
    ]
    full_frames: [
        what_leaves_no_room_is_a_dead_letter_with_all_of_its_headers,
        what_leaves_little_room_is_tried_as_often_as_any_other,
    ]
    full_queue: [a_full_queue_holds_up_nothing_but_what_goes_there]
    given_back: [
        what_waits_while_its_handler_is_down_is_not_given_up_and_keeps_its_order,
        what_waits_behind_one_key_while_its_handler_is_down_is_not_given_up,
        what_many_restarts_give_back_is_not_given_up,
    ]
    given_up: [
        what_the_broker_itself_gave_up_is_collected,
        what_others_rejected_in_one_moment_keeps_its_order,
    ]
    ordering: [
        events_of_a_key_keep_their_order_across_retries,
        two_processes_keep_the_order,
        a_dead_head_lets_its_key_go_on,
        a_dead_head_parks_its_key_until_it_is_released,
        a_replayed_head_ends_the_parking,
        a_head_that_is_sent_to_another_queue_is_not_waited_for,
        a_deferred_head_holds_its_key,
        what_contradicts_a_held_event_is_a_dead_letter,
        what_contradicts_a_parked_event_is_a_dead_letter,
        events_without_a_key_are_held_by_nobody,
    ]
    controls: [
        a_paused_consumer_takes_nothing_until_it_is_resumed,
        what_waits_for_a_call_goes_back_when_it_is_paused,
        what_was_given_back_in_peace_counts_as_no_crash,
        the_breaker_saves_the_retries_of_everybody,
        a_rate_limit_is_kept,
        concurrency_grows_with_the_backlog,
        concurrency_goes_from_ten_towards_fifty_and_comes_back,
    ]
    latency: [the_slowest_publish_of_each_bus_is_told]
    bad_input: [
        three_people_at_the_same_letters_double_nothing,
        headers_of_every_type_survive_a_replay_and_a_correction,
        a_correction_to_a_queue_that_is_gone_is_not_lost,
    ]
    batches: [
        a_batch_is_applied_together_and_each_event_once,
        one_bad_event_never_fails_its_neighbours,
        a_batch_that_fails_saves_the_retries_of_the_rest,
        batches_keep_the_order_of_a_key,
    ]
    idempotency: [
        the_flow_of_the_fis_seed,
        what_redis_says_is_believed_only_of_this_very_inbox,
        whatever_happens_to_redis_each_event_is_applied_once,
        a_replayed_event_asks_the_store,
        a_handlers_answer_is_kept,
        a_repeat_in_a_batch_does_not_take_the_answer_away,
        what_answers_outside_is_kept_too,
    ]
    keys: [what_a_plain_client_reads_at_every_step]
    pushing: [
        every_status_is_settled_as_the_table_says,
        the_seeds_own_table_tries_every_4xx_again,
        a_body_says_retry_or_reject,
        a_gone_endpoint_is_paused_and_loses_nothing,
        retry_after_is_kept_to,
        who_only_says_later_is_not_asked_at_once,
        bad_receivers_fail_their_attempt_alone,
        a_request_says_who_it_is_and_is_signed,
        order_holds_at_the_endpoint,
        a_duplicate_is_not_sent_again,
        what_redis_knows_is_not_asked_of_the_inbox,
        a_slow_endpoint_holds_up_no_other,
    ]
    pulling: [
        a_worker_acks_retries_and_rejects,
        an_expired_lease_gives_the_delivery_back_as_the_same_attempt,
        what_nobody_settled_goes_back_to_the_queue,
    ]
);
