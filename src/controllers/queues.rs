//! The queue of each controller, and the figures of the controllers for metrics and the watchdog.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::{CollaSetName, DecorationName, JobName, PodKey, RuleObjectName};
use crate::cluster::work_queue::{QueueCounters, QueueKey, WorkQueue};
use crate::domain::traffic::names::EmployerName;

impl QueueKey for EmployerName {
    fn namespace(&self) -> &str {
        &self.namespace
    }
}

/// Declares the controllers: the name of each, and the key of its queue.
macro_rules! controllers {
    ($($(#[$doc:meta])* $name:ident: $key:ty,)*) => {
        /// The queues of all controllers, for one term.
        pub struct Queues {
            $($(#[$doc])* pub $name: Arc<WorkQueue<$key>>,)*
        }

        /// The counters of the controllers of this process, over all terms in which it leads.
        #[derive(Default)]
        pub struct ControllerStats {
            $($name: Arc<QueueCounters>,)*
            /// The queues of the present term.
            queues: Mutex<Option<Arc<Queues>>>,
        }

        impl ControllerStats {
            /// Creates the queues of a new term.
            pub(super) fn begin_term(&self) -> Arc<Queues> {
                let queues = Arc::new(Queues {
                    $($name: WorkQueue::new(&self.$name),)*
                });
                *self.queues.lock() = Some(Arc::clone(&queues));
                queues
            }

            /// The figures of each controller.
            pub fn controller_figures(&self) -> Vec<ControllerFigures> {
                let queues = self.queues.lock().clone();
                let queues = queues.as_deref();
                vec![$(figures_of_queue(
                    stringify!($name),
                    &self.$name,
                    queues.map(|queues| &queues.$name),
                )),*]
            }
        }
    };
}

controllers! {
    /// Pods whose lifecycle may continue.
    lifecycle: PodKey,
    /// Pods that are deleted through the lifecycle.
    poddeletion: PodKey,
    /// Rule objects.
    rules: RuleObjectName,
    /// CollaSets.
    collasets: CollaSetName,
    /// PodDecorations.
    decorations: DecorationName,
    /// OperationJobs.
    jobs: JobName,
    /// Employers of ResourceConsist.
    traffic: EmployerName,
    /// Namespaces.
    namespaces: String,
}

impl ControllerStats {
    /// Ends the term.
    pub(super) fn end_term(&self) {
        *self.queues.lock() = None;
    }
}

/// The figures of one controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerFigures {
    /// Name of the controller.
    pub controller: &'static str,
    /// Number of keys that wait for a worker; 0 while this process is not the leader.
    pub depth: usize,
    /// Number of runs since the start, by outcome.
    pub runs: [(&'static str, u64); 4],
    /// A number that grows with each run; the watchdog compares it.
    pub progress: u64,
}

fn figures_of_queue<K: QueueKey>(
    controller: &'static str,
    counters: &QueueCounters,
    queue: Option<&Arc<WorkQueue<K>>>,
) -> ControllerFigures {
    let outcomes = [
        ("done", &counters.done),
        ("later", &counters.later),
        ("retry", &counters.retry),
        ("panic", &counters.panic),
    ];
    ControllerFigures {
        controller,
        depth: queue.map_or(0, |queue| queue.depth()),
        runs: outcomes.map(|(outcome, count)| (outcome, count.load(Ordering::Relaxed))),
        progress: counters.progress_count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(work: &ControllerStats) -> usize {
        work.controller_figures()
            .iter()
            .map(|figures| figures.depth)
            .sum()
    }

    #[test]
    fn depth_counts_current_term_only() {
        let work = ControllerStats::default();
        assert_eq!(depth(&work), 0);
        let queues = work.begin_term();
        queues.namespaces.add("shop".to_owned());
        assert_eq!(depth(&work), 1);
        assert_eq!(work.controller_figures()[7].depth, 1);
        work.end_term();
        assert_eq!(depth(&work), 0);
    }
}
