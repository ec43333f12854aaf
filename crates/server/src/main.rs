//! The `postrider` binary; all of it is in `lib.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    postrider_server::main()
}
