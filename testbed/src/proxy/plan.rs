//! What goes wrong with requests on purpose, switchable at any time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode, Uri};
use tokio::sync::watch;

/// A request, as far as a fault tells requests apart.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Method.
    pub method: Method,
    /// Path and query.
    pub uri: Uri,
    /// Body.
    pub body: Bytes,
}

impl Asked {
    /// Whether it changes something.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.method != Method::GET
    }

    /// Whether it is a watch: its answer is a stream of events without an end.
    #[must_use]
    pub fn watches(&self) -> bool {
        let query = self.uri.query().unwrap_or_default();
        query.split('&').any(|pair| pair.starts_with("watch="))
    }
}

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Carried out at once, answered this much later. Each event of a watch is late by as much.
    Delay(Duration),
    /// Neither carried out nor answered, and running watches stand still; all goes on once the fault is lifted.
    Freeze,
    /// Watches begin and deliver nothing, and running ones stand still, until the fault is lifted.
    Mute,
    /// Not carried out, answered with this status.
    Answer(StatusCode),
    /// Carried out, and the connection closed instead of an answer.
    LoseReply,
}

/// An effect and the requests it strikes.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    effect: Effect,
    on: fn(&Asked) -> bool,
    every: usize,
}

impl Fault {
    /// Strikes all requests.
    #[must_use]
    pub fn new(effect: Effect) -> Self {
        Self {
            effect,
            on: |_| true,
            every: 1,
        }
    }

    /// Strikes only these requests.
    #[must_use]
    pub fn on(self, on: fn(&Asked) -> bool) -> Self {
        Self { on, ..self }
    }

    /// Strikes only every `n`-th of them. Events of watches that run already are not counted: a delay or freeze that
    /// is for their request holds all of them.
    #[must_use]
    pub fn every(self, n: usize) -> Self {
        Self { every: n, ..self }
    }
}

/// The fault in force, shared by all connections, and what it did.
#[derive(Debug)]
pub(super) struct Plan {
    fault: watch::Sender<Option<Fault>>,
    matched: AtomicUsize,
    struck: AtomicUsize,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            fault: watch::Sender::new(None),
            matched: AtomicUsize::default(),
            struck: AtomicUsize::default(),
        }
    }
}

impl Plan {
    /// Puts another fault in force and counts anew.
    pub fn set(&self, fault: Fault) {
        self.matched.store(0, Ordering::Relaxed);
        self.struck.store(0, Ordering::Relaxed);
        self.fault.send_replace(Some(fault));
    }

    /// All is well again; the counts stay.
    pub fn lift(&self) {
        self.fault.send_replace(None);
    }

    /// How many requests were struck since the fault was set.
    pub fn struck(&self) -> usize {
        self.struck.load(Ordering::Relaxed)
    }

    /// What happens to a request that has just come. Each is asked about once.
    pub fn strike(&self, asked: &Asked) -> Option<Effect> {
        let fault = self.in_force(asked)?;
        let turn = self.matched.fetch_add(1, Ordering::Relaxed) + 1;
        if !turn.is_multiple_of(fault.every) {
            return None;
        }
        self.struck.fetch_add(1, Ordering::Relaxed);
        Some(fault.effect)
    }

    /// Holds an event of a watch for as long as the fault in force says.
    pub async fn hold(&self, asked: &Asked) {
        if let Some(Effect::Delay(delay)) = self.in_force(asked).map(|f| f.effect) {
            tokio::time::sleep(delay).await;
        }
        self.thaw(asked).await;
    }

    /// Returns when this request is not frozen, or not any more.
    pub async fn thaw(&self, asked: &Asked) {
        let mut fault = self.fault.subscribe();
        let frozen = |f: &Option<Fault>| {
            f.is_some_and(|f| matches!(f.effect, Effect::Freeze | Effect::Mute) && (f.on)(asked))
        };
        // Never an error: the sender lives as long as `self`.
        let _ = fault.wait_for(|f| !frozen(f)).await;
    }

    fn in_force(&self, asked: &Asked) -> Option<Fault> {
        self.fault.borrow().filter(|fault| (fault.on)(asked))
    }
}
