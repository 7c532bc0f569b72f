//! The calls of the API.

use std::net::IpAddr;

use serde::de::DeserializeOwned;
use traffic::AdapterError;

use crate::credentials::Store;
use crate::endpoint::Endpoint;
use crate::failure::Failure;
use crate::http::{Http, Post};
use crate::oidc::date;
use crate::pace::Pace;
use crate::secret::Credentials;
use crate::settings::{Environment, Settings, is_id};
use crate::signature::{Unsigned, sign};
use crate::wire::{
    GroupsBody, Health, HealthBody, Interface, InterfacesBody, Listener, ListenersBody, Server,
    ServerParameter, ServersBody,
};

/// Most pages of an answer that are read.
const PAGES: usize = 50;

/// A group of servers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Group {
    /// The default group of this load balancer. Its servers have no ports.
    Default(String),
    /// The VServer group with this ID.
    Virtual(String),
}

impl Group {
    /// The ID of the group; for a default group that of the load balancer.
    pub(crate) fn id(&self) -> &str {
        match self {
            Group::Default(id) | Group::Virtual(id) => id,
        }
    }

    fn parameter(&self) -> (String, String) {
        match self {
            Group::Default(id) => pair("LoadBalancerId", id),
            Group::Virtual(id) => pair("VServerGroupId", id),
        }
    }
}

/// What to do with servers of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    Add,
    Set,
    Remove,
}

impl Write {
    fn action(self, group: &Group) -> &'static str {
        match (self, group) {
            (Write::Add, Group::Default(_)) => "AddBackendServers",
            (Write::Add, Group::Virtual(_)) => "AddVServerGroupBackendServers",
            (Write::Set, Group::Default(_)) => "SetBackendServers",
            // Servers that the call does not list stay as they are.
            (Write::Set, Group::Virtual(_)) => "SetVServerGroupAttribute",
            (Write::Remove, Group::Default(_)) => "RemoveBackendServers",
            (Write::Remove, Group::Virtual(_)) => "RemoveVServerGroupBackendServers",
        }
    }
}

/// Calls the APIs of SLB and ECS.
pub(crate) struct Client {
    http: Http,
    credentials: Store,
    slb: Endpoint,
    ecs: Endpoint,
    region: String,
    vpc_id: Option<String>,
    pace: Pace,
}

#[derive(Clone, Copy)]
enum Product {
    Slb,
    Ecs,
}

impl Client {
    pub(crate) fn new(settings: &Settings, env: Environment<'_>) -> Result<Client, AdapterError> {
        let http = Http::new(settings.call_timeout(), settings.ca_file.as_deref())?;
        Ok(Client {
            credentials: Store::new(settings.source(&http, env)?),
            slb: settings.slb_endpoint(env)?,
            ecs: settings.ecs_endpoint()?,
            region: settings.region.clone(),
            vpc_id: settings.vpc_id.clone(),
            pace: Pace::new(settings.calls_per_second),
            http,
        })
    }

    /// The health of all servers on all listeners, or on one listener.
    pub(crate) async fn health(
        &self,
        load_balancer: &str,
        listener: Option<u16>,
    ) -> Result<Vec<Health>, Failure> {
        let mut parameters = vec![pair("LoadBalancerId", load_balancer)];
        if let Some(port) = listener {
            parameters.push(pair("ListenerPort", &port.to_string()));
        }
        let body: HealthBody = self
            .call(Product::Slb, "DescribeHealthStatus", parameters)
            .await?;
        Ok(body.backend_servers.items)
    }

    /// The listeners of a load balancer.
    pub(crate) async fn listeners(&self, load_balancer: &str) -> Result<Vec<Listener>, Failure> {
        const ACTION: &str = "DescribeLoadBalancerListeners";
        let mut listeners = Vec::new();
        let mut token = None;
        for _ in 0..PAGES {
            let mut parameters = vec![
                pair("LoadBalancerId.1", load_balancer),
                pair("MaxResults", "100"),
            ];
            parameters.extend(token.map(|token: String| ("NextToken".to_owned(), token)));
            let body: ListenersBody = self.call(Product::Slb, ACTION, parameters).await?;
            listeners.extend(body.listeners);
            token = body.next_token.filter(|token| !token.is_empty());
            if token.is_none() {
                return Ok(listeners);
            }
        }
        Err(endless(ACTION))
    }

    /// The IDs of the VServer groups of a load balancer.
    pub(crate) async fn groups(&self, load_balancer: &str) -> Result<Vec<String>, Failure> {
        let parameters = vec![pair("LoadBalancerId", load_balancer)];
        let body: GroupsBody = self
            .call(Product::Slb, "DescribeVServerGroups", parameters)
            .await?;
        Ok(body
            .groups
            .items
            .into_iter()
            .map(|group| group.id)
            .filter(|id| is_id(id))
            .collect())
    }

    /// The servers of a group.
    pub(crate) async fn servers(&self, group: &Group) -> Result<Vec<Server>, Failure> {
        let action = match group {
            Group::Default(_) => "DescribeLoadBalancerAttribute",
            Group::Virtual(_) => "DescribeVServerGroupAttribute",
        };
        let parameters = vec![group.parameter()];
        let body: ServersBody = self.call(Product::Slb, action, parameters).await?;
        Ok(body.backend_servers.items)
    }

    /// Changes servers of a group. Returns the servers in the answer, which lack their addresses.
    pub(crate) async fn write(
        &self,
        write: Write,
        group: &Group,
        servers: &[ServerParameter],
    ) -> Result<Vec<Server>, Failure> {
        let action = write.action(group);
        let servers = serde_json::to_string(servers).map_err(|error| {
            let text = format!("{action}: can't write the parameters: {error}");
            Failure::NotSent(AdapterError::Permanent(text))
        })?;
        let parameters = vec![group.parameter(), ("BackendServers".to_owned(), servers)];
        let body: ServersBody = self.call(Product::Slb, action, parameters).await?;
        Ok(body.backend_servers.items)
    }

    /// The network interfaces in use that have some of these addresses.
    pub(crate) async fn interfaces(&self, addresses: &[IpAddr]) -> Result<Vec<Interface>, Failure> {
        const ACTION: &str = "DescribeNetworkInterfaces";
        let mut base = vec![pair("Status", "InUse"), pair("MaxResults", "100")];
        base.extend(self.vpc_id.iter().map(|id| pair("VpcId", id)));
        for (name, is_v6) in [("PrivateIpAddress", false), ("Ipv6Address", true)] {
            let of_kind = addresses
                .iter()
                .filter(|address| address.is_ipv6() == is_v6);
            for (index, address) in of_kind.enumerate() {
                let name = format!("{name}.{}", index + 1);
                base.push((name, address.to_string()));
            }
        }
        let mut interfaces = Vec::new();
        let mut token = None;
        for _ in 0..PAGES {
            let mut parameters = base.clone();
            parameters.extend(token.map(|token: String| ("NextToken".to_owned(), token)));
            let body: InterfacesBody = self.call(Product::Ecs, ACTION, parameters).await?;
            interfaces.extend(body.network_interface_sets.items);
            token = body.next_token.filter(|token| !token.is_empty());
            if token.is_none() {
                return Ok(interfaces);
            }
        }
        Err(endless(ACTION))
    }

    /// A signed call. If the credentials are refused, other credentials are fetched once. Such a call has had no
    /// effect, so it may be repeated.
    async fn call<T: DeserializeOwned>(
        &self,
        product: Product,
        action: &'static str,
        mut parameters: Vec<(String, String)>,
    ) -> Result<T, Failure> {
        parameters.push(pair("RegionId", &self.region));
        let credentials = self.credentials.get().await.map_err(Failure::NotSent)?;
        let mut result = self
            .attempt(product, action, &parameters, &credentials)
            .await;
        if let Err(failure) = &result
            && failure.is_about_credentials()
            && self.credentials.refused(&credentials).await
        {
            let credentials = self.credentials.get().await.map_err(Failure::NotSent)?;
            result = self
                .attempt(product, action, &parameters, &credentials)
                .await;
        }
        let body = result?;
        serde_json::from_slice(&body).map_err(|error| Failure::Lost {
            action,
            reason: format!(
                "the answer is not the expected JSON: {:?} at line {}",
                error.classify(),
                error.line()
            ),
        })
    }

    async fn attempt(
        &self,
        product: Product,
        action: &'static str,
        parameters: &[(String, String)],
        credentials: &Credentials,
    ) -> Result<Vec<u8>, Failure> {
        self.pace.turn().await.map_err(Failure::NotSent)?;
        let (endpoint, version) = match product {
            Product::Slb => (&self.slb, "2014-05-15"),
            Product::Ecs => (&self.ecs, "2014-05-26"),
        };
        let signed = sign(
            &Unsigned {
                host: endpoint.host(),
                action,
                version,
                date: &date(),
                nonce: &format!("{:032x}", rand::random::<u128>()),
                parameters,
            },
            credentials,
        );
        let post = Post {
            action,
            url: endpoint.url(&signed.query),
            headers: signed.headers,
            form: None,
            credentials: Some(credentials),
        };
        let result = self.http.send(post).await;
        match &result {
            Ok(_) => {
                self.pace.answered();
                self.credentials.accepted();
            }
            Err(failure) => {
                if let AdapterError::Throttled { text, wait } = failure.clone().into_error() {
                    return Err(Failure::NotSent(self.pace.throttled(text, wait)));
                }
            }
        }
        result
    }
}

fn endless(action: &'static str) -> Failure {
    Failure::Lost {
        action,
        reason: format!("there are more than {PAGES} pages"),
    }
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}
