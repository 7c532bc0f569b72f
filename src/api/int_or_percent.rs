//! A count of Pods, or a share of them.
