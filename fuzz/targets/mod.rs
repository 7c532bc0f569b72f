//! The fuzz targets: each takes any bytes and fails if its property does not hold. `cargo xtask fuzz` runs them with
//! new inputs, and `tests/corpus.rs` with the inputs in `fuzz/corpus`.

mod answers;
mod apiserver;
mod certificates;
mod collaset;
mod kinds;
mod ledger;
mod pod;
mod review;
mod rule;
mod selector;
mod template;
mod values;
mod warning;
mod watch;

use serde::de::DeserializeOwned;

/// A target: its name, which is also its directory in `fuzz/corpus`, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 15] = [
    ("answers", answers::run),
    ("certificates", certificates::run),
    ("collaset", collaset::run),
    ("fieldpath", values::field_path),
    ("intorpercent", values::int_or_percent),
    ("kinds", kinds::run),
    ("ledger", ledger::run),
    ("pod", pod::run),
    ("quantity", values::quantity),
    ("review", review::run),
    ("rule", rule::run),
    ("selector", selector::run),
    ("template", template::run),
    ("warning", warning::run),
    ("watch", watch::run),
];

/// The bytes as a JSON object, if they are one.
fn read<T: DeserializeOwned>(data: &[u8]) -> Option<T> {
    serde_json::from_slice(data).ok()
}

/// The first byte, which selects one of `of` variants, and the other bytes.
fn choice(data: &[u8], of: u8) -> Option<(u8, &[u8])> {
    let (first, rest) = data.split_first()?;
    Some((first.wrapping_sub(b'0') % of, rest))
}
