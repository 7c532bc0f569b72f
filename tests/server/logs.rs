//! Collects the logs of a test.

use std::cell::RefCell;
use std::io::Write;
use std::sync::Once;

thread_local! {
    static LOGS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Collects the logs of its thread.
struct Sink;

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOGS.with_borrow_mut(|logs| logs.extend_from_slice(bytes));
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Begins to collect the logs of this thread. The runtime of a test has one thread, its own, so these are the logs of
/// its server. The subscriber belongs to the process, because a subscriber of one thread misses the events that another
/// thread has reached first.
pub fn collect_logs() {
    static SUBSCRIBER: Once = Once::new();
    SUBSCRIBER.call_once(|| {
        tracing_subscriber::fmt()
            .with_env_filter("info,operating=trace")
            .with_ansi(false)
            .with_writer(|| Sink)
            .init();
    });
    LOGS.take();
}

/// The logs of this thread since [`collect_logs`].
pub fn take_logs() -> String {
    String::from_utf8(LOGS.take()).unwrap()
}
