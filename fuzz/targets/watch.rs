//! Frames of watches.

use operating::cluster::caches::Caches;
use operating::cluster::kind::WatchedKind;
use operating::fuzzing::{Watch, watch_frame};

use super::choice;

/// Each line is a frame; its first byte names the watch. No frame stops the index, the position of the index never goes
/// back, and each object is stored under the namespace and the UID in its own metadata.
pub fn run(data: &[u8]) {
    let caches = Caches::default();
    let index = &caches.index;
    for line in data.split(|byte| *byte == b'\n').take(40) {
        let Some((selector, line)) = choice(line, 10) else {
            continue;
        };
        let Ok(line) = std::str::from_utf8(line) else {
            continue; // the reader of lines refuses them
        };
        let watch = match selector {
            0 => Watch::Pods,
            1 => Watch::Rules,
            2 => Watch::Namespaces,
            other => Watch::Owners(WatchedKind::OWNER_KINDS[usize::from(other) - 3]),
        };
        let before = index.read_state().position;
        let version = watch_frame(&caches, watch, line);
        let state = index.read_state();
        assert!(state.position >= before, "{line}");
        if let (Watch::Pods, Some(version)) = (watch, version) {
            assert!(state.position >= version, "{line}");
        }
        for (name, namespace) in state.namespaces() {
            for (uid, pod) in &namespace.pods {
                assert_eq!(**uid, *pod.metadata.uid);
                assert_eq!(*name, pod.metadata.namespace);
            }
            for entry in namespace.rules.values() {
                let rules = &entry.snapshot.rules;
                state.with_view(rules, |view| {
                    let selected = namespace.pods.values().filter(|pod| rules.selects(pod));
                    let available = selected.filter(|pod| pod.is_available()).count();
                    assert!(view.available() as usize <= available, "{line}");
                });
            }
        }
    }
}
