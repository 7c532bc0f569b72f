//! The cloud controller of a cluster, as far as it registers addresses.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::sleep;

use super::state::{Backend, State};

/// Registers and removes addresses, each after a delay.
#[derive(Clone)]
pub struct CloudController {
    state: Arc<Mutex<State>>,
}

impl CloudController {
    pub(super) fn new(state: Arc<Mutex<State>>) -> CloudController {
        CloudController { state }
    }

    /// Sets the addresses of a group to this list now.
    pub fn set(&self, group: &str, addresses: &[String], port: u16) {
        let mut state = self.state.lock();
        let is_default = state.load_balancers.contains_key(group);
        state.change(group, |list| {
            list.retain(|server| addresses.contains(&server.ip));
            for address in addresses {
                if list.iter().any(|server| server.ip == *address) {
                    continue;
                }
                list.push(Backend {
                    server_id: format!("eni-{}", address.replace(['.', ':'], "-")),
                    ip: address.clone(),
                    kind: "eni".to_owned(),
                    port: if is_default { 0 } else { port },
                    weight: 100,
                    description: "k8s/web/controller".to_owned(),
                });
            }
        });
    }

    /// Follows a list of addresses until the future is dropped: the group has them `delay` later.
    pub async fn follow(
        self,
        group: String,
        port: u16,
        delay: Duration,
        addresses: impl Fn() -> Vec<String>,
    ) {
        let mut last = None;
        loop {
            let now = addresses();
            if last.as_ref() != Some(&now) {
                sleep(delay).await;
                self.set(&group, &now, port);
                last = Some(now);
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}
