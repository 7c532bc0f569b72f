//! Figures of the system about the server's process.

use std::time::Duration;

use anyhow::{Context, Result};

/// Resident memory in KiB (`VmRSS`).
pub fn resident_kib(pid: u32) -> Result<u64> {
    memory(pid, "VmRSS:")
}

/// Maximum resident memory so far, in KiB (`VmHWM`).
pub fn peak_kib(pid: u32) -> Result<u64> {
    memory(pid, "VmHWM:")
}

fn memory(pid: u32, name: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    parse_memory(&text, name).with_context(|| format!("no {name} in {path}"))
}

fn parse_memory(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Processor time so far, user and system; ticks of 10 ms.
pub fn cpu(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let ticks = parse_ticks(&text).with_context(|| format!("no times in {path}"))?;
    Ok(Duration::from_millis(10 * ticks))
}

fn parse_ticks(stat: &str) -> Option<u64> {
    // The name in parentheses may hold blanks; utime and stime are fields 14 and 15.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_time_are_read_by_name_and_by_place() {
        assert_eq!(
            parse_memory("VmSize: 9 kB\nVmRSS:\t  123 kB\n", "VmRSS:"),
            Some(123)
        );
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 1 0 0 0 20 3 0 0 20 0 1 0 5";
        assert_eq!(parse_ticks(stat), Some(23));
    }
}
