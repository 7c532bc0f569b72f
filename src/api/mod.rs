//! Kinds of `apps.kusionstack.io/v1alpha1` and the names that live on other objects.

pub mod keys;
