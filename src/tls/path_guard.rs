//! Decides by which paths the webhooks may be called.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::selfmanaged::segments;

/// How long plain paths are accepted after an API server may have used them. Configurations can be restored at any
/// time, and every API server must have seen the segment before calls without it are refused.
pub const PLAIN_PATH_GRACE: Duration = Duration::from_secs(600);

/// How long the known segments are used without an update. A replica that can no longer read the Secret must not refuse
/// an API server that uses a newer segment. This is safe, because a segment is only a hurdle and no proof.
const SEGMENTS_TTL: Duration = Duration::from_secs(300);

/// The segments of the Secret.
#[derive(Debug)]
struct KnownSegments {
    segments: Vec<String>,
    /// When this replica has read the segments.
    at: Instant,
}

/// Whether calls need a segment before their paths, and which segments are accepted.
#[derive(Debug, Default)]
pub struct PathGuard {
    /// `None` if no call needs a segment.
    known: ArcSwapOption<KnownSegments>,
    /// Until when calls without a segment are accepted.
    plain: Mutex<Option<Instant>>,
}

impl PathGuard {
    /// Requires one of these segments, except for a time after [`PathGuard::allow_plain_paths`].
    pub fn require_segments(&self, segments: Vec<String>) {
        let at = Instant::now();
        self.known
            .store(Some(Arc::new(KnownSegments { segments, at })));
    }

    /// Accepts plain paths for a time. Call this if a configuration has paths without a segment, or does not exist: the
    /// user who creates it may write such paths.
    pub fn allow_plain_paths(&self) {
        *self.plain.lock() = Some(Instant::now() + PLAIN_PATH_GRACE);
    }

    /// The path without its segment; `None` if the path is refused.
    pub fn strip_segment<'p>(&self, path: &'p str) -> Option<&'p str> {
        let (segment, plain) = segments::split_path(path);
        let known = self.known.load();
        let Some(known) = known
            .as_ref()
            .filter(|known| known.at.elapsed() < SEGMENTS_TTL)
        else {
            return Some(plain); // configurations may still have an earlier segment
        };
        let is_open = match segment {
            Some(segment) => known
                .segments
                .iter()
                .any(|known| is_equal_constant_time(known, segment)),
            None => self
                .plain
                .lock()
                .is_some_and(|until| Instant::now() < until),
        };
        is_open.then_some(plain)
    }
}

/// Compares in a time that does not show how many bytes are equal.
fn is_equal_constant_time(first: &str, second: &str) -> bool {
    let differing = first
        .bytes()
        .zip(second.bytes())
        .fold(0, |all, (a, b)| all | (a ^ b));
    first.len() == second.len() && differing == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_need_a_known_segment_once_it_is_required() {
        let doors = PathGuard::default();
        let [first, second] = ["1", "2"].map(|digit| digit.repeat(32));
        let path = format!("/{first}/validate/pods");
        let strange = format!("/{second}/validate/pods");
        let plain = Some("/validate/pods");
        for path in [&path, &strange, "/validate/pods"] {
            assert_eq!(doors.strip_segment(path), plain);
        }
        doors.require_segments(vec![first.clone()]);
        assert_eq!(doors.strip_segment(&path), plain);
        assert_eq!(doors.strip_segment(&strange), None);
        assert_eq!(doors.strip_segment("/validate/pods"), None);
        doors.allow_plain_paths();
        assert_eq!(doors.strip_segment("/validate/pods"), plain);
        tokio::time::advance(PLAIN_PATH_GRACE).await;
        assert_eq!(doors.strip_segment(&strange), plain, "what is known is old");
        doors.require_segments(vec![first]);
        assert_eq!(doors.strip_segment("/validate/pods"), None);
    }
}
