//! Result of applying a topology.

use super::connection::AmqpError;

/// An object that the broker refused to declare.
#[derive(Debug)]
pub struct RefusedObject {
    /// Description of the object.
    pub name: String,
    /// The broker's error.
    pub error: AmqpError,
    /// The broker's state in its place.
    pub existing: ExistingObject,
}

/// The broker's state in place of an object that it refuses to declare.
#[derive(Debug, PartialEq, Eq)]
pub enum ExistingObject {
    /// An object of this name exists: its arguments differ, or the broker refuses the declared ones for it.
    Same,
    /// No object of this name exists: the broker refuses the arguments.
    Nothing,
    /// These objects, which the binding needs, are missing.
    Missing(Vec<String>),
}

/// Objects that [`Topology::apply`](super::topology::Topology::apply) declared, and objects that the broker refused.
#[derive(Debug, Default)]
pub struct AppliedTopology {
    /// Objects that were declared, or existed already.
    pub done: Vec<String>,
    /// Objects that the broker refused; existing ones are left unchanged.
    pub refused: Vec<RefusedObject>,
    /// Whether the work queue was missing, although its related objects existed, and the configuration has no bindings for it.
    pub is_unbound: bool,
}
