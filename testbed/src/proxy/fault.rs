//! Faults of requests, which can be changed at any time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode, Uri};
use tokio::sync::watch;

/// The parts of a request by which a fault selects requests.
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
    /// Whether the request is a write.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.method != Method::GET
    }

    /// Whether the request is a watch, whose answer is an endless stream of events.
    #[must_use]
    pub fn watches(&self) -> bool {
        let query = self.uri.query().unwrap_or_default();
        query.split('&').any(|pair| pair.starts_with("watch="))
    }
}

/// The effect of a fault on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The proxy forwards the request at once and delays the answer. It delays each event of a watch by the same time.
    Delay(Duration),
    /// The proxy forwards the request after the end of the fault. Until then running watches deliver nothing.
    Freeze,
    /// Watches can begin, but no watch delivers events until the fault ends.
    Mute,
    /// The proxy answers with this status and does not forward the request.
    Answer(StatusCode),
    /// The proxy forwards the request and then closes the connection instead of answering.
    LoseReply,
}

/// An effect and the affected requests.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    effect: Effect,
    on: fn(&Asked) -> bool,
    every: usize,
}

impl Fault {
    /// Affects all requests.
    #[must_use]
    pub fn new(effect: Effect) -> Self {
        Self {
            effect,
            on: |_| true,
            every: 1,
        }
    }

    /// Affects only these requests.
    #[must_use]
    pub fn on(self, on: fn(&Asked) -> bool) -> Self {
        Self { on, ..self }
    }

    /// Affects only every `n`-th of them. Events of running watches are not counted: a delay or freeze that
    /// selects the watch's request applies to all its events.
    #[must_use]
    pub fn every(self, n: usize) -> Self {
        Self { every: n, ..self }
    }
}

/// The current fault, shared by all connections, and its counts.
#[derive(Debug)]
pub(super) struct CurrentFault {
    fault: watch::Sender<Option<Fault>>,
    matched: AtomicUsize,
    affected: AtomicUsize,
}

impl Default for CurrentFault {
    fn default() -> Self {
        Self {
            fault: watch::Sender::new(None),
            matched: AtomicUsize::default(),
            affected: AtomicUsize::default(),
        }
    }
}

impl CurrentFault {
    /// Sets another fault and resets the counts.
    pub fn set(&self, fault: Fault) {
        self.matched.store(0, Ordering::Relaxed);
        self.affected.store(0, Ordering::Relaxed);
        self.fault.send_replace(Some(fault));
    }

    /// Ends the fault; the counts stay.
    pub fn end(&self) {
        self.fault.send_replace(None);
    }

    /// Number of affected requests since the fault was set.
    pub fn affected_requests(&self) -> usize {
        self.affected.load(Ordering::Relaxed)
    }

    /// The effect on a new request, which this call counts. Call it once for each request.
    pub fn effect_on(&self, asked: &Asked) -> Option<Effect> {
        let fault = self.in_force(asked)?;
        let turn = self.matched.fetch_add(1, Ordering::Relaxed) + 1;
        if !turn.is_multiple_of(fault.every) {
            return None;
        }
        self.affected.fetch_add(1, Ordering::Relaxed);
        Some(fault.effect)
    }

    /// Delays an event of a watch as the current fault requires.
    pub async fn delay_event(&self, asked: &Asked) {
        if let Some(Effect::Delay(delay)) = self.in_force(asked).map(|f| f.effect) {
            tokio::time::sleep(delay).await;
        }
        self.wait_unfrozen(asked).await;
    }

    /// Returns when this request is not frozen.
    pub async fn wait_unfrozen(&self, asked: &Asked) {
        let mut fault = self.fault.subscribe();
        let frozen = |f: &Option<Fault>| {
            f.is_some_and(|f| matches!(f.effect, Effect::Freeze | Effect::Mute) && (f.on)(asked))
        };
        // This never fails, because the sender lives as long as `self`.
        let _ = fault.wait_for(|f| !frozen(f)).await;
    }

    fn in_force(&self, asked: &Asked) -> Option<Fault> {
        self.fault.borrow().filter(|fault| (fault.on)(asked))
    }
}
