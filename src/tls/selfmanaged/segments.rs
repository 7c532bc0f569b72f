//! Random segments before the webhook paths: `/<segment>/validate/pods`. A segment is a hurdle and no proof of the
//! caller, because error texts of the API server show the URL of a webhook that did not answer. Client certificates are
//! a proof.
//!
//! As with the authorities, every replica knows a new segment before it is published. A former segment stays known
//! until every API server has seen the new one.

use jiff::Timestamp;

use super::RenewalPolicy;

/// Random bytes of a segment.
const SEGMENT_BYTES: usize = 16;

/// The segments of the Secret, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathSegments(Vec<Segment>);

#[derive(Clone, PartialEq, Eq)]
struct Segment {
    text: String,
    /// When the segment was added to the Secret.
    since: Timestamp,
}

/// Does not show the segment.
impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Segment")
            .field("since", &self.since)
            .finish_non_exhaustive()
    }
}

impl PathSegments {
    /// Parses the key of the Secret: one line per segment, `<segment> <RFC 3339>`. Lines of another form are dropped.
    pub fn from_bytes(bytes: &[u8]) -> PathSegments {
        let text = String::from_utf8_lossy(bytes);
        let segments = text.lines().filter_map(|line| {
            let (text, since) = line.split_once(' ')?;
            let since = since.trim().parse().ok()?;
            is_segment(text).then(|| Segment {
                text: text.to_owned(),
                since,
            })
        });
        PathSegments(segments.collect())
    }

    /// The text that [`PathSegments::from_bytes`] parses.
    pub fn to_bytes(&self) -> Vec<u8> {
        let lines = self.0.iter().map(|s| format!("{} {}\n", s.text, s.since));
        lines.collect::<String>().into_bytes()
    }

    /// The segments that the Secret should have at `now`; `None` if it has them already. `published` are the segments
    /// in the webhook configurations: a segment is kept as long as an API server may use it.
    pub fn next_segments(
        &self,
        now: Timestamp,
        policy: &RenewalPolicy,
        published: &[String],
    ) -> Option<PathSegments> {
        let age = |segment: &Segment| now.duration_since(segment.since);
        let mut next = self.clone();
        for segment in &mut next.0 {
            // A time in the future comes from a clock that was ahead. Without this line, the segment would be neither
            // published nor replaced before that time.
            segment.since = segment.since.min(now);
        }
        if next
            .0
            .first()
            .is_none_or(|newest| age(newest) >= policy.segment)
        {
            let text = (0..SEGMENT_BYTES).map(|_| format!("{:02x}", rand::random::<u8>()));
            let newest = Segment {
                text: text.collect(),
                since: now,
            };
            next.0.insert(0, newest);
        }
        // A segment of this age has been published for so long that no API server uses an earlier one.
        let known = policy.segment_settle.saturating_mul(2);
        if let Some(current) = next.0.iter().position(|segment| age(segment) >= known) {
            let mut position = 0;
            next.0.retain(|segment| {
                position += 1;
                position <= current + 1 || published.contains(&segment.text)
            });
        }
        (next != *self).then_some(next)
    }

    /// The segment to publish; `None` until every replica knows the first segment.
    pub fn published_segment(&self, now: Timestamp, policy: &RenewalPolicy) -> Option<&str> {
        let settled = |s: &&Segment| now.duration_since(s.since) >= policy.segment_settle;
        self.0.iter().find(settled).map(|segment| &*segment.text)
    }

    /// All segments by which the server may be called.
    pub fn accepted_segments(&self) -> Vec<String> {
        self.0.iter().map(|segment| segment.text.clone()).collect()
    }
}

/// Whether a part of a path has the form of a segment.
pub fn is_segment(text: &str) -> bool {
    text.len() == 2 * SEGMENT_BYTES && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The segment of a path, if the path begins with one, and the rest of the path.
pub fn split_path(path: &str) -> (Option<&str>, &str) {
    let Some(rest) = path.strip_prefix('/') else {
        return (None, path);
    };
    let end = rest.find('/').unwrap_or(rest.len());
    match rest.split_at(end) {
        (segment, rest) if is_segment(segment) => (Some(segment), rest),
        _ => (None, path),
    }
}

/// `path` with this segment before it. A segment that it already has is replaced.
pub fn join_path(segment: Option<&str>, path: &str) -> String {
    let (_, plain) = split_path(path);
    match segment {
        Some(segment) => format!("/{segment}{plain}"),
        None => plain.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use jiff::SignedDuration;

    use super::*;

    fn at(minutes: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes)
    }

    /// The content of the Secret if a replica does the due step at each of these minutes.
    fn after(minutes: impl IntoIterator<Item = i64>) -> PathSegments {
        minutes
            .into_iter()
            .fold(PathSegments::default(), |segments, now| {
                segments
                    .next_segments(at(now), &RenewalPolicy::default(), &[])
                    .unwrap_or(segments)
            })
    }

    #[test]
    fn segment_is_accepted_before_and_after_its_publication() {
        let policy = RenewalPolicy::default();
        let day = 24 * 60;
        let first = after([0]);
        assert_eq!(first.accepted_segments().len(), 1);
        assert_eq!(first.published_segment(at(9), &policy), None);
        let of_first = first.published_segment(at(10), &policy).unwrap().to_owned();
        let both = after([0]).next_segments(at(day), &policy, &[]);
        assert_eq!(first.next_segments(at(day - 1), &policy, &[]), None);
        assert_eq!(both.unwrap().accepted_segments().len(), 2);
        let both = first.next_segments(at(day), &policy, &[]).unwrap();
        assert_eq!(
            both.published_segment(at(day + 9), &policy),
            Some(&*of_first)
        );
        let second = both
            .published_segment(at(day + 10), &policy)
            .unwrap()
            .to_owned();
        assert_ne!(second, of_first);
        assert_eq!(both.next_segments(at(day + 19), &policy, &[]), None);
        let left = both.next_segments(at(day + 20), &policy, &[]).unwrap();
        assert_eq!(left.accepted_segments(), std::slice::from_ref(&second));
        let still = std::slice::from_ref(&of_first);
        assert_eq!(
            both.next_segments(at(day + 20), &policy, still),
            None,
            "it is still published"
        );
        assert_eq!(both.accepted_segments(), [second, of_first]);
    }

    #[test]
    fn future_segment_is_dated_when_first_seen() {
        let policy = RenewalPolicy::default();
        let ahead = after([60 * 24 * 400]);
        let mended = ahead.next_segments(at(0), &policy, &[]).unwrap();
        assert_eq!(mended.accepted_segments(), ahead.accepted_segments());
        assert!(mended.published_segment(at(10), &policy).is_some());
    }

    #[test]
    fn segments_round_trip_and_malformed_lines_are_dropped() {
        let segments = after([0, 24 * 60]);
        assert_eq!(segments.accepted_segments().len(), 2);
        let mut bytes = segments.to_bytes();
        assert_eq!(PathSegments::from_bytes(&bytes), segments);
        bytes.extend(b"x\n../../x 2026-01-01T00:00:00Z\n\xff\n");
        assert_eq!(PathSegments::from_bytes(&bytes), segments);
    }

    #[test]
    fn paths_split_and_join() {
        let segment = "0123456789abcdef0123456789abcdef";
        let path = format!("/{segment}/validate/pods");
        assert_eq!(split_path(&path), (Some(segment), "/validate/pods"));
        for plain in ["/validate/pods", "/", "", "/0123", "x"] {
            assert_eq!(split_path(plain), (None, plain));
        }
        assert_eq!(split_path(&format!("/{segment}")), (Some(segment), ""));
        assert_eq!(join_path(Some(segment), "/validate/pods"), path);
        assert_eq!(join_path(None, &path), "/validate/pods");
        let other = "f".repeat(32);
        assert_eq!(
            join_path(Some(&other), &path),
            format!("/{other}/validate/pods")
        );
    }
}
