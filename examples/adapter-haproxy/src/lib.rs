//! A worked example of an adapter: HAProxy through its runtime API.
//!
//! Each Service has a backend `NAMESPACE_SERVICE` in HAProxy's configuration, without servers. The adapter adds a server
//! `ADDRESS:PORT` for each Pod, with the first port of the Service.

use std::io;
use std::net::SocketAddr;

use async_trait::async_trait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use traffic::{
    Adapter, AdapterError, Applied, Changes, Employer, Member, MemberKey, Observation, Pod, PodId,
    Presence, Registration, Settings, service_ports,
};

type Outcome = Result<(), AdapterError>;

const DRAINING: Presence = Presence::Draining { until: None };

/// An HAProxy. Its configuration has `stats socket ipv4@ADDRESS level admin`.
#[derive(Debug)]
pub struct HaProxy(pub SocketAddr);

fn backend(employer: &Employer) -> String {
    format!("{}_{}", employer.namespace, employer.name)
}

#[rustfmt::skip]
fn member(group: String, socket: SocketAddr, pod: PodId) -> Member {
    let key = MemberKey { group, address: socket.ip(), port: socket.port() };
    Member { key, pod, weight: 100 }
}

#[async_trait]
impl Adapter for HaProxy {
    fn settings(&self) -> Settings {
        Settings::default() // HAProxy drains a server that stays registered
    }

    fn members(&self, employer: &Employer, pod: &Pod) -> Result<Vec<Member>, AdapterError> {
        let ports = service_ports(employer)?;
        let address = pod.addresses.iter().find(|address| address.is_ipv4());
        let (Some(port), Some(address)) = (ports.first(), address) else {
            let text = "the Service needs a port, and the Pod an IPv4 address";
            return Err(AdapterError::Permanent(text.to_owned()));
        };
        let socket = SocketAddr::new(*address, port.on(pod)?);
        Ok(vec![member(backend(employer), socket, pod.id.clone())])
    }

    async fn observe(&self, employer: &Employer, _: &[Pod]) -> Result<Observation, AdapterError> {
        let failed = |text: String| AdapterError::Transient(format!("HAProxy: {text}"));
        let table = self.run("show stat").await;
        let table = table.map_err(|error| failed(error.to_string()))?;
        let (header, lines) = table.split_once('\n').unwrap_or_default();
        if !header.starts_with("# pxname,") {
            // Without this check, a wrong answer would mean that no server is registered.
            return Err(failed(format!("the answer begins with {header:?}")));
        }
        let group = backend(employer);
        let mut found = Observation::default();
        let servers = lines
            .lines()
            .filter_map(|line| registration(&group, header, line));
        found.registrations = servers.collect();
        Ok(found)
    }

    async fn apply(&self, _: &Employer, changes: &Changes) -> Applied {
        let mut applied = Applied::new();
        for (members, commands, presence) in [
            // A new server is in maintenance until it is ready.
            (&changes.register, &["add", "ready"][..], Presence::Serving),
            (&changes.drain, &["drain"], DRAINING),
            // HAProxy deletes a server only in maintenance, and only without connections.
            (&changes.deregister, &["maint", "del"], Presence::Absent),
        ] {
            for member in members {
                // If an answer is lost, the member is left out, and the next observation tells what has changed.
                if let Ok(result) = self.change(commands, &member.key).await {
                    applied.insert(member.key.clone(), result.map(|()| presence.clone()));
                }
            }
        }
        applied
    }
}

impl HaProxy {
    /// The outer error is a lost answer; the inner error is an answer that refuses a command.
    async fn change(&self, commands: &[&str], key: &MemberKey) -> io::Result<Outcome> {
        let socket = SocketAddr::new(key.address, key.port);
        let server = format!("{}/{socket}", key.group);
        for command in commands {
            let line = match *command {
                "add" => format!("add server {server} {socket} weight 100"),
                "del" => format!("del server {server}"),
                state => format!("set server {server} state {state}"),
            };
            let answer = self.run(&line).await?;
            let answer = answer.trim();
            let is_done = match *command {
                "add" => answer.starts_with("New server") || answer.starts_with("Already exists"),
                "maint" | "del" => ["", "Server deleted.", "No such server."].contains(&answer),
                _ => answer.is_empty(),
            };
            if !is_done {
                let text = format!("HAProxy answered {answer:?} to `{line}`");
                return Ok(Err(AdapterError::Transient(text)));
            }
        }
        Ok(Ok(()))
    }

    /// Runs a command. HAProxy closes the connection after the answer.
    async fn run(&self, command: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(self.0).await?;
        stream.write_all(format!("{command}\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }
}

/// Reads a line of `show stat`. `None` if it is no server of this adapter.
fn registration(group: &str, header: &str, line: &str) -> Option<Registration> {
    let at = |name| header.split(',').position(|column| column == name);
    let column = |name| line.split(',').nth(at(name)?);
    let socket: SocketAddr = column("svname")?.parse().ok()?;
    let presence = match column("status")?.split(' ').next()? {
        "UP" | "no" => Presence::Serving, // "no check"
        "DOWN" => Presence::Pending,
        "DRAIN" | "MAINT" => DRAINING,
        _ => Presence::Unknown,
    };
    // HAProxy does not keep to which Pod a server belongs.
    let member = member(group.to_owned(), socket, PodId::default());
    let connections = column("scur")?.parse().ok();
    #[rustfmt::skip]
    let found = Registration { member, presence, connections };
    (column("# pxname")? == group).then_some(found)
}
