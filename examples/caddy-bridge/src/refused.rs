//! Calls that are refused: the answer, and a line in the log.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use serde_json::json;
use tracing::warn;

use crate::store::Unchanged;

/// A call that is refused.
#[derive(Debug)]
pub(crate) struct Refused {
    status: StatusCode,
    /// For the owner of the Service.
    message: String,
    /// Whether nothing has changed, and the call should be repeated after a second.
    is_for_later: bool,
}

impl Refused {
    pub fn new(status: StatusCode, message: String) -> Refused {
        Refused {
            status,
            message,
            is_for_later: false,
        }
    }

    /// Writes the refusal into the log, and makes the answer. `call` and `id` name the call.
    pub fn answer(self, call: &str, id: &str) -> Response {
        let (status, message) = (self.status, self.message);
        let code = status.as_u16();
        // Names and messages may have been sent by anybody: the log has them with escapes.
        warn!(call, ?id, status = code, reason = ?message, "refused a call");
        let body = json!({ "message": message }).to_string();
        let mut answer = (status, [(CONTENT_TYPE, "application/json")], body).into_response();
        if self.is_for_later {
            answer.headers_mut().insert(RETRY_AFTER, 1.into());
        }
        answer
    }
}

impl From<Unchanged> for Refused {
    fn from(reason: Unchanged) -> Refused {
        match reason {
            Unchanged::Later(message) => Refused {
                is_for_later: true,
                ..Refused::new(StatusCode::SERVICE_UNAVAILABLE, message)
            },
            Unchanged::Refused(message) => Refused::new(StatusCode::UNPROCESSABLE_ENTITY, message),
            // No `Retry-After`: nobody knows when Caddy answers again.
            Unchanged::NoAnswer(message) => Refused::new(StatusCode::SERVICE_UNAVAILABLE, message),
        }
    }
}
