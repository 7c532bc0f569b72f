//! Free loopback ports.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Result, bail};
use ring::rand::{SecureRandom, SystemRandom};

/// Below the range from which systems take the ports of outgoing connections, so that a port
/// stays free while its server is stopped and started again.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// Finds `N` different free ports of 127.0.0.1. The caller must bind them soon, and try again if another
/// process was faster.
pub fn free<const N: usize>() -> Result<[u16; N]> {
    // All listeners stay open until all ports are found, so that the ports differ.
    let mut listeners = Vec::with_capacity(N);
    let random = SystemRandom::new();
    for _ in 0..10_000 {
        let mut bytes = [0; 2];
        if random.fill(&mut bytes).is_err() {
            bail!("the system has no randomness");
        }
        let port = RANGE.start + u16::from_be_bytes(bytes) % (RANGE.end - RANGE.start);
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            listeners.push((port, listener));
        }
        if listeners.len() == N {
            let mut ports = [0; N];
            for (slot, (port, _)) in ports.iter_mut().zip(&listeners) {
                *slot = *port;
            }
            return Ok(ports);
        }
    }
    bail!(
        "no free port on 127.0.0.1 between {} and {}",
        RANGE.start,
        RANGE.end
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ports_differ_and_can_be_bound() {
        let ports = free::<16>().unwrap();
        let listeners: Vec<_> = ports
            .iter()
            .map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).unwrap())
            .collect();
        assert_eq!(listeners.len(), 16);
    }
}
