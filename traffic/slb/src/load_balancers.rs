//! Reads of load balancers: their listeners, and the health of servers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use traffic::AdapterError;

use crate::client::Client;
use crate::reads::Reads;
use crate::service::LOAD_BALANCER;
use crate::wire::{Health, Listener};

/// Time between two reads of the same thing. Services with the same load balancer share a read.
pub(crate) const SPACING: Duration = Duration::from_millis(500);
/// Age at which listeners are read again. They are configuration, which changes rarely.
const LISTENERS: Duration = Duration::from_secs(10);

/// Reads of load balancers, which Services share.
pub(crate) struct LoadBalancers {
    client: Arc<Client>,
    health: Reads<(String, BTreeSet<u16>), Vec<Health>>,
    listeners: Reads<String, Option<Vec<Listener>>>,
}

impl LoadBalancers {
    pub(crate) fn new(client: Arc<Client>) -> LoadBalancers {
        LoadBalancers {
            client,
            health: Reads::new(SPACING),
            listeners: Reads::new(SPACING),
        }
    }

    /// The listeners of a load balancer; `None` if there is no such load balancer.
    pub(crate) async fn listeners(
        &self,
        id: &str,
    ) -> Result<Arc<Option<Vec<Listener>>>, AdapterError> {
        let read = || async {
            match self.client.listeners(id).await {
                Ok(listeners) => Ok(Some(listeners)),
                Err(failure) if failure.says_no_load_balancer() => Ok(None),
                Err(failure) => Err(failure.into_error()),
            }
        };
        self.listeners.read(&id.to_owned(), LISTENERS, read).await
    }

    /// The health of all servers. If there are too many rows for one answer, of those on these listeners.
    pub(crate) async fn health(
        &self,
        id: &str,
        listeners: &[&Listener],
    ) -> Result<Arc<Vec<Health>>, AdapterError> {
        let all = (id.to_owned(), BTreeSet::new());
        let too_many = "TooManyListeners";
        let read = || async {
            let health = self.client.health(id, None).await;
            health.map_err(|failure| match failure.code() {
                code if code == too_many => AdapterError::Permanent(too_many.to_owned()),
                _ => failure.into_error(),
            })
        };
        let result = self.health.read(&all, Duration::ZERO, read).await;
        match result {
            Err(AdapterError::Permanent(text)) if text == too_many => {}
            result => return result,
        }
        let ports: BTreeSet<u16> = listeners.iter().map(|l| l.listener_port).collect();
        let some = (id.to_owned(), ports.clone());
        let read = || async {
            let mut rows = Vec::new();
            for port in ports {
                let health = self.client.health(id, Some(port)).await;
                rows.extend(health.map_err(|failure| failure.into_error())?);
            }
            Ok(rows)
        };
        self.health.read(&some, Duration::ZERO, read).await
    }
}

/// The error for a load balancer that does not exist.
pub(crate) fn no_load_balancer(id: &str) -> AdapterError {
    AdapterError::Permanent(format!(
        "there is no load balancer {id} in the region; correct the label {LOAD_BALANCER} of the \
         Service, or `region` in the configuration of the adapter"
    ))
}
