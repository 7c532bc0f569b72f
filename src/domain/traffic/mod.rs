//! ResourceConsist: what the load balancers of Pods mean for their lifecycle. The crate `traffic` plans the members of
//! load balancers without knowing Kubernetes. This folder translates between both.
//!
//! | File | What it has |
//! |---|---|
//! | `names` | the key and the finalizer of an employer, by which a Pod is marked |
//! | `adapter_in_use` | which adapters may have registered members of an employer |
//! | `drain_seconds` | the drain time that an employer asks for |
//! | `pod_marks` | which marks a Pod has, and the patches that change them |
//! | `pod_input` | what the plan must know of a Pod |
//! | `report` | the status of an employer, for users |

pub mod adapter_in_use;
pub mod drain_seconds;
pub mod names;
pub mod pod_input;
pub mod pod_marks;
pub mod report;
