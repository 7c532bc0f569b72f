//! What a failed call to the API server says, for texts and for the log.

use kube::Error;

/// The message of a failed call. For an answer of the API server this is the `message` of its `Status` alone: kube's own
/// text for it repeats the message and adds a debug dump of the `Status`.
pub fn text(error: &Error) -> String {
    match error {
        Error::Api(status) if status.message.is_empty() => {
            format!("the API server answered {}", status.code)
        }
        Error::Api(status) => status.message.clone(),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn refusal_of_the_api_server_is_told_once() {
        let said = |message: &str| {
            let status = Status::failure(message, "Invalid").with_code(422);
            text(&Error::Api(Box::new(status)))
        };
        assert_eq!(
            said("status.ledger is too long"),
            "status.ledger is too long"
        );
        assert_eq!(said(""), "the API server answered 422");
    }
}
