//! Who may hold a connection open, and for how long.
//!
//! A connection is *proven* once a review that came over it has got a verdict, or once its client has shown the
//! certificate of an API server. Until then it waits on probation: it gets seconds, and one of a few places that it
//! loses to newcomers. Proven connections have places of their own. While a review is being decided, its connection is
//! bounded by the reviews that may be decided at once, and cannot lose its place.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use super::Limits;
use super::dial::Own;
use super::shares::{Lost, Share, Shares};
use super::source::Source;
use crate::telemetry::metrics::LoadMetrics;

/// The places of a listener.
pub(super) struct Places {
    own: Own,
    unproven: Arc<Shares>,
    proven: Arc<Semaphore>,
    ages: AtomicU64,
    open: Open,
}

/// Gauges of the connections by what they have shown.
struct Open {
    proven: Gauge,
    unproven: Gauge,
}

/// The place of one connection, given back when dropped.
pub(super) struct Place {
    places: Arc<Places>,
    source: Source,
    age: u64,
    shed: CancellationToken,
    standing: Mutex<Standing>,
}

enum Standing {
    /// Has got no verdict yet, and none is on the way.
    Waiting { _share: Share },
    /// Has got no verdict yet, and this many are on the way.
    Deciding(usize),
    /// Keeps its place.
    Proven { _permit: OwnedSemaphorePermit },
    /// The connection by which this process checks itself; it is given no review.
    Own,
}

impl Places {
    pub(super) fn new(
        listener: &'static str,
        limits: &Limits,
        metrics: &LoadMetrics,
        own: Own,
    ) -> Arc<Places> {
        Arc::new(Places {
            own,
            unproven: Shares::new(
                limits.unproven,
                limits.unproven_per_address,
                Lost {
                    crowded: metrics.shed(listener, "crowded"),
                    source: metrics.shed(listener, "address"),
                },
            ),
            proven: Arc::new(Semaphore::new(limits.connections)),
            ages: AtomicU64::new(0),
            open: Open {
                proven: metrics.standing(listener, "proven"),
                unproven: metrics.standing(listener, "unproven"),
            },
        })
    }

    /// A place for a new connection from `peer`, at the cost of another one if need be.
    pub(super) fn enter(self: &Arc<Self>, peer: SocketAddr) -> Arc<Place> {
        let place = Place {
            places: Arc::clone(self),
            source: Source::of(peer.ip()),
            age: self.ages.fetch_add(1, Ordering::Relaxed),
            shed: CancellationToken::new(),
            standing: Mutex::new(Standing::Own),
        };
        self.open.unproven.inc();
        if !self.own.is(peer) {
            place.wait(&mut place.standing.lock());
        }
        Arc::new(place)
    }

    /// Ends the oldest unproven connection of the source that has the most; `false` if there is none.
    pub(super) fn shed(&self) -> bool {
        self.unproven.shed()
    }
}

impl Place {
    fn wait(&self, standing: &mut Standing) {
        let unproven = &self.places.unproven;
        let share = unproven.share(self.source, self.age, self.shed.clone());
        share.grow(1);
        *standing = Standing::Waiting { _share: share };
    }

    /// Where the connection comes from.
    pub(super) fn source(&self) -> Source {
        self.source
    }

    /// Ends when the place has been given to another connection.
    pub(super) fn shed(&self) -> WaitForCancellationFuture<'_> {
        self.shed.cancelled()
    }

    /// How many unproven connections the listener has.
    pub(super) fn unproven(&self) -> usize {
        usize::try_from(self.places.open.unproven.get()).unwrap_or(0)
    }

    pub(super) fn is_proven(&self) -> bool {
        matches!(*self.standing.lock(), Standing::Proven { .. })
    }

    /// Makes the connection proven; `false` if no place is left for it, so that it has to end.
    pub(super) fn prove(&self) -> bool {
        let mut standing = self.standing.lock();
        match *standing {
            Standing::Proven { .. } | Standing::Own => return true,
            Standing::Waiting { .. } | Standing::Deciding(_) => {}
        }
        let Ok(permit) = Arc::clone(&self.places.proven).try_acquire_owned() else {
            return false;
        };
        *standing = Standing::Proven { _permit: permit };
        self.places.open.unproven.dec();
        self.places.open.proven.inc();
        true
    }

    /// Keeps the place while a review of the connection is being decided.
    pub(super) fn decide(self: &Arc<Self>) -> Deciding {
        let mut standing = self.standing.lock();
        match &mut *standing {
            waiting @ Standing::Waiting { .. } => *waiting = Standing::Deciding(1),
            Standing::Deciding(reviews) => *reviews += 1,
            Standing::Proven { .. } | Standing::Own => {}
        }
        Deciding(Arc::clone(self))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        match self.standing.get_mut() {
            Standing::Proven { .. } => self.places.open.proven.dec(),
            _ => self.places.open.unproven.dec(),
        };
    }
}

/// Put into the extensions of an answer that ends its connection, because no place for another proven one is left.
#[derive(Clone, Copy)]
pub(super) struct Full;

/// A review is being decided until dropped.
pub(super) struct Deciding(Arc<Place>);

impl Drop for Deciding {
    fn drop(&mut self) {
        let mut standing = self.0.standing.lock();
        match &mut *standing {
            Standing::Deciding(1) => self.0.wait(&mut standing),
            Standing::Deciding(reviews) => *reviews -= 1,
            Standing::Waiting { .. } | Standing::Proven { .. } | Standing::Own => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::telemetry::metrics::Exposition;

    fn places(connections: usize, unproven: usize) -> Arc<Places> {
        let limits = Limits {
            connections,
            unproven,
            unproven_per_address: unproven,
            ..Limits::default()
        };
        let metrics = LoadMetrics::register(&Exposition::default());
        Places::new("webhook", &limits, &metrics, Own::default())
    }

    fn from(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    fn open(places: &Places) -> (i64, i64) {
        (places.open.unproven.get(), places.open.proven.get())
    }

    #[test]
    fn a_newcomer_takes_the_place_of_the_oldest_unproven_connection() {
        let places = places(1, 2);
        let [first, second, third] = [1, 2, 3].map(|port| places.enter(from(port)));
        assert!(first.shed.is_cancelled());
        assert!(!second.shed.is_cancelled() && !third.shed.is_cancelled());
        assert!(second.prove() && second.prove());
        assert_eq!(open(&places), (2, 1));
        let _fourth = places.enter(from(4));
        let _fifth = places.enter(from(5));
        assert!(!second.shed.is_cancelled(), "is proven");
        assert!(third.shed.is_cancelled());
        assert!(!third.prove(), "there is one place only");
        drop(second);
        assert_eq!(open(&places), (4, 0));
    }

    #[test]
    fn a_connection_whose_review_is_being_decided_keeps_its_place() {
        let places = places(1, 1);
        let first = places.enter(from(1));
        let [a, b] = [first.decide(), first.decide()];
        let second = places.enter(from(2));
        drop(a);
        assert!(!first.shed.is_cancelled() && !second.shed.is_cancelled());
        drop(b);
        assert!(first.shed.is_cancelled(), "waits again, and is the oldest");
        assert!(!second.shed.is_cancelled());
    }

    #[test]
    fn own_connection_takes_no_place() {
        let places = places(1, 1);
        let _own = places.own.admit(from(9));
        let own = places.enter(from(9));
        let other = places.enter(from(1));
        assert!(!own.shed.is_cancelled() && !other.shed.is_cancelled());
    }
}
