//! Which targets a job operates on.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::operationjob::{OperationJob, TargetDetail};

/// The names of the first `partition` targets: those that have begun come first, then the others in their order. A
/// target that is finished still counts, and one that has begun stays selected.
pub fn selected_targets<'a>(
    job: &'a OperationJob,
    stored: &BTreeMap<&str, &TargetDetail>,
) -> BTreeSet<&'a str> {
    let targets = &job.spec.targets;
    let names = || targets.iter().map(|target| &*target.name);
    let has_begun = |name: &&str| {
        let detail = stored.get(name);
        detail.is_some_and(|detail| detail.start_time.is_some())
    };
    let begun: BTreeSet<&str> = names().filter(has_begun).collect();
    let partition = job.spec.partition.map_or(targets.len(), |partition| {
        usize::try_from(partition).unwrap_or(0)
    });
    let free = partition.saturating_sub(begun.len());
    let others = names().filter(|name| !begun.contains(name)).take(free);
    begun.iter().copied().chain(others).collect()
}
