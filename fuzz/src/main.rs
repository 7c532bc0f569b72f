//! Runs the target that `FUZZ_TARGET` names, under libFuzzer. `cargo xtask fuzz` builds and starts it.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use targets::TARGETS;

#[path = "../targets/mod.rs"]
mod targets;

static RUN: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let wanted = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.iter().find(|(name, _)| *name == wanted);
    let names = TARGETS.map(|(name, _)| name).join(", ");
    found.map_or_else(|| panic!("FUZZ_TARGET must be one of {names}"), |t| t.1)
});

fuzz_target!(|data: &[u8]| RUN(data));
