//! What became of a topology that was applied.

use super::connection::AmqpError;

/// What the broker refused to declare.
#[derive(Debug)]
pub struct Refused {
    /// What was to be declared, for people.
    pub name: String,
    /// What the broker said.
    pub error: AmqpError,
    /// What was found there then.
    pub found: Beside,
}

/// Names the object that the broker holds in place of one that it refuses to declare.
#[derive(Debug, PartialEq, Eq)]
pub enum Beside {
    /// One of this name: it has other arguments, or the broker takes none of these for it.
    Same,
    /// Nothing of this name: the broker does not take the arguments.
    Nothing,
    /// Of a binding: these are not there.
    Missing(Vec<String>),
}

/// Lists what [`Topology::apply`](super::topology::Topology::apply) declared and what the broker refused.
#[derive(Debug, Default)]
pub struct Applied {
    /// Declared, or there already.
    pub done: Vec<String>,
    /// Lists the objects that the broker refused; those that it holds stay as they are.
    pub refused: Vec<Refused>,
    /// The work queue was not there, though what belongs around it was, and the configuration names no bindings for it.
    pub is_unbound: bool,
}
