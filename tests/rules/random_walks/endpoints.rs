//! The endpoints of a walk: they approve all Pods, some or none, answer nonsense, are slow, die and come back.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};
use testbed::endpoint::{Heard, Reply, RuleServer};
use tokio::sync::Notify;

use super::history::{Answer, Call};

/// The behaviour of an endpoint for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    Yes,
    No,
    /// Approves some Pods, and names Pods that do not exist.
    Some,
    /// Starts tasks, and sometimes forgets them.
    Tasks,
    /// Any of the above after 1 to 3 seconds.
    Slow,
    /// Approves, or starts a task, with field names in another casing.
    Casing,
    Garbage,
    /// Approves in the body of an answer with this status.
    Status(u16),
    /// Redirects to an endpoint that approves everybody.
    Redirect,
    Hangs,
    Closes,
    ClosesMidBody,
    Down,
    /// From now on approves every Pod and finishes every task.
    Healed,
}

pub const MOODS: [Mood; 18] = [
    Mood::Yes,
    Mood::Yes,
    Mood::No,
    Mood::No,
    Mood::Some,
    Mood::Some,
    Mood::Tasks,
    Mood::Tasks,
    Mood::Tasks,
    Mood::Slow,
    Mood::Casing,
    Mood::Garbage,
    Mood::Status(500),
    Mood::Redirect,
    Mood::Hangs,
    Mood::Closes,
    Mood::ClosesMidBody,
    Mood::Down,
];

/// Longest time that a caller waits, less a margin for slow machines.
const HANGS: u64 = 29_000_000_000;

struct State {
    mood: Mood,
    rng: StdRng,
    tasks: u32,
    names: Vec<String>,
}

pub struct Endpoint {
    pub server: RuleServer,
    state: Arc<Mutex<State>>,
    /// Ends all hanging answers.
    over: Arc<Notify>,
}

impl Endpoint {
    /// An endpoint that approves everybody, and knows these names of Pods.
    pub async fn start(seed: u64, names: Vec<String>) -> Endpoint {
        let (over, state) = (
            Arc::new(Notify::new()),
            Arc::new(Mutex::new(State {
                mood: Mood::Yes,
                rng: StdRng::seed_from_u64(seed),
                tasks: 0,
                names,
            })),
        );
        let (is_over, speaking) = (Arc::clone(&over), Arc::clone(&state));
        let server = RuleServer::start(move |request| {
            let mut state = speaking.lock();
            let mood = state.mood;
            state.reply(mood, request, &is_over)
        })
        .await;
        Endpoint {
            server,
            state,
            over,
        }
    }

    pub fn turn(&self, mood: Mood) {
        self.state.lock().mood = mood;
        self.server.set_down(mood == Mood::Down);
        if mood == Mood::Healed {
            self.over.notify_waiters();
        }
    }

    pub fn host(&self) -> String {
        self.server.url("")
    }

    pub fn calls(&self) -> Vec<Call> {
        let request = self.server.heard().into_iter();
        request.map(|request| self.call(&request)).collect()
    }

    fn call(&self, request: &Heard) -> Call {
        let (path, query) = request
            .target
            .split_once('?')
            .unwrap_or((&request.target, ""));
        let text = |field: &str| request.body[field].as_str().unwrap_or_default().to_owned();
        let is_poll = request.method == "GET";
        Call {
            url: self.server.url(path),
            rule: text("ruleName"),
            stage: text("stage"),
            pods: if is_poll { Vec::new() } else { request.names() },
            task: is_poll.then(|| query.trim_start_matches("task-id=").to_owned()),
            at: request.at,
            answered_at: request.told.unwrap_or(request.at + HANGS),
            answer: request
                .reply
                .as_ref()
                .map_or(Answer::Error, |r| answer_of(r, is_poll)),
        }
    }
}

impl State {
    fn reply(&mut self, mood: Mood, request: &Heard, over: &Arc<Notify>) -> Reply {
        let is_poll = request.method == "GET";
        match mood {
            Mood::Healed if is_poll => Reply::Json(json!({"success": true, "finished": true})),
            Mood::Healed => Reply::pass(),
            Mood::Yes | Mood::No | Mood::Some | Mood::Tasks if is_poll => self.progress(mood),
            Mood::Yes => Reply::pass(),
            Mood::No => Reply::refuse("no"),
            Mood::Some => {
                let names = self.some();
                let all = json!({"success": false, "message": "half", "finishedNames": names});
                Reply::Json(all)
            }
            Mood::Tasks => self.task(),
            Mood::Slow => {
                let time = Duration::from_millis(self.rng.random_range(1000..3000));
                let moods = [
                    Mood::Yes,
                    Mood::No,
                    Mood::Some,
                    Mood::Tasks,
                    Mood::Status(500),
                ];
                let then = *moods.choose(&mut self.rng).unwrap();
                Reply::Slow(time, Box::new(self.reply(then, request, over)))
            }
            Mood::Casing => {
                let moods = [Mood::Yes, Mood::Some, Mood::Tasks];
                let then = *moods.choose(&mut self.rng).unwrap();
                recased(self.reply(then, request, over))
            }
            Mood::Garbage => {
                let bodies = [
                    "",
                    "null",
                    "[true]",
                    "{\"success\": true",
                    "{\"success\": \"true\"}",
                    "{\"success\": true, \"finished\": 1, \"poll\": 1}",
                    "<html>yes</html>",
                ];
                let body = *bodies.choose(&mut self.rng).unwrap();
                Reply::Raw(200, "", body.to_owned())
            }
            Mood::Status(status) => {
                let status = if self.rng.random_bool(0.5) {
                    404
                } else {
                    status
                };
                let body = json!({"success": true, "finished": true}).to_string();
                Reply::Raw(status, "", body)
            }
            Mood::Redirect => {
                let body = json!({"success": true, "finished": true}).to_string();
                Reply::Raw(302, "Location: /yes\r\n", body)
            }
            Mood::Hangs => Reply::CloseAfter(Arc::clone(over)),
            Mood::Closes | Mood::Down => Reply::Close,
            Mood::ClosesMidBody => Reply::CloseMidBody,
        }
    }

    /// Some of the given names, and some names that do not exist.
    fn some(&mut self) -> Vec<String> {
        let mut names = self.names.clone();
        names.push("stranger".to_owned());
        names.retain(|_| self.rng.random_bool(0.4));
        names
    }

    fn task(&mut self) -> Reply {
        self.tasks += 1;
        let id = match self.rng.random_range(0..10) {
            0 => String::new(),
            1..4 => "again".to_owned(),
            _ => format!("t{}", self.tasks),
        };
        let flag = *["poll", "async"].choose(&mut self.rng).unwrap();
        let mut all = json!({"success": true, flag: true, "taskId": id});
        if self.rng.random_bool(0.3) {
            all["finishedNames"] = json!(self.some());
        }
        Reply::Json(all)
    }

    fn progress(&mut self, mood: Mood) -> Reply {
        let percentile = match mood {
            Mood::Yes => 90,
            Mood::No => 0,
            Mood::Some => 40,
            _ => self.rng.random_range(0..100),
        };
        let all = match percentile {
            0..35 => json!({"success": true, "message": "at work"}),
            35..65 => {
                json!({"success": true, "message": "half", "finishedNames": self.some()})
            }
            65..72 => json!({"success": false, "stop": true, "message": "stopped"}),
            72..76 => json!({"success": false, "finished": true}),
            76..82 => return Reply::Raw(404, "", "{}".to_owned()),
            82..86 => return Reply::Close,
            _ => json!({"success": true, "finished": true}),
        };
        Reply::Json(all)
    }
}

/// The same with field names in another casing.
fn recased(reply: Reply) -> Reply {
    let Reply::Json(Value::Object(fields)) = reply else {
        return reply;
    };
    let recased = |(key, value): (String, Value)| {
        let upper = key.to_uppercase();
        let key = match key.len() % 2 {
            0 => upper,
            _ => format!("{}{}", &upper[..1], &key[1..].to_lowercase()),
        };
        (key, value)
    };
    Reply::Json(Value::Object(fields.into_iter().map(recased).collect()))
}

/// The meaning of a reply (contract 5.5), implemented apart from the code under test.
fn answer_of(reply: &Reply, is_poll: bool) -> Answer {
    let fields = match reply {
        Reply::Slow(_, then) => return answer_of(then, is_poll),
        Reply::Json(Value::Object(fields)) => fields,
        _ => return Answer::Error,
    };
    let fields: Map<String, Value> = fields
        .iter()
        .map(|(key, value)| (key.to_lowercase(), value.clone()))
        .collect();
    let is = |name: &str| fields.get(name) == Some(&json!(true));
    let names = fields.get("finishednames").and_then(Value::as_array);
    let names: Vec<_> = names
        .into_iter()
        .flatten()
        .map(|name| name.as_str().unwrap().to_owned())
        .collect();
    let id = fields
        .get("taskid")
        .and_then(Value::as_str)
        .unwrap_or_default();
    match (is("success"), is("poll") || is("async")) {
        (true, _) if is_poll && is("finished") => Answer::Yes,
        (true, false) if !is_poll => Answer::Yes,
        (true, true) if !is_poll && id.is_empty() => Answer::Named(Vec::new()),
        (true, true) if !is_poll => Answer::Task(id.to_owned(), names),
        _ => Answer::Named(names),
    }
}
