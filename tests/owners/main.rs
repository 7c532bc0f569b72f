//! Rules hold for every kind of owner and for every action of a tenant. These tests are a part of `cargo xtask matrix`
//! and of `cargo xtask soak`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::time::Duration;

use xtask::{matrix, soak};

const BINARY: &str = env!("CARGO_BIN_EXE_operating");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_owner_kind_stays_within_budget_and_finishes() {
    let plan = matrix::Plan {
        cells: matrix::brief(),
        lanes: 4,
        bound: Duration::from_secs(240),
        until: None,
    };
    let binary = Path::new(BINARY).to_owned();
    let rows = matrix::play(binary, &plan).await.unwrap();
    matrix::print(&rows);
    assert!(!rows.iter().any(matrix::Row::failed), "see the table");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_operations_of_a_tenant_break_no_rule() {
    let binary = Path::new(BINARY).to_owned();
    let plan = soak::Plan::brief(1);
    let report = soak::play(binary, None, plan).await.unwrap();
    report.print();
    report.check().unwrap();
}
