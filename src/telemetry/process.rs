//! Metrics of the process under the names that all Prometheus clients use. They are read from `/proc` at each scrape.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::metrics::Exposition;

/// Registers the metrics of the process, and `operating_build_info`.
pub fn register_process_metrics(exposition: &Exposition) {
    exposition.register_common(|r| r.register_collector(Box::new(ProcessCollector)));
    exposition.register(|r| {
        let labels = vec![("version", env!("CARGO_PKG_VERSION"))];
        let info = prometheus_client::metrics::info::Info::new(labels);
        r.register("build", "The version of this program", info);
    });
}

#[derive(Debug)]
struct ProcessCollector;

/// The resource usage of the process, from `/proc`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ProcessUsage {
    cpu_seconds: f64,
    resident_bytes: f64,
    virtual_bytes: f64,
    /// Seconds since 1970.
    start: f64,
    open_files: f64,
    /// The limit of open files.
    max_files: f64,
    threads: f64,
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(usage) = ProcessUsage::from_proc() else {
            return Ok(()); // without /proc nothing is known
        };
        let cpu = encoder.encode_descriptor(
            "process_cpu_seconds",
            "CPU time of the process in seconds",
            None,
            MetricType::Counter,
        )?;
        ConstCounter::new(usage.cpu_seconds).encode(cpu)?;
        for (name, help, value) in [
            (
                "process_resident_memory_bytes",
                "Resident memory of the process in bytes",
                usage.resident_bytes,
            ),
            (
                "process_virtual_memory_bytes",
                "Virtual memory of the process in bytes",
                usage.virtual_bytes,
            ),
            (
                "process_start_time_seconds",
                "Start of the process, seconds since 1970",
                usage.start,
            ),
            (
                "process_open_fds",
                "Open file descriptors",
                usage.open_files,
            ),
            (
                "process_max_fds",
                "Most file descriptors that may be open",
                usage.max_files,
            ),
            ("process_threads", "Threads of the process", usage.threads),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)?;
        }
        Ok(())
    }
}

impl ProcessUsage {
    fn from_proc() -> Option<ProcessUsage> {
        let text = |path| std::fs::read_to_string(path).ok();
        let usage = ProcessUsage::parse_proc(
            &text("/proc/self/stat")?,
            &text("/proc/stat")?,
            &text("/proc/self/limits")?,
        )?;
        let open = std::fs::read_dir("/proc/self/fd").ok()?.count();
        Some(ProcessUsage {
            open_files: open as f64 - 1.0, // without the directory that is being read
            ..usage
        })
    }

    /// Parses `/proc/self/stat`, `/proc/stat` and `/proc/self/limits`. proc(5) numbers the fields of the first from 1.
    fn parse_proc(own: &str, system: &str, limits: &str) -> Option<ProcessUsage> {
        let (_, after_name) = own.rsplit_once(')')?; // the name may contain any character
        let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
        let field = |number: usize| -> Option<f64> { fields.get(number - 3)?.parse().ok() };
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let booted = system
            .lines()
            .find_map(|line| line.strip_prefix("btime "))?;
        let booted: f64 = booted.trim().parse().ok()?;
        let most = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max open files"))?;
        let most = most.split_ascii_whitespace().next()?;
        Some(ProcessUsage {
            cpu_seconds: (field(14)? + field(15)?) / ticks,
            threads: field(20)?,
            start: booted + field(22)? / ticks,
            virtual_bytes: field(23)?,
            resident_bytes: field(24)? * rustix::param::page_size() as f64,
            open_files: 0.0,
            max_files: most.parse().unwrap_or(f64::INFINITY),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn fields_are_read_behind_a_name_with_blanks_and_parentheses() {
        let own = "7 (a ) b) S 1 7 7 0 -1 4194304 1 0 0 0 150 50 0 0 20 0 9 0 1000 4096000 25 18446744073709551615";
        let system = "cpu  1 2 3\nbtime 1700000000\nprocesses 9\n";
        let limits = "Limit  Soft  Hard  Units\nMax open files            1024                 4096  files\n";
        let usage = ProcessUsage::parse_proc(own, system, limits).unwrap();
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(
            usage,
            ProcessUsage {
                cpu_seconds: 200.0 / ticks,
                resident_bytes: 25.0 * rustix::param::page_size() as f64,
                virtual_bytes: 4_096_000.0,
                start: 1_700_000_000.0 + 1000.0 / ticks,
                open_files: 0.0,
                max_files: 1024.0,
                threads: 9.0,
            }
        );
    }

    #[test]
    fn own_usage_is_plausible() {
        let usage = ProcessUsage::from_proc().unwrap();
        assert!(usage.resident_bytes > 1e5, "{usage:?}");
        assert!(usage.start > 1.6e9, "{usage:?}");
        assert!(usage.open_files >= 1.0 && usage.open_files <= usage.max_files);
    }
}
