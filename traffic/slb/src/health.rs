//! Judges whether a server gets requests.
//!
//! `DescribeHealthStatus` has a row for each server and listener. Its status `unavailable` means that health checks are
//! off, or that they are not done yet. The listener tells which one it is.

use std::net::IpAddr;

use traffic::{Presence, ServicePort};

use crate::client::Group;
use crate::wire::{Health, Listener};

/// Whether a listener has the protocol of a port of a Service. HTTP and HTTPS are spoken over TCP.
fn speaks(protocol: &str, port: &ServicePort) -> bool {
    (protocol == "udp") == (port.protocol == "UDP")
}

/// Whether a listener belongs to a Service with these ports: the cloud controller gives each port of a Service a
/// listener with the same number.
pub(crate) fn is_of_ports(listener: &Listener, ports: &[ServicePort]) -> bool {
    let is_of = |port: &ServicePort| {
        port.number == listener.listener_port && speaks(&listener.listener_protocol, port)
    };
    ports.iter().any(is_of)
}

/// Whether a row belongs to a Service with these ports. Values that are missing in the row fit.
pub(crate) fn row_is_of_ports(row: &Health, ports: &[ServicePort]) -> bool {
    let fits = |port: &ServicePort| {
        (row.listener_port == 0 || row.listener_port == port.number)
            && (row.protocol.is_empty() || speaks(&row.protocol, port))
    };
    ports.is_empty() || ports.iter().any(fits)
}

/// What the load balancer does with a server that somebody else registers, as its rows and listeners say. It serves if
/// each listener that runs sends it requests. It is absent if no listener has it.
pub(crate) fn observed(rows: &[&Health], listeners: &[&Listener]) -> Presence {
    if rows.is_empty() {
        return Presence::Absent;
    }
    let running: Vec<_> = listeners.iter().filter(|l| l.is_running()).collect();
    let serves = match running.is_empty() {
        // The Service has other ports than the load balancer. The rows are all that is known.
        true => rows.iter().all(|row| row.status == "normal"),
        false => running.iter().all(|listener| gets_requests(rows, listener)),
    };
    match serves {
        true => Presence::Serving,
        false => Presence::Pending,
    }
}

/// Whether a listener sends requests to the server of these rows.
fn gets_requests(rows: &[&Health], listener: &Listener) -> bool {
    let mut of_listener = rows.iter().filter(|row| {
        (row.listener_port == 0 || row.listener_port == listener.listener_port)
            && (row.protocol.is_empty() || row.protocol == listener.listener_protocol)
    });
    match listener.checks_health() {
        true => {
            // An address may be there with several ports; each must be healthy.
            let mut any = false;
            of_listener.all(|row| {
                any = true;
                row.status == "normal"
            }) && any
        }
        false => of_listener.next().is_some(),
    }
}

/// The running listeners that send requests to a group.
pub(crate) fn listeners_of<'a>(group: &Group, listeners: &'a [Listener]) -> Vec<&'a Listener> {
    let uses = |listener: &&Listener| match group {
        Group::Default(_) => listener.uses_default_group(),
        Group::Virtual(id) => listener.group.as_deref() == Some(id),
    };
    let running = listeners.iter().filter(|listener| listener.is_running());
    running.filter(uses).collect()
}

/// What the load balancer does with a server of a group that is registered with a weight above 0. Without listeners
/// nothing more will happen, so it counts as serving.
pub(crate) fn registered(
    address: IpAddr,
    port: u16,
    listeners: &[&Listener],
    health: &[Health],
) -> Presence {
    let is_of_server = |row: &&Health| {
        row.address == Some(address) && (port == 0 || row.port == 0 || row.port == port)
    };
    let rows: Vec<&Health> = health.iter().filter(is_of_server).collect();
    let serves =
        |listener: &&&Listener| !listener.checks_health() || gets_requests(&rows, listener);
    match listeners.iter().all(|listener| serves(&listener)) {
        true => Presence::Serving,
        false => Presence::Pending,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn listener(port: u16, check: &str) -> Listener {
        let value = json!({
            "ListenerPort": port, "ListenerProtocol": "tcp", "Status": "running",
            "VServerGroupId": "rsp-1", "TCPListenerConfig": { "HealthCheck": check },
        });
        serde_json::from_value(value).unwrap()
    }

    fn row(listener: u16, status: &str) -> Health {
        let value = json!({
            "ServerIp": "10.0.0.1", "Port": 8080, "ListenerPort": listener, "Protocol": "tcp",
            "ServerHealthStatus": status,
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn each_running_listener_must_serve() {
        let (a, b) = (listener(80, "on"), listener(443, "on"));
        let both = [&a, &b];
        let judge = |rows: &[Health]| observed(&rows.iter().collect::<Vec<_>>(), &both);
        assert_eq!(judge(&[]), Presence::Absent);
        assert_eq!(judge(&[row(80, "normal")]), Presence::Pending);
        for status in ["abnormal", "unavailable", ""] {
            let rows = [row(80, "normal"), row(443, status)];
            assert_eq!(judge(&rows), Presence::Pending, "{status}");
        }
        let rows = [row(80, "normal"), row(443, "normal")];
        assert_eq!(judge(&rows), Presence::Serving);
    }

    #[test]
    fn without_health_check_registered_is_serving() {
        let off = listener(80, "off");
        let row = row(80, "unavailable");
        assert_eq!(observed(&[&row], &[&off]), Presence::Serving);
        assert_eq!(observed(&[], &[&off]), Presence::Absent);
        let address = "10.0.0.1".parse().unwrap();
        let judged = registered(address, 8080, &[&off], &[]);
        assert_eq!(judged, Presence::Serving);
    }

    #[test]
    fn rows_alone_decide_without_listeners() {
        assert_eq!(observed(&[&row(80, "normal")], &[]), Presence::Serving);
        let mixed = [&row(80, "normal"), &row(81, "abnormal")];
        assert_eq!(observed(&mixed, &[]), Presence::Pending);
    }

    #[test]
    fn registered_server_waits_for_its_own_row() {
        let address = "10.0.0.1".parse().unwrap();
        let on = listener(80, "on");
        let judge = |port, rows: &[Health]| registered(address, port, &[&on], rows);
        assert_eq!(judge(8080, &[]), Presence::Pending);
        assert_eq!(judge(8080, &[row(80, "normal")]), Presence::Serving);
        assert_eq!(judge(8080, &[row(443, "normal")]), Presence::Pending);
        assert_eq!(judge(9090, &[row(80, "normal")]), Presence::Pending);
        assert_eq!(judge(0, &[row(80, "normal")]), Presence::Serving);
    }

    #[test]
    fn group_without_listener_serves() {
        let listeners = [listener(80, "on")];
        let other = Group::Virtual("rsp-2".to_owned());
        let of_other = listeners_of(&other, &listeners);
        assert!(of_other.is_empty());
        let address = "10.0.0.1".parse().unwrap();
        assert_eq!(registered(address, 8080, &of_other, &[]), Presence::Serving);
    }
}
