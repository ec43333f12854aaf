//! x
mod config;
fn main() {}
