//! Tests what the sink learns about connections that end, fall silent, or start slowly.

use super::*;
use crate::cluster::watch_trust::{WATCH_TIMEOUT_SECONDS, WatchTrust};

/// The behaviour of one watch. All numbers are seconds, except for `Slow`.
#[derive(Clone, Copy)]
enum Watch {
    /// Sends a bookmark after the first time, and ends after the second.
    Ends(u64, u64),
    /// Sends a bookmark at once, and then nothing.
    FallsSilent,
    /// Ends in time, with a bookmark before. Starts its response and sends each event this number of milliseconds late.
    Slow(u64),
    /// Starts, and sends nothing.
    Mute,
    /// Sends an old event at once, and then nothing.
    Trails,
    /// Starts this long after the request, sends a bookmark at once, and then nothing.
    Late(u64),
    /// Starts, sends nothing, and breaks off after this time.
    Breaks(u64),
    /// The API server refuses the watch.
    Refused,
    /// Does not even start.
    Hangs,
    /// Watches a kind that nobody changes. The API server sends a bookmark each minute and two seconds before the end,
    /// but only if it has learnt a newer position of etcd since the start. It asks etcd for its position at each
    /// consistent read.
    Quiet,
}

/// An API server whose watches have these behaviours one after the other. The last behaviour is repeated forever. The
/// server records the requests.
#[derive(Clone)]
struct Server {
    watches: Arc<Vec<Watch>>,
    /// `list`, or the resourceVersion from which a watch continues.
    requests: Arc<Mutex<Vec<String>>>,
    /// The last version that a watch has sent.
    sent: Arc<AtomicU64>,
    /// For a quiet kind: when the server started, and which position of etcd the API server knows. etcd advances by one
    /// each second.
    begun: Instant,
    progress: Arc<AtomicU64>,
    /// How late the server answers lists of all objects.
    late: Duration,
}

impl FakeServer for Server {
    async fn answer(&self, query: &str) -> Answer {
        let parameters: Vec<_> = form_urlencoded(query);
        let parameter = |name: &str| parameters.iter().find(|(n, _)| n == name).map(|p| &p.1);
        if parameter("watch").is_none() {
            return self.list(parameter("fieldSelector").is_some()).await;
        }
        let from: u64 = parameter("resourceVersion").unwrap().parse().unwrap();
        let number = {
            let mut requests = self.requests.lock();
            requests.push(from.to_string());
            requests.iter().filter(|request| *request != "list").count() - 1
        };
        let watch = self.watches[number.min(self.watches.len() - 1)];
        match watch {
            Watch::Ends(bookmark, end) => self.one_event("BOOKMARK", from, bookmark, Some(end)),
            Watch::FallsSilent => self.one_event("BOOKMARK", from, 0, None),
            Watch::Trails => self.one_event("ADDED", from, 0, None),
            Watch::Late(seconds) => {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                self.one_event("BOOKMARK", from, 0, None)
            }
            Watch::Mute => {
                let never = stream::pending::<std::io::Result<Frame<Bytes>>>();
                Response::new(StreamBody::new(never).boxed_unsync())
            }
            Watch::Breaks(seconds) => {
                let broken = stream::once(async move {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    Err::<Frame<Bytes>, _>(std::io::Error::other("reset"))
                });
                Response::new(StreamBody::new(broken).boxed_unsync())
            }
            Watch::Refused => {
                let mut refusal = complete(String::new());
                *refusal.status_mut() = http::StatusCode::BAD_GATEWAY;
                refusal
            }
            Watch::Hangs => std::future::pending().await,
            Watch::Slow(late) => self.slow(from, Duration::from_millis(late)).await,
            Watch::Quiet => {
                let life = parameter("timeoutSeconds").unwrap().parse().unwrap();
                self.quiet(from, life)
            }
        }
    }
}

impl Server {
    /// A list of all objects, or of no objects for their position.
    async fn list(&self, is_position: bool) -> Answer {
        let is_quiet = matches!(self.watches[0], Watch::Quiet);
        let revision = 7 + self.begun.elapsed().as_secs();
        if is_quiet {
            self.progress.store(revision, Ordering::Relaxed);
            self.sent.store(revision, Ordering::Relaxed);
        }
        if !is_position {
            self.requests.lock().push("list".to_owned());
            tokio::time::sleep(self.late).await;
        }
        let version = match is_position && !is_quiet {
            true => 99,
            false => self.sent.load(Ordering::Relaxed).max(7),
        };
        let list = json!({
            "apiVersion": "v1", "kind": "List", "items": [],
            "metadata": { "resourceVersion": version.to_string() },
        });
        complete(list.to_string())
    }

    /// A watch that sends one event after `delay` seconds. It ends after `end` seconds, or falls silent.
    fn one_event(&self, kind: &'static str, from: u64, delay: u64, end: Option<u64>) -> Answer {
        let sent = Arc::clone(&self.sent);
        let lines = stream::unfold(0, move |step| {
            let sent = Arc::clone(&sent);
            async move {
                match (step, end) {
                    (0, _) => {
                        tokio::time::sleep(Duration::from_secs(delay)).await;
                        sent.store(from + 1, Ordering::Relaxed);
                        Some((event_frame(kind, from + 1), 1))
                    }
                    (_, Some(end)) => {
                        tokio::time::sleep(Duration::from_secs(end - delay)).await;
                        None
                    }
                    (_, None) => std::future::pending().await,
                }
            }
        });
        Response::new(StreamBody::new(lines).boxed_unsync())
    }

    /// A watch that ends in time, and whose response and bookmark are `late`.
    async fn slow(&self, from: u64, late: Duration) -> Answer {
        tokio::time::sleep(late).await;
        self.sent.store(from + 1, Ordering::Relaxed);
        let life = Duration::from_secs(WATCH_TIMEOUT_SECONDS.into());
        let bookmark = event_frame("BOOKMARK", from + 1);
        let lines = stream::unfold(Some(bookmark), move |bookmark| async move {
            let Some(bookmark) = bookmark else {
                tokio::time::sleep(Duration::from_secs(2).saturating_sub(late)).await;
                return None;
            };
            tokio::time::sleep(life - Duration::from_secs(2)).await;
            Some((bookmark, None))
        });
        Response::new(StreamBody::new(lines).boxed_unsync())
    }

    /// A watch of a quiet kind from this version, with this life in seconds.
    fn quiet(&self, from: u64, life: u64) -> Answer {
        let (progress, begin) = (Arc::clone(&self.progress), Instant::now());
        let lines = stream::unfold(from, move |sent| {
            let progress = Arc::clone(&progress);
            async move {
                loop {
                    let at = begin.elapsed().as_secs();
                    if at >= life {
                        return None;
                    }
                    let minute = at / 60 * 60 + 60;
                    let next = if at + 2 < life {
                        minute.min(life - 2)
                    } else {
                        life
                    };
                    tokio::time::sleep_until(begin + Duration::from_secs(next)).await;
                    let known = progress.load(Ordering::Relaxed);
                    if next < life && known > sent {
                        return Some((event_frame("BOOKMARK", known), known));
                    }
                }
            }
        });
        Response::new(StreamBody::new(lines).boxed_unsync())
    }
}

fn event_frame(kind: &str, version: u64) -> std::io::Result<Frame<Bytes>> {
    let metadata = json!({ "resourceVersion": version.to_string() });
    let event = json!({ "type": kind, "object": { "metadata": metadata } });
    Ok(Frame::data(Bytes::from(format!("{event}\n"))))
}

#[derive(Default)]
struct Rules(WatchTrust);

impl WatchSink<u8> for Rules {
    fn parse(&self, raw: &str) -> serde_json::Result<u8> {
        serde_json::from_str(raw)
    }
    fn replace(&self, _objects: Vec<u8>, _version: u64) {}
    fn apply(&self, _object: u8) {}
    fn delete(&self, _object: u8) {}
    fn bookmark(&self, _version: u64) {}
    fn parse_unreadable(&self, _raw: &str) -> Option<u8> {
        None
    }
    fn on_known_at(&self, at: Instant) {
        self.0.extend_trust(at);
    }
    fn on_lost(&self) {
        self.0.end_trust();
    }
}

/// Whether the watch was alive in the middle of each second, and the requests to the server.
async fn followed(watches: &[Watch], seconds: usize) -> (Vec<bool>, Vec<String>) {
    followed_by(watches, WATCH_TIMEOUT_SECONDS, Duration::ZERO, seconds).await
}

/// As [`followed`], for watches that live for `life` seconds and lists that are answered late.
async fn followed_by(
    watches: &[Watch],
    life: u32,
    late: Duration,
    seconds: usize,
) -> (Vec<bool>, Vec<String>) {
    let server = Server {
        watches: watches.to_vec().into(),
        requests: Arc::default(),
        sent: Arc::default(),
        begun: Instant::now(),
        progress: Arc::default(),
        late,
    };
    let sink = Arc::new(Rules::default());
    let source = Source {
        seconds: life,
        ..Source::from_path("/apis/apps.kusionstack.io/v1alpha1/podtransitionrules")
    };
    let stop = CancellationToken::new();
    let watch = tokio::spawn(run_watch::<u8, _>(
        server.client(),
        source,
        Arc::clone(&sink),
        CatchUpSignal::default(),
        EtcdHistory::default(),
        stop.clone(),
    ));
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut alive = Vec::new();
    for _ in 0..seconds {
        alive.push(sink.0.is_trusted_now());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    stop.cancel();
    watch.await.unwrap();
    (alive, server.requests.lock().clone())
}

#[tokio::test(start_paused = true)]
async fn watches_that_end_in_time_are_followed_throughout() {
    let life = u64::from(WATCH_TIMEOUT_SECONDS);
    let (alive, requests) = followed(&[Watch::Ends(life - 2, life)], 60).await;
    assert_eq!(alive, [true; 60]);
    assert_eq!(requests[..4], ["list", "7", "8", "9"]);
    assert!(
        requests.len() > 7 && requests.iter().filter(|request| *request == "list").count() == 1
    );
}

#[tokio::test(start_paused = true)]
async fn watch_of_a_kind_that_nobody_changes_is_followed_throughout() {
    let (alive, requests) = followed(&[Watch::Quiet], 120).await;
    assert_eq!(alive, [true; 120], "{requests:?}");
    assert_eq!(
        requests.iter().filter(|request| *request == "list").count(),
        1
    );
    // A watch with a long life is never given up.
    let (_, requests) =
        followed_by(&[Watch::Quiet], LONG_WATCH_SECONDS, Duration::ZERO, 1_000).await;
    assert_eq!(
        requests.iter().filter(|request| *request == "list").count(),
        1,
        "{requests:?}"
    );
    assert!(requests.len() <= 6, "{requests:?}");
}

#[tokio::test(start_paused = true)]
async fn silent_watch_is_replaced_and_trusted_after_next_delivery() {
    let life = u64::from(WATCH_TIMEOUT_SECONDS);
    let silent = [Watch::FallsSilent, Watch::Hangs];
    let (alive, requests) = followed(&silent, 20).await;
    assert_eq!(
        (&alive[..5], &alive[10..]),
        (&[true; 5][..], &[false; 10][..]),
        "{alive:?} {requests:?}"
    );
    assert_eq!(requests, ["list", "7", "list", "8"]);
    let again = [Watch::FallsSilent, Watch::Ends(life - 2, life)];
    let (alive, _) = followed(&again, 30).await;
    assert_eq!(
        alive[6..8],
        [false; 2],
        "a list alone is no sign of life: {alive:?}"
    );
    assert_eq!(alive[12..], [true; 18]);
}

#[tokio::test(start_paused = true)]
async fn watch_without_deliveries_is_never_trusted() {
    let (alive, requests) = followed(&[Watch::Mute], 120).await;
    assert_eq!(alive[10..], [false; 110]);
    let lists = requests.iter().filter(|request| *request == "list").count();
    assert!((5..=15).contains(&lists), "{lists} lists in two minutes");
}

/// The API server counts the life of a watch from the request.
#[tokio::test(start_paused = true)]
async fn watch_whose_answer_begins_late_is_followed_throughout() {
    for late in [500, 1_000, 1_100, 1_500, 1_900] {
        let (alive, requests) = followed(&[Watch::Slow(late)], 60).await;
        assert_eq!(alive, [true; 60], "{late} ms: {requests:?}");
    }
}

/// A connection that hung may deliver old events, while newer events are still missing.
#[tokio::test(start_paused = true)]
async fn event_alone_does_not_restore_trust() {
    let (alive, requests) = followed(&[Watch::Mute, Watch::Trails], 60).await;
    assert_eq!(alive[10..], [false; 50], "{requests:?}");
}

#[tokio::test(start_paused = true)]
async fn bookmark_trust_starts_at_its_earliest_possible_time() {
    let (alive, requests) = followed(&[Watch::Late(8), Watch::Hangs], 20).await;
    assert_eq!(alive[8..11], [true; 3], "{alive:?} {requests:?}");
    assert_eq!(alive[12..], [false; 8], "{alive:?} {requests:?}");
}

#[tokio::test(start_paused = true)]
async fn early_ended_watch_is_untrusted_until_next_begins() {
    let (alive, _) = followed(&[Watch::Ends(1, 3), Watch::Hangs], 10).await;
    assert_eq!(alive[..3], [true; 3]);
    assert_eq!(alive[3..], [false; 7]);
}

#[tokio::test(start_paused = true)]
async fn ended_watch_is_untrusted_if_next_does_not_begin() {
    let life = u64::from(WATCH_TIMEOUT_SECONDS);
    let (alive, _) = followed(&[Watch::Ends(life - 2, life), Watch::Hangs], 16).await;
    assert_eq!(
        (&alive[..7], &alive[9..]),
        (&[true; 7][..], &[false; 7][..]),
        "{alive:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn list_trust_starts_at_its_request_time() {
    let life = u64::from(WATCH_TIMEOUT_SECONDS);
    let late = Duration::from_secs(8);
    let good = [Watch::Ends(life - 2, life)];
    let (alive, _) = followed_by(&good, WATCH_TIMEOUT_SECONDS, late, 30).await;
    assert_eq!(alive[..8], [false; 8], "{alive:?}");
    assert_eq!(alive[8..10], [true; 2], "{alive:?}");
    assert!(!alive[10], "{alive:?}");
    assert_eq!(alive[11..], [true; 19], "{alive:?}");
}

#[tokio::test(start_paused = true)]
async fn dropped_watches_are_not_trusted() {
    let (alive, requests) = followed(&[Watch::Breaks(5)], 60).await;
    assert_eq!(alive[10..], [false; 50], "{requests:?}");
}

#[tokio::test(start_paused = true)]
async fn refused_watches_back_off_their_lists() {
    let (_, requests) = followed(&[Watch::Refused], 60).await;
    let lists = requests.iter().filter(|request| *request == "list").count();
    assert!(lists <= 20, "{lists} lists in a minute");
}
