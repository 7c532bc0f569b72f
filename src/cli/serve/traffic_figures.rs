//! What the caches say about the traffic of employers and Pods, for metrics.

use jiff::Timestamp;

use crate::api::keys;
use crate::cluster::index::Index;
use crate::cluster::traffic::Traffic;
use crate::cluster::traffic::employers::CachedEmployer;
use crate::domain::diagnosis::traffic::{Direction, traffic_wait};
use crate::domain::traffic::report::EmployerReport;

/// The reason of an employer on which no server has reported yet.
const UNREPORTED: &str = "Unreported";

/// Employers by the reason of their condition.
pub type EmployerCounts = [(&'static str, u64); 4];

/// Counts the managed employers by what their stored report says. A Service that no adapter manages does not count.
/// Without `traffic`, all counts are 0.
pub fn count_employers(traffic: Option<&Traffic>) -> EmployerCounts {
    let reasons = ["Consistent", "Progressing", "Failed", UNREPORTED];
    let mut counts = reasons.map(|reason| (reason, 0));
    let employers = traffic.map(|traffic| &traffic.employers).into_iter();
    let employers = employers.flat_map(|all| {
        let names = all.all_names().into_iter();
        names.filter_map(|name| all.get(&name))
    });
    for employer in employers {
        let Some(reason) = reason_of(&employer) else {
            continue;
        };
        for (_, count) in counts.iter_mut().filter(|(known, _)| *known == reason) {
            *count += 1;
        }
    }
    counts
}

fn reason_of(employer: &CachedEmployer) -> Option<&'static str> {
    let has_no_adapter = matches!(employer.adapter, Ok(None));
    if !employer.managed || has_no_adapter {
        return None;
    }
    let annotations = &employer.state.employer.annotations;
    let report = annotations.get(keys::CONSIST_STATUS);
    let report = report.and_then(|text| serde_json::from_str::<EmployerReport>(text).ok());
    Some(report.map_or(UNREPORTED, |report| report.condition().1))
}

/// How long a managed Pod waits now for its traffic to go off, and to go on: the longest, in seconds. Without `index`,
/// none waits.
pub fn longest_waits(index: Option<&Index>, now: Timestamp) -> [(&'static str, f64); 2] {
    let (mut off, mut on) = (0.0_f64, 0.0_f64);
    let Some(index) = index else {
        return [("off", off), ("on", on)];
    };
    let state = index.read_state();
    let pods = state.namespaces().flat_map(|(_, n)| n.pods.values());
    for (direction, since) in pods.filter_map(|pod| traffic_wait(pod)) {
        let longest = match direction {
            Direction::Off => &mut off,
            Direction::On => &mut on,
        };
        *longest = longest.max(now.duration_since(since).as_secs_f64());
    }
    [("off", off), ("on", on)]
}
