//! What the double knows.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Call, Fault, People};

/// A backend server of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backend {
    /// ID of an instance or a network interface.
    pub server_id: String,
    /// Address.
    pub ip: String,
    /// `ecs` or `eni`.
    pub kind: String,
    /// Port; 0 in a default group.
    pub port: u16,
    /// 0 to 100.
    pub weight: u32,
    /// Free text.
    pub description: String,
}

/// A listener of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Port of the listener.
    pub port: u16,
    /// `tcp`, `udp`, `http` or `https`.
    pub protocol: String,
    /// Its VServer group; `None` means the default group.
    pub group: Option<String>,
    /// Port of the servers of the default group.
    pub backend_port: u16,
    /// Whether it checks the health of servers.
    pub health_check: bool,
    /// Whether it accepts connections.
    pub running: bool,
}

impl Listener {
    /// A running TCP listener with health checks.
    pub fn tcp(port: u16, group: Option<&str>) -> Listener {
        Listener {
            port,
            protocol: "tcp".to_owned(),
            group: group.map(str::to_owned),
            backend_port: 8080,
            health_check: true,
            running: true,
        }
    }

    /// The same listener without health checks.
    #[must_use]
    pub fn without_health_check(self) -> Listener {
        Listener {
            health_check: false,
            ..self
        }
    }
}

/// A load balancer.
#[derive(Clone, Debug, Default)]
pub struct LoadBalancer {
    /// ID of its network.
    pub vpc: String,
    /// Its listeners.
    pub listeners: Vec<Listener>,
    /// IDs of its VServer groups.
    pub groups: Vec<String>,
}

/// What the double does when a server is added that is in the group already. The documentation has said both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It refuses the call.
    Refused,
    /// It answers as if it had added the server, and leaves the server as it was.
    Ignored,
}

/// Everything that the double knows.
#[derive(Debug)]
pub struct State {
    /// Load balancers by ID.
    pub load_balancers: BTreeMap<String, LoadBalancer>,
    /// Groups by ID; the default group of a load balancer has the ID of the load balancer.
    pub groups: BTreeMap<String, Vec<Backend>>,
    /// Earlier contents of groups, which the next reads of the group return.
    pub(super) old: HashMap<String, (usize, Vec<Backend>)>,
    /// How many reads of a group return its contents from before a change. 0: reads are consistent.
    pub stale_reads: usize,
    /// Network interfaces: address, ID and network.
    pub interfaces: Vec<(String, String, String)>,
    /// After how many polls a new server is healthy.
    pub polls_until_healthy: usize,
    /// How often the health of a server was asked, by group, address and port.
    pub(super) polls: HashMap<(String, String, u16), usize>,
    /// A fixed health of a server, by address, for example `abnormal`.
    pub health: HashMap<String, String>,
    /// Most servers in a call.
    pub servers_per_call: usize,
    /// What happens when a server is added twice.
    pub existing: Existing,
    /// Most rows in an answer about the health of all listeners. More rows give `TooManyListeners`.
    pub health_rows: usize,
    /// Who may call.
    pub people: People,
    /// Current faults. The first one that applies has its effect.
    pub faults: Vec<Fault>,
    /// All calls.
    pub calls: Vec<Call>,
    /// Nonces that were used.
    pub(super) nonces: HashSet<String>,
}

impl State {
    pub(super) fn new() -> State {
        State {
            load_balancers: BTreeMap::new(),
            groups: BTreeMap::new(),
            old: HashMap::new(),
            stale_reads: 0,
            interfaces: Vec::new(),
            polls_until_healthy: 0,
            polls: HashMap::new(),
            health: HashMap::new(),
            servers_per_call: 20,
            existing: Existing::Refused,
            health_rows: usize::MAX,
            people: People::new(),
            faults: Vec::new(),
            calls: Vec::new(),
            nonces: HashSet::new(),
        }
    }

    /// Adds a load balancer with its empty default group.
    pub fn add_load_balancer(&mut self, id: &str) {
        let load_balancer = LoadBalancer {
            vpc: "vpc-1".to_owned(),
            ..LoadBalancer::default()
        };
        self.load_balancers.insert(id.to_owned(), load_balancer);
        self.groups.insert(id.to_owned(), Vec::new());
    }

    /// Adds an empty VServer group to a load balancer.
    pub fn add_group(&mut self, load_balancer: &str, group: &str) {
        let owner = self.load_balancers.get_mut(load_balancer).unwrap();
        owner.groups.push(group.to_owned());
        self.groups.insert(group.to_owned(), Vec::new());
    }

    /// Adds a listener to a load balancer.
    pub fn add_listener(&mut self, load_balancer: &str, listener: Listener) {
        let owner = self.load_balancers.get_mut(load_balancer).unwrap();
        owner.listeners.push(listener);
    }

    /// Adds a network interface in the network `vpc-1`.
    pub fn add_interface(&mut self, address: &str, id: &str) {
        let interface = (address.to_owned(), id.to_owned(), "vpc-1".to_owned());
        self.interfaces.push(interface);
    }

    /// The servers of a group.
    pub fn group(&self, id: &str) -> &Vec<Backend> {
        self.groups.get(id).unwrap()
    }

    /// Changes the servers of a group. Reads of the group may be stale after it.
    pub fn change(&mut self, id: &str, change: impl FnOnce(&mut Vec<Backend>)) {
        let servers = self.groups.get_mut(id).unwrap();
        let before = servers.clone();
        change(servers);
        if self.stale_reads > 0 && before != *servers {
            let old = (self.stale_reads, before);
            self.old.insert(id.to_owned(), old);
        }
    }

    /// The servers of a group as a read sees them now.
    pub(super) fn read(&mut self, id: &str) -> Vec<Backend> {
        if let Some((reads, before)) = self.old.get_mut(id) {
            let before = before.clone();
            *reads -= 1;
            if *reads == 0 {
                self.old.remove(id);
            }
            return before;
        }
        self.group(id).clone()
    }
}
