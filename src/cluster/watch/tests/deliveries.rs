//! Tests what the sink receives, and which requests the loop sends, for each answer of the API server.

use std::collections::VecDeque;

use serde_json::Value;

use super::*;

/// The answer to one request.
enum Reply {
    /// A page of a list: its version, its objects, and the token of the next page.
    Page(u64, &'static [&'static str], &'static str),
    /// A complete response with this text.
    Text(&'static str),
    /// A refusal with this code.
    Status(u16),
    /// Pieces of the body of a watch, and its end.
    Watch(Vec<String>, End),
    /// No answer.
    Hangs,
}

/// How the connection of a watch ends.
#[derive(Clone, Copy)]
enum End {
    /// The API server closes the response in an orderly way.
    Closes,
    /// The connection breaks.
    Breaks,
    /// The connection stays open, and delivers nothing more.
    Hangs,
}

/// An API server that gives these replies in their order, and then leaves each request without an answer. It answers
/// reads of the position at once.
#[derive(Clone)]
struct Server {
    replies: Arc<Mutex<VecDeque<Reply>>>,
    /// `list`, `list TOKEN`, or `watch VERSION`.
    requests: Arc<Mutex<Vec<String>>>,
    /// Notified when a request comes after the last reply.
    exhausted: Arc<Notify>,
}

impl Server {
    fn with_replies(replies: Vec<Reply>) -> Server {
        Server {
            replies: Arc::new(Mutex::new(replies.into())),
            requests: Arc::default(),
            exhausted: Arc::default(),
        }
    }
}

impl FakeServer for Server {
    async fn answer(&self, query: &str) -> Answer {
        let parameters = form_urlencoded(query);
        let parameter = |name: &str| {
            let found = parameters.iter().find(|(known, _)| known == name);
            found.map_or("", |(_, value)| value)
        };
        if !parameter("fieldSelector").is_empty() {
            return complete(list_text(1_000, &[], ""));
        }
        let request = match parameter("watch") {
            "" => format!("list {}", parameter("continue")),
            _ => format!("watch {}", parameter("resourceVersion")),
        };
        self.requests.lock().push(request.trim_end().to_owned());
        let reply = self.replies.lock().pop_front();
        match reply {
            Some(Reply::Page(version, objects, next)) => {
                complete(list_text(version, objects, next))
            }
            Some(Reply::Text(text)) => complete(text.to_owned()),
            Some(Reply::Status(code)) => {
                let mut answer = complete(status(code).to_string());
                *answer.status_mut() = http::StatusCode::from_u16(code).unwrap();
                answer
            }
            Some(Reply::Watch(pieces, end)) => watch_answer(pieces, end),
            Some(Reply::Hangs) => std::future::pending().await,
            None => {
                self.exhausted.notify_one();
                std::future::pending().await
            }
        }
    }
}

fn list_text(version: u64, objects: &[&str], next: &str) -> String {
    let items: Vec<_> = objects.iter().map(|name| object(name, version)).collect();
    json!({
        "apiVersion": "v1", "kind": "List", "items": items,
        "metadata": { "resourceVersion": version.to_string(), "continue": next },
    })
    .to_string()
}

fn watch_answer(pieces: Vec<String>, end: End) -> Answer {
    let pieces = pieces
        .into_iter()
        .map(|piece| Ok(Frame::data(Bytes::from(piece))));
    let pieces = stream::iter(pieces);
    let rest = stream::once(async move {
        match end {
            End::Closes => None,
            End::Breaks => Some(Err(std::io::Error::other("reset"))),
            End::Hangs => std::future::pending().await,
        }
    });
    let rest = rest.filter_map(std::future::ready);
    Response::new(StreamBody::new(pieces.chain(rest)).boxed_unsync())
}

fn status(code: u16) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
        "message": "too old resource version", "reason": "Expired",
    })
}

/// An object. The sink can't read an object whose name begins with `bad`.
fn object(name: &str, version: u64) -> Value {
    json!({ "metadata": { "name": name, "uid": name, "resourceVersion": version.to_string() } })
}

/// A line of a watch.
fn event(kind: &str, name: &str, version: u64) -> String {
    let event = json!({ "type": kind, "object": object(name, version) });
    format!("{event}\n")
}

fn bookmark(version: u64) -> String {
    event("BOOKMARK", "", version)
}

fn error_event(code: u16) -> String {
    let event = json!({ "type": "ERROR", "object": status(code) });
    format!("{event}\n")
}

/// Records the calls of the loop. An object is its name.
#[derive(Default)]
struct Recorder {
    deliveries: Mutex<Vec<String>>,
    unreadable: UnreadableObjects,
}

impl Recorder {
    fn record(&self, delivery: String) {
        self.deliveries.lock().push(delivery);
    }
}

impl WatchSink<String> for Recorder {
    fn parse(&self, raw: &str) -> serde_json::Result<String> {
        let object: Value = serde_json::from_str(raw)?;
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        match name.starts_with("bad") {
            true => Err(serde::de::Error::custom("bad object")),
            false => Ok(name.to_owned()),
        }
    }
    fn replace(&self, objects: Vec<String>, version: u64) {
        self.record(format!("replace {version}: {}", objects.join(" ")));
    }
    fn apply(&self, object: String) {
        self.record(format!("apply {object}"));
    }
    fn delete(&self, object: String) {
        self.record(format!("delete {object}"));
    }
    fn bookmark(&self, version: u64) {
        self.record(format!("bookmark {version}"));
    }
    fn parse_unreadable(&self, raw: &str) -> Option<String> {
        raw.contains("bad-replaced")
            .then(|| "replacement".to_owned())
    }
    fn unreadable_objects(&self) -> Option<&UnreadableObjects> {
        Some(&self.unreadable)
    }
}

/// What the loop has done when it waits for an answer to its first request after the last reply.
struct Outcome {
    requests: Vec<String>,
    deliveries: Vec<String>,
    unreadable: usize,
    history: EtcdHistory,
}

async fn run_with_replies(replies: Vec<Reply>) -> Outcome {
    let server = Server::with_replies(replies);
    let sink = Arc::new(Recorder::default());
    let history = EtcdHistory::default();
    let stop = CancellationToken::new();
    let watch = tokio::spawn(run_watch::<String, _>(
        server.client(),
        Source::from_path("/api/v1/pods"),
        Arc::clone(&sink),
        CatchUpSignal::default(),
        history.clone(),
        stop.clone(),
    ));
    let end = async {
        tokio::select! {
            () = server.exhausted.notified() => {}
            _ = history.wait_history_lost() => {}
        }
    };
    let ended = timeout(Duration::from_secs(3_600), end).await;
    stop.cancel();
    watch.await.unwrap();
    let requests = server.requests.lock().clone();
    assert!(ended.is_ok(), "the loop has stalled after {requests:?}");
    let deliveries = sink.deliveries.lock().clone();
    Outcome {
        requests,
        deliveries,
        unreadable: sink.unreadable.count(),
        history,
    }
}

/// Runs the loop, and compares its requests and the calls of its sink.
async fn check(replies: Vec<Reply>, requests: &[&str], deliveries: &[&str]) -> Outcome {
    let outcome = run_with_replies(replies).await;
    assert_eq!(outcome.requests, requests);
    assert_eq!(outcome.deliveries, deliveries);
    outcome
}

#[tokio::test(start_paused = true)]
async fn pages_of_a_list_replace_the_state_at_once() {
    check(
        vec![
            Reply::Page(7, &["a", "b"], "second"),
            Reply::Page(7, &["c"], "third"),
            Reply::Page(7, &[], ""),
        ],
        &["list", "list second", "list third", "watch 7"],
        &["replace 7: a b c"],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn events_are_delivered_in_order_and_next_watch_continues() {
    let first = vec![
        event("ADDED", "b", 8),
        event("MODIFIED", "b", 9),
        event("DELETED", "a", 10),
        bookmark(12),
    ];
    check(
        vec![
            Reply::Page(7, &["a"], ""),
            Reply::Watch(first, End::Closes),
            Reply::Watch(vec![event("ADDED", "c", 13)], End::Closes),
        ],
        &["list", "watch 7", "watch 12", "watch 13"],
        &[
            "replace 7: a",
            "apply b",
            "apply b",
            "delete a",
            "bookmark 12",
            "apply c",
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn lines_are_delivered_however_they_are_split() {
    let text = [event("ADDED", "b", 8), event("ADDED", "c", 9)].concat();
    for size in [1, 7, 50, text.len()] {
        let bytes = text.as_bytes().chunks(size);
        let pieces = bytes.map(|piece| String::from_utf8(piece.to_vec()).unwrap());
        check(
            vec![
                Reply::Page(7, &["a"], ""),
                Reply::Watch(pieces.collect(), End::Closes),
            ],
            &["list", "watch 7", "watch 9"],
            &["replace 7: a", "apply b", "apply c"],
        )
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn error_event_is_followed_by_a_list() {
    for code in [410, 500, 504] {
        let events = vec![
            event("ADDED", "b", 8),
            error_event(code),
            event("ADDED", "x", 9),
        ];
        check(
            vec![
                Reply::Page(7, &["a"], ""),
                Reply::Watch(events, End::Hangs),
                Reply::Page(20, &["c"], ""),
            ],
            &["list", "watch 7", "list", "watch 20"],
            &["replace 7: a", "apply b", "replace 20: c"],
        )
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn refused_watch_is_followed_by_a_list() {
    for code in [410, 403, 429, 500] {
        check(
            vec![
                Reply::Page(7, &["a"], ""),
                Reply::Status(code),
                Reply::Page(20, &["c"], ""),
            ],
            &["list", "watch 7", "list", "watch 20"],
            &["replace 7: a", "replace 20: c"],
        )
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn line_that_was_cut_is_never_delivered() {
    let whole = event("ADDED", "c", 9);
    for end in [End::Closes, End::Breaks] {
        for length in [1, whole.len() / 2, whole.len() - 2] {
            let pieces = vec![event("ADDED", "b", 8), whole[..length].to_owned()];
            check(
                vec![
                    Reply::Page(7, &["a"], ""),
                    Reply::Watch(pieces, end),
                    Reply::Page(9, &["b", "c"], ""),
                ],
                &["list", "watch 7", "list", "watch 9"],
                &["replace 7: a", "apply b", "replace 9: b c"],
            )
            .await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn silent_watch_is_followed_by_a_list() {
    for pieces in [vec![], vec![event("ADDED", "b", 8)], vec!["{".to_owned()]] {
        let outcome = run_with_replies(vec![
            Reply::Page(7, &["a"], ""),
            Reply::Watch(pieces, End::Hangs),
            Reply::Page(9, &["b", "c"], ""),
        ])
        .await;
        assert_eq!(outcome.requests, ["list", "watch 7", "list", "watch 9"]);
        assert_eq!(outcome.deliveries.last().unwrap(), "replace 9: b c");
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_requests_are_repeated_by_a_list() {
    check(
        vec![
            Reply::Hangs,
            Reply::Page(7, &["a"], "second"),
            Reply::Hangs,
            Reply::Page(8, &["a", "b"], ""),
            Reply::Hangs,
            Reply::Page(9, &["b"], ""),
        ],
        &[
            "list",
            "list",
            "list second",
            "list",
            "watch 8",
            "list",
            "watch 9",
        ],
        &["replace 8: a b", "replace 9: b"],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn list_with_an_expired_token_begins_anew() {
    check(
        vec![
            Reply::Page(7, &["a"], "second"),
            Reply::Status(410),
            Reply::Page(9, &["b"], "third"),
            Reply::Page(9, &["c"], ""),
        ],
        &["list", "list second", "list", "list third", "watch 9"],
        &["replace 9: b c"],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn failed_list_keeps_the_known_state() {
    let version_that_is_no_number = r#"{ "metadata": { "resourceVersion": "x" }, "items": [] }"#;
    check(
        vec![
            Reply::Page(7, &["a"], ""),
            Reply::Watch(vec![error_event(410)], End::Closes),
            Reply::Status(500),
            Reply::Status(404),
            Reply::Text(r#"{ "metadata": { "resourceVersion": "8" }, "items": [ {"#),
            Reply::Text(version_that_is_no_number),
            Reply::Page(9, &["b"], ""),
        ],
        &[
            "list", "watch 7", "list", "list", "list", "list", "list", "watch 9",
        ],
        &["replace 7: a", "replace 9: b"],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn unreadable_object_does_not_end_the_watch() {
    let events = vec![
        event("ADDED", "bad", 8),
        event("MODIFIED", "bad-replaced", 9),
        event("ADDED", "b", 10),
    ];
    let outcome = check(
        vec![
            Reply::Page(7, &["a", "bad-listed"], ""),
            Reply::Watch(events, End::Closes),
        ],
        &["list", "watch 7", "watch 10"],
        &["replace 7: a", "bookmark 8", "apply replacement", "apply b"],
    )
    .await;
    assert_eq!(outcome.unreadable, 3);
}

#[tokio::test(start_paused = true)]
async fn unreadable_deletion_is_followed_by_a_list() {
    let outcome = check(
        vec![
            Reply::Page(7, &["a", "bad"], ""),
            Reply::Watch(vec![event("DELETED", "bad", 8)], End::Hangs),
            Reply::Page(8, &["a"], ""),
        ],
        &["list", "watch 7", "list", "watch 8"],
        &["replace 7: a", "replace 8: a"],
    )
    .await;
    assert_eq!(outcome.unreadable, 0);
}

#[tokio::test(start_paused = true)]
async fn event_without_a_version_is_followed_by_a_list() {
    for line in [
        "{ \"type\": \"ADDED\", \"object\": { \"metadata\": {} } }\n",
        "no JSON\n",
    ] {
        check(
            vec![
                Reply::Page(7, &["a"], ""),
                Reply::Watch(vec![line.to_owned()], End::Hangs),
                Reply::Page(8, &["a"], ""),
            ],
            &["list", "watch 7", "list", "watch 8"],
            &["replace 7: a", "replace 8: a"],
        )
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn list_before_a_delivered_version_ends_the_loop() {
    let outcome = check(
        vec![
            Reply::Page(7, &["a"], ""),
            Reply::Watch(vec![bookmark(12), error_event(410)], End::Closes),
            Reply::Page(9, &["b"], ""),
        ],
        &["list", "watch 7", "list"],
        &["replace 7: a", "bookmark 12"],
    )
    .await;
    assert!(
        outcome
            .history
            .lost_reason()
            .unwrap()
            .contains("are at resourceVersion 9")
    );
}
