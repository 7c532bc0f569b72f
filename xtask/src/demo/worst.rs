//! The maximum number of unavailable Pods of a workload, by an independent observer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use kube::Client;
use testbed::observer::{Change, Fact, Observer};

/// Follows the Pods of a namespace, of which `expected` should be available. It ends when dropped.
#[derive(Debug)]
pub struct Worst {
    observer: Observer<Fact>,
    expected: usize,
    /// Resource version of the last [`Worst::reset`].
    since: AtomicU64,
}

impl Worst {
    /// Begins to follow.
    pub async fn start(client: &Client, namespace: &str, expected: usize) -> Result<Self> {
        Ok(Self {
            observer: Observer::of_budgets(client, namespace, &[]).await?,
            expected,
            since: AtomicU64::new(0),
        })
    }

    /// Starts again from the current state.
    pub async fn reset(&self) -> Result<()> {
        let changes = self.observer.changes().await?;
        let last = changes.iter().map(|change| change.version).max();
        self.since
            .store(last.unwrap_or_default(), Ordering::Relaxed);
        Ok(())
    }

    /// Maximum number of Pods that were unavailable at once since the last reset.
    ///
    /// # Errors
    /// If the observer lost its position in the watch.
    pub async fn most_unavailable(&self) -> Result<usize> {
        let changes = self.observer.changes().await?;
        let since = self.since.load(Ordering::Relaxed);
        Ok(worst(&changes, self.expected, since))
    }
}

/// Maximum number of Pods that were unavailable at once, at the version `since` or later.
fn worst(changes: &[Change], expected: usize, since: u64) -> usize {
    let mut available: BTreeMap<&str, bool> = BTreeMap::new();
    let mut most = 0;
    for (index, change) in changes.iter().enumerate() {
        available.insert(&change.uid, is_available(change));
        // The state at `since` is that of the last change up to `since`; the Pods that were listed come all at once.
        let next = changes.get(index + 1);
        let is_past = next.is_some_and(|next| next.listed || next.version <= since);
        if !is_past {
            let count = available.values().filter(|available| **available).count();
            most = most.max(expected.saturating_sub(count));
        }
    }
    most
}

fn is_available(change: &Change) -> bool {
    match change.object.as_deref() {
        Some(Fact::Pod(pod)) => pod.is_labelled() && !pod.deleting,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Instant;

    use testbed::keys;
    use testbed::observer::Pod;

    fn change(name: &str, version: u64, available: Option<bool>) -> Change {
        let pod = |available: bool| {
            let label = available.then(|| (keys::SERVICE_AVAILABLE.to_owned(), "1".to_owned()));
            let labels = label.into_iter().collect();
            Arc::new(Fact::Pod(Box::new(Pod {
                labels,
                ..Pod::default()
            })))
        };
        Change {
            version,
            at: Instant::now(),
            uid: name.to_owned(),
            name: format!("Pod/{name}"),
            object: available.map(pod),
            listed: version <= 2,
        }
    }

    #[test]
    fn worst_moment_is_kept_when_pods_are_back() {
        let mut changes = vec![change("a", 1, Some(true)), change("b", 2, Some(true))];
        assert_eq!(worst(&changes, 2, 0), 0);
        changes.push(change("a", 3, Some(false)));
        changes.push(change("b", 4, None));
        changes.push(change("a", 5, Some(true)));
        assert_eq!(worst(&changes, 2, 0), 2);
        assert_eq!(worst(&changes, 2, 5), 1, "the present moment counts");
    }
}
