//! Tests of the diagnosis of workloads.
