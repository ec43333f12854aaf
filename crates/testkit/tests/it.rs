//! The testkit against real servers. All of them are private: nothing has to run beforehand.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod it {
    #[macro_use]
    mod steps;

    mod hostile;
    mod instructions;
    mod kill;
    mod kill_correcting;
    mod kill_counting;
    mod kill_flawed;
    mod kill_migrating;
    mod kill_settling;
    mod kill_triage;
    mod life;
    mod postgres;
    mod proxy;
    mod rabbitmq;
    mod redis;
    mod relays;
    mod shared;
    mod simulation;
    mod style;
    mod tools;
}
