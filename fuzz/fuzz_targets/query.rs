#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| postrider_server::fuzz::query(data));
