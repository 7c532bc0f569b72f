//! OperationJobs on a real API server, with the rights of the installed service account only.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admission;
