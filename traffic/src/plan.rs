//! The next step of an employer, without I/O.
