//! Writes logs by `tracing`: one line per event on standard error, as text or JSON.

use std::any::Any;
use std::fmt;
use std::panic::PanicHookInfo;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLineFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl FromStr for LogLineFormat {
    type Err = String;
    fn from_str(text: &str) -> Result<LogLineFormat, String> {
        match text {
            "text" => Ok(LogLineFormat::Text),
            "json" => Ok(LogLineFormat::Json),
            _ => Err(format!("log format {text:?}: must be text or json")),
        }
    }
}

impl fmt::Display for LogLineFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogLineFormat::Text => "text",
            LogLineFormat::Json => "json",
        })
    }
}

/// Sends the logs of this process to standard error, and reports panics as log lines.
///
/// `filter` has the syntax of `RUST_LOG`, for example `info,operating::server=debug`.
///
/// # Errors
/// If `filter` cannot be parsed, or if logging is already initialised. The error names the invalid part of the filter.
pub fn init_logging(format: LogLineFormat, filter: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        anyhow::anyhow!("log filter {filter:?}: {error}; write for example info,operating=debug")
    })?;
    tracing::subscriber::set_global_default(subscriber(format, filter, std::io::stderr))?;
    std::panic::set_hook(Box::new(report_panic));
    Ok(())
}

fn subscriber<W>(
    format: LogLineFormat,
    filter: EnvFilter,
    writer: W,
) -> Box<dyn tracing::Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer);
    match format {
        LogLineFormat::Text => Box::new(builder.with_ansi(false).finish()),
        LogLineFormat::Json => Box::new(
            builder
                .json()
                .flatten_event(true)
                .with_current_span(false)
                .finish(),
        ),
    }
}

/// The number of panics of all threads and tasks since [`init_logging`], including panics that were caught.
pub fn panic_count() -> u64 {
    PANIC_COUNT.load(Ordering::Relaxed)
}

static PANIC_COUNT: AtomicU64 = AtomicU64::new(0);

/// Counts a panic, and logs its location. The message is logged only if it is a literal of the source code, because a
/// formatted message may quote the object under review.
fn report_panic(info: &PanicHookInfo<'_>) {
    PANIC_COUNT.fetch_add(1, Ordering::Relaxed);
    let location = info.location().map(ToString::to_string).unwrap_or_default();
    tracing::error!(location, why = panic_literal(info.payload()), "panic");
}

fn panic_literal(payload: &(dyn Any + Send)) -> &'static str {
    payload
        .downcast_ref::<&'static str>()
        .copied()
        .unwrap_or("(message withheld)")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::io::Write;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);
    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogLineFormat) -> String {
        let sink = Sink::default();
        let writer = sink.clone();
        let subscriber = subscriber(format, EnvFilter::new("info"), move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(pod = ?"a\nb", "denied");
            tracing::debug!("too fine");
        });
        String::from_utf8(sink.0.lock().clone()).unwrap()
    }

    #[test]
    fn text_is_one_plain_line_per_event() {
        let text = logged(LogLineFormat::Text);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(
            text.contains("INFO") && text.contains(r#"denied pod="a\nb""#),
            "{text}"
        );
    }

    #[test]
    fn json_is_one_object_per_event() {
        let line: serde_json::Value = serde_json::from_str(&logged(LogLineFormat::Json)).unwrap();
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["message"], "denied");
    }

    #[test]
    fn only_literal_panic_messages_are_logged() {
        let payload = |panics: fn()| std::panic::catch_unwind(panics).unwrap_err();
        assert_eq!(
            panic_literal(&*payload(|| panic!("a literal"))),
            "a literal"
        );
        let quoting = payload(|| panic!("{}", std::hint::black_box("s3cret").to_owned()));
        assert_eq!(panic_literal(&*quoting), "(message withheld)");
    }

    #[test]
    fn formats_and_filters_are_checked() {
        assert_eq!("json".parse(), Ok(LogLineFormat::Json));
        assert_eq!("text".parse::<LogLineFormat>().unwrap().to_string(), "text");
        assert_eq!(
            "xml".parse::<LogLineFormat>().unwrap_err(),
            r#"log format "xml": must be text or json"#
        );
        let error = init_logging(LogLineFormat::Text, "operating=loud")
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(r#"log filter "operating=loud": "#),
            "{error}"
        );
    }
}
