//! One suite per port, run over every implementation.
//!
//! A backend gives a fixture; a macro turns every case into a test of its own name. There are no capability flags: what a
//! case asks for is the contract of the port, and an implementation that cannot do it is not one. Cases never sleep to
//! synchronise: they wait for the thing itself, for [`PATIENCE`] at most.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a case fails by panicking"
)]
#![allow(clippy::must_use_candidate, clippy::missing_errors_doc, reason = "read by tests alone")]

pub mod audit;
pub mod books;
pub mod broker;
pub mod claims;
pub mod controls;
pub mod dead_letters;
pub mod dual;
pub mod edits;
pub mod event_replays;
pub mod held;
pub mod inbox;
pub mod operations;
pub mod outbox;
pub mod progress;
pub mod registrations;
pub mod replays;
pub mod store;
pub mod subscriptions;
pub mod triage;

use std::future::Future;
use std::time::Duration;

use postrider::Clock;

/// A fixture whose world may be crashed.
pub trait Crash: Send + Sync {
    /// What keeps the data dies without warning and comes back with it: the server is killed, or the process ends and the
    /// file is opened again.
    fn restart(&self) -> impl Future<Output = ()> + Send;
}

/// How long a case waits for something that must come. Generous: only a failure takes this long.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How long a whole case may take.
const CASE_LIMIT: Duration = Duration::from_mins(3);

/// The broker suite. Takes two fixtures, each an expression that is awaited once per case: one on which nothing is
/// ever restarted, so that it may be a corner of a shared server, and one that the case may crash.
#[macro_export]
macro_rules! broker_conformance {
    ($fixture:expr, $crashing:expr $(,)?) => {
        $crate::conformance_cases!($fixture, broker: [
            // declaring
            declaring_again_is_fine, a_queue_with_other_settings_is_a_mismatch,
            an_exchange_with_other_settings_is_a_mismatch, a_mismatch_leaves_what_is_there,
            declaring_adds_to_what_is_there, unbinding_ends_a_key_and_leaves_the_rest,
            an_exchange_that_feeds_others_is_not_unused, depth_counts_what_waits, a_missing_queue_is_not_found,
            a_closed_broker_says_so_and_returns_what_was_unsettled,
            // routing
            topic_patterns_match_words, fanout_reaches_every_queue, direct_wants_the_equal_key,
            the_default_exchange_routes_by_queue_name, two_matching_bindings_deliver_once,
            unwanted_messages_take_the_alternate_exchange, unicode_names_and_keys_route,
            the_longest_names_and_keys_route,
            // publishing
            an_empty_batch_is_answered_with_nothing, unroutable_messages_are_returned_in_their_places,
            unroutable_messages_without_an_id_are_returned_too, a_missing_queue_returns_the_message,
            a_missing_exchange_is_refused_and_its_neighbours_are_not,
            what_no_frame_can_carry_is_refused_and_its_neighbours_are_not, a_batch_of_5000_keeps_its_order,
            publishers_side_by_side_get_their_own_answers,
            // carrying
            every_header_type_comes_back, every_property_comes_back, absent_properties_stay_absent,
            every_byte_comes_back, an_empty_body_comes_back, a_mebibyte_comes_back, the_key_and_exchange_come_along,
            // delivering
            a_queue_keeps_its_order, a_subscription_waits_for_what_comes_later, prefetch_limits_what_is_unsettled,
            a_prefetch_can_be_changed,
            a_small_next_loses_nothing, competing_consumers_share_a_queue,
            a_dropped_subscription_returns_its_messages_to_the_front, requeued_messages_come_again,
            acked_messages_do_not_come_again, a_whole_batch_is_settled_at_once,
            one_batch_may_hold_different_verdicts, settling_works_while_somebody_waits,
            one_of_two_consumers_is_active,
            // dead-lettering
            rejected_messages_go_to_the_dead_letter_queue, a_dead_letter_exchange_keeps_the_key,
            rejected_messages_without_a_target_vanish, expired_messages_go_back_to_their_queue,
            a_wait_queue_keeps_the_order, each_delay_has_its_own_queue, deaths_are_counted_round_by_round,
            a_missing_dead_letter_queue_holds_up_nobody, a_full_queue_gives_up_its_oldest,
            a_queue_with_too_many_bytes_gives_up_its_oldest, a_queue_with_all_its_bytes_refuses_what_is_new,
            a_full_queue_refuses_what_is_new_where_it_should,
            // policies
            a_policy_gives_an_exchange_its_alternate, a_policy_gives_a_queue_its_dead_letter_target,
            an_argument_wins_over_a_policy, what_comes_back_too_often_is_a_dead_letter,
            without_a_limit_it_comes_back_for_ever, a_policy_can_change,
            a_policy_limits_the_bytes_of_a_queue,
        ]);
        $crate::conformance_cases!($crashing, broker: [
            confirmed_messages_survive_a_crash, unsettled_deliveries_come_again_after_a_crash,
            a_subscription_outlives_a_crash_or_is_told, receipts_from_before_a_crash_are_void,
            waiting_messages_come_back_after_a_crash, topology_survives_a_crash,
        ]);
    };
}

/// The suite of the database ports. Takes two fixtures as [`broker_conformance!`] does.
#[macro_export]
macro_rules! store_conformance {
    ($fixture:expr, $crashing:expr $(,)?) => {
        $crate::conformance_cases!($fixture, store: [
            effects_and_events_commit_together, a_rollback_leaves_nothing, a_dropped_transaction_leaves_nothing,
            the_store_can_be_checked, many_transactions_at_once_all_commit,
        ]);
        $crate::conformance_cases!($crashing, store: [
            commits_survive_a_crash, what_a_crash_interrupts_leaves_nothing, leases_end_after_a_crash,
        ]);
        $crate::conformance_cases!($fixture, outbox: [
            // appending
            ids_are_made_where_none_are_given, given_ids_are_kept_in_order, appending_nothing_is_fine,
            an_id_twice_in_a_batch_is_a_duplicate, an_id_committed_before_is_a_duplicate,
            a_published_id_is_still_a_duplicate, an_id_that_was_rolled_back_is_free,
            two_transactions_with_one_id_commit_once, a_large_batch_keeps_its_order,
            // carrying
            every_field_comes_back, json_keeps_its_bytes, any_bytes_come_back, unicode_comes_back,
            a_payload_too_large_is_refused,
            aggregates_order_their_events, destinations_come_back, absent_fields_stay_absent,
            rows_of_a_batch_have_each_what_is_theirs,
            // claiming
            rows_are_claimed_in_the_order_of_positions, a_claim_takes_no_more_than_its_limit,
            rows_are_claimed_again_until_settled, nothing_is_claimed_without_a_lease,
            parked_keys_are_seen_and_flow_again_when_unparked, rows_can_be_listed_and_found,
            committed_events_are_told_from_others,
            only_old_published_rows_are_removed, what_is_removed_can_be_archived_to_files,
            what_is_removed_can_be_archived_to_a_table, only_the_slots_that_the_relay_knows_of_are_claimed,
            what_is_in_hand_is_left_out, new_and_timed_rows_are_asked_for_apart,
            a_horizon_names_those_who_may_still_commit_before_it, relays_side_by_side_divide_the_rows,
            scheduled_rows_wait_and_hold_up_nobody, scheduled_rows_are_claimed_when_due,
            a_late_commit_is_not_skipped, waiting_ends_when_something_is_appended, waiting_ends_by_itself,
            // settling
            published_rows_are_done, failed_rows_hold_up_their_key_alone, failed_rows_are_due_again,
            postponed_rows_count_one_attempt, a_failure_that_is_told_twice_counts_once,
            a_key_flows_again_when_its_head_is_published, dead_rows_park_their_key, free_rows_hold_up_nobody,
            a_blocked_key_does_not_starve_others, settling_nothing_records_nothing,
            results_of_one_batch_may_differ, a_relay_that_lost_its_lease_cannot_mark,
            // sending again
            a_message_is_sent_again_byte_for_byte, what_is_sent_again_holds_up_no_live_event,
            what_is_sent_again_keeps_its_order, a_row_is_sent_again_once,
        ]);
        $crate::conformance_cases!($fixture, inbox: [
            an_event_is_new_once, another_payload_is_a_conflict, consumers_are_apart, a_rollback_forgets,
            another_tenant_is_a_conflict, repeats_inside_a_batch_are_told, a_large_batch_is_admitted, admitting_nothing_is_fine,
            of_two_transactions_one_is_new, a_waiting_transaction_is_new_after_a_rollback,
            batches_in_opposite_order_apply_each_event_once, odd_ids_are_told_apart,
            an_answer_is_kept_with_its_mark, what_is_old_is_forgotten_and_known_to_be, a_store_knows_its_history,
            looking_tells_and_marks_nothing,
        ]);
        $crate::conformance_cases!($fixture, claims: [
            the_first_answer_is_everybodys, an_empty_answer_is_kept, what_is_released_is_free,
            a_claim_that_ran_out_is_claimed_anew, of_many_one_has_it, claims_hold_in_any_order, a_claim_is_kept_while_it_is_renewed, old_claims_are_forgotten,
        ]);
        $crate::conformance_cases!($fixture, dead_letters: [
            every_field_of_a_dead_letter_comes_back, absent_fields_of_a_dead_letter_stay_absent,
            a_dead_letter_is_kept_once_by_its_key, the_newest_dead_letters_come_first,
            a_batch_with_one_key_twice_is_kept_once, nul_in_a_text_does_not_stop_the_collector,
            infinite_floats_do_not_stop_the_collector, collecting_nothing_is_fine,
            collectors_side_by_side_keep_each_letter_once,
        ]);
        $crate::conformance_cases!($fixture, triage: [
            every_filter_finds_its_letters, pages_go_both_ways_without_a_gap,
            a_search_that_no_index_answers_stops_and_goes_on, a_letter_comes_back_by_its_number,
            groups_count_what_is_open_and_what_there_ever_was, groups_come_in_pages,
            groups_of_what_they_do_not_know_are_counted_among_the_newest, a_survey_counts_what_a_plan_needs,
            a_survey_tells_what_the_inbox_has_forgotten,
            what_is_frozen_is_what_matched_then, a_letter_is_taken_once, of_two_who_take_one_letter_one_gets_it,
        ]);
        $crate::conformance_cases!($fixture, operations: [
            an_operation_comes_back_with_its_items_in_order, one_runner_has_an_operation_at_a_time,
            a_lease_that_ended_goes_to_another, what_was_rolled_back_is_still_to_do,
            a_cancelled_operation_gives_no_more_items, a_finished_operation_is_over,
            operations_are_claimed_by_kind_the_oldest_first, operations_of_others_are_claimed_beside, a_turn_is_taken_once, the_log_tells_what_was_done,
        ]);
        $crate::conformance_cases!($fixture, replays: [
            the_account_holds_through_every_step_of_a_replay, an_edited_event_counts_for_itself,
            an_event_that_is_sent_to_another_queue_is_dead_in_its_own,
            a_replay_that_dies_opens_its_letter_again_and_parks_nobody, a_replay_runs_to_its_end_and_is_logged,
            two_replays_of_one_group_double_nothing, an_operation_goes_on_where_it_was_after_a_stop,
            a_trace_tells_every_step, a_rule_takes_its_turn_and_leaves_what_dies_again_and_again,
        ]);
        $crate::conformance_cases!($fixture, edits: [
            a_correction_replaces_what_it_fits_and_names_what_it_does_not, headers_are_corrected_as_payloads_are,
            a_plan_is_kept_to_or_refused,
            an_operation_keeps_its_rate_and_ends_when_it_is_cancelled, what_needs_nothing_any_more_takes_no_time,
        ]);
        $crate::conformance_cases!($fixture, event_replays: [
            published_events_are_sent_again_under_their_ids, only_matching_events_are_sent_again,
            an_inbox_forgets_on_purpose_alone, a_plan_tells_who_has_forgotten, archived_events_are_sent_again,
            events_come_back_from_archive_files,
            what_leaves_the_outbox_while_a_replay_waits_is_sent,
        ]);
        $crate::conformance_cases!($fixture, registrations: [
            registrations_come_back_by_name, the_newest_registration_of_a_name_counts,
        ]);
        $crate::conformance_cases!($fixture, audit: [
            an_empty_outbox_counts_nothing, what_was_published_before_the_queue_was_bound_is_early,
            each_term_is_counted, routing_decides_what_is_committed,
            applied_goes_before_dead_before_waiting, what_is_elsewhere_is_listed_oldest_first,
            alternate_exchanges_count_as_routes, the_account_always_balances, held_events_are_counted,
        ]);
        $crate::conformance_cases!($fixture, controls: [
            a_pause_is_seen_until_it_is_taken_back, the_first_pause_stands, crash_marks_are_counted_until_the_end,
        ]);
        $crate::conformance_cases!($fixture, dual: [
            a_migration_is_started_once, a_phase_is_changed_by_one_of_two, a_copy_is_tried_until_it_is_confirmed,
            halves_that_arrived_are_known, what_was_published_before_a_relay_knew_gets_its_copy,
            a_rollback_copies_what_went_to_the_new_bus_alone, published_rows_are_found_for_a_comparison,
            a_migration_of_another_database_is_followed, what_a_follower_missed_is_copied,
        ]);
        $crate::conformance_cases!($fixture, subscriptions: [
            a_subscription_comes_back_whole, a_name_is_taken_once,
            two_secrets_are_valid_while_one_takes_the_others_place, attempts_are_remembered_and_forgotten,
            the_last_attempts_of_many_are_read_together,
        ]);
        $crate::conformance_cases!($fixture, held: [
            a_held_event_comes_back_whole, only_heads_are_claimed_in_their_order, a_trace_says_behind_whom_an_event_is_held, holding_again_changes_nothing,
            held_events_are_found_by_their_ids,
            a_head_waits_for_its_time, a_lease_runs_out, a_lease_is_renewed_by_who_has_it, letting_go_commits_with_the_inbox,
            a_parked_key_stays_until_it_is_released, a_corrected_event_takes_the_place_of_a_parked_head,
            a_key_is_freed_by_the_letter_that_it_is_parked_behind,
        ]);
    };
}

/// The suite of the books. Takes one fixture.
#[macro_export]
macro_rules! books_conformance {
    ($fixture:expr $(,)?) => {
        $crate::conformance_cases!($fixture, books: [
            // posting
            an_event_becomes_a_balanced_entry, an_event_is_posted_once, another_payload_of_an_event_is_a_conflict,
            a_bad_event_leaves_its_neighbours_alone, a_refused_event_is_posted_once_the_cause_is_mended,
            ids_may_be_any_text, tenants_are_apart, processes_side_by_side_leave_no_gap,
            a_balance_that_would_overflow_is_refused, a_forged_entry_refuses_no_event, every_entry_is_told_of_once,
            a_batch_of_very_many_lines_is_posted_in_parts,
            // changing
            new_rules_count_from_the_next_batch_on, what_was_prepared_by_old_rules_is_worked_out_again,
            accounts_are_closed_for_every_process,
            children_are_opened_by_their_first_entry, foreign_amounts_are_kept_in_base_with_the_residue_as_a_line,
            a_closed_period_is_sealed_and_refuses_events, back_dated_events_move_on_where_the_tenant_wants_it,
            a_quota_is_kept, a_close_in_the_middle_of_posting_splits_it_cleanly, every_version_of_the_rules_is_kept,
            // refusing
            every_code_of_a_refusal_is_provoked,
            // correcting
            a_reversal_undoes_an_entry_once, a_key_makes_a_reversal_once, a_correction_is_both_or_neither,
            an_imported_reversal_undoes_an_entry_in_base_too, a_statement_of_days_begins_with_what_was_held,
            promises_are_settled_or_voided_once, a_year_ends_in_retained_earnings, years_are_closed_in_their_order,
            a_year_of_more_than_an_event_brings_is_closed, retained_earnings_are_equity,
            retained_earnings_take_their_currency_alone,
            // verifying
            nothing_slips_into_a_closed_period, what_a_seal_tells_of_is_not_changed_in_silence,
            the_base_currency_is_not_changed_in_silence, a_seal_remembers_the_checkpoints,
            many_who_sign_at_once_sign_once,
            what_people_change_after_a_seal_is_no_problem, books_that_are_gone_are_named, a_period_without_a_seal_is_named,
            entries_and_lines_are_final, whatever_is_changed_is_found_and_named, what_lies_beyond_the_chain_is_named,
            checkpoints_prove_entries, a_checkpoint_that_is_signed_meanwhile_is_no_alarm,
            runs_side_by_side_find_what_one_finds, many_tenants_are_verified_side_by_side, a_statement_ends_in_the_balance,
        ]);
    };
}

/// The suite of whoever keeps the progress of jobs. Takes a fixture, awaited once per case.
#[macro_export]
macro_rules! progress_conformance {
    ($fixture:expr $(,)?) => {
        $crate::conformance_cases!($fixture, progress: [
            // counting
            a_new_job_is_initializing_and_init_may_be_repeated, an_unknown_job_is_refused_and_not_made,
            items_are_counted_once_by_their_ids, failed_items_are_done_and_errors, marking_nothing_is_fine,
            pages_are_added_once, odd_ids_are_told_apart, a_large_batch_is_marked_at_once,
            // finishing
            the_last_item_announces_the_job, completion_waits_for_the_end_of_discovery,
            ending_discovery_runs_the_finish_check, a_job_without_items_completes,
            lowering_the_total_runs_the_finish_check, another_event_is_announced_where_asked_for,
            // refusing
            more_done_than_the_total_is_refused, a_refused_batch_counts_nothing, marks_after_done_are_refused,
            the_total_is_not_lowered_below_what_is_done, discovery_does_not_begin_again,
            every_step_ends_as_the_rules_say,
            // listing
            jobs_are_listed_the_newest_first,
            // crowding
            a_hundred_workers_on_one_job_count_every_item_once, a_thousand_jobs_complete_once_each,
        ]);
    };
}

/// One test per case, in the area of the suite that is named.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($fixture:expr, $area:ident: [$($case:ident),+ $(,)?]) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let fixture = $fixture.await;
                let case = $crate::conformance::$area::$case(&fixture);
                $crate::conformance::within_its_limit(case).await;
            }
        )+
    };
}

/// Runs a case, and fails it when it hangs.
pub async fn within_its_limit(case: impl Future<Output = ()>) {
    let ended = tokio::time::timeout(CASE_LIMIT, case).await;
    assert!(ended.is_ok(), "the case is not over after {} s", CASE_LIMIT.as_secs());
}

/// Waits for something that must come, and says what it was when it does not.
pub(crate) async fn soon<T>(what: &str, coming: impl Future<Output = T>) -> T {
    let came = tokio::time::timeout(PATIENCE, coming).await;
    came.unwrap_or_else(|_| panic!("{what} did not come within {} s", PATIENCE.as_secs()))
}

/// Asks again and again until there is an answer.
pub(crate) async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let clock = Clock::system();
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            clock.sleep(Duration::from_millis(20)).await;
        }
    };
    soon(what, asking).await
}

#[cfg(test)]
mod tests {
    /// A case that nobody runs would look like a passing one.
    #[test]
    fn every_case_is_in_a_suite() {
        let suites = include_str!("conformance.rs");
        let listed: Vec<&str> = suites.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
        for file in [
            include_str!("conformance/audit.rs"),
            include_str!("conformance/books/changing.rs"),
            include_str!("conformance/books/correcting.rs"),
            include_str!("conformance/books/posting.rs"),
            include_str!("conformance/books/sealing.rs"),
            include_str!("conformance/books/verifying.rs"),
            include_str!("conformance/broker/carrying.rs"),
            include_str!("conformance/broker/crashing.rs"),
            include_str!("conformance/broker/dead_lettering.rs"),
            include_str!("conformance/broker/declaring.rs"),
            include_str!("conformance/broker/delivering.rs"),
            include_str!("conformance/broker/policies.rs"),
            include_str!("conformance/broker/publishing.rs"),
            include_str!("conformance/broker/routing.rs"),
            include_str!("conformance/controls.rs"),
            include_str!("conformance/dead_letters.rs"),
            include_str!("conformance/dual.rs"),
            include_str!("conformance/event_replays.rs"),
            include_str!("conformance/held.rs"),
            include_str!("conformance/inbox.rs"),
            include_str!("conformance/operations.rs"),
            include_str!("conformance/outbox/again.rs"),
            include_str!("conformance/replays.rs"),
            include_str!("conformance/triage.rs"),
            include_str!("conformance/outbox/appending.rs"),
            include_str!("conformance/outbox/carrying.rs"),
            include_str!("conformance/outbox/claiming.rs"),
            include_str!("conformance/outbox/settling.rs"),
            include_str!("conformance/progress/counting.rs"),
            include_str!("conformance/progress/crowding.rs"),
            include_str!("conformance/progress/finishing.rs"),
            include_str!("conformance/progress/refusing.rs"),
            include_str!("conformance/registrations.rs"),
            include_str!("conformance/store.rs"),
            include_str!("conformance/subscriptions.rs"),
        ] {
            for case in file.split("\npub async fn ").skip(1) {
                let name = case.split(['(', '<']).next().unwrap();
                assert!(listed.contains(&name), "{name} is in no suite");
            }
        }
    }
}
