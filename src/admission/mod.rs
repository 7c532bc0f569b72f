//! Decisions on requests: review in, verdict out. One module per kind; patches work on the raw JSON.

pub mod review;
pub mod routes;
