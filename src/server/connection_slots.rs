//! Decides which connections may stay open, and for how long.
//!
//! A connection is *proven* once a review that came over it has got a verdict, or once its client has shown the
//! certificate of an API server. An unproven connection may be idle only for seconds. It has one of a limited number of
//! slots, and can lose the slot to a newer connection. Proven connections have slots of their own. While a review of a
//! connection is being decided, the connection cannot lose its slot; the number of such connections is bounded by the
//! limit of concurrent reviews.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use super::Limits;
use super::fair_shares::{FairShares, Share, ShedCounters};
use super::self_check::OwnConnections;
use super::source_network::SourceNetwork;
use crate::telemetry::metrics::LoadMetrics;

pub(super) struct ConnectionSlots {
    own: OwnConnections,
    unproven: Arc<FairShares>,
    proven: Arc<Semaphore>,
    ages: AtomicU64,
    open: OpenGauges,
}

/// Gauges of the open connections, proven and unproven.
struct OpenGauges {
    proven: Gauge,
    unproven: Gauge,
}

/// The slot of one connection, which is freed when dropped.
pub(super) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    source: SourceNetwork,
    age: u64,
    shed: CancellationToken,
    state: Mutex<SlotState>,
}

enum SlotState {
    /// No verdict so far, and no review in progress.
    Unproven { _share: Share },
    /// No verdict so far, and this number of reviews in progress.
    Deciding(usize),
    /// The connection is proven and keeps its slot.
    Proven { _permit: OwnedSemaphorePermit },
    /// The connection by which this process checks itself. It uses no slot and carries no review.
    Own,
}

impl ConnectionSlots {
    pub(super) fn new(
        listener: &'static str,
        limits: &Limits,
        metrics: &LoadMetrics,
        own: OwnConnections,
    ) -> Arc<ConnectionSlots> {
        Arc::new(ConnectionSlots {
            own,
            unproven: FairShares::new(
                limits.unproven,
                limits.unproven_per_address,
                ShedCounters {
                    crowded: metrics.shed(listener, "crowded"),
                    source: metrics.shed(listener, "address"),
                },
            ),
            proven: Arc::new(Semaphore::new(limits.connections)),
            ages: AtomicU64::new(0),
            open: OpenGauges {
                proven: metrics.standing(listener, "proven"),
                unproven: metrics.standing(listener, "unproven"),
            },
        })
    }

    /// Takes a slot for a new connection from `peer`. If all slots are taken, another connection loses its slot.
    pub(super) fn acquire_slot(self: &Arc<Self>, peer: SocketAddr) -> Arc<ConnectionSlot> {
        let slot = ConnectionSlot {
            slots: Arc::clone(self),
            source: SourceNetwork::from_ip(peer.ip()),
            age: self.ages.fetch_add(1, Ordering::Relaxed),
            shed: CancellationToken::new(),
            state: Mutex::new(SlotState::Own),
        };
        self.open.unproven.inc();
        if !self.own.is_own_peer(peer) {
            slot.join_unproven(&mut slot.state.lock());
        }
        Arc::new(slot)
    }

    /// Closes the oldest unproven connection of the source that has the most connections; `false` if there is none.
    pub(super) fn shed_connection(&self) -> bool {
        self.unproven.shed_one()
    }
}

impl ConnectionSlot {
    fn join_unproven(&self, standing: &mut SlotState) {
        let unproven = &self.slots.unproven;
        let share = unproven.new_share(self.source, self.age, self.shed.clone());
        share.add_units(1);
        *standing = SlotState::Unproven { _share: share };
    }

    /// The network from which the connection comes.
    pub(super) fn source(&self) -> SourceNetwork {
        self.source
    }

    /// Completes when another connection has taken the slot.
    pub(super) fn wait_until_shed(&self) -> WaitForCancellationFuture<'_> {
        self.shed.cancelled()
    }

    /// The number of unproven connections of the listener.
    pub(super) fn unproven_count(&self) -> usize {
        usize::try_from(self.slots.open.unproven.get()).unwrap_or(0)
    }

    pub(super) fn is_proven(&self) -> bool {
        matches!(*self.state.lock(), SlotState::Proven { .. })
    }

    /// Makes the connection proven; `false` if no slot for a proven connection is free, and the connection must end.
    pub(super) fn mark_proven(&self) -> bool {
        let mut standing = self.state.lock();
        match *standing {
            SlotState::Proven { .. } | SlotState::Own => return true,
            SlotState::Unproven { .. } | SlotState::Deciding(_) => {}
        }
        let Ok(permit) = Arc::clone(&self.slots.proven).try_acquire_owned() else {
            return false;
        };
        *standing = SlotState::Proven { _permit: permit };
        self.slots.open.unproven.dec();
        self.slots.open.proven.inc();
        true
    }

    /// Keeps the slot while a review of the connection is being decided.
    pub(super) fn begin_review(self: &Arc<Self>) -> Deciding {
        let mut standing = self.state.lock();
        match &mut *standing {
            waiting @ SlotState::Unproven { .. } => *waiting = SlotState::Deciding(1),
            SlotState::Deciding(reviews) => *reviews += 1,
            SlotState::Proven { .. } | SlotState::Own => {}
        }
        Deciding(Arc::clone(self))
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        match self.state.get_mut() {
            SlotState::Proven { .. } => self.slots.open.proven.dec(),
            _ => self.slots.open.unproven.dec(),
        };
    }
}

/// An extension of an answer that closes its connection, because no slot for another proven connection is free.
#[derive(Clone, Copy)]
pub(super) struct SlotsExhausted;

/// A guard that marks a review as being decided until dropped.
pub(super) struct Deciding(Arc<ConnectionSlot>);

impl Drop for Deciding {
    fn drop(&mut self) {
        let mut standing = self.0.state.lock();
        match &mut *standing {
            SlotState::Deciding(1) => self.0.join_unproven(&mut standing),
            SlotState::Deciding(reviews) => *reviews -= 1,
            SlotState::Unproven { .. } | SlotState::Proven { .. } | SlotState::Own => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::telemetry::metrics::Exposition;

    fn slots(connections: usize, unproven: usize) -> Arc<ConnectionSlots> {
        let limits = Limits {
            connections,
            unproven,
            unproven_per_address: unproven,
            ..Limits::default()
        };
        let metrics = LoadMetrics::register(&Exposition::default());
        ConnectionSlots::new("webhook", &limits, &metrics, OwnConnections::default())
    }

    fn from(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    fn open(slots: &ConnectionSlots) -> (i64, i64) {
        (slots.open.unproven.get(), slots.open.proven.get())
    }

    #[test]
    fn newcomer_takes_place_of_oldest_unproven_connection() {
        let slots = slots(1, 2);
        let [first, second, third] = [1, 2, 3].map(|port| slots.acquire_slot(from(port)));
        assert!(first.shed.is_cancelled());
        assert!(!second.shed.is_cancelled() && !third.shed.is_cancelled());
        assert!(second.mark_proven() && second.mark_proven());
        assert_eq!(open(&slots), (2, 1));
        let _fourth = slots.acquire_slot(from(4));
        let _fifth = slots.acquire_slot(from(5));
        assert!(!second.shed.is_cancelled(), "is proven");
        assert!(third.shed.is_cancelled());
        assert!(!third.mark_proven(), "there is one place only");
        drop(second);
        assert_eq!(open(&slots), (4, 0));
    }

    #[test]
    fn connection_whose_review_is_being_decided_keeps_its_place() {
        let slots = slots(1, 1);
        let first = slots.acquire_slot(from(1));
        let [a, b] = [first.begin_review(), first.begin_review()];
        let second = slots.acquire_slot(from(2));
        drop(a);
        assert!(!first.shed.is_cancelled() && !second.shed.is_cancelled());
        drop(b);
        assert!(first.shed.is_cancelled(), "waits again, and is the oldest");
        assert!(!second.shed.is_cancelled());
    }

    #[test]
    fn own_connection_takes_no_place() {
        let slots = slots(1, 1);
        let _own = slots.own.register_own(from(9));
        let own = slots.acquire_slot(from(9));
        let other = slots.acquire_slot(from(1));
        assert!(!own.shed.is_cancelled() && !other.shed.is_cancelled());
    }
}
