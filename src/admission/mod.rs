//! Review in, verdict out: one module for each kind.

pub mod routes;
