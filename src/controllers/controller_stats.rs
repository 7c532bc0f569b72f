//! What the controllers do, for metrics and the watchdog.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::Queues;
use crate::cluster::queue::{Key, Queue, Turns};

/// What the controllers of this process do, over all terms in which it leads.
#[derive(Default)]
pub struct ControllerStats {
    lifecycle: Arc<Turns>,
    poddeletion: Arc<Turns>,
    rules: Arc<Turns>,
    collasets: Arc<Turns>,
    namespaces: Arc<Turns>,
    /// The queues of the present term.
    queues: Mutex<Option<Arc<Queues>>>,
}

/// What one controller does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerFigures {
    /// Name of the controller.
    pub controller: &'static str,
    /// Keys that wait for a worker; 0 while this process does not lead.
    pub depth: usize,
    /// Turns since the start, by outcome.
    pub turns: [(&'static str, u64); 4],
    /// A number that grows with all that the controller does.
    pub progress: u64,
}

impl ControllerStats {
    /// New queues, for a term that begins.
    pub(super) fn begin_term(&self) -> Arc<Queues> {
        let queues = Arc::new(Queues {
            lifecycle: Queue::new(&self.lifecycle),
            poddeletion: Queue::new(&self.poddeletion),
            rules: Queue::new(&self.rules),
            collasets: Queue::new(&self.collasets),
            namespaces: Queue::new(&self.namespaces),
        });
        *self.queues.lock() = Some(Arc::clone(&queues));
        queues
    }

    /// The term is over.
    pub(super) fn end_term(&self) {
        *self.queues.lock() = None;
    }

    /// What each controller does.
    pub fn controller_figures(&self) -> [ControllerFigures; 5] {
        let queues = self.queues.lock().clone();
        let queues = queues.as_deref();
        [
            figures_of_queue("lifecycle", &self.lifecycle, queues.map(|q| &q.lifecycle)),
            figures_of_queue(
                "poddeletion",
                &self.poddeletion,
                queues.map(|q| &q.poddeletion),
            ),
            figures_of_queue("rules", &self.rules, queues.map(|q| &q.rules)),
            figures_of_queue("collasets", &self.collasets, queues.map(|q| &q.collasets)),
            figures_of_queue(
                "namespaces",
                &self.namespaces,
                queues.map(|q| &q.namespaces),
            ),
        ]
    }
}

fn figures_of_queue<K: Key>(
    controller: &'static str,
    turns: &Turns,
    queue: Option<&Arc<Queue<K>>>,
) -> ControllerFigures {
    let outcomes = [
        ("done", &turns.done),
        ("later", &turns.later),
        ("retry", &turns.retry),
        ("panic", &turns.panic),
    ];
    ControllerFigures {
        controller,
        depth: queue.map_or(0, |queue| queue.depth()),
        turns: outcomes.map(|(outcome, count)| (outcome, count.load(Ordering::Relaxed))),
        progress: turns.progress(),
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
        assert_eq!(work.controller_figures()[4].depth, 1);
        work.end_term();
        assert_eq!(depth(&work), 0);
    }
}
