//! Finds the network interface behind the address of a Pod.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use traffic::AdapterError;

use crate::client::Client;

/// Most addresses in a call.
const BATCH: usize = 50;
/// Number of addresses from which on all are forgotten.
const MANY: usize = 20_000;

/// Remembers the interface of an address as long as the address belongs to the same Pod: a Pod never moves to another
/// interface, and a later Pod with the address may be on another one.
#[derive(Default)]
pub(crate) struct Interfaces {
    known: Mutex<HashMap<IpAddr, (String, String)>>,
}

/// An interface by address, or why there is none.
pub(crate) type Found = HashMap<IpAddr, Result<String, AdapterError>>;

impl Interfaces {
    /// The IDs of the interfaces of these Pods: addresses and UIDs.
    pub(crate) async fn find(&self, client: &Client, pods: &[(IpAddr, &str)]) -> Found {
        let mut found = Found::new();
        let mut open = HashSet::new();
        {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            for (address, uid) in pods {
                match known.get(address) {
                    Some((owner, id)) if owner == uid => {
                        found.insert(*address, Ok(id.clone()));
                    }
                    _ => drop(open.insert(*address)),
                }
            }
        }
        let open: Vec<IpAddr> = open.into_iter().collect();
        for batch in open.chunks(BATCH) {
            found.extend(ask(client, batch).await);
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() > MANY {
            known.clear();
        }
        for (address, uid) in pods {
            if let Some(Ok(id)) = found.get(address) {
                known.insert(*address, ((*uid).to_owned(), id.clone()));
            }
        }
        found
    }
}

async fn ask(client: &Client, addresses: &[IpAddr]) -> Found {
    let interfaces = match client.interfaces(addresses).await {
        Ok(interfaces) => interfaces,
        Err(failure) => {
            let error = failure.into_error();
            return addresses.iter().map(|a| (*a, Err(error.clone()))).collect();
        }
    };
    let mut ids: HashMap<IpAddr, HashSet<&str>> = HashMap::new();
    for interface in &interfaces {
        for address in interface.addresses() {
            let ids = ids.entry(address).or_default();
            ids.insert(&interface.network_interface_id);
        }
    }
    let result = |address: &IpAddr| {
        let mut ids = ids.get(address).into_iter().flatten();
        match (ids.next(), ids.next()) {
            (Some(id), None) => Ok((*id).to_owned()),
            // A new address is not listed at once.
            (None, _) => Err(AdapterError::Transient(format!(
                "no network interface in use has the address {address}; the Pod needs an address of \
                 the VPC"
            ))),
            (Some(_), Some(_)) => Err(AdapterError::Permanent(format!(
                "several network interfaces have the address {address}; set `vpcId` in the \
                 configuration of the adapter"
            ))),
        }
    };
    addresses.iter().map(|a| (*a, result(a))).collect()
}
