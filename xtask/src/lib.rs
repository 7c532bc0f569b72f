//! Developer commands as a library, so that the tests start planes by themselves.
