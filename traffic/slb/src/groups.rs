//! The groups of load balancers: their servers, and whose they are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use traffic::{AdapterError, Employer};

use crate::client::{Client, Group};
use crate::load_balancers::SPACING;
use crate::reads::Reads;
use crate::settings::Settings;
use crate::wire::Server;

/// Age at which the groups of a load balancer are read again because of a group that is not known. A tenant may name many
/// groups that do not exist.
const UNKNOWN: Duration = Duration::from_secs(10);

/// Reads of groups, which Services share.
pub(crate) struct Groups {
    client: Arc<Client>,
    /// Servers by group; `None` if there is no such group.
    servers: Reads<Group, Option<Vec<Server>>>,
    /// VServer groups by load balancer.
    lists: Reads<String, Vec<String>>,
    /// The load balancer of each VServer group that was listed. A group never moves to another load balancer.
    owners: Mutex<HashMap<String, String>>,
}

impl Groups {
    pub(crate) fn new(client: Arc<Client>) -> Groups {
        Groups {
            client,
            servers: Reads::new(SPACING),
            lists: Reads::new(SPACING),
            owners: Mutex::default(),
        }
    }

    /// The servers of a group, at most of this age; `None` if there is no such group.
    pub(crate) async fn servers(
        &self,
        group: &Group,
        age: Duration,
    ) -> Result<Arc<Option<Vec<Server>>>, AdapterError> {
        let read = || async {
            match self.client.servers(group).await {
                Ok(servers) => Ok(Some(servers)),
                Err(failure) if failure.says_no_group() => Ok(None),
                Err(failure) => Err(failure.into_error()),
            }
        };
        self.servers.read(group, age, read).await
    }

    /// A group may have been changed.
    pub(crate) fn changed(&self, group: &Group) {
        self.servers.outdate(group);
    }

    /// The VServer groups of a load balancer, at most of this age.
    pub(crate) async fn list(
        &self,
        load_balancer: &str,
        age: Duration,
    ) -> Result<Arc<Vec<String>>, AdapterError> {
        let read = || async {
            let groups = self.client.groups(load_balancer).await;
            groups.map_err(|failure| failure.into_error())
        };
        let key = load_balancer.to_owned();
        let list = self.lists.read(&key, age, read).await?;
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        for group in list.iter() {
            owners.insert(group.clone(), key.clone());
        }
        Ok(list)
    }

    fn known_owner(&self, group: &Group) -> Option<String> {
        match group {
            Group::Default(id) => Some(id.clone()),
            Group::Virtual(id) => {
                let owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
                owners.get(id).cloned()
            }
        }
    }

    /// The load balancer of a group, if the Service may change the group. A tenant may name any group in the annotation,
    /// so a load balancer that the configuration lists for the namespace must list the group.
    ///
    /// # Errors
    /// [`AdapterError::Permanent`] if the Service may not change it; others if the load balancers can't be read.
    pub(crate) async fn owner(
        &self,
        settings: &Settings,
        service: &Employer,
        group: &Group,
    ) -> Result<String, AdapterError> {
        let allowed = || settings.of_namespace(&service.namespace);
        if self.known_owner(group).is_none() {
            for load_balancer in allowed() {
                self.list(load_balancer, UNKNOWN).await?;
                if self.known_owner(group).is_some() {
                    break;
                }
            }
        }
        match self.known_owner(group) {
            Some(owner) if allowed().any(|allowed| allowed == owner) => Ok(owner),
            _ => Err(AdapterError::Permanent(format!(
                "the group {} belongs to no load balancer that the configuration lists for the \
                 namespace {}",
                group.id(),
                service.namespace
            ))),
        }
    }
}
