//! Pods that `podToInclude` names and that are not managed. The caches hold managed Pods only, so the API server is asked for the
//! names that they do not know: a user who forgot the control label would wait in vain.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;

use super::super::Context;
use super::memory::Memory;
use crate::api::collaset::CollaSet;
use crate::cluster::path::Objects;
use crate::domain::collaset::observed::UNMANAGED_NANOS;
use crate::domain::pod::Pod;

/// An answer is believed for this long, unless the spec changes.
const BELIEVED: Duration = Duration::from_nanos(UNMANAGED_NANOS);
/// Names that one look asks for; the next looks ask for the others.
const AT_ONCE: usize = 10;
/// What is not answered by then is asked for again later.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// What the API server said of Pods.
#[derive(Debug, Default)]
pub struct Answers {
    generation: i64,
    /// By name: when it was asked for, and whether the Pod is there and not managed.
    known: BTreeMap<String, (Instant, bool)>,
}

impl Answers {
    /// Which of the names that no cache knows are to be asked for, those first that never were. Forgets all other names, and all
    /// answers when the spec is another one.
    pub fn due(
        &mut self,
        unknown: &BTreeSet<String>,
        now: Instant,
        generation: i64,
    ) -> Vec<String> {
        let is_new = std::mem::replace(&mut self.generation, generation) != generation;
        self.known
            .retain(|name, _| !is_new && unknown.contains(name));
        let asked_at = |name: &String| self.known.get(name).map(|(at, _)| *at);
        let is_due = |name: &&String| asked_at(name).is_none_or(|at| at + BELIEVED <= now);
        let mut due: Vec<String> = unknown.iter().filter(is_due).cloned().collect();
        due.sort_by_key(asked_at);
        due.truncate(AT_ONCE);
        due
    }

    /// Notes an answer.
    pub fn note(&mut self, name: String, is_unmanaged: bool, now: Instant) {
        self.known.insert(name, (now, is_unmanaged));
    }

    /// Names of the Pods that are there and not managed.
    pub fn unmanaged(&self) -> BTreeSet<String> {
        let unmanaged = self.known.iter().filter(|(_, (_, unmanaged))| *unmanaged);
        unmanaged.map(|(name, _)| name.clone()).collect()
    }
}

/// Names in `podToInclude` of Pods that are there and not managed.
pub async fn unmanaged(context: &Context, set: &CollaSet, memory: &Memory) -> BTreeSet<String> {
    let scale = set.spec.scale_strategy.as_ref();
    let included = scale.map_or(&[][..], |scale| &scale.pod_to_include);
    let goes = set.metadata.deletion_timestamp.is_some();
    let mut unknown: BTreeSet<String> = match goes {
        true => BTreeSet::new(),
        false => included.iter().cloned().collect(),
    };
    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
    if !unknown.is_empty()
        && let Some(home) = context.index.read().namespace(namespace)
    {
        for pod in home.pods.values() {
            unknown.remove(&pod.metadata.name);
        }
    }
    let (now, generation) = (Instant::now(), set.metadata.generation.unwrap_or(0));
    let due = memory.due(&unknown, now, generation);
    let answers = join_all(due.into_iter().map(|name| async {
        let is_unmanaged = is_unmanaged(context, namespace, &name).await;
        (name, is_unmanaged)
    }));
    memory.note_answers(answers.await, now)
}

/// One that can't be read is asked for again as one that is not there.
async fn is_unmanaged(context: &Context, namespace: &str, name: &str) -> bool {
    let request = async {
        let request = Objects::of("/api/v1", namespace, "pods")?.get(name)?;
        context.client.request::<Pod>(request).await
    };
    match tokio::time::timeout(CALL_TIMEOUT, request).await {
        Ok(Ok(pod)) => !pod.is_managed() && !pod.is_terminating(),
        Ok(Err(_)) | Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: impl IntoIterator<Item = usize>) -> BTreeSet<String> {
        names.into_iter().map(|n| format!("p{n:02}")).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn name_is_asked_for_again_after_a_while_or_for_another_spec() {
        let (mut answers, start) = (Answers::default(), Instant::now());
        let unknown = names(0..1);
        assert_eq!(answers.due(&unknown, start, 1), ["p00"]);
        answers.note("p00".into(), true, start);
        assert_eq!(answers.due(&unknown, start, 1), [""; 0]);
        assert_eq!(answers.unmanaged(), unknown);
        assert_eq!(answers.due(&unknown, start, 2), ["p00"]);
        assert_eq!(answers.unmanaged(), names([]));
        answers.note("p00".into(), true, start);
        assert_eq!(answers.due(&unknown, start + BELIEVED, 2), ["p00"]);
        assert_eq!(answers.unmanaged(), unknown, "until it is known better");
        assert_eq!(
            answers.due(&names([]), start, 2),
            [""; 0],
            "it has the label"
        );
        assert_eq!(answers.unmanaged(), names([]));
    }

    #[tokio::test(start_paused = true)]
    async fn names_beyond_those_of_one_look_come_next() {
        let (mut answers, start) = (Answers::default(), Instant::now());
        let unknown = names(0..15);
        let first = answers.due(&unknown, start, 1);
        assert_eq!(first.len(), AT_ONCE);
        for name in first {
            answers.note(name, false, start);
        }
        let later = start + BELIEVED;
        let second = answers.due(&unknown, later, 1);
        assert_eq!(second[..5], ["p10", "p11", "p12", "p13", "p14"]);
    }
}
