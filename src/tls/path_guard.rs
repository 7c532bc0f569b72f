//! By which paths the webhooks may be called.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::selfmanaged::segments;

/// How long plain paths are open after an API server may have known them: configurations can be put back at any time, and
/// every API server must have seen the segment before calls without it are refused.
pub const PLAIN_PATH_GRACE: Duration = Duration::from_secs(600);

/// How long what is known of the segments is believed. It is a hurdle only: a replica that can't read the Secret any more
/// must not refuse an API server that calls by a newer one.
const SEGMENTS_TTL: Duration = Duration::from_secs(300);

/// The segments of the Secret.
#[derive(Debug)]
struct KnownSegments {
    segments: Vec<String>,
    /// When they were read.
    at: Instant,
}

/// Whether calls need a segment in front of their paths, and which.
#[derive(Debug, Default)]
pub struct PathGuard {
    /// `None`: no call needs one.
    known: ArcSwapOption<KnownSegments>,
    /// Until when calls without a segment are let in.
    plain: Mutex<Option<Instant>>,
}

impl PathGuard {
    /// Calls need one of these segments, except soon after [`Doors::saw_plain`].
    pub fn require_segments(&self, segments: Vec<String>) {
        let at = Instant::now();
        self.known
            .store(Some(Arc::new(KnownSegments { segments, at })));
    }

    /// A configuration has paths without a segment, or there is none: whoever makes it may write such.
    pub fn allow_plain_paths(&self) {
        *self.plain.lock() = Some(Instant::now() + PLAIN_PATH_GRACE);
    }

    /// The path behind the door; `None` if it is closed.
    pub fn strip_segment<'p>(&self, path: &'p str) -> Option<&'p str> {
        let (segment, plain) = segments::split_path(path);
        let known = self.known.load();
        let Some(known) = known
            .as_ref()
            .filter(|known| known.at.elapsed() < SEGMENTS_TTL)
        else {
            return Some(plain); // configurations may still have a segment from earlier
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

/// Compares without telling by the time it takes how much is right.
fn is_equal_constant_time(one: &str, other: &str) -> bool {
    let differing = one
        .bytes()
        .zip(other.bytes())
        .fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && differing == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_need_a_known_segment_once_it_is_required() {
        let doors = PathGuard::default();
        let [one, other] = ["1", "2"].map(|digit| digit.repeat(32));
        let path = format!("/{one}/validate/pods");
        let strange = format!("/{other}/validate/pods");
        let plain = Some("/validate/pods");
        for path in [&path, &strange, "/validate/pods"] {
            assert_eq!(doors.strip_segment(path), plain);
        }
        doors.require_segments(vec![one.clone()]);
        assert_eq!(doors.strip_segment(&path), plain);
        assert_eq!(doors.strip_segment(&strange), None);
        assert_eq!(doors.strip_segment("/validate/pods"), None);
        doors.allow_plain_paths();
        assert_eq!(doors.strip_segment("/validate/pods"), plain);
        tokio::time::advance(PLAIN_PATH_GRACE).await;
        assert_eq!(doors.strip_segment(&strange), plain, "what is known is old");
        doors.require_segments(vec![one]);
        assert_eq!(doors.strip_segment("/validate/pods"), None);
    }
}
