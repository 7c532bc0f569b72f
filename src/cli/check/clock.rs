//! Compares the clock of this machine with the API server's, whose answers carry the time in the header `Date`.

use http::header::DATE;
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use kube::Client;
use kube::client::Body;

use super::finding::Finding;
use super::reads::{Read, call};

const CHECK: &str = "clock";
/// Differences of up to this many seconds are ignored: `Date` has whole seconds, and an answer takes some time.
pub const TOLERANCE_SECONDS: i64 = 5;

/// The time of the API server, from an answer that every user may ask for.
///
/// # Errors
/// Why the API server gives no usable answer.
pub async fn read_server_time(client: &Client) -> Result<Timestamp, String> {
    let request = http::Request::get("/version").body(Body::empty());
    let request = request.map_err(|error| error.to_string())?;
    match call(client.send(request)).await {
        Read::Found(answer) => {
            let date = answer
                .headers()
                .get(DATE)
                .and_then(|date| date.to_str().ok());
            let time = date.and_then(|date| rfc2822::parse(date).ok());
            let time = time.ok_or("the answer of the API server has no readable Date")?;
            Ok(time.timestamp())
        }
        Read::Missing => Err("the server has no /version: it is no API server".to_owned()),
        Read::Forbidden(text) | Read::Failed(text) => Err(text),
    }
}

/// Judges the time of this machine.
pub fn judge(server: Timestamp, local: Timestamp) -> Finding {
    let ahead = local.duration_since(server).as_secs();
    if ahead.abs() <= TOLERANCE_SECONDS {
        return Finding::ok(CHECK, "this machine and the API server agree on the time");
    }
    let side = if ahead > 0 { "ahead of" } else { "behind" };
    Finding::warning(
        CHECK,
        format!(
            "the clock of this machine is {} s {side} the API server's",
            ahead.abs()
        ),
        "Synchronise the clocks (NTP). The server itself uses the API server's clock",
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::cli::check::finding::State;

    #[test]
    fn difference_of_the_clocks_is_a_warning_with_its_direction() {
        let server: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        for (local, state, part) in [
            ("2026-01-01T12:00:04Z", State::Ok, "agree"),
            ("2026-01-01T12:01:00Z", State::Warning, "60 s ahead of"),
            ("2026-01-01T11:00:00Z", State::Warning, "3600 s behind"),
        ] {
            let finding = judge(server, local.parse().unwrap());
            assert_eq!(finding.state, state, "{local}");
            assert!(finding.message.contains(part), "{finding:?}");
        }
    }
}
