//! What is at rest when Operating takes over is not touched.

use crate::taken_over::taken_over;

#[tokio::test]
async fn explore() {
    let all = taken_over().await;
    for event in &all.writes {
        let o = event.object_ref.clone().unwrap_or_default();
        println!("W {} {} {} {} {}", event.verb, o.resource, o.subresource, o.name, event.request_uri);
    }
    for event in &all.writes_at_rest {
        let o = event.object_ref.clone().unwrap_or_default();
        println!("R {} {} {} {} {}", event.verb, o.resource, o.subresource, o.name, event.request_uri);
    }
    for (key, before) in &all.before {
        match all.after.get(key) {
            None => println!("GONE {key:?}"),
            Some(after) if after != before => println!("CHANGED {key:?}\n  {before}\n  {after}"),
            _ => (),
        }
    }
    for (key, after) in &all.after {
        if !all.before.contains_key(key) {
            println!("NEW {key:?} {after}");
        }
    }
}
