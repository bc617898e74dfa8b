//! Git's state: what real git commands change of it is recorded, undone and redone.
//!
//! - `scenario.rs`: one accident, and what Git says of it.
//! - `accidents.rs`: the accidents, in a plain repository.
//! - `shapes.rs`: some of them in repositories of other shapes.
//! - `cost.rs`: what a recording costs, and what is no change.
//! - `verbs.rs`: the other verbs.

mod accidents;
mod cost;
mod scenario;
mod shapes;
mod verbs;
