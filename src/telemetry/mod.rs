//! Logs, metrics and the watchdog. Values of metric labels come from code and never from objects, so names in the
//! cluster do not create time series.

pub mod api_calls;
pub mod logs;
pub mod metrics;
pub mod process;
pub mod watchdog;
