//! Logs and metrics. Label values come from code, never from objects: a cluster's names do not become time series.

pub mod api_calls;
pub mod logs;
pub mod metrics;
pub mod process;
pub mod watchdog;
