//! Review in, verdict out.

pub mod review;
