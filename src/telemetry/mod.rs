//! Logs, metrics and the watchdog. Values of metric labels come from code and not from objects, so names in the cluster
//! do not create time series. The one exception, `operating_rule_passed_by_ignore_total`, names at most 1,000 rules.

pub mod api_calls;
pub mod logs;
pub mod metrics;
pub mod process;
pub mod watchdog;
