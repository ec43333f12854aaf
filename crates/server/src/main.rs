//! The `postrider` binary; all of it is in `lib.rs`.

use std::process::ExitCode;

/// A fifth of the relay's time was spent in the system's allocator: events are many small pieces that are made by one task and
/// given back by another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    postrider_server::run()
}
