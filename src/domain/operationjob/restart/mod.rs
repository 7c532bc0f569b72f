//! Restarts of containers in place, by two methods. A ContainerRecreateRequest asks the daemon of OpenKruise to stop the
//! containers. An image reference that differs only in its text makes the kubelet restart them.
//!
//! | File | Purpose |
//! |---|---|
//! | `containers` | which containers of a Pod a target means |
//! | `before` | the containers before the restart, and how far the restart is |
//! | `former_images` | the annotation on a Pod that proves which images were changed |
//! | `image_reference` | another reference to the image of a container |
//! | `image_patches` | the patches that change the images, and that put them back |
//! | `recreate_request` | the ContainerRecreateRequest and its result |
//! | `settings` | which method is used |

pub mod before;
pub mod containers;
pub mod former_images;
pub mod image_patches;
pub mod image_reference;
pub mod recreate_request;
pub mod settings;
